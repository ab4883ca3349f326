"""Reported numbers of the papers beside the same measurements here.

Read :func:`reproduce` first: it finds the item, reads its recorded answer or computes
it by :func:`measure_item`, and returns one dataset of both numbers. How a number is
measured is in :mod:`tsfm_lens.studies.papers.measures`, how a claim is decided in
:mod:`tsfm_lens.studies.papers.verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import measurements
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.studies.papers import measures  # noqa: F401  registers every measure
from tsfm_lens.studies.papers.answers import recorded
from tsfm_lens.studies.papers.comparing import compare_by_name
from tsfm_lens.studies.papers.context import ANSWERS, DRAWS, MEASURES, Context
from tsfm_lens.studies.papers.items import Item, find_item
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.recipes.families import WARM_UP, Flow, lorenz, rk4, roessler

WINDOWS = 16
# Lorenz by 1 step in 30 of its time unit, Roessler by 1 in 3: some twenty steps per
# oscillation
_FLOWS: tuple[tuple[str, Flow, float], ...] = (
    ("lorenz", lorenz, 0.03),
    ("roessler", roessler, 0.3),
)

Models = str | Path | Lens | Sequence[str | Path | Lens]


def reproduce(
    name: str,
    model: Models | None = None,
    *,
    seed: int = 0,
    seeds: int | None = None,
    fresh: bool = False,
) -> xr.Dataset:
    """Measure what a table or figure of a paper reports, beside the paper's numbers.

    With a name alone, the answer is read from its record, where one ships.

    Args:
        name: id of the table or figure, such as "S3-T5".
        model: checkpoint, folder, hub id or lens, or several, for an item that is
            measured on models; the embedded ones if None.
        seed: seed of what is drawn.
        seeds: number of draws of an experiment without a model; that of its settings if
            None.
        fresh: compute, even if there is a recorded answer: from the records of runs
            that ship, or where no run is needed, from the start.

    Returns:
        Dataset of kind "reproduction". Over ``quantity`` are ``paper``, the number that
        the paper prints, ``formula``, what its formula gives at stated sizes, ``ours``
        and ``difference`` (ours less either), NaN where there is none, with ``unit``
        and ``where`` it stands. ``estimate``, ``low`` and ``high``
        are the number with its 95 % interval. A claim has the paper's text, and its
        parts follow it (``part_of`` names the claim). Claims and parts have a
        ``verdict``: "holds", "does not hold", "undecided", "depends on ε" or "depends
        on the data" (``ours`` is then 1, 0 or NaN), and a reason ``why`` if it is
        undecided; see
        :func:`tsfm_lens.studies.papers.verdicts.judge_parts`. For a part,
        ``estimate`` is the median ``margin`` by which it is true, and ``p`` its p-value
        after Holm. An item of which nothing is measured has one row, "not run", with
        the reason. Over ``setting`` are the settings that differ: ``our_setting`` and
        ``paper_setting``, empty where the paper states none. The attribute ``note``
        says why the two may not compare, and ``over`` is the unit of the tests.

    Raises:
        UnknownNameError: no such id.
        InputError: the item is not measured on a model, or draws nothing.
        CheckpointError: the checkpoint is not there; the message says how to get it.
    """
    item = find_item(name)
    unset = (model, seed, seeds) == (None, 0, None)
    if item.why or (unset and not fresh):
        answer = recorded(item)
        if answer is not None:
            return answer
    return compare_by_name(item, *measure_item(item, model, seed=seed, seeds=seeds))


def measure_item(
    item: Item, model: Models | None = None, *, seed: int = 0, seeds: int | None = None
) -> tuple[MeasuredValues, Sequence[str], Mapping[str, Any]]:
    """Measure an item, and return the models measured and their provenance as well.

    The arguments are those of :func:`reproduce`.
    """
    if model is not None and not _takes_models(item):
        raise InputError(_own_model(item))
    if (seed, seeds) != (0, None) and item.id in ANSWERS:
        raise InputError(
            f"{item.id} is read from a record, whose seeds are those of its runs; give"
            " neither a seed nor a number of seeds"
        )
    if seeds is not None and (seeds < 1 or not item.theory):
        raise InputError(
            f"seeds is {seeds} for {item.id}, expected 1 or more draws of an experiment"
            " without a model"
        )
    if item.id in ANSWERS:
        result = ANSWERS[item.id]()
        names = result.settings.get("model", "").split(", ")
        return result, [*filter(None, names)], {}
    if not _takes_models(item):
        return MEASURES[item.id](Context(seeds or DRAWS[item.id], seed)), (), {}
    sources = item.models if model is None else model
    if isinstance(sources, str | Path | Lens):
        sources = [sources]
    # the list fills up as the measure takes one run after another
    names = []
    result = MEASURES[item.id](_runs(sources, seed, names))
    return result, names, {"model": ", ".join(names)}


def _takes_models(item: Item) -> bool:
    return bool(item.models) and item.id not in ANSWERS


def _own_model(item: Item) -> str:
    """Say what measures an item of a record on a model of one's own."""
    kinds = [kind for kind, entry in measurements().items() if item.id in entry.paper]
    text = f"{item.id} is not measured on a model that is given"
    if kinds:
        text += f"; on yours, {', '.join(kinds)} is: `tsfm-lens measurements` says how"
    return text


def _runs(
    sources: Sequence[str | Path | Lens], seed: int, names: list[str]
) -> Iterator[Run]:
    """Yield a run of each model, opened when its turn comes, and collect their names.

    Series are windows of chaotic systems, of a language model random ids.
    """
    for source in sources:
        lens = source if isinstance(source, Lens) else load(source)
        if lens.model_id in names:
            raise InputError(
                f"two models are called {lens.model_id!r}, expected names that tell"
                " them apart"
            )
        names.append(lens.model_id)
        horizon = lens.adapter.prediction_length
        length = lens.adapter.context_length + horizon
        if lens.takes_ids:
            rng = np.random.default_rng(seed)
            ids = rng.choice(lens.example_ids, (WINDOWS, length))
            batch = as_series(ids.astype(float))
        else:
            batch = chaotic_windows(WINDOWS, length, seed)
        yield lens.run(batch, horizon, holdout=True, seed=seed)


def chaotic_windows(count: int, length: int, seed: int = 0) -> SeriesBatch:
    """Simulate windows of Lorenz and Roessler trajectories, in turn.

    A window is the first coordinate of its trajectory.
    """
    starts = np.random.default_rng(seed).normal(size=(count, 3)) + np.array(
        [1.0, 1.0, 5.0]
    )
    values = np.empty((count, length))
    names = np.empty(count, object)
    for turn, (name, flow, dt) in enumerate(_FLOWS):
        turns = slice(turn, None, len(_FLOWS))
        # all windows of a system side by side, four steps of the integration to one of
        # the series
        on_attractor = rk4(flow, starts[turns], 0.02, WARM_UP)[-1]
        values[turns] = rk4(flow, on_attractor, dt / 4, 4 * length)[::4, :, 0].T
        names[turns] = [f"{name}-{number}" for number in range(len(names[turns]))]
    return SeriesBatch(tuple(values), tuple(names))
