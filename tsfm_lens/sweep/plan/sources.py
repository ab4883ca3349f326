"""The evaluation sets that a configuration names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from glob import iglob
from pathlib import Path

import numpy as np

from tsfm_lens.data.bundled import bundled_names
from tsfm_lens.data.dysts_sets import dysts_sets
from tsfm_lens.data.evaluation import EvaluationSet, Window
from tsfm_lens.data.evaluation_sources import gluonts_file, holdout_sets
from tsfm_lens.data.files import READABLE
from tsfm_lens.data.gift_eval import gift_eval, gift_eval_folder
from tsfm_lens.errors import InputError
from tsfm_lens.sweep.plan.config import SweepConfig
from tsfm_lens.sweep.plan.data_sources import Bundled, Dysts, File, Folder, GiftEval, Gluonts, Source


def evaluation_sets(config: SweepConfig) -> list[EvaluationSet]:
    """Build all sets of a sweep, with its number of windows drawn from each.

    Raises:
        InputError: a source cannot be read, or two sets have one name.
        UnknownNameError: no such dataset.
    """
    sets = [dataset for source in config.data for dataset in _load_sets(source)]
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


def _load_sets(source: Source) -> list[EvaluationSet]:
    if isinstance(source, GiftEval):
        return gift_eval(source.path, source.configs, missing=source.missing)
    if isinstance(source, Bundled):
        names = list(source.names or bundled_names())
        return holdout_sets(names, source.horizon, source.windows, source.stride)
    if isinstance(source, File):
        return [each for path, name in _files(source) for each in _of_file(source, path, name)]
    if isinstance(source, Folder):
        name = source.name or None
        return gift_eval_folder(
            source.path, source.term, name=name, horizon=source.horizon, freq=source.freq, domain=source.domain
        )
    if isinstance(source, Gluonts):
        return gluonts_file(
            source.path,
            source.horizon,
            source.windows,
            source.stride,
            source.name or None,
            freq=source.freq,
            seasonality=source.seasonality,
            domain=source.domain,
        )
    assert isinstance(source, Dysts)
    return dysts_sets(
        source.systems,
        source.horizon,
        source.windows,
        source.stride,
        points=source.points,
        periods=source.periods,
        instances=source.instances,
        seed=source.seed,
        integrator=source.integrator,
        multivariate=source.multivariate,
        path=source.path,
    )


def _of_file(source: File, path: Path, name: str | None) -> list[EvaluationSet]:
    # a path, so that a file that is not there is never taken for a bundled series
    return holdout_sets(path, source.horizon, source.windows, source.stride, name, **source.reading)


def _files(source: File) -> list[tuple[Path, str | None]]:
    """List the files that a path names, with the names of their sets: one file, all of a folder, or those of a glob."""
    path = Path(source.path)
    several = path.is_dir() or (not path.exists() and any(sign in source.path for sign in "*?["))
    if not several:
        return [(path, source.name or None)]
    paths = sorted(map(Path, iglob(str(path / "*") if path.is_dir() else source.path, recursive=True)))
    files = [each for each in paths if each.is_file() and each.name.lower().endswith(READABLE)]
    if not files:
        raise InputError(f"{source.path!r} has no file that can be read: expected {', '.join(READABLE)}")
    return [(each, f"{source.name}/{each.name.split('.')[0]}" if source.name else None) for each in files]
