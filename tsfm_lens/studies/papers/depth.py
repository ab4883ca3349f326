"""Figures of the paper that follow the depth of the model: 1B to 1E and 22."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tsfm_lens import probes, viz
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.figures.entry import FigureFile as Plate
from tsfm_lens.figures.entry import NamedFigure as Entry
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.results import first_item
from tsfm_lens.viz.needs import TOKENS

MOST_WINDOWS = 12  # a series


def windows(lens: Lens, series: SeriesBatch, horizon: int) -> tuple[SeriesBatch, np.ndarray]:
    """Cut contexts and truths from the whole length of every series, the last ones first, truths without overlap.

    Args:
        lens: the model; contexts are at most as long as it takes.
        series: whole series.
        horizon: steps of each truth.

    Returns:
        The contexts, named after their series and the steps left after them, and (window, step) truths. Contexts are
        at least as long as the horizon.

    Raises:
        InputError: a series is too short for a single window.
    """
    contexts, truths = [], []
    for count in range(MOST_WINDOWS):
        skip = count * horizon
        whole = [i for i, length in enumerate(series.lengths) if length - skip >= 2 * horizon]
        if count == 0 and len(whole) < len(series):
            raise InputError(f"a series of {min(series.lengths)} steps has no context beside {horizon} steps of truth")
        if not whole or (series.multivariate and len(whole) < len(series)):
            break
        selection = series.select(whole)
        past = selection.split(skip)[0] if skip else selection
        context, truth = past.split(horizon)
        context = replace(context, ids=tuple(f"{name} −{skip}" for name in context.ids), groups=_groups(context, skip))
        contexts.append(context.tail(lens.adapter.context_length))
        truths.append(truth)
    return SeriesBatch.concat(contexts), np.concatenate(truths)


def _groups(batch: SeriesBatch, skip: int) -> tuple[str, ...]:
    return tuple(f"{group} −{skip}" for group in batch.groups)


def _over_windows(run: Run) -> Run:
    """Return the run of windows of every series."""
    if run.whole is None:
        return run
    context, truth = windows(run.lens, run.whole, run.horizon)
    return run.lens.run(context, run.horizon, truth=truth, num_samples=run.num_samples, seed=run.seed)


def _scheme(run: Run) -> list[Plate]:
    ds = probes.stream_shares(run)
    return [Plate("", viz.stream_scheme(ds), (ds,))]


def _logits(run: Run) -> list[Plate]:
    ds = probes.lens_logits(first_item(run))
    return [Plate("", viz.lens_logit_map(ds), (ds,))]


def _entropy(run: Run) -> list[Plate]:
    ds = probes.logit_lens(_over_windows(run))
    note = f"{ds.sizes['series']} windows, at most {MOST_WINDOWS} a series, cut without overlap of their horizons."
    return [Plate("", viz.layer_entropy(ds), (ds,), note)]


def _rank(run: Run) -> list[Plate]:
    windows_run = _over_windows(run)
    ds = probes.entropic_rank(windows_run)
    return [Plate("", viz.entropic_rank_line(ds), (ds,), f"{len(windows_run.batch)} windows.")]


def _gain(run: Run) -> list[Plate]:
    ds = probes.layer_gain(probes.logit_lens(_over_windows(run)))
    note = f"{ds.sizes['series']} windows; gains against the truth, negative is better."
    return [Plate("", viz.layer_gain(ds), (ds,), note)]


_INSTEAD = "figure 'lens_forecast' shows what its layers hold"

ENTRIES = (
    Entry(
        "1B",
        "Scheme of the residual stream: who writes to it, and how much of the forecast.",
        "stream_shares: direct attribution of every attention, MLP and head",
        ("stream_scheme",),
        _scheme,
        "a drawn scheme, without data",
    ),
    Entry(
        "1C",
        "Logits of every value at every forecast step, read from the residual stream after each layer.",
        "lens_logits on the first series",
        ("lens_logit_map",),
        _logits,
        "Chronos base on a chaotic system; token ids upwards, raw logits, colours symmetric in each panel",
        needs=(TOKENS,),
        instead=_INSTEAD,
    ),
    Entry(
        "1D",
        "Entropy of the next value's distribution after each layer, a line per window, and their median.",
        "logit_lens over windows of every series",
        ("layer_entropy",),
        _entropy,
        "Chronos base, 401 tasks of chaotic systems",
        needs=(TOKENS,),
        instead=_INSTEAD,
    ),
    Entry(
        "1E",
        "Entropic rank of the head outputs of each layer.",
        "entropic_rank over windows of every series",
        ("entropic_rank_line",),
        _rank,
        "Chronos base, cross-attention",
    ),
    Entry(
        "22",
        "What each layer adds to the accuracy of the forecast read after it, a line per window, and their median.",
        "logit_lens over windows of every series, layer_gain",
        ("layer_gain",),
        _gain,
        "Chronos base, 117 windows of chaotic systems; one black line per window, the median in red",
    ),
)
