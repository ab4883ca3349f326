"""Heads one at a time: what each does to the forecast, and the forecast without it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.findings import flat_words
from tsfm_lens.viz.maps import HeadMap, under
from tsfm_lens.viz.needs import HEADS
from tsfm_lens.viz.panels import scene
from tsfm_lens.viz.recipes import draw_overlaid
from tsfm_lens.viz.select import array, layer_name, model_of, names, position, unit_of
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import VERMILION, percent
from tsfm_lens.viz.words import layer_names, measured, num

__all__ = ["explore_figure"]

_SCORES = (
    *("spearman_distance", "mean_shift", "write_size", "write_share", "entropy", "normalised_entropy"),
    *("attention_forecast", "attention_other"),
)
_MAX_NUMBERED = 60  # cells with room for their number

EXPLORE = measurement("explore", needs=HEADS)


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores, a row per series and head."""
    scores = [key for key in _SCORES if key in ds]
    ranks = {f"stable_rank_{each}": ds["stable_rank"].sel(product=each, drop=True) for each in names(ds, "product")}
    table = ds[scores].assign(ranks).to_dataframe(dim_order=["series", "layer", "head"]).reset_index()
    return table[["series", "layer", "head", "component", *scores, *ranks]]


def read_explore(ds: xr.Dataset) -> list[str]:
    """Name the head of the largest ablation effect and the one that writes most."""
    if flat := flat_words(ds, 0, "heads"):
        return flat
    amount = measured(unit_of(ds, 0) or "data units")
    shift, size = (array(ds, key, "layer", "head", series=0) for key in ("mean_shift", "write_size"))
    names_of = ds["component"].transpose("layer", "head").values.astype(str)
    loudest = tuple(int(v) for v in np.unravel_index(size.argmax(), size.shape))
    share = array(ds, "write_share", "layer", "head", series=0)[loudest]
    if not array(ds, "mean_shift_acts", "layer", "head").any():
        return [f"No head of {attention_kind(ds)} moves the forecast beyond rounding when it is ablated."]
    most = tuple(int(v) for v in np.unravel_index(shift.argmax(), shift.shape))
    out = [
        f"Among heads of {attention_kind(ds)}, ablating {names_of[most]} moves the forecast most "
        f"({amount(shift[most])} on average; median head {amount(float(np.median(shift)))})."
    ]
    same = "It also writes most" if most == loudest else f"{names_of[loudest]} writes most"
    out.append(f"{same}: {amount(size[loudest])} on average, {percent(float(share))} of all writes.")
    return out


@EXPLORE.figure(variables=("context",))
def explore_figure(ds: xr.Dataset, *, layer: str | int | None = None, head: str | int | None = None) -> go.Figure:
    """Draw by how much the forecast moves without each head, and of one head the forecast with and without it.

    Args:
        layer, head: labels of that head; the one with the largest effect unless both are given.
    """
    view, shift = scene(ds, 0, max(2 * ds.sizes["step"], 24)), array(ds, "mean_shift", "layer", "head", series=0)
    layers, heads = layer_names(ds), names(ds, "head")
    row, col = (int(at) for at in np.unravel_index(np.nanargmax(shift), shift.shape))
    if layer is not None and head is not None:
        row, col = position(ds, "layer", layer), position(ds, "head", head)
    framed = np.zeros(shift.shape, dtype=bool)
    framed[row, col] = True
    each, name = HeadMap(shift, "", "mean change", view.unit or "data units", low=0.0), head_name(ds, row, col)
    titles = ["without each head", "with and without the framed one"]
    canvas = sheet([max(24 * len(layers), 220)], [0.4, 0.6], titles=titles, column_gap=0.18, min_width=780, below=122)
    left, right = canvas
    left.cells(shift, heads, layers, each.hover, write=num, printed=_MAX_NUMBERED, customdata=each.words)
    left.frames(framed, VERMILION)
    left.x("head", type="category", ticks="", dtick=max(len(heads) // 12, 1), tickangle=0)
    left.y(type="category", autorange="reversed", ticks="", dtick=1 if len(layers) <= 24 else 2)
    canvas.fig.update_layout(coloraxis=each.colours(**under(canvas.fig.get_subplot(1, 1), canvas.plot_height)))
    alone = ds.assign(quantile_forecast=ds["ablated_forecast"].isel(layer=row, head=col))
    _, ends = draw_overlaid(right, view, {"complete model": ds, f"without {name}": alone})
    view.title_axes(right)
    return canvas.dress(
        f"Without {name} the forecast of {view.id} moves by {num(shift[row, col])} {view.unit}".strip(),
        f"{attention_kind(ds)} of {model_of(ds)}",
        ends,
    )


def head_name(ds: xr.Dataset, layer: int, head: int) -> str:
    """Name a head's layer and number; both are positions."""
    return f"{layer_name(names(ds, 'layer')[layer])}, head {names(ds, 'head')[head]}"


@EXPLORE.panels
def _explore(ds: xr.Dataset) -> Iterator[ReportPanel]:
    yield ReportPanel(explore_figure(ds), heads_table(ds), read_explore(ds))
