"""Reported numbers of the paper beside the same measurements here."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models import Lens, load
from tsfm_lens.paper.measures import MEASURES
from tsfm_lens.paper.runs import Found, Run
from tsfm_lens.paper.values import ITEMS, Item
from tsfm_lens.pipeline import prepare
from tsfm_lens.zoo import checkpoint_names
from tsfm_lens.zoo.chaos import WARM_UP, Flow, lorenz, rk4, roessler

LIST_HINT = "`tsfm-lens reproduce --list` shows all."
EMBEDDED = checkpoint_names()
NO_MODEL = ("S3-SYS", "S3-F6", "S3-F13", "S3-F14", "S3-F15")
# Lorenz by 1 step in 30 of its time unit, Roessler by 1 in 3: some twenty steps an oscillation
_FLOWS: tuple[tuple[str, Flow, float], ...] = (("lorenz", lorenz, 0.03), ("roessler", roessler, 0.3))


def item_of(name: str) -> Item:
    """The table or figure of an id; capitals do not matter.

    Raises:
        UnknownNameError: there is none.
    """
    known = {item.id: item for item in ITEMS}
    if name.upper() not in known:
        raise unknown_name("reported value", name.upper(), known, hint=LIST_HINT)
    return known[name.upper()]


def reproduce(
    name: str,
    model: str | Lens | None = None,
    data: Any = None,
    *,
    windows: int = 8,
    horizon: int | None = None,
    num_samples: int | None = None,
    n_sequences: int = 64,
    seed: int = 0,
) -> xr.Dataset:
    """Measure what a table or figure of the paper reports, and put the paper's numbers beside it.

    Args:
        name: id of the table or figure, such as "S3-T5".
        model: checkpoint, folder, hub id or lens; the paper's own if None.
        data: series with the truth at their end; windows of chaotic systems, like the paper's for Chronos, if None.
        windows: how many such windows.
        horizon: forecast steps; the paper's, or the model's prediction length, if None.
        num_samples: sample paths of a sampling model; its configured number if None.
        n_sequences: sequences of the repeated-random-tokens test.
        seed: of the windows, forecasts and sequences.

    Returns:
        Dataset of kind "reproduction". Over ``quantity``: ``paper``, ``ours`` and ``difference`` (ours less the
        paper's), NaN where the paper prints no number, ``unit`` and ``where`` it is printed; of a statement 1 says
        that it holds. Over ``setting``: ``paper_setting`` and ``our_setting``, for those known to differ or not given
        by the paper. ``note`` says what keeps the two from being compared.

    Raises:
        UnknownNameError: no such id.
        InputError: the numbers need the sweep over the benchmark, or the model cannot be measured so.
        CheckpointError: the checkpoint is not there; the message says how to get it.
    """
    item = item_of(name)
    if item.sweep:
        raise InputError(
            f"{item.id} ({item.title}) needs the benchmark sweep: errors over {item.settings['series']} under "
            f"ablations, not single runs. {LIST_HINT}"
        )
    lens = None
    if model is not None or item.id not in NO_MODEL:
        lens = model if isinstance(model, Lens) else load(model or item.model)
    run = Run(lens, data is None, *_windows(item, lens, data, windows, horizon, seed), num_samples, n_sequences, seed)
    found = MEASURES[item.id](run)
    return compare(item, found, lens)


def compare(item: Item, found: Found, lens: Lens | None = None) -> xr.Dataset:
    """The paper's numbers beside found ones; see :func:`reproduce`.

    Args:
        item: the table or figure.
        found: values by the item's own quantities, others beside them, and settings.
        lens: the model that was measured, if any.

    Raises:
        InputError: none of the item's quantities was found.
    """
    printed = {value.quantity: value for value in item.values}
    wanted = [quantity for quantity in printed if quantity in found.values]
    if not wanted:
        raise InputError(f"{item.id} reports no number for this model; it is about {item.model or 'other models'}")
    names = wanted + [quantity for quantity in found.values if quantity not in printed]
    paper = np.array([printed[each].paper if each in printed else np.nan for each in names], dtype=float)
    ours = np.array([found.values[each] for each in names], dtype=float)
    printed_settings = {**item.settings, "model": item.model}
    here = {**({"model": lens.model_id} if lens is not None and _other_model(item, lens) else {}), **found.settings}
    differ = {key: value for key, value in here.items() if value != printed_settings.get(key)}
    data = xr.Dataset(
        {
            "paper": ("quantity", paper),
            "ours": ("quantity", ours),
            "difference": ("quantity", ours - paper),
            "paper_setting": ("setting", [printed_settings.get(key, "not given") for key in differ]),
            "our_setting": ("setting", list(differ.values())),
        },
        coords={
            "quantity": names,
            "unit": (
                "quantity",
                [printed[each].unit if each in printed else found.units.get(each, "") for each in names],
            ),
            "where": ("quantity", [printed[each].where if each in printed else "" for each in names]),
            "setting": list(differ),
        },
    )
    data.attrs = {
        "kind": "reproduction",
        "title": f"{item.id}: {item.title}",
        "source": "tsfm-lens paper",
        "paper_model": item.model,
        **({} if lens is None else lens.provenance()),
        "note": "; ".join(part for part in (_other_model(item, lens), item.note) if part),
    }
    return data


def _other_model(item: Item, lens: Lens | None) -> str:
    theirs = tuple(dict.fromkeys(name for name in (item.model, *item.others) if name))
    if lens is None or not theirs or lens.model_id in theirs:
        return ""
    whose = f"the paper's values are for {', '.join(theirs)}"
    return (
        f"embedded model: mechanics only; {whose}" if lens.model_id in EMBEDDED else f"not the paper's model; {whose}"
    )


def _windows(
    item: Item, lens: Lens | None, data: Any, windows: int, horizon: int | None, seed: int
) -> tuple[SeriesBatch | None, np.ndarray | None, int]:
    """Contexts, truths and the horizon; none without a model."""
    if lens is None:
        return None, None, 0
    if windows < 1:
        raise InputError(f"windows is {windows}, expected 1 or more")
    own = lens.adapter.prediction_length
    steps = int(horizon if horizon is not None else item.settings.get("horizon", own))
    if getattr(lens.adapter, "integers", False):
        raise InputError(f"{lens.model_id} reads tokens of text; the paper's numbers are of time-series models")
    if data is None:
        batch = chaotic_windows(
            min(windows, 1) if item.id == "S3-F21" else windows, lens.adapter.context_length + steps, seed
        )
    else:
        batch = as_series(data)
    task = prepare(lens, batch, steps)
    return task.context, task.truth, steps


def chaotic_windows(count: int, length: int, seed: int = 0) -> SeriesBatch:
    """Windows of the first coordinate of Lorenz and Roessler trajectories, in turn.

    They stand in for the paper's chaotic systems, of which they are two. Starts are drawn at random and run onto the
    attractor first.

    Args:
        count: windows.
        length: steps of each.
        seed: of the starts.
    """
    starts = np.random.default_rng(seed).normal(size=(count, 3)) + np.array([1.0, 1.0, 5.0])
    values: dict[int, np.ndarray] = {}
    for turn, (_, flow, dt) in enumerate(_FLOWS):
        own = range(turn, count, len(_FLOWS))
        if not own:
            continue
        # all windows of a system side by side, four steps of the integration to one of the series
        settled = rk4(flow, starts[own.start :: len(_FLOWS)], 0.02, WARM_UP)[-1]
        path = rk4(flow, settled, dt / 4, 4 * length)[::4, :, 0]
        values.update(zip(own, path.T, strict=True))
    names = tuple(f"{_FLOWS[i % len(_FLOWS)][0]}-{i // len(_FLOWS)}" for i in range(count))
    return SeriesBatch(tuple(values[index] for index in range(count)), names)
