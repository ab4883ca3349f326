"""Heavy ablations and rules of selection across datasets, and changes by dataset."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.core.registry import FigurePanel, check, figure, measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.sheet import Look, Panel, blank, sheet
from tsfm_lens.viz.theme import CATEGORICAL, DIVERGING, GREY, INK, mixed, percent, plain
from tsfm_lens.viz.words import num

__all__ = ["dataset_heatmap", "recipe_table", "selection_comparison"]

_KEYS = (
    "model",
    "recipe",
    "selection",
    "seed",
    "change",
    "lower",
    "upper",
    "significant",
)
_SIZES = ("metric", "heads_ablated", "heads_total", "n_mlps")
_DIFF = ("diff", "diff_lower", "diff_upper", "diff_significant", "n_worse")
_COUNTS = {
    "n_resilient": "datasets with a rise of MASE below 5 %",
    "n_improved": "datasets with a lower MASE",
}
_COLOUR_CAP = 25  # percent at which the table's colours end

measurement(
    "sweep_recipes",
    title="Heavy ablations",
    theme="Sweeps",
    summary="heavy ablations on every metric",
    description=(
        "A recipe lists many heads and MLPs of several layers, which are ablated "
        "together."
    ),
    source="tsfm-lens, tables 1 and 4",
    paper=(
        "S3-T1",
        "S3-T4",
    ),
    subject=sweep.sweep_subject,
)
measurement(
    "sweep_selection",
    title="Informed and random choices of heads",
    theme="Sweeps",
    summary="informed against random choices of heads",
    description=(
        "The same recipes with as many heads of each layer drawn at random. If the "
        "choice did not matter, both would cost the same."
    ),
    source="tsfm-lens, figures 12 and 13",
    subject=sweep.sweep_subject,
)


def read_recipes(table: pd.DataFrame) -> list[str]:
    """State what recipes cost in MASE, and which changes are significant."""
    rows = recipe_rows(table)
    rows = rows[rows["metric"] == "MASE"]
    return sweep.say_changes(rows, "with a recipe", rows["label"])


def read_selection(table: pd.DataFrame) -> list[str]:
    """State whether an informed choice beats random ones, recipe by recipe."""
    out = []
    for row in sweep.told(table[np.isfinite(table["diff"])]):
        same = (table["model"] == row["model"]) & (table["recipe"] == row["recipe"])
        seeds = int((same & (table["selection"] == "random")).sum())
        span = sweep.span_text(row["diff_lower"], row["diff_upper"])
        out.append(
            f"{row['model']}, {row['recipe']}: MASE of the informed choice against the "
            f"geometric mean of {seeds} random ones: {sweep.change_text(row['diff'])} {span} "
            f"({sweep.verdict(row['diff_significant'])}); {row['n_worse']} of {seeds} cost "
            "more."
        )
    return out


def recipe_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the entries of recipes with ``label`` (model and what goes) and ``chosen`` (how its heads were chosen)."""
    check(table, "sweep_recipes", *_KEYS, *_SIZES)
    # a recipe without a result on some metrics still has a row
    sweep.finished(table.assign(there=1.0), "heavy recipes", "there")
    informed = table[table["selection"] != "random"]
    table = table if informed.empty else informed
    labels = pd.Series(
        [f"{row['model']} ({sweep.recipe_words(row)})" for row in sweep.told(table)],
        index=table.index,
    )
    # two recipes of the same size need their names
    several = table["recipe"].groupby(labels).transform("nunique") > 1
    choices = [
        sweep.selection_words(row["selection"], row["seed"])
        for row in sweep.told(table)
    ]
    return table.assign(
        label=labels.where(~several, labels + ", " + table["recipe"]), chosen=choices
    )


@figure(
    "sweep_recipes",
    "Heavy ablations on every metric.",
    variables=(*_COUNTS, "n_datasets"),
)
def recipe_table(table: pd.DataFrame) -> go.Figure:
    """Draw heavy recipes as a table: change of every metric with its interval, datasets resilient and improved."""
    entries = recipe_rows(table)
    several = entries["chosen"].nunique() > 1
    columns = [f"%Δ{plain(metric)}" for metric in dict.fromkeys(entries["metric"])] + [
        "resilient",
        "improved",
    ]
    labels, text, hover, colours = [], [], [], []
    for _, entry in entries.groupby(_entry(entries), sort=False):
        cells = sweep.told(entry)
        labels.append(
            plain(
                f"{cells[0]['label']}, {cells[0]['chosen']}"
                if several
                else cells[0]["label"]
            )
        )
        counts = [f"{cells[0][name]} of {cells[0]['n_datasets']}" for name in _COUNTS]
        text.append([_table_cell(row) for row in cells] + counts)
        texts = [
            f"{count} {what}"
            for count, what in zip(counts, _COUNTS.values(), strict=True)
        ]
        hover.append(
            [f"{plain(row['metric'])} {sweep.change_words(row)}" for row in cells]
            + texts
        )
        colours.append(
            [
                *np.nan_to_num(100 * entry["change"]).clip(-_COLOUR_CAP, _COLOUR_CAP),
                0,
                0,
            ]
        )
    canvas = blank(40 * len(labels), 200 + 80 * len(columns), below=12)
    canvas.above = 34
    # twice the range: pale colours, so that the numbers stand out
    colour_axis = {
        "cmin": -2 * _COLOUR_CAP,
        "cmax": 2 * _COLOUR_CAP,
        "colorscale": DIVERGING,
        "showscale": False,
    }
    canvas.fig.update_layout(coloraxis=colour_axis)
    panel = next(iter(canvas))
    look: Look = {
        "text": text,
        "texttemplate": "%{text}",
        "textfont": {"size": 12, "color": INK},
    }
    panel.cells(
        np.array(colours),
        columns,
        np.arange(len(labels)),
        "%{customdata}",
        customdata=hover,
        **look,
    )
    panel.x("", side="top", **sweep.NO_AXIS)
    sweep.label_rows(canvas, labels)
    return canvas.dress(
        "Heavy ablations: change of every metric, and resilient datasets",
        f"% change of the geometric mean over datasets [{sweep.intervals_of(table)[:-1]}], lower is better; bold: "
        "significant; resilient: MASE rises by less than 5 %, improved: it falls",
    )


def _entry(rows: pd.DataFrame) -> list[pd.Series]:
    """Return what tells one entry's rows from another's."""
    return [rows[name] for name in ("model", "recipe", "selection", "seed")]


def _table_cell(row: dict[str, Any]) -> str:
    if not np.isfinite(row["change"]):
        return "–"
    main = sweep.change_text(row["change"], 2)[:-2]
    main = f"<b>{main}</b>" if row["significant"] else main
    span = sweep.span_text(row["lower"], row["upper"]).replace(" %]", "]")
    return f'{main}<br><span style="font-size:10px">{span}</span>' if span else main


@figure(
    "sweep_selection",
    "Informed and random choices of the same number of heads.",
    variables=(*_KEYS, *_DIFF),
)
def selection_comparison(table: pd.DataFrame) -> go.Figure:
    """Draw the change of MASE for informed choices of heads and for random ones at the same counts."""
    entries, remark = sweep.finished(table, "recipes against random heads", "change")
    entries = entries.assign(label=entries["model"] + ", " + entries["recipe"])
    rows, kinds = (
        list(dict.fromkeys(entries[name])) for name in ("label", "selection")
    )
    canvas = blank(max(140, 44 * len(rows)), 420)
    panel = canvas.panel()
    for i, kind in enumerate(kinds):
        mine, random = entries[entries["selection"] == kind], kind == "random"
        panel.dots(
            100 * mine["change"].to_numpy(float),
            # side by side in the row of their label
            [
                rows.index(label) - 0.22 + 0.44 * i / max(len(kinds) - 1, 1)
                for label in mine["label"]
            ],
            "heads at random, a seed each"
            if random
            else f"heads {sweep.selection_words(kind)}",
            "%{customdata}",
            customdata=[
                f"{plain(row['label'])}, {plain(sweep.selection_words(row['selection'], row['seed']))}<br>"
                f"{sweep.change_words(row)}"
                for row in sweep.told(mine)
            ],
            colour=mixed(GREY, 0.8) if random else CATEGORICAL[2 * i % 6],
            size=8,
            symbol=sweep.symbols(mine["diff_significant"]),
            error_x=sweep.whiskers(mine, colour=GREY, scale=100),
        )
    panel.upright(0)
    panel.x("change of MASE (%)")
    sweep.label_rows(canvas, [plain(label) for label in rows])
    return canvas.dress(
        "Informed against random choices of heads: change of MASE",
        f"the same number of heads in each layer and the same MLPs; {sweep.intervals_of(table)}; filled: the "
        "difference from the geometric mean of the random choices is significant",
        remark,
    )


panels("sweep_recipes")(
    partial(sweep.sweep_panel, "recipe_table", draw=recipe_table, words=read_recipes)
)
panels("sweep_selection")(
    partial(
        sweep.sweep_panel,
        "selection_comparison",
        draw=selection_comparison,
        words=read_selection,
    )
)


_MAP_ROW, _CELL, _LETTER = (
    17,
    27,
    5.4,
)  # pixels: height of a row, width of a cell, of a letter of a name
_LEAST = 150  # pixels: height of a map of few datasets
measurement(
    "sweep_datasets",
    title="Head ablation by dataset",
    theme="Sweeps",
    summary="error on every dataset over heads ablated",
    description=(
        "The error on every dataset by itself, for the layer that must keep most "
        "heads and the one that must keep fewest. Ties go to the layer where losing "
        "all heads costs most, or least."
    ),
    source="tsfm-lens, figures 16 to 19",
    paper=(
        "S3-F16",
        "S3-F17",
        "S3-F18",
        "S3-F19",
    ),
    subject=sweep.sweep_subject,
)


def read_datasets(table: pd.DataFrame) -> list[str]:
    """State on how many datasets a layer can lose its heads; of one model."""
    out = []
    within = percent(sweep.tolerance_of(table))
    for layer, rows in table[np.isfinite(table["change"])].groupby("layer", sort=False):
        of, kept = int(rows["of"].iloc[0]), int(rows["kept"].iloc[0])
        # no head ablated is always within
        largest = rows.groupby("dataset")["largest_within"].first().clip(lower=0)
        datasets = sweep.counted(len(largest), "dataset")
        out.append(
            f"Layer {layer} (keeps {kept} of {of} heads over all datasets): all {of} heads "
            f"can go within {within} on {(largest == of).sum()} of {datasets}; the median "
            f"dataset tolerates {num(float(largest.median()))}."
        )
    return out


@figure(
    "sweep_datasets",
    "Error on every dataset over heads ablated.",
    variables=(
        "mase",
        "change",
        "largest_within",
        "model",
        "layer",
        "order",
        "kept",
        "of",
    ),
)
def dataset_heatmap(table: pd.DataFrame, *, model: str | int = 0) -> go.Figure:
    """Draw the error on each dataset as more heads of a layer are ablated, layers side by side."""
    name, selection = sweep.chosen_model(table, model), sorted(set(table["dataset"]))
    panels = [
        rows for _, rows in table[table["model"] == name].groupby("layer", sort=False)
    ]
    firsts = [rows.iloc[0] for rows in panels]
    widths = [int(first["of"]) + 1 for first in firsts]
    # a column for none ablated where that has a result
    counts = [
        [count for count in range(width) if count or (rows["ablated"] == 0).any()]
        for width, rows in zip(widths, panels, strict=True)
    ]
    labels = [plain(each) for each in selection]
    canvas = sheet(
        [max(_MAP_ROW * len(selection), _LEAST) + 20],
        widths,
        titles=[
            f"layer {one['layer']}, keeps {one['kept']}\n{sweep.order_words(one['order'])}"
            for one in firsts
        ],
        column_gap=0.02,
        above=40,
        min_width=round(
            130 + _LETTER * max(len(label) for label in labels) + _CELL * sum(widths)
        ),
        shared_yaxes=True,
    )
    cap = float(table.attrs.get("cap", 0.25))
    for panel, rows, across in zip(canvas, panels, counts, strict=True):
        _draw(panel, rows, selection, across, 100 * cap)
        panel.x(
            "heads ablated",
            tickvals=list(range(len(across))),
            ticktext=across,
            **sweep.NO_AXIS,
        )
    sweep.label_rows(canvas, labels, ticklabelstandoff=4, tickfont={"size": 10})
    # beside a tall map a bar of the same height says nothing more
    bar = {
        "title": {"text": "change of MASE (%)", "side": "right"},
        "nticks": 6,
        "y": 1,
        "yanchor": "top",
    }
    canvas.colours(
        {
            "colorscale": DIVERGING,
            "cmin": -100 * cap,
            "cmax": 100 * cap,
            "cmid": 0,
            "colorbar": bar,
        }
    )
    # no head ablated is no number that could have been searched
    empty = any(
        set(across) - {0} - set(rows["ablated"])
        for rows, across in zip(panels, counts, strict=True)
    )
    return canvas.dress(
        f"MASE of {name} on every dataset as heads of a layer are ablated",
        f"blue is better; colours capped at ±{percent(cap)} of the unablated MASE; bold and framed: "
        f"the largest number of heads with a rise below {percent(sweep.tolerance_of(table))}",
        "empty columns were not evaluated" if empty else "",
    )


def _draw(
    panel: Panel, rows: pd.DataFrame, datasets: list[str], counts: list[int], cap: float
) -> None:
    """Draw the cells of a layer, and frames around the marked ones."""
    mase, change = (
        rows.pivot(index="dataset", columns="ablated", values=name)
        .reindex(index=datasets, columns=counts)
        .to_numpy()
        for name in ("mase", "change")
    )
    largest = (
        rows.groupby("dataset")["largest_within"].first().reindex(datasets).to_numpy()
    )
    marked = np.array(counts)[None, :] == largest[:, None]
    panel.cells(
        np.clip(100 * change, -cap, cap),
        np.arange(len(counts)),
        np.arange(len(datasets)),
        "%{customdata}",
        text=[
            [_cell(m, bold) for m, bold in zip(*line, strict=True)]
            for line in zip(mase, marked, strict=True)
        ],
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


@panels("sweep_datasets")
def _datasets(table: pd.DataFrame) -> Iterator[FigurePanel]:
    for model in sweep.models_in(table):
        of_model = table[table["model"] == model]
        yield from sweep.sweep_panel(
            f"dataset_heatmap-{model}", of_model, dataset_heatmap, read_datasets
        )
