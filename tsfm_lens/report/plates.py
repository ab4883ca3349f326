"""Which figures a report draws of each kind of result, each with its table and its reading."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.report import (
    explore,
    plates_causality,
    plates_copying,
    plates_heads,
    plates_structure,
    plates_sweep,
    tables,
)
from tsfm_lens.report import readings as read
from tsfm_lens.report.chapter import Chapter, Plate
from tsfm_lens.viz import (
    ablation_forecasts,
    ablation_heatmap,
    attention_grid,
    attention_map,
    attribution_bars,
    attribution_heatmap,
    forecast_fan,
    layer_entropy,
    layer_gain,
    lens_forecast,
    logit_map,
)
from tsfm_lens.viz.ablation import strongest
from tsfm_lens.viz.select import array, names

# how many series get a figure of their own; the others are in the figures over all series
_FORECASTS, _LENSES, _MAPS, _ABLATED, _ATTRIBUTED = 24, 6, 3, 2, 3
# of several attribution decompositions, the one whose unit a reader knows
_PREFERRED = ("integrated", "expected_value", "linearised", "lens_difference")


def _forecast(ds: xr.Dataset) -> Iterator[Plate]:
    for i in range(min(ds.sizes["series"], _FORECASTS)):
        yield Plate(forecast_fan(ds, series=i), tables.forecast_table(ds, i), read.read_forecast(ds, i))


def _lens(ds: xr.Dataset) -> Iterator[Plate]:
    if "probability" not in ds:
        for i in range(min(ds.sizes["series"], _LENSES)):
            yield Plate(lens_forecast(ds, series=i), tables.lens_table(ds, i), read.read_lens_forecast(ds, i))
        return
    if "entropy" in ds:
        yield Plate(layer_entropy(ds), tables.entropy_table(ds), read.read_entropy(ds))
    for i in range(min(ds.sizes["series"], _MAPS)):
        fig = logit_map(ds, series=i)
        yield Plate(fig, tables.map_table(fig, ds, i), read.read_logit_map(ds, i))


def _gain(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(layer_gain(ds), tables.gain_table(ds), read.read_gain(ds))


def _ablation(ds: xr.Dataset) -> Iterator[Plate]:
    changes = [m for m in ("mase_change", "mae_change") if m in ds and np.isfinite(ds[m].values).any()]
    for metric in [m for m in ("spearman_distance",) if m in ds] + changes[:1]:
        fig = ablation_heatmap(ds, metric=metric)
        yield Plate(fig, tables.ablation_table(ds, metric), read.read_ablation(ds, metric))
    if not {"forecast", "baseline_forecast", "spearman_distance"} <= set(ds.data_vars):
        return
    for i in range(min(ds.sizes["series"], _ABLATED)):
        top = strongest(ds, i)
        if top:
            fig = ablation_forecasts(ds, components=top, series=i)
            words = read.read_ablation_forecasts(ds, i, top)
            yield Plate(fig, tables.ablated_forecast_table(ds, i, top), words)


def _attribution(ds: xr.Dataset) -> Iterator[Plate]:
    decompositions = names(ds, "decomposition")
    main = next((m for m in _PREFERRED if m in decompositions), decompositions[0])
    for i in range(min(ds.sizes["series"], _ATTRIBUTED)):
        table, words = tables.attribution_table(ds, main, i), read.read_attribution(ds, main, i)
        yield Plate(attribution_bars(ds, decomposition=main, series=i), table, words)
        steps = read.read_attribution_steps(ds, main, i)
        yield Plate(attribution_heatmap(ds, decomposition=main, series=i), table, steps)
    for decomposition in decompositions:
        if decomposition != main:
            table, words = tables.attribution_table(ds, decomposition, 0), read.read_attribution(ds, decomposition, 0)
            yield Plate(attribution_bars(ds, decomposition=decomposition, series=0), table, words)


def _attention(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(attention_grid(ds), tables.heads_table(ds), read.read_attention(ds))
    entropy = read.head_entropy(array(ds, "pattern", "layer", "head", "query", "key"))
    places = {"The sharpest head.": int(entropy.argmin()), "The most diffuse head.": int(entropy.argmax())}
    for words, place in places.items():
        layer, head = (int(v) for v in np.unravel_index(place, entropy.shape))
        fig = attention_map(ds, layer=names(ds, "layer")[layer], head=int(names(ds, "head")[head]))
        reading = [words, *read.read_attention_map(ds, layer, head)]
        yield Plate(fig, tables.pattern_table(ds, layer, head), reading)


_FORECAST_CHAPTERS = {
    "forecast": Chapter(
        "Forecast",
        "What the model expects, as a distribution: half of it lies above the median, and a band holds the stated "
        "share of it.",
        _forecast,
    ),
    "logit_lens": Chapter(
        "Logit lens",
        "The model's own output head is applied to its residual stream after every layer, as if the model ended "
        "there. This shows where along the depth the forecast takes shape.",
        _lens,
    ),
    "layer_gain": Chapter(
        "Gain of each layer",
        "The error of the forecast read after a layer, compared with that read one layer before. Negative is better.",
        _gain,
    ),
    "ablation": Chapter(
        "Ablation",
        "Each attention head, MLP and layer is set to zero in turn, and the forecast is made again. What changes it "
        "most, it depends on most.",
        _ablation,
    ),
    "attribution": Chapter(
        "Attribution",
        "The forecast is split into what each component writes to the residual stream adds to it, with its sign.",
        _attribution,
    ),
    "attention": Chapter(
        "Attention",
        "How much of its attention each head gives to each token, drawn over the time that the token covers.",
        _attention,
    ),
}

# a theme is a dict from kind to chapter in a file of its own; a new one needs its line here
_THEMES = (
    _FORECAST_CHAPTERS,
    plates_heads.CHAPTERS,
    plates_copying.CHAPTERS,
    plates_causality.CHAPTERS,
    plates_structure.CHAPTERS,
    plates_sweep.CHAPTERS,
    explore.CHAPTERS,
)
CHAPTERS: dict[str, Chapter] = {kind: chapter for theme in _THEMES for kind, chapter in theme.items()}


def chapter_of(ds: xr.Dataset, name: str) -> Chapter:
    """The chapter that draws a result.

    Raises:
        InputError: ``ds`` is no labelled result of a known kind.
    """
    kind = ds.attrs.get("kind") if isinstance(ds, xr.Dataset) else type(ds).__name__
    if kind not in CHAPTERS:
        raise InputError(f"result {name!r} is of kind {kind!r}; a report can draw {', '.join(CHAPTERS)}.")
    return CHAPTERS[kind]
