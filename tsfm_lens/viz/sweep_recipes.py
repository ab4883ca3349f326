"""Heavy ablations and rules of selection across datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.registry import ReportPanel, check, measurement
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.sheet import Look, Panel, Sheet, blank, sheet
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, DIVERGING, GREY, INK, VERMILION, mixed, plain

__all__ = ["recipe_changes", "recipe_table", "selection_comparison"]
_MAX_NAMES = 8  # things that are named one by one
_KEYS = ("model", "recipe", "selection", "seed", "change", "lower", "upper", "stands")
_SIZES = ("metric", "heads_ablated", "heads_total", "n_mlps")
_DIFF = ("diff", "diff_lower", "diff_upper", "diff_stands")
_COUNTS = {"n_resilient": "datasets with a rise of MASE below 5 %", "n_improved": "datasets with a lower MASE"}
_ROW = 22  # pixels: height of a row of dots
_COLOUR_CAP = 25  # percent at which the table's colours end

SWEEP_RECIPES = measurement("sweep_recipes", subject=sweep.sweep_subject)
SWEEP_SELECTION = measurement("sweep_selection", subject=sweep.sweep_subject)


def read_recipes(table: pd.DataFrame) -> list[str]:
    """State what each recipe costs in MASE, what stands, and how many datasets bear it."""
    rows = recipe_rows(table)
    rows = rows[rows["metric"] == ("MASE" if (rows["metric"] == "MASE").any() else rows["metric"].iloc[0])]
    out = []
    for row in sweep.told(rows.head(_MAX_NAMES).dropna(subset="change")):
        resilient, improved = row["n_resilient"], row["n_improved"]
        verdict = "stands" if row["stands"] else "does not stand"
        out.append(
            f"{row['label']}: {row['metric']} {sweep.change_words(row)}, which {verdict} after Holm's correction"
            f"{sweep.family_of(rows)}; {resilient} of {sweep.counted(row['n_datasets'], 'dataset')} "
            f"rise{'s' if resilient == 1 else ''} by less than 5 %, {improved} of them "
            f"improve{'s' if improved == 1 else ''}."
        )
    if (more := len(rows) - _MAX_NAMES) > 0:
        out.append(f"{more} more {'is' if more == 1 else 'are'} in the table.")
    return out


def read_selection(table: pd.DataFrame) -> list[str]:
    """State whether an informed choice beats random ones, recipe by recipe."""
    out = []
    for row in sweep.told(table[np.isfinite(table["diff"])]):
        same = (table["model"] == row["model"]) & (table["recipe"] == row["recipe"])
        seeds = int((same & (table["selection"] == "random")).sum())
        span = sweep.points_words(row["diff"], row["diff_lower"], row["diff_upper"]).partition(" ")[2]
        verdict = f" {span}, which {'stands' if row['diff_stands'] else 'does not stand'} after Holm's correction"
        out.append(
            f"{row['model']}, {row['recipe']}: the informed choice changes MASE by "
            f"{sweep.change_text(row['diff'])[:-2]} "
            f"percentage points against the mean of {seeds} random one{'s' if seeds > 1 else ''}"
            f"{verdict if span else ''}."
        )
    return out


def recipe_rows(table: pd.DataFrame, *, random: bool = False) -> pd.DataFrame:
    """Return the entries of recipes with ``label`` (model and what goes) and ``chosen`` (how its heads were chosen)."""
    check(table, "sweep_recipes", *_KEYS, *_SIZES)
    # a recipe without a result on some metrics still has a row
    sweep.finished(table.assign(there=1.0), "heavy recipes", "there")
    informed = table[table["selection"] != "random"]
    table = table if random or informed.empty else informed
    labels = pd.Series([f"{row['model']} ({sweep.recipe_words(row)})" for row in sweep.told(table)], index=table.index)
    # two recipes of the same size need their names
    several = table["recipe"].groupby(labels).transform("nunique") > 1
    choices = [sweep.selection_words(row["selection"], row["seed"]) for row in sweep.told(table)]
    return table.assign(label=labels.where(~several, labels + ", " + table["recipe"]), chosen=choices)


@SWEEP_RECIPES.figure("Heavy ablations on every metric.", variables=(*_COUNTS, "n_datasets"))
def recipe_table(table: pd.DataFrame, *, random: bool = False) -> go.Figure:
    """Draw heavy recipes as a table: change of every metric with its interval, datasets resilient and improved."""
    entries = recipe_rows(table, random=random)
    several = entries["chosen"].nunique() > 1
    columns = [f"%Δ{plain(metric)}" for metric in dict.fromkeys(entries["metric"])] + ["resilient", "improved"]
    labels, text, hover, colours = [], [], [], []
    for _, entry in entries.groupby(_entry(entries), sort=False):
        cells = sweep.told(entry)
        labels.append(plain(f"{cells[0]['label']}, {cells[0]['chosen']}" if several else cells[0]["label"]))
        counts = [f"{cells[0][name]} of {cells[0]['n_datasets']}" for name in _COUNTS]
        text.append([_table_cell(row) for row in cells] + counts)
        texts = [f"{count} {what}" for count, what in zip(counts, _COUNTS.values(), strict=True)]
        hover.append([f"{plain(row['metric'])} {sweep.change_words(row)}" for row in cells] + texts)
        colours.append([*np.nan_to_num(100 * entry["change"]).clip(-_COLOUR_CAP, _COLOUR_CAP), 0, 0])
    canvas = blank(40 * len(labels), 200 + 80 * len(columns), below=12)
    canvas.above = 34
    # twice the range: pale colours, so that the numbers stand out
    colour_axis = {"cmin": -2 * _COLOUR_CAP, "cmax": 2 * _COLOUR_CAP, "colorscale": DIVERGING, "showscale": False}
    canvas.fig.update_layout(coloraxis=colour_axis)
    panel = next(iter(canvas))
    look: Look = {"text": text, "texttemplate": "%{text}", "textfont": {"size": 12, "color": INK}}
    panel.cells(np.array(colours), columns, np.arange(len(labels)), "%{customdata}", customdata=hover, **look)
    panel.x("", side="top", **sweep.NO_AXIS)
    sweep.label_rows(canvas, labels)
    return canvas.dress(
        "Heavy ablations: change of every metric, and how many datasets bear them",
        f"% change of the geometric mean over datasets [{sweep.intervals_of(table)[:-1]}], lower is better; bold: "
        "stands after Holm's correction; resilient: MASE rises by less than 5 %, improved: it falls",
    )


@SWEEP_RECIPES.figure("The same numbers as dots with intervals.")
def recipe_changes(table: pd.DataFrame, *, random: bool = False) -> go.Figure:
    """Draw what heavy recipes cost in every metric, with intervals."""
    entries = recipe_rows(table, random=random)
    rows, kinds, metrics = (list(dict.fromkeys(entries[name])) for name in ("label", "selection", "metric"))
    canvas = _rows_of_dots(rows, _ROW * max(len(kinds), 2), [1] * len(metrics), 60 + 130 * len(metrics), 0.025)
    for metric, panel in zip(metrics, canvas, strict=True):
        for i, kind in enumerate(kinds):
            mine = entries[(entries["selection"] == kind) & (entries["metric"] == metric)]
            low = -0.32 + 0.64 * i / (len(kinds) - 1) if len(kinds) > 1 else 0.0
            words = "heads at random" if kind == "random" else f"heads {sweep.selection_words(kind)}"
            colour = {"random": mixed(GREY, 0.8), "listed": BLUE}.get(kind, CATEGORICAL[(i + 2) % 6])
            _changes(panel, mine, rows, low, colour, words, f"{plain(metric)} ")
        panel.x(f"{metric} (%)", nticks=5, tickangle=0)
    missing = int((~np.isfinite(entries["change"])).groupby(_entry(entries)).any().sum())
    return canvas.dress(
        "What heavy ablations change, by metric",
        f"relative change of the geometric mean over datasets, below 0 is better; {sweep.intervals_of(table)}; "
        "filled: the change stands after Holm's correction",
        f"{missing} without all results" if missing else "",
    )


def _entry(rows: pd.DataFrame) -> list[pd.Series]:
    """Return what tells one entry's rows from another's."""
    return [rows[name] for name in ("model", "recipe", "selection", "seed")]


def _rows_of_dots(labels: Sequence[str], height: int, widths: Sequence[float], least: int, gap: float) -> Sheet:
    """Make panels side by side that share named rows, with a line at 0 in each; sizes in pixels."""
    words = [plain(label) for label in labels]
    canvas = sheet([max(140, height * len(labels))], widths, column_gap=gap, min_width=60 + least, shared_yaxes=True)
    for panel in canvas:
        panel.upright(0)
    sweep.label_rows(canvas, words)
    return canvas


def _changes(
    panel: Panel, entries: pd.DataFrame, rows: list[str], low: float, colour: str, name: str, what: str = ""
) -> None:
    """Draw changes with their intervals as dots, each in the row of its label, ``low`` below its middle."""
    panel.dots(
        100 * entries["change"].to_numpy(float),
        [rows.index(label) + low for label in entries["label"]],
        name,
        "%{customdata}",
        customdata=[
            f"{plain(row['label'])}, {plain(row['chosen'])}<br>{what}{sweep.change_words(row)}"
            for row in sweep.told(entries)
        ],
        colour=colour,
        size=8,
        symbol=sweep.symbols(entries["stands"]),
        error_x=sweep.whiskers(entries, colour=colour, scale=100),
    )


def _table_cell(row: dict[str, Any]) -> str:
    if not np.isfinite(row["change"]):
        return "–"
    main = sweep.change_text(row["change"], 2)[:-2]
    main = f"<b>{main}</b>" if row["stands"] else main
    span = sweep.span_text(row["lower"], row["upper"]).replace(" %]", "]")
    return f'{main}<br><span style="font-size:10px">{span}</span>' if span else main


@SWEEP_SELECTION.figure("Informed and random choices of as many heads.", variables=(*_KEYS, *_DIFF))
def selection_comparison(table: pd.DataFrame) -> go.Figure:
    """Draw whether it matters which heads go: informed choices against random heads at the same counts."""
    entries, remark = sweep.finished(table, "recipes against random heads", "change")
    choices = [sweep.selection_words(row["selection"], row["seed"]) for row in sweep.told(entries)]
    entries = entries.assign(label=entries["model"] + ", " + entries["recipe"], chosen=choices)
    rows = list(dict.fromkeys(entries["label"]))
    canvas = _rows_of_dots(rows, 62, [0.62, 0.38], 540, 0.03)
    canvas.below = 68
    left, right = canvas
    informed, random = entries[entries["selection"] != "random"], entries[entries["selection"] == "random"]
    for i, (kind, mine) in enumerate(informed.groupby("selection", sort=False)):
        _changes(left, mine, rows, -0.22 + 0.1 * i, CATEGORICAL[2 * i % 6], f"heads {sweep.selection_words(str(kind))}")
    if len(random):
        means = random.groupby("label", sort=False)["change"].mean()
        texts = [f"{plain(label)}, mean of random<br>{sweep.change_text(value)}" for label, value in means.items()]
        look: Look = {"colour": VERMILION, "size": 9, "symbol": "diamond", "customdata": texts}
        places = [rows.index(str(label)) for label in means.index]
        left.dots(100 * means.to_numpy(float), places, "mean of the random choices", "%{customdata}", **look)
        seeds = random.assign(stands=False)
        _changes(left, seeds, rows, 0.22, mixed(GREY, 0.8), "heads at random, a seed each")
    finite = informed[np.isfinite(informed["diff"])]
    texts = [
        f"{plain(row['label'])}<br>{sweep.points_words(row['diff'], row['diff_lower'], row['diff_upper'])} percentage "
        "points"
        for row in sweep.told(finite)
    ]
    right.dots(
        100 * finite["diff"].to_numpy(float),
        [rows.index(label) for label in finite["label"]],
        "informed minus random",
        "%{customdata}",
        customdata=texts,
        size=8,
        symbol=sweep.symbols(finite["diff_stands"]),
        error_x=sweep.whiskers(finite, "diff", scale=100),
        legend=False,
    )
    left.x("change of MASE (%)", rangemode="tozero")
    right.x("informed − mean of random\n(percentage points)", rangemode="tozero", nticks=5)
    return canvas.dress(
        "Does it matter which heads go? Informed choices against random ones",
        f"the same number of heads in each layer and the same MLPs; {sweep.intervals_of(table)}; filled: stands after "
        "Holm's correction; right: below 0, the choice beats chance",
        remark,
    )


@SWEEP_RECIPES.panels
def _recipes(table: pd.DataFrame) -> Iterator[ReportPanel]:
    yield from sweep.sweep_panel("recipe_table", table, recipe_table, read_recipes)
    words = ["The same numbers as dots: what lies left of the line became better."]
    yield from sweep.sweep_panel("recipe_changes", table, recipe_changes, lambda _: words)


SWEEP_SELECTION.panels(
    partial(sweep.sweep_panel, "selection_comparison", draw=selection_comparison, words=read_selection)
)
