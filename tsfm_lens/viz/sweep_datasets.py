"""Which datasets lose and which gain as heads of one layer go: a row a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.sweep_entries import NO_AXIS, change_text, chosen_model, order_words, table_of, tolerance_of
from tsfm_lens.viz.theme import DIVERGING, INK, dress, percent, plain

__all__ = ["dataset_heatmap"]

_ROW, _CELL, _LETTER = 15, 27, 5.4  # pixels: height of a row, width of a cell, of a letter of a name
_LEAST = 150  # pixels: height of a map of few datasets


def dataset_heatmap(
    table: pd.DataFrame,
    *,
    model: str | int = 0,
    layers: Sequence[int] | None = None,
    datasets: Sequence[str] | None = None,
) -> go.Figure:
    """What each dataset makes of ablating more and more heads of one layer, side by side for the layers of a model.

    Args:
        table: of kind "sweep_datasets".
        model: name or place.
        layers: which of the model's layers to draw, all unless given.
        datasets: which datasets to draw and in which order, all unless given; 60 fit a printed page.

    Returns:
        A heat map a layer: a row a dataset, a column a number of heads. The colour is the change of MASE, capped; the
        number is the MASE, bold and framed at the largest count within the tolerance.

    Raises:
        InputError: ``table`` is of another kind, or the model has no such layer.
        UnknownNameError: no such model or dataset.
    """
    table_of(table, "sweep_datasets", "mase", "change", "largest_within", "model", "layer", "order", "kept", "of")
    name = chosen_model(table, model)
    own = table[table["model"] == name]
    panels = [rows for layer, rows in own.groupby("layer", sort=False) if layers is None or layer in layers]
    if not panels:
        has = ", ".join(map(str, dict.fromkeys(own["layer"])))
        raise InputError(f"no layer of {list(layers or ())} is mapped by dataset for {name!r}; there are: {has}")
    known = sorted(set(table["dataset"]))
    for each in datasets or ():
        if each not in known:
            raise unknown_name("dataset", each, known, hint=f"There are {len(known)}.")
    shown = known if datasets is None else list(datasets)
    counts = [_counts(rows) for rows in panels]
    widths = [int(rows["of"].iloc[0]) + 1 for rows in panels]
    fig = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        column_widths=widths,
        horizontal_spacing=0.02,
        subplot_titles=[_title(rows) for rows in panels],
    )
    fig.update_annotations(font={"size": 12})
    cap = float(table.attrs.get("cap", 0.25))
    for column, (rows, across) in enumerate(zip(panels, counts, strict=True), start=1):
        for trace in _panel(rows, shown, across, cap):
            fig.add_trace(trace, row=1, col=column)
        fig.update_xaxes(title_text="heads ablated", tickvals=across, col=column, **NO_AXIS)
    labels = [plain(each) for each in shown]
    ticks = {"tickvals": list(range(len(shown))), "ticktext": labels, "tickfont": {"size": 10}}
    fig.update_yaxes(range=[len(shown) - 0.5, -0.5], ticklabelstandoff=4, **ticks, **NO_AXIS)
    height = max(_ROW * len(shown), _LEAST) + 20
    bar = {"title": {"text": "change of MASE (%)", "side": "right"}, "nticks": 7}
    # beside a tall map a bar of the same height says nothing more
    bar |= {"len": min(height, 320), "lenmode": "pixels", "y": 1, "yanchor": "top"}
    axis = {"colorscale": DIVERGING, "cmin": -100 * cap, "cmax": 100 * cap, "cmid": 0, "colorbar": bar}
    fig.update_layout(coloraxis=axis)
    # no head ablated is no number that could have been searched
    empty = any(set(across) - {0} - set(rows["ablated"]) for rows, across in zip(panels, counts, strict=True))
    made = dress(
        fig,
        f"MASE of {name} on every dataset as heads of a layer are ablated",
        f"blue is better; colours capped at ±{percent(cap)} of the unablated MASE; bold and framed: "
        f"the largest number of heads with a rise below {percent(tolerance_of(table))}"
        f"{'; empty columns were not evaluated' if empty else ''}",
        plot_height=height,
        above=40,
        min_width=round(130 + _LETTER * max(len(label) for label in labels) + _CELL * sum(widths)),
    )
    return made.update_layout(margin_r=96)


def _counts(rows: pd.DataFrame) -> list[int]:
    """The columns of a panel: every number of heads, and none ablated where that has a result."""
    return [count for count in range(int(rows["of"].iloc[0]) + 1) if count or (rows["ablated"] == 0).any()]


def _title(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return f"layer {first['layer']}, keeps {first['kept']}<br>{plain(order_words(first['order']))}"


def _panel(rows: pd.DataFrame, datasets: list[str], counts: list[int], cap: float) -> tuple[go.Heatmap, go.Scatter]:
    """The cells of a layer, and frames around the marked ones."""
    mase, change = (
        rows.pivot(index="dataset", columns="ablated", values=name).reindex(index=datasets, columns=counts).to_numpy()
        for name in ("mase", "change")
    )
    largest = rows.groupby("dataset")["largest_within"].first().reindex(datasets).to_numpy()
    marked = np.array(counts)[None, :] == largest[:, None]
    cells = go.Heatmap(
        x=counts,
        y=np.arange(len(datasets)),
        z=np.clip(100 * change, -100 * cap, 100 * cap),
        coloraxis="coloraxis",
        text=[[_cell(m, bold) for m, bold in zip(*line, strict=True)] for line in zip(mase, marked, strict=True)],
        texttemplate="%{text}",
        textfont={"size": 9},
        xgap=1,
        ygap=1,
        hoverongaps=False,
        customdata=[
            [
                f"{plain(name)}<br>{n} heads ablated: MASE {m:.4g}, {_known(c)}"
                for n, m, c in zip(counts, *line, strict=True)
            ]
            for name, *line in zip(datasets, mase, change, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    x, y = _frames(counts, marked)
    frame = {"color": INK, "width": 1.4}
    return cells, go.Scatter(
        x=x, y=y, mode="lines", line=frame, hoverinfo="skip", showlegend=False, name="largest within"
    )


def _cell(mase: float, bold: bool) -> str:
    if not np.isfinite(mase):
        return ""
    text = f"{mase:.2f}" if mase < 100 else f"{mase:.0f}"
    return f"<b>{text}</b>" if bold else text


def _known(change: float) -> str:
    return change_text(change) if np.isfinite(change) else "change unknown"


def _frames(counts: list[int], marked: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """One line around every marked cell."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, column in zip(*np.nonzero(marked), strict=True):
        left, up = float(counts[column]) - 0.5, float(row) - 0.5
        x += [left, left + 1, left + 1, left, left, None]
        y += [up, up, up + 1, up + 1, up, None]
    return x, y
