"""Which datasets lose and which gain as heads of one layer go: a row a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.errors import InputError
from tsfm_lens.viz.select import array, check, names, positions
from tsfm_lens.viz.sweep_entries import change_text, chosen_model, order_words, tolerance_of
from tsfm_lens.viz.theme import DIVERGING, INK, dress, percent, plain

__all__ = ["dataset_heatmap"]

_ROW, _CELL, _LETTER = 15, 27, 5.4  # pixels: height of a row, width of a cell, of a letter of a name
_LEAST = 150  # pixels: height of a map of few datasets


def dataset_heatmap(
    ds: xr.Dataset, *, model: str | int = 0, layers: Sequence[int] | None = None, datasets: Sequence[str] | None = None
) -> go.Figure:
    """What each dataset makes of ablating more and more heads of one layer, side by side for the layers of a model.

    Args:
        ds: of kind "sweep_datasets".
        model: name or place.
        layers: which of the model's layers to draw, all unless given.
        datasets: which datasets to draw and in which order, all unless given; 60 fit a printed page.

    Returns:
        A heat map a layer: a row a dataset, a column a number of heads. The colour is the change of MASE, capped; the
        number is the MASE, bold and framed at the largest count within the tolerance.

    Raises:
        InputError: ``ds`` is of another kind, or the model has no such layer.
        UnknownNameError: no such model or dataset.
    """
    check(ds, "sweep_datasets", "mase", "mase_change", "largest_within", "model", "layer", "order", "role", "of")
    models = [str(each) for each in ds["model"].values]
    name = chosen_model(list(dict.fromkeys(models)), model)
    own = [i for i, each in enumerate(models) if each == name]
    panels = [i for i in own if layers is None or int(ds["layer"].values[i]) in layers]
    if not panels:
        has = ", ".join(str(int(ds["layer"].values[i])) for i in own)
        raise InputError(f"no layer of {list(layers or ())} is mapped by dataset for {name!r}; there are: {has}")
    rows = positions(ds, "dataset", datasets)
    counts, known = ds["ablated"].values.astype(int), _known_counts(ds)
    widths = [int(ds["of"].values[i]) + 1 for i in panels]
    fig = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        column_widths=widths,
        horizontal_spacing=0.02,
        subplot_titles=[_title(ds, i) for i in panels],
    )
    fig.update_annotations(font={"size": 12})
    for column, panel in enumerate(panels, start=1):
        shown = (counts <= int(ds["of"].values[panel])) & (known[panel] | (counts > 0))
        _panel(fig, ds, panel, rows, np.flatnonzero(shown), column)
        fig.update_xaxes(title_text="heads ablated", tickvals=counts[shown], ticks="", showline=False, col=column)
    labels = [plain(names(ds, "dataset")[i]) for i in rows]
    fig.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=labels,
        range=[len(rows) - 0.5, -0.5],
        ticks="",
        showline=False,
        ticklabelstandoff=4,
        tickfont={"size": 10},
    )
    cap = float(ds.attrs.get("cap", 0.25))
    height = max(_ROW * len(rows), _LEAST) + 20
    bar = {"title": {"text": "change of MASE (%)", "side": "right"}, "nticks": 7}
    # beside a tall map a bar of the same height says nothing more
    bar |= {"len": min(height, 320), "lenmode": "pixels", "y": 1, "yanchor": "top"}
    axis = {"colorscale": DIVERGING, "cmin": -100 * cap, "cmax": 100 * cap, "cmid": 0, "colorbar": bar}
    fig.update_layout(coloraxis=axis)
    made = dress(
        fig,
        f"MASE of {name} on every dataset as heads of a layer are ablated",
        f"blue is better; colours capped at ±{percent(cap)} of the unablated MASE; bold and framed: "
        f"the largest number of heads with a rise below {percent(tolerance_of(ds))}{_gaps(ds, panels)}",
        plot_height=height,
        above=40,
        min_width=round(130 + _LETTER * max(len(label) for label in labels) + _CELL * sum(widths)),
    )
    return made.update_layout(margin_r=96)


def _known_counts(ds: xr.Dataset) -> np.ndarray:
    """(panel, ablated): whether some dataset has a result."""
    return np.isfinite(array(ds, "mase", "panel", "dataset", "ablated")).any(axis=1)


def _gaps(ds: xr.Dataset, panels: list[int]) -> str:
    """What a subtitle says of numbers of heads that a search passed over."""
    known = _known_counts(ds)
    counts, of = ds["ablated"].values.astype(int), ds["of"].values.astype(int)
    # no head ablated is no number that could have been searched
    empty = any((~known[i] & (counts > 0) & (counts <= of[i])).any() for i in panels)
    return "; empty columns were not evaluated" if empty else ""


def _title(ds: xr.Dataset, panel: int) -> str:
    role, layer = str(ds["role"].values[panel]), int(ds["layer"].values[panel])
    return f"layer {layer}, {plain(role)}<br>{plain(order_words(str(ds['order'].values[panel])))}"


def _panel(fig: go.Figure, ds: xr.Dataset, panel: int, rows: list[int], columns: np.ndarray, place: int) -> None:
    mase = array(ds, "mase", "dataset", "ablated", panel=panel)[rows][:, columns]
    change = array(ds, "mase_change", "dataset", "ablated", panel=panel)[rows][:, columns]
    counts = ds["ablated"].values.astype(int)[columns]
    largest = array(ds, "largest_within", "dataset", panel=panel)[rows]
    marked = counts[None, :] == largest[:, None]
    cap = 100 * float(ds.attrs.get("cap", 0.25))
    labels = [plain(names(ds, "dataset")[i]) for i in rows]
    fig.add_trace(
        go.Heatmap(
            x=counts,
            y=np.arange(len(rows)),
            z=np.clip(100 * change, -cap, cap),
            coloraxis="coloraxis",
            text=[[_cell(m, bold) for m, bold in zip(*line, strict=True)] for line in zip(mase, marked, strict=True)],
            texttemplate="%{text}",
            textfont={"size": 9},
            xgap=1,
            ygap=1,
            hoverongaps=False,
            customdata=[
                [
                    f"{label}<br>{n} heads ablated: MASE {m:.4g}, {_known(c)}"
                    for n, m, c in zip(counts, *line, strict=True)
                ]
                for label, *line in zip(labels, mase, change, strict=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
        ),
        row=1,
        col=place,
    )
    x, y = _frames(counts, marked)
    frame = {"color": INK, "width": 1.4}
    fig.add_trace(
        go.Scatter(x=x, y=y, mode="lines", line=frame, hoverinfo="skip", showlegend=False, name="largest within"),
        row=1,
        col=place,
    )


def _cell(mase: float, bold: bool) -> str:
    if not np.isfinite(mase):
        return ""
    text = f"{mase:.2f}" if mase < 100 else f"{mase:.0f}"
    return f"<b>{text}</b>" if bold else text


def _known(change: float) -> str:
    return change_text(change) if np.isfinite(change) else "change unknown"


def _frames(counts: np.ndarray, marked: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """One line around every marked cell."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, column in zip(*np.nonzero(marked), strict=True):
        left, up = float(counts[column]) - 0.5, float(row) - 0.5
        x += [left, left + 1, left + 1, left, left, None]
        y += [up, up, up + 1, up + 1, up, None]
    return x, y
