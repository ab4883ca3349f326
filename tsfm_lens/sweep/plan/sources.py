"""The evaluation sets that a configuration names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from tsfm_lens.data.evaluation import EvaluationSet, Window
from tsfm_lens.errors import InputError
from tsfm_lens.sweep.plan.config import SweepConfig


def evaluation_sets(config: SweepConfig) -> list[EvaluationSet]:
    """Build all sets of a sweep, with its number of windows drawn from each.

    Raises:
        InputError: a source cannot be read, or two sets have one name.
        UnknownNameError: no such dataset.
    """
    sets = [dataset for source in config.data for dataset in source.sets()]
    names = [dataset.name for dataset in sets]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise InputError(f"dataset {duplicates[0]!r} is in the configuration more than once")
    return [dataset.sample(config.windows, config.seed) for dataset in sets]


def repeats(sets: Sequence[EvaluationSet]) -> dict[str, str]:
    """Describe, by name, the sets with windows that an earlier set has too.

    Intervals treat datasets and series as independent, so that repeated windows make them too narrow. Windows with a
    constant truth are not compared.
    """
    first: dict[bytes, str] = {}
    notes = {}
    for dataset in sets:
        steps = [key for window in dataset.windows if (key := _steps(window)) is not None]
        owners = [first[key] for key in steps if key in first]
        if owners:
            others = " and ".join(sorted(set(owners)))
            notes[dataset.name] = (
                f"{len(owners)} of {len(dataset)} windows are also in {others}, and intervals count them as "
                "independent: leave one of the datasets out."
            )
        for key in steps:
            first.setdefault(key, dataset.name)
    return notes


def _steps(window: Window) -> bytes | None:
    """Hash what identifies the steps of a window: its truth and the end of its context; None if all are alike."""
    label = np.asarray(window.label, dtype=np.float64)
    if len(np.unique(label[np.isfinite(label)])) < 2:
        return None
    end = np.asarray(window.context[:, -label.shape[1] :], dtype=np.float64)
    return hashlib.sha256(repr(label.shape).encode() + label.tobytes() + end.tobytes()).digest()
