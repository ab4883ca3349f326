"""Changes of error by dataset and component."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.theme import DIVERGING, INK, percent, plain
from tsfm_lens.viz.words import num

__all__ = ["dataset_heatmap"]
_ROW, _CELL, _LETTER = 17, 27, 5.4  # pixels: height of a row, width of a cell, of a letter of a name
_LEAST = 150  # pixels: height of a map of few datasets

SWEEP_DATASETS = measurement(
    "sweep_datasets",
    theme="Sweeps",
    title="Which datasets bear the loss of heads",
    summary="error on every dataset over heads ablated",
    description="The same for every dataset by itself, in the layer that keeps most heads and in the one that keeps "
    "fewest; of layers that keep as many, the one where losing all of them costs most, or least.",
    source="tsfm-lens, figures 16 to 19",
    paper=("S3-F16", "S3-F17", "S3-F18", "S3-F19"),
    subject=sweep.sweep_subject,
)


def read_datasets(table: pd.DataFrame) -> list[str]:
    """State on how many datasets a layer can lose its heads, and on how many that helps; of one model."""
    out = []
    for layer, rows in table.groupby("layer", sort=False):
        finite = rows[np.isfinite(rows["change"])]
        if finite.empty:
            continue
        of, remaining = int(rows["of"].iloc[0]), int(rows["kept"].iloc[0])
        # no head ablated is always within
        largest = finite.groupby("dataset")["largest_within"].first().clip(lower=0)
        without = finite.loc[finite["ablated"] == of, "change"]
        text = (
            f"Layer {layer} (keeps {remaining} of {of} heads over all datasets): all {of} heads can go within "
            f"{percent(sweep.tolerance_of(table))} on {int((largest == of).sum())} of "
            f"{sweep.counted(len(largest), 'dataset')}, their median largest number is {num(float(largest.median()))}"
        )
        falls = f"; without all heads the MASE falls on {int((without < 0).sum())}"
        out.append(f"{text}{falls if len(without) else ', of those evaluated'}.")
    return out


@sweep.figure(
    SWEEP_DATASETS,
    "Error on every dataset over heads ablated.",
    *("mase", "change", "largest_within", "model", "layer", "order", "kept", "of"),
)
def dataset_heatmap(
    table: pd.DataFrame,
    *,
    model: str | int = 0,
    layers: Sequence[int] | None = None,
    datasets: Sequence[str] | None = None,
) -> go.Figure:
    """Draw what each dataset makes of ablating more and more heads of one layer, the layers of a model side by side.

    Args:
        table: of kind "sweep_datasets".
        model: name or place.
        layers: which of the model's layers to draw, all unless given.
        datasets: which datasets to draw and in which order, all unless given; 60 fit a printed page.

    Returns:
        A heat map a layer: a row a dataset, a column a number of heads. The colour is the change of MASE, capped; the
        number is the MASE, bold and framed at the largest count within the tolerance.
    """
    name = sweep.chosen_model(table, model)
    of_model = table[table["model"] == name]
    panels = [rows for layer, rows in of_model.groupby("layer", sort=False) if layers is None or layer in layers]
    if not panels:
        has = ", ".join(map(str, dict.fromkeys(of_model["layer"])))
        raise InputError(f"no layer of {list(layers or ())} is mapped by dataset for {name!r}; there are: {has}")
    available = sorted(set(table["dataset"]))
    for each in datasets or ():
        if each not in available:
            raise unknown_name("dataset", each, available, hint=f"There are {len(available)}.")
    selection = available if datasets is None else list(datasets)
    firsts = [rows.iloc[0] for rows in panels]
    widths = [int(first["of"]) + 1 for first in firsts]
    # a column for none ablated where that has a result
    counts = [
        [count for count in range(width) if count or (rows["ablated"] == 0).any()]
        for width, rows in zip(widths, panels, strict=True)
    ]
    labels = [plain(each) for each in selection]
    canvas = sheet(
        [max(_ROW * len(selection), _LEAST) + 20],
        widths,
        titles=[f"layer {one['layer']}, keeps {one['kept']}\n{sweep.order_words(one['order'])}" for one in firsts],
        column_gap=0.02,
        above=40,
        min_width=round(130 + _LETTER * max(len(label) for label in labels) + _CELL * sum(widths)),
        shared_yaxes=True,
    )
    cap = float(table.attrs.get("cap", 0.25))
    for panel, rows, across in zip(canvas, panels, counts, strict=True):
        _draw(panel, rows, selection, across, 100 * cap)
        panel.x("heads ablated", tickvals=list(range(len(across))), ticktext=across, **sweep.NO_AXIS)
    sweep.label_rows(canvas, labels, ticklabelstandoff=4, tickfont={"size": 10})
    # beside a tall map a bar of the same height says nothing more
    bar = sweep.bar_title("change of MASE (%)") | {"y": 1, "yanchor": "top"}
    canvas.colours({"colorscale": DIVERGING, "cmin": -100 * cap, "cmax": 100 * cap, "cmid": 0, "colorbar": bar})
    # no head ablated is no number that could have been searched
    empty = any(set(across) - {0} - set(rows["ablated"]) for rows, across in zip(panels, counts, strict=True))
    return canvas.dress(
        f"MASE of {name} on every dataset as heads of a layer are ablated",
        f"blue is better; colours capped at ±{percent(cap)} of the unablated MASE; bold and framed: "
        f"the largest number of heads with a rise below {percent(sweep.tolerance_of(table))}",
        "empty columns were not evaluated" if empty else "",
    )


def _draw(panel: Panel, rows: pd.DataFrame, datasets: list[str], counts: list[int], cap: float) -> None:
    """Draw the cells of a layer, and frames around the marked ones."""
    mase, change = (
        rows.pivot(index="dataset", columns="ablated", values=name).reindex(index=datasets, columns=counts).to_numpy()
        for name in ("mase", "change")
    )
    largest = rows.groupby("dataset")["largest_within"].first().reindex(datasets).to_numpy()
    marked = np.array(counts)[None, :] == largest[:, None]
    panel.cells(
        np.clip(100 * change, -cap, cap),
        np.arange(len(counts)),
        np.arange(len(datasets)),
        "%{customdata}",
        text=[[_cell(m, bold) for m, bold in zip(*line, strict=True)] for line in zip(mase, marked, strict=True)],
        texttemplate="%{text}",
        textfont={"size": 9},
        customdata=[
            [
                f"{plain(name)}<br>{n} heads ablated: MASE {m:.4g}, "
                f"{sweep.change_text(c) if np.isfinite(c) else 'change unknown'}"
                for n, m, c in zip(counts, *line, strict=True)
            ]
            for name, *line in zip(datasets, mase, change, strict=True)
        ],
    )
    panel.frames(marked, INK)


def _cell(mase: float, bold: bool) -> str:
    if not np.isfinite(mase):
        return ""
    text = f"{mase:.2f}" if mase < 100 else f"{mase:.0f}"
    return f"<b>{text}</b>" if bold else text


@SWEEP_DATASETS.panels
def _datasets(table: pd.DataFrame) -> Iterator[ReportPanel]:
    for model in sweep.models_in(table):
        of_model = table[table["model"] == model]
        yield from sweep.sweep_panel(f"dataset_heatmap-{model}", of_model, dataset_heatmap, read_datasets)
