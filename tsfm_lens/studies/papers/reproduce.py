"""Reported numbers of the papers beside the same measurements here.

Read :func:`reproduce` first: it finds the item, reads its recorded answer or measures
it by :func:`measure_item`, and returns one dataset of both numbers. How a number is
measured is in :mod:`tsfm_lens.studies.papers.measures`, how a claim is decided in
:mod:`tsfm_lens.studies.papers.verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.studies.papers import measures  # noqa: F401  registers every measure
from tsfm_lens.studies.papers.answers import recorded
from tsfm_lens.studies.papers.comparing import compare_by_name
from tsfm_lens.studies.papers.context import ANSWERS, MEASURES, Context
from tsfm_lens.studies.papers.items import Item, find_item
from tsfm_lens.studies.papers.sweeps import Where, sweep_item
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.recipes.families import WARM_UP, Flow, lorenz, rk4, roessler
from tsfm_lens.sweep.engine.sweeping import Progress

WINDOWS = 16
# Lorenz by 1 step in 30 of its time unit, Roessler by 1 in 3: some twenty steps per
# oscillation
_FLOWS: tuple[tuple[str, Flow, float], ...] = (
    ("lorenz", lorenz, 0.03),
    ("roessler", roessler, 0.3),
)


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
    seeds: int | None = None,
    store: str | Path | None = None,
    benchmark: str | Path | None = None,
    configs: Sequence[str] = ("*",),
    engine: str = "single",
    workers: int | None = None,
    progress: Progress | None = None,
    reading: Mapping[str, Any] | None = None,
    fresh: bool = False,
) -> xr.Dataset:
    """Measure what a table or figure of a paper reports, beside the paper's numbers.

    With a name alone, the answer is read from its record, where one ships. Errors over
    the benchmark under ablations run as a sweep, which the same call resumes after an
    interrupt.

    Args:
        name: id of the table or figure, such as "S3-T5".
        model: checkpoint, folder, hub id or lens; several where the item is about
            several models or is a sweep. If None, the paper's own model, or the
            embedded models where the item is about several.
        data: series with the truth at their end; for a sweep, names of bundled series,
            or files. If None, windows of chaotic systems, like the paper's for Chronos
            (for a language model random ids); for a sweep, GIFT-Eval.
        windows: number of chaotic windows (16 if None), or of last windows of each
            given series (1 if None); for a sweep over the benchmark, number drawn from
            each configuration (all if None).
        horizon: forecast steps; if None, the paper's, or the model's prediction length.
        num_samples: sample paths of a sampling model; if None, its configured number,
            or for a sweep the paper's.
        n_sequences: number of sequences of the repeated-random-tokens test.
        seed: seed of windows, forecasts and sequences.
        seeds: number of seeds, from ``seed`` on, for forecasts of a model that draws (3
            if None). For an experiment without a model, the number of draws (that of
            its settings if None).
        store: folder of a sweep's results.
        benchmark: folder of GIFT-Eval; if None, the environment variable GIFT_EVAL.
        configs: configurations of GIFT-Eval, or patterns of their names.
        engine: how a sweep runs: "single", "processes" or "ray".
        workers: number of workers of a sweep; one per core if None.
        progress: called with a label, the number done, the total, and the seconds left
            where they are known.
        reading: options of ``tsfm_lens.data.read_series`` for the files of a sweep.
        fresh: measure, even if the record has the answer.

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
        :func:`tsfm_lens.studies.papers.verdicts.combine_tests`. For a part,
        ``estimate`` is the median ``margin`` by which it is true, and ``p`` its p-value
        after Holm. An item of which nothing is measured has one row, "not run", with
        the reason. Over ``setting`` are the settings that differ: ``our_setting`` and
        ``paper_setting``, empty where the paper states none. The attribute ``note``
        says why the two may not compare, and ``over`` is the unit of the tests, windows
        or draws.

    Raises:
        UnknownNameError: no such id.
        InputError: the model cannot be measured so, the benchmark is not there, or an
            option is of sweeps only.
        CheckpointError: the checkpoint is not there; the message says how to get it.
        SweepFailedError: some cells of the sweep could not be computed.
    """
    item = find_item(name)
    where = Where(
        store, benchmark, configs, engine, workers, progress, dict(reading or {})
    )
    options = {
        "model": model,
        "data": data,
        "windows": windows,
        "horizon": horizon,
        "num_samples": num_samples,
        "seeds": seeds,
    }
    unset = all(value is None for value in options.values())
    unset &= (where, n_sequences, seed) == (Where(progress=progress), 64, 0)
    if item.why or (unset and not fresh):
        answer = recorded(item)
        if answer is not None:
            return answer
    return compare_by_name(
        item, *measure_item(item, where, n_sequences=n_sequences, seed=seed, **options)
    )


def measure_item(
    item: Item,
    where: Where,
    model: str | Lens | Sequence[str] | None = None,
    data: Any = None,
    *,
    windows: int | None = None,
    horizon: int | None = None,
    num_samples: int | None = None,
    n_sequences: int = 64,
    seed: int = 0,
    seeds: int | None = None,
) -> tuple[MeasuredValues, Sequence[str], Mapping[str, Any]]:
    """Measure an item, and return the models measured and their provenance as well.

    The arguments are those of :func:`reproduce`.
    """
    progress = where.progress
    if model is None:
        sources = []
    elif isinstance(model, str | Path | Lens):
        sources = [model]
    else:
        sources = list(model)
    options: dict[str, Any] = {
        "windows": windows,
        "horizon": horizon,
        "num_samples": num_samples,
    }
    if item.sweep:
        if seeds is not None:
            raise InputError(
                f"{item.id} is a sweep, which takes one seed and no number of seeds"
            )
        return sweep_item(item, sources, data, where, seed=seed, **options)
    if where != Where(progress=progress):
        raise InputError(
            f"{item.id} is no sweep: it takes no store, benchmark, configurations,"
            " engine or workers"
        )
    if len(sources) > 1 and not item.models:
        raise InputError(
            f"{item.id} is measured on one model, and {len(sources)} are given"
        )
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds is {seeds}, expected 1 or more")
    if item.theory:
        if sources or any(option is not None for option in (data, *options.values())):
            raise InputError(
                f"{item.id} is of no model: it takes a seed and a number of seeds,"
                " which are draws, and no model, series, windows, horizon or sample"
                " paths"
            )
        context = Context(seed=seed, seeds=seeds or 0, progress=progress)
        return _checked(item, MEASURES[item.id](context)), (), {}
    if item.id not in MEASURES:
        return _checked(item, ANSWERS[item.id]()), (), {}
    measure = MEASURES[item.id]
    context = Context(
        None, data is None, n_sequences, seed, seeds or 3, progress=progress
    )

    def open_context(model: str | Lens) -> Context:
        if isinstance(model, Lens):
            lens = model
        else:
            lens = load(model)
        run, clusters = _make_run(item, lens, data, seed=seed, **options)
        return replace(context, optional_run=run, clusters=clusters)

    if item.models:
        # names fills up as the measure takes one context after another
        names: list[str] = []
        result = measure(
            _with_unique_names(map(open_context, sources or item.models), names)
        )
        return result, names, {"model": ", ".join(names)}
    if sources:
        source = sources[0]
    else:
        source = item.model
    if source == "":
        return _checked(item, measure(context)), (), {}
    context = open_context(source)
    lens = context.model
    return _checked(item, measure(context)), (lens.model_id,), lens.provenance()


def _with_unique_names(
    contexts: Iterable[Context], names: list[str]
) -> Iterator[Context]:
    """Yield contexts, each opened when its turn comes, and collect names of models."""
    for context in contexts:
        if context.model.model_id in names:
            raise InputError(
                f"two models are called {context.model.model_id!r}, expected names that"
                " tell them apart"
            )
        names.append(context.model.model_id)
        yield context


def _checked(item: Item, result: MeasuredValues) -> MeasuredValues:
    """Refuse a result without any number or claim of the item."""
    if not {*item.words, *item.words.values()} & {*result.values, *result.claims}:
        raise InputError(
            f"{item.id} reports no number for this model; it is about"
            f" {item.model or 'other models'}"
        )
    return result


def _make_run(
    item: Item,
    lens: Lens,
    data: Any,
    *,
    windows: int | None,
    horizon: int | None,
    num_samples: int | None,
    seed: int,
) -> tuple[Run, tuple[str, ...]]:
    """Run the windows that an item is measured on.

    The series that each window is from is returned too.
    """
    if windows is not None and windows < 1:
        raise InputError(f"windows is {windows}, expected 1 or more")
    default_horizon = lens.adapter.prediction_length
    stated = item.settings.get("horizon", "")
    if horizon is not None:
        steps = horizon
    elif stated.isdigit():
        steps = int(stated)
    else:
        steps = default_horizon
    if lens.takes_ids and not item.models:
        raise InputError(
            f"{lens.model_id} reads tokens of text; the paper's numbers are of"
            " time-series models"
        )
    count = windows or WINDOWS
    length = lens.adapter.context_length + steps
    if data is not None:
        batch, clusters = last_windows(as_series(data), windows or 1, steps)
    else:
        if lens.takes_ids:
            batch = as_series(
                np.random.default_rng(seed)
                .choice(lens.example_ids, (count, length))
                .astype(float)
            )
        else:
            batch = chaotic_windows(1 if item.id == "S3-F21" else count, length, seed)
        clusters = batch.ids
    samples = None
    if lens.adapter.readout != "quantile":
        samples = num_samples
    return (
        lens.run(batch, steps, holdout=True, num_samples=samples, seed=seed),
        clusters,
    )


def last_windows(
    batch: SeriesBatch, count: int, horizon: int
) -> tuple[SeriesBatch, tuple[str, ...]]:
    """Cut the last windows of each series, whose held-out parts follow one another."""
    if count == 1:
        return batch, batch.groups
    shortest = min(range(len(batch)), key=batch.lengths.__getitem__)
    if batch.lengths[shortest] <= count * horizon:
        raise InputError(
            f"series {batch.ids[shortest]!r} has {batch.lengths[shortest]} steps:"
            f" {count} windows of {horizon} forecast steps need more than"
            f" {count * horizon}; give fewer windows, a shorter horizon or longer"
            " series"
        )
    windows = []
    for back in range(count):
        window = batch
        if back:
            window = batch.split(back * horizon)[0]
            names, groups = (
                [f"{name} -{back * horizon}" for name in labels]
                for labels in (batch.ids, batch.groups)
            )
            window = replace(window, ids=tuple(names), groups=tuple(groups))
        windows.append(window)
    # the windows of one series are one cluster of the tests
    return SeriesBatch.concat(windows), batch.groups * count


def chaotic_windows(count: int, length: int, seed: int = 0) -> SeriesBatch:
    """Simulate windows of Lorenz and Roessler trajectories, in turn.

    A window is the first coordinate of its trajectory.
    """
    starts = np.random.default_rng(seed).normal(size=(count, 3)) + np.array(
        [1.0, 1.0, 5.0]
    )
    values: dict[int, np.ndarray] = {}
    for turn, (_, flow, dt) in enumerate(_FLOWS):
        turns = range(turn, count, len(_FLOWS))
        if not turns:
            continue
        # all windows of a system side by side, four steps of the integration to one of
        # the series
        on_attractor = rk4(flow, starts[turns.start :: len(_FLOWS)], 0.02, WARM_UP)[-1]
        path = rk4(flow, on_attractor, dt / 4, 4 * length)[::4, :, 0]
        values.update(zip(turns, path.T, strict=True))
    names = tuple(
        f"{_FLOWS[i % len(_FLOWS)][0]}-{i // len(_FLOWS)}" for i in range(count)
    )
    return SeriesBatch(tuple(values[index] for index in range(count)), names)
