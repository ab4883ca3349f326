"""Reported numbers of the paper beside the same measurements here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.paper.items import Item
from tsfm_lens.paper.measures import MEASURES
from tsfm_lens.paper.measuring import Asked, Found
from tsfm_lens.paper.sweeps import Where, sweep_item
from tsfm_lens.paper.values import ITEMS
from tsfm_lens.sweep.run.ledger import Progress
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
    model: str | Lens | Sequence[str] | None = None,
    data: Any = None,
    *,
    windows: int | None = None,
    horizon: int | None = None,
    num_samples: int | None = None,
    n_sequences: int = 64,
    seed: int = 0,
    store: str | Path | None = None,
    benchmark: str | Path | None = None,
    configs: Sequence[str] = ("*",),
    engine: str = "single",
    workers: int | None = None,
    progress: Progress | None = None,
    reading: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Measure what a table or figure of the paper reports, and put the paper's numbers beside it.

    Errors over the benchmark under ablations run as a sweep, whose finished cells are kept in ``store``: the same call
    goes on with one that was interrupted.

    Args:
        name: id of the table or figure, such as "S3-T5".
        model: checkpoint, folder, hub id or lens; of a sweep one or several names. The paper's own if None.
        data: series with the truth at their end; of a sweep names of bundled series, or files. If None windows of
            chaotic systems, like the paper's for Chronos; of a sweep GIFT-Eval.
        windows: how many of the chaotic windows, 8 if None; of a sweep those drawn from each configuration of the
            benchmark, all if None, or the last ones of each series, one if None.
        horizon: forecast steps; the paper's, or the model's prediction length, if None.
        num_samples: sample paths of a sampling model; if None its configured number, of a sweep the paper's.
        n_sequences: sequences of the repeated-random-tokens test.
        seed: of the windows, forecasts and sequences.
        store: folder of a sweep's results; the id with .store if None.
        benchmark: folder of GIFT-Eval; that of the environment variable GIFT_EVAL if None.
        configs: configurations of GIFT-Eval, or patterns of their names.
        engine: of a sweep: "single", "processes" or "ray".
        workers: of the engine; one a core if None.
        progress: called with what is done, how much, of how much, and the seconds left where they are known; see
            :data:`tsfm_lens.sweep.run.ledger.Progress`. Measures that take one pass of a model have nothing to tell.
        reading: how the files of a sweep are read, as options of ``tsfm_lens.data.read_series``.

    Returns:
        Dataset of kind "reproduction". Over ``quantity``: ``paper``, ``ours`` and ``difference`` (ours less the
        paper's), NaN where the paper prints no number, ``unit`` and ``where`` it is printed; of a statement 1 says
        that it holds. ``ours_lower`` and ``ours_upper`` where any quantity has an interval, NaN for the others. Over
        ``setting``: ``paper_setting`` and ``our_setting``, for those known to differ or not given by the paper.
        ``note`` says what keeps the two from being compared.

    Raises:
        UnknownNameError: no such id.
        InputError: the model cannot be measured so, the benchmark is not there, or an option is of sweeps only.
        CheckpointError: the checkpoint is not there; the message says how to get it.
        SweepFailedError: some cells of the sweep could not be computed.
    """
    item = item_of(name)
    where = Where(store, benchmark, configs, engine, workers, progress, dict(reading or {}))
    several = [] if model is None else [model] if isinstance(model, str | Path | Lens) else list(model)
    if item.sweep:
        options: dict[str, Any] = {"windows": windows, "horizon": horizon, "num_samples": num_samples, "seed": seed}
        return _beside(item, *sweep_item(item, several, data, where, **options))
    if where != Where(progress=progress):
        raise InputError(f"{item.id} is no sweep: it takes no store, benchmark, configurations, engine or workers")
    if len(several) > 1:
        raise InputError(f"{item.id} is measured on one model, and {len(several)} are given")
    lens = None
    if several or item.id not in NO_MODEL:
        first = several[0] if several else item.model
        lens = first if isinstance(first, Lens) else load(first)
    count = 8 if windows is None else windows
    run = None if lens is None else _run_of(item, lens, data, count, horizon, num_samples=num_samples, seed=seed)
    asked = Asked(run, lens, data is None, n_sequences, seed, progress)
    return compare(item, MEASURES[item.id](asked), lens)


def compare(item: Item, found: Found, lens: Lens | None = None) -> xr.Dataset:
    """The paper's numbers beside found ones; see :func:`reproduce`.

    Args:
        item: the table or figure.
        found: values by the item's own quantities, others beside them, and settings.
        lens: the model that was measured, if any.

    Raises:
        InputError: none of the item's quantities was found.
    """
    if not any(value.quantity in found.values for value in item.values):
        raise InputError(f"{item.id} reports no number for this model; it is about {item.model or 'other models'}")
    return _beside(item, found, () if lens is None else (lens.model_id,), {} if lens is None else lens.provenance())


def _beside(item: Item, found: Found, models: Sequence[str], attrs: Mapping[str, Any]) -> xr.Dataset:
    """The paper's numbers beside found ones, of models by name."""
    printed = {value.quantity: value for value in item.values}
    names = [quantity for quantity in printed if quantity in found.values]
    names += [quantity for quantity in found.values if quantity not in printed]
    paper = np.array([printed[each].paper if each in printed else np.nan for each in names], dtype=float)
    ours = np.array([found.values[each] for each in names], dtype=float)
    other = _other_models(item, models)
    printed_settings = {**item.settings, "model": item.model}
    here = {**({"model": ", ".join(models)} if other else {}), **found.settings}
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
    if found.intervals:
        ends = np.array([found.intervals.get(each, (np.nan, np.nan)) for each in names])
        data = data.assign(ours_lower=("quantity", ends[:, 0]), ours_upper=("quantity", ends[:, 1]))
    data.attrs = {
        "kind": "reproduction",
        "title": f"{item.id}: {item.title}",
        "source": "tsfm-lens paper",
        "paper_model": item.model,
        **attrs,
        "note": "; ".join(part for part in (other, item.note, *found.notes) if part),
    }
    return data


def _other_models(item: Item, models: Sequence[str]) -> str:
    """Words on models that are not the paper's."""
    theirs = tuple(dict.fromkeys(name for name in (*item.model.split(", "), *item.others) if name))
    others = [name for name in models if name not in theirs]
    if not theirs or not others:
        return ""
    whose = f"the paper's values are for {', '.join(theirs)}"
    if any(name in EMBEDDED for name in others):
        return f"embedded model: mechanics only; {whose}"
    return f"not the paper's model; {whose}"


def _run_of(
    item: Item, lens: Lens, data: Any, windows: int, horizon: int | None, *, num_samples: int | None, seed: int
) -> Run:
    """The run of the windows that an item is measured on."""
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
    samples = num_samples if lens.adapter.readout == "token" else None
    return lens.run(batch, steps, holdout=True, num_samples=samples, seed=seed)


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
