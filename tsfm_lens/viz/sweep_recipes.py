"""Heavy recipes: what many ablated heads and MLPs cost by metric, and whether their choice matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.viz.sweep_entries import (
    LETTER,
    NO_AXIS,
    bars_between,
    change_text,
    change_words,
    finished,
    intervals_of,
    label_rows,
    legend_only,
    marks,
    points_words,
    recipe_words,
    selection_words,
    span_text,
    symbols,
    table_of,
    told,
)
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, DIVERGING, GREY, INK, VERMILION, dress, mixed, plain

__all__ = ["recipe_changes", "recipe_table", "selection_comparison"]

_KEYS = ("model", "recipe", "selection", "seed", "change", "lower", "upper", "stands")
_SIZES = ("metric", "heads_ablated", "heads_total", "n_mlps")
_COUNTS = {"n_resilient": "datasets with a rise of MASE below 5 %", "n_improved": "datasets with a lower MASE"}
_ROW = 22  # pixels: height of a row of dots
_COLOUR_CAP = 25  # percent at which the table's colours end


def recipe_rows(table: pd.DataFrame, *, random: bool = False) -> pd.DataFrame:
    """The entries of recipes with ``label`` (model and what goes) and ``chosen`` (how its heads were chosen).

    Args:
        table: of kind "sweep_recipes".
        random: whether entries with heads at random are among them; they are if there are no others.

    Raises:
        InputError: ``table`` is of another kind, or has no entries.
    """
    table = table_of(table, "sweep_recipes", *_KEYS, *_SIZES)
    # a recipe without a result on some metrics still has a row
    finished(table.assign(there=1.0), "heavy recipes", "there")
    informed = table[table["selection"] != "random"]
    table = table if random or informed.empty else informed
    labels = pd.Series([f"{row['model']} ({recipe_words(row)})" for row in told(table)], index=table.index)
    # two recipes of the same size need their names
    several = table["recipe"].groupby(labels).transform("nunique") > 1
    chosen = [selection_words(row["selection"], row["seed"]) for row in told(table)]
    return table.assign(label=labels.where(~several, labels + ", " + table["recipe"]), chosen=chosen)


def recipe_changes(table: pd.DataFrame, *, random: bool = False) -> go.Figure:
    """What heavy recipes cost in every metric, with intervals.

    Args:
        table: of kind "sweep_recipes".
        random: whether heads at random are drawn beside informed choices.

    Returns:
        A panel a metric with a row a recipe and a dot for each choice of its heads; filled where the change stands
        after Holm's correction. Below 0 is better.

    Raises:
        InputError: ``table`` is of another kind, or has no entries.
    """
    entries = recipe_rows(table, random=random)
    rows, kinds, metrics = (list(dict.fromkeys(entries[name])) for name in ("label", "selection", "metric"))
    fig = make_subplots(rows=1, cols=len(metrics), shared_yaxes=True, horizontal_spacing=0.025)
    for i, kind in enumerate(kinds):
        colour = _selection_colour(kind, i)
        words = "heads at random" if kind == "random" else f"heads {selection_words(kind)}"
        legend_only(fig, words, marker={"color": colour, "size": 8})
        low = -0.32 + 0.64 * i / (len(kinds) - 1) if len(kinds) > 1 else 0.0
        for column, metric in enumerate(metrics, start=1):
            mine = entries[(entries["selection"] == kind) & (entries["metric"] == metric)]
            dots = _changes(mine, rows, low, colour, f"{plain(metric)} ", name=metric, showlegend=False)
            fig.add_trace(dots, row=1, col=column)
    for column, metric in enumerate(metrics, start=1):
        fig.update_xaxes(title_text=f"{plain(metric)} (%)", nticks=5, row=1, col=column)
    lost = int((~np.isfinite(entries["change"])).groupby(_entry(entries)).any().sum())
    return _by_row(
        fig,
        rows,
        "What heavy ablations change, by metric",
        f"relative change of the geometric mean over datasets, below 0 is better; {intervals_of(table)}; filled: the "
        f"change stands after Holm's correction{f'; {lost} without all results' if lost else ''}",
        height=_ROW * max(len(kinds), 2),
        width=60 + 130 * len(metrics),
    )


def _entry(rows: pd.DataFrame) -> list[pd.Series]:
    """What tells one entry's rows from another's."""
    return [rows[name] for name in ("model", "recipe", "selection", "seed")]


def _by_row(
    fig: go.Figure, rows: Sequence[str], title: str, subtitle: str, *, height: int, width: int, **room: int
) -> go.Figure:
    """Dress panels that share their rows: names at the left, a line at 0 in each."""
    fig.add_vline(x=0, line={"color": GREY, "width": 1}, row=1, col="all")
    letters = label_rows(fig, rows)
    sizes = {"plot_height": max(140, height * len(rows)), "min_width": width + letters}
    return dress(fig, title, subtitle, legend_rows=1, **sizes, **room)


def _selection_colour(kind: str, place: int) -> str:
    return mixed(GREY, 0.8) if kind == "random" else (BLUE if kind == "listed" else CATEGORICAL[(place + 2) % 6])


def _changes(
    entries: pd.DataFrame, rows: list[str], low: float, colour: str, what: str = "", size: int = 8, **look: Any
) -> go.Scatter:
    """Changes with their intervals as dots, each in the row of its label, ``low`` below its middle."""
    change, lower, upper = (100 * entries[name].to_numpy(float) for name in ("change", "lower", "upper"))
    hover = [f"{plain(row['label'])}, {plain(row['chosen'])}<br>{what}{change_words(row)}" for row in told(entries)]
    marker = {"symbol": symbols(entries["stands"]), "color": colour, "size": size}
    y = [rows.index(label) + low for label in entries["label"]]
    return marks(change, y, hover, marker, error_x=bars_between(change, lower, upper, color=colour), **look)


def recipe_table(table: pd.DataFrame, *, random: bool = False) -> go.Figure:
    """Heavy recipes as a table: change of every metric with its interval, datasets resilient and improved.

    Args:
        table: of kind "sweep_recipes" with ``n_resilient``, ``n_improved`` and ``n_datasets``.
        random: whether heads at random have rows beside informed choices.

    Returns:
        A row a recipe and choice of heads, a column a metric; bold where the change stands after Holm's correction,
        coloured by the change (blue is better). The last columns count datasets whose MASE rises by less than 5 %
        (resilient) and falls (improved).

    Raises:
        InputError: ``table`` is of another kind, lacks the counts, or has no entries.
    """
    table_of(table, "sweep_recipes", *_COUNTS, "n_datasets")
    entries = recipe_rows(table, random=random)
    several = entries["chosen"].nunique() > 1
    columns = [f"%Δ{plain(metric)}" for metric in dict.fromkeys(entries["metric"])] + ["resilient", "improved"]
    labels, text, hover, colours = [], [], [], []
    for _, own in entries.groupby(_entry(entries), sort=False):
        cells = told(own)
        labels.append(plain(f"{cells[0]['label']}, {cells[0]['chosen']}" if several else cells[0]["label"]))
        counts = [f"{cells[0][name]} of {cells[0]['n_datasets']}" for name in _COUNTS]
        text.append([_table_cell(row) for row in cells] + counts)
        said = [f"{count} {what}" for count, what in zip(counts, _COUNTS.values(), strict=True)]
        hover.append([f"{plain(row['metric'])} {change_words(row)}" for row in cells] + said)
        colours.append([*np.nan_to_num(100 * own["change"]).clip(-_COLOUR_CAP, _COLOUR_CAP), 0, 0])
    fig = go.Figure(
        go.Heatmap(
            x=columns,
            y=np.arange(len(labels)),
            z=colours,
            # twice the range: pale colours, so that the numbers stand out
            zmin=-2 * _COLOUR_CAP,
            zmax=2 * _COLOUR_CAP,
            colorscale=DIVERGING,
            showscale=False,
            text=text,
            texttemplate="%{text}",
            textfont={"size": 12, "color": INK},
            xgap=1,
            ygap=1,
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    fig.update_xaxes(side="top", title_text="", **NO_AXIS)
    fig.update_yaxes(
        tickvals=list(range(len(labels))), ticktext=labels, autorange="reversed", ticklabelstandoff=6, **NO_AXIS
    )
    return dress(
        fig,
        "Heavy ablations: change of every metric, and how many datasets bear them",
        f"% change of the geometric mean over datasets [{intervals_of(table)[:-1]}], lower is better; bold: stands "
        "after Holm's correction; resilient: MASE rises by less than 5 %, improved: it falls",
        plot_height=40 * len(labels),
        above=34,
        below=12,
        min_width=round(40 + LETTER * max(len(label) for label in labels) + 96 * len(columns)),
    )


def _table_cell(row: dict[str, Any]) -> str:
    if not np.isfinite(row["change"]):
        return "–"
    main = change_text(row["change"], 2)[:-2]
    main = f"<b>{main}</b>" if row["stands"] else main
    span = span_text(row["lower"], row["upper"]).replace(" %]", "]")
    return f'{main}<br><span style="font-size:10px">{span}</span>' if span else main


def selection_comparison(table: pd.DataFrame) -> go.Figure:
    """Whether it matters which heads go: informed choices against random heads at the same counts.

    Args:
        table: of kind "sweep_selection", with ``diff`` and its interval on the rows of informed choices.

    Returns:
        Left the change of MASE of a recipe: the informed choice, filled where it stands after Holm's correction, each
        random seed, and the mean of these; right the informed choice minus the mean of the random ones, which is
        below 0 where the choice is better, filled where that stands.

    Raises:
        InputError: ``table`` is of another kind, or has no entries.
    """
    table_of(table, "sweep_selection", *_KEYS, "diff", "diff_lower", "diff_upper", "diff_stands")
    entries, remark = finished(table, "recipes against random heads", "change")
    chosen = [selection_words(row["selection"], row["seed"]) for row in told(entries)]
    entries = entries.assign(label=entries["model"] + ", " + entries["recipe"], chosen=chosen)
    rows = list(dict.fromkeys(entries["label"]))
    fig = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.62, 0.38], horizontal_spacing=0.03)
    informed, drawn = entries[entries["selection"] != "random"], entries[entries["selection"] == "random"]
    for i, (kind, mine) in enumerate(informed.groupby("selection", sort=False)):
        name, colour = f"heads {selection_words(str(kind))}", CATEGORICAL[2 * i % 6]
        fig.add_trace(_changes(mine, rows, -0.22 + 0.1 * i, colour, size=9, name=name), row=1, col=1)
    if len(drawn):
        fig.add_trace(_means(drawn.groupby("label", sort=False)["change"].mean(), rows), row=1, col=1)
        seeds = drawn.assign(stands=False)
        dots = _changes(seeds, rows, 0.22, mixed(GREY, 0.8), size=6, name="heads at random, a seed each")
        fig.add_trace(dots, row=1, col=1)
    fig.add_trace(_differences(informed, rows), row=1, col=2)
    fig.update_xaxes(title_text="change of MASE (%)", rangemode="tozero", row=1, col=1)
    words = "informed − mean of random<br>(percentage points)"
    fig.update_xaxes(title_text=words, rangemode="tozero", nticks=5, row=1, col=2)
    return _by_row(
        fig,
        rows,
        "Does it matter which heads go? Informed choices against random ones",
        f"the same number of heads in each layer and the same MLPs; {intervals_of(table)}; filled: stands after "
        f"Holm's correction; right: below 0, the choice beats chance{remark}",
        height=62,
        width=540,
        below=68,
    )


def _means(means: pd.Series, rows: list[str]) -> go.Scatter:
    hover = [f"{plain(label)}, mean of random<br>{change_text(value)}" for label, value in means.items()]
    marker = {"symbol": "diamond", "color": VERMILION, "size": 9}
    y = [rows.index(str(label)) for label in means.index]
    return marks(100 * means.to_numpy(float), y, hover, marker, name="mean of the random choices")


def _differences(informed: pd.DataFrame, rows: list[str]) -> go.Scatter:
    """Informed minus random, a dot a recipe."""
    value, lower, upper = (100 * informed[name].to_numpy(float) for name in ("diff", "diff_lower", "diff_upper"))
    hover = [
        f"{plain(row['label'])}<br>{points_words(row['diff'], row['diff_lower'], row['diff_upper'])} percentage points"
        for row in told(informed[np.isfinite(informed["diff"])])
    ]
    known = np.isfinite(value)
    value, lower, upper = value[known], lower[known], upper[known]
    return marks(
        value,
        [rows.index(label) for label in informed["label"][known]],
        hover,
        {"symbol": symbols(informed["diff_stands"][known]), "color": INK, "size": 8},
        name="informed minus random",
        showlegend=False,
        error_x=bars_between(value, lower, upper, color=INK),
    )
