"""One head in a linked view: reads, writes, spectra, and the forecast without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.explore_panels import (
    BAR,
    GAP,
    LEAST,
    LEGEND,
    PLACES,
    ROW,
    TITLES,
    TRACES,
    WIDTHS,
    attention_words,
    axes,
    drawn,
    envelope,
    frame,
    head_name,
)
from tsfm_lens.viz.panels import mark_start, scene
from tsfm_lens.viz.room import shortened
from tsfm_lens.viz.select import array, model_of, names, position, unit_of
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import number, percent, plain
from tsfm_lens.viz.timeline import timeline
from tsfm_lens.viz.words import num

__all__ = ["explore_figure"]
Update = dict[str, dict[str, Any]]
"""Trace of :data:`TRACES` -> the properties that change."""


_MAX_NUMBERED = 60  # cells with room for their number
_MIN_VISIBLE = 1e-4  # percent; attention below it is drawn as none
_WIDTH, _MAP = 884, 230  # pixels: under which the five panels cannot be read, and of the map at that
_NEEDS = ("attention", "write", "singular_value", "quantile_forecast", "ablated_forecast")
_CELLS = 1024  # of the attention drawn; longer contexts are drawn in cells of several steps


EXPLORE = measurement(
    "explore",
    theme="Activations",
    title="One head at a time",
    summary="one head in one view: what it reads and writes, its spectra, the forecast without it (`run.explore()`)",
    description="A linked view of the heads of one kind of attention, the last over time before the forecast is "
    "read out: what each looks at, what it writes to the forecast, the spectra of its matrices, and the"
    " forecast without it. In a notebook, run.explore() opens it with any set of heads ablated.",
)


class _Pool:
    """Attention summed over a few adjacent steps where the context is long."""

    def __init__(self, ds: xr.Dataset) -> None:
        self.width = -(-ds.sizes["time"] // _CELLS)

    @property
    def remark(self) -> str:
        return f"each stripe of attention is {self.width} steps wide" if self.width > 1 else ""

    def sums(self, z: np.ndarray) -> np.ndarray:
        return np.add.reduceat(z, np.arange(0, z.shape[-1], self.width), axis=-1)

    def edges(self, x: list[Any]) -> list[Any]:
        return [*x[: -1 : self.width], x[-1]]


def _states(ds: xr.Dataset, pool: _Pool) -> dict[str, Any]:
    """Collect all that the controls can show: properties of traces by their place."""
    layers, heads = range(ds.sizes["layer"]), range(ds.sizes["head"])

    def cell(layer: int, head: int) -> dict[str, Any]:
        update = head_update(ds, layer, head)
        pooled = pool.sums(update["attention"]["z"])
        update["attention"] |= {"z": pooled, "zmax": float(np.nanmax(pooled)) or 1.0}
        alone = array(ds, "ablated_forecast", "quantile", "step", layer=layer, head=head, series=0)
        return {
            "label": head_name(ds, layer, head),
            "text": head_words(ds, layer, head),
            "update": _compact(update),
            "toggled": _compact(ablation_update(ds, [(layer, head)], alone)),
        }

    return {
        "map": TRACES.index("scores"),
        "start": list(start(ds)),
        "menu": [{"label": each.words, "update": _compact(score_update(ds, key))} for key, each in scores(ds).items()],
        "cells": [[cell(layer, head) for head in heads] for layer in layers],
        "plain": _compact(ablation_update(ds, [], None)),
        "words": {"menu": "the map shows", "cell": "head", "toggle": "show the forecast without it"},
    }


def _compact(update: Update) -> dict[str, dict[str, Any]]:
    """Round an update to four digits for JSON; NaN becomes null."""
    return {
        str(TRACES.index(name)): {key: _plain(value) for key, value in properties.items()}
        for name, properties in update.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float | np.floating):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores, a row per head."""
    layers, heads = names(ds, "layer"), names(ds, "head")
    table = pd.DataFrame({"layer": np.repeat(layers, len(heads)), "head": np.tile(heads, len(layers))})
    table["component"] = ds["component"].values.ravel()
    for key, each in scores(ds).items():
        table[key.replace(" ", "_")] = each.values.ravel()
    for key in ("write_share", "attention_forecast", "attention_other"):
        table[key] = array(ds, key, "layer", "head").ravel()
    return table


def read_explore(ds: xr.Dataset) -> list[str]:
    """Name the head that matters most and the one that writes most, and whether they are the same."""
    unit, of_heads = unit_of(ds, 0) or "data units", f"Of the heads of {attention_kind(ds)}"
    shift, size = (array(ds, key, "layer", "head") for key in ("mean_shift", "write_size"))
    names_of = ds["component"].transpose("layer", "head").values.astype(str)
    loudest = tuple(int(v) for v in np.unravel_index(size.argmax(), size.shape))
    share = array(ds, "write_share", "layer", "head")[loudest]
    leads = np.argwhere(array(ds, "mean_shift_leads", "layer", "head").astype(bool))
    if not len(leads):
        out = [
            f"{of_heads} none stands out: without any of them the forecast moves by up to {num(shift.max())} {unit}."
        ]
        return [*out, f"{names_of[loudest]} writes most: {num(size[loudest])} {unit} on average."]
    most = (int(leads[0][0]), int(leads[0][1]))
    out = [
        f"{of_heads} the forecast moves most without {names_of[most]}: by {num(shift[most])} {unit} on "
        f"average, where the median head moves it by {num(float(np.median(shift)))} {unit}."
    ]
    same = "It also writes most" if most == loudest else f"{names_of[loudest]} writes most"
    out.append(f"{same}: {num(size[loudest])} {unit} on average, {percent(float(share))} of what all components write.")
    return out


@dataclass(frozen=True)
class Score:
    """One number a head.

    Attributes:
        key: its variable, with the product where there are two.
        words: what it is, for a menu and in the title of the colours.
        values: (layer, head).
    """

    key: str
    words: str
    values: np.ndarray


@EXPLORE.figure("One head: what it reads, what it writes, and the forecast without it.", variables=_NEEDS)
def explore_figure(
    ds: xr.Dataset,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    score: str | None = None,
    ablated: bool = False,
) -> go.Figure:
    """Draw every head's score, and of one head its attention, write, spectra, and the forecast without it.

    Args:
        ds: of kind "explore".
        layer, head: labels of the chosen head; the one with the largest score unless both are given.
        score: what the map shows, a key of :func:`scores`; the first unless given.
        ablated: also draw the forecast without the chosen head.

    Returns:
        Five panels with the traces :data:`TRACES`: the map; the singular values relative to the largest; the write to
        the forecast by step; the series over the head's attention to each context step; the end of the series with
        its forecasts.
    """
    place = start(ds, score)
    if layer is not None and head is not None:
        place = position(ds, "layer", layer), position(ds, "head", head)
    view = scene(ds, 0, ds.sizes["time"])
    parts: list[Update] = [frame(ds, view), score_update(ds, score), head_update(ds, *place)]
    alone = array(ds, "ablated_forecast", "quantile", "step", layer=place[0], head=place[1], series=0)
    parts.append(ablation_update(ds, [place], alone) if ablated else ablation_update(ds, [], None))
    specs = [[{}, {}, {}], [{"colspan": 2, "secondary_y": True}, None, {}]]
    widths = WIDTHS
    canvas = sheet(
        [ROW, ROW], widths, titles=TITLES, row_gap=160, column_gap=GAP, min_width=_WIDTH, above=42, specs=specs
    )
    canvas.fig.update_annotations(yshift=4)
    for name in TRACES:
        kind, where = PLACES[name]
        canvas.fig.add_trace(kind(**{"name": LEGEND.get(name, name), **_merge(parts, name)}), **where)
    axes(canvas, ds, view)
    for row in (1, 2):
        mark_start(canvas.panel(row, 3), view.time)
    return canvas.dress(
        f"One head at a time: {attention_kind(ds)} of {model_of(ds)} on {view.id}",
        head_words(ds, *place),
        sampling_words(ds),
    ).update_layout(legend={"traceorder": "normal", "x": 1, "xanchor": "right"})


def scores(ds: xr.Dataset) -> dict[str, Score]:
    """Return what the map can show, by key, the effect of an ablation first."""
    unit = unit_of(ds, 0) or "data units"
    words = {
        "spearman_distance": "ablation: 1 − rank correlation",
        "mean_shift": f"ablation: mean change ({unit})",
        "write_size": f"write: mean size ({unit})",
        "entropy": "attention: entropy (nats)",
        "normalised_entropy": "attention: entropy, 0 to 1 over heads",
    }
    entries = [Score(key, text, array(ds, key, "layer", "head")) for key, text in words.items() if key in ds]
    for product in names(ds, "product"):
        values = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
        entries.append(Score(f"stable_rank {product}", f"stable rank of {product}", values))
    return {each.key: each for each in entries}


def start(ds: xr.Dataset, score: str | None = None) -> tuple[int, int]:
    """Find the position (layer, head) of the head with the largest score."""
    values = _score(ds, score).values
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(layer), int(head)


def _score(ds: xr.Dataset, key: str | None) -> Score:
    available = scores(ds)
    if key is None:
        return next(iter(available.values()))
    if key not in available:
        raise unknown_name("score", key, available)
    return available[key]


def score_update(ds: xr.Dataset, score: str | None) -> Update:
    """Return the map of another score.

    Raises:
        UnknownNameError: no such score.
    """
    entry = _score(ds, score)
    words = plain(shortened(entry.words, _MAP, 12, lines=2)).replace("\n", "<br>")
    text = [[f"{v:.2g}" for v in row] for row in entry.values] if entry.values.size <= _MAX_NUMBERED else None
    return {
        "scores": {
            "z": entry.values,
            "zmin": min(0.0, float(np.nanmin(entry.values))),
            "zmax": float(np.nanmax(entry.values)) or 1.0,
            "text": text,
            "texttemplate": "%{text}" if text else None,
            "colorbar": {**BAR, "y": 0.536, "title": {"text": words, "side": "bottom"}},
            "hovertemplate": f"%{{customdata}}<br>{plain(entry.words)} %{{z:.4g}}<extra></extra>",
        }
    }


def head_update(ds: xr.Dataset, layer: int, head: int) -> Update:
    """Return what another head shows; ``layer`` and ``head`` are positions."""
    at = {"layer": layer, "head": head}
    attention = 100 * array(ds, "attention", "time", **at)[-drawn(ds) :]
    top, spectra = float(np.nanmax(attention)), {}
    for product in ("QK", "OV"):
        values = array(ds, "singular_value", "mode", **at, product=position(ds, "product", product))
        shares = values / (values[0] or np.nan)
        spectra[product] = {"y": np.where(shares > LEAST, shares, np.nan)}
    left, right, low, high = head - 0.5, head + 0.5, layer - 0.5, layer + 0.5
    return {
        "chosen": {"x": [left, right, right, left, left], "y": [low, low, high, high, low]},
        "write": {"y": array(ds, "write", "step", **at)},
        **spectra,
        "attention": {"z": attention[None], "zmax": top if top > _MIN_VISIBLE else 1.0},
    }


def ablation_update(ds: xr.Dataset, heads: Sequence[tuple[int, int]], quantiles: np.ndarray | None) -> Update:
    """Return the forecast without some heads.

    Args:
        heads: positions (layer, head) of what is ablated.
        quantiles: (quantile, step) at the levels of ``ds``; None draws none.
    """
    visible = quantiles is not None
    if quantiles is None:
        # what is not shown still has values: the browser's drawing of bands meets no empty line
        quantiles = array(ds, "quantile_forecast", "quantile", "step", series=0)
    low, high, middle = envelope(ds, quantiles)
    # two strokes a cell, and a gap
    x = [edge for _, head in heads for edge in (head - 0.5, head + 0.5, None) * 2]
    y = [edge for layer, _ in heads for edge in (layer - 0.5, layer + 0.5, None, layer + 0.5, layer - 0.5, None)]
    return {
        "crossed out": {"x": x, "y": y},
        "ablated low": {"y": low, "visible": visible},
        "ablated band": {"y": high, "visible": visible},
        "ablated median": {"y": middle, "visible": visible},
    }


def head_words(ds: xr.Dataset, layer: int, head: int) -> str:
    """Write the scores of one head in words; ``layer`` and ``head`` are positions."""
    at, unit = {"layer": layer, "head": head}, unit_of(ds, 0) or "data units"

    def value(key: str) -> float:
        return float(array(ds, key, **at))

    ranks = ", ".join(
        f"{product} {number(float(array(ds, 'stable_rank', **at, product=place)))}"
        for place, product in enumerate(names(ds, "product"))
    )
    aside = {"forecast tokens": value("attention_forecast"), "special tokens and padding": value("attention_other")}
    elsewhere = [f"{percent(share)} on {words}" for words, share in aside.items() if share >= 1e-4]
    effect = f"the median moves by {number(value('mean_shift'))} {unit} on average"
    if "spearman_distance" in ds:
        effect += f", Spearman distance {number(value('spearman_distance'))}"
    return (
        f"{head_name(ds, layer, head)}: attention entropy {number(round(value('entropy'), 6))} nats"
        + (f" ({', '.join(elsewhere)})" if elsewhere else "")
        + f"; writes {number(value('write_size'))} {unit} to the {ds.attrs.get('write_to', 'forecast')} on average "
        f"({percent(value('write_share'))} of what all components write); stable rank {ranks}; "
        f"without this head {effect}"
    )


def sampling_words(ds: xr.Dataset) -> str:
    """Write what a reader must know about how the forecasts were drawn, "" if nothing."""
    samples = int(ds.attrs.get("samples", 0))
    return f"every forecast from {samples} sample paths of one seed" if samples else ""


def _merge(parts: Sequence[Update], name: str) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.get(name, {}).items()}


@EXPLORE.panels
def _explore(ds: xr.Dataset) -> Iterator[ReportPanel]:
    fig = explore_figure(ds)
    pool = _Pool(ds)
    band = fig.data[TRACES.index("attention")]
    band.x, band.z = pool.edges(list(band.x)), pool.sums(np.asarray(band.z))
    band.update(attention_words(ds, timeline(ds, 0), pool.width))
    remarks = ["click a head in the map, or choose it", sampling_words(ds), pool.remark]
    subtitle = "; ".join(words for words in remarks if words)
    # what the page's script reads; plotly itself leaves it alone
    fig.layout.meta = {**fig.layout.meta, "subtitle": subtitle, "states": _states(ds, pool)}
    yield ReportPanel(fig, heads_table(ds), read_explore(ds))
