"""Heavy recipes: what many ablated heads and MLPs cost by metric, and whether their choice matters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sweep_entries import (
    bars_between,
    change_text,
    entries,
    finished,
    intervals_of,
    legend_only,
    recipe_words,
    selection_words,
    some,
    span_text,
    symbols,
    told,
)
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, DIVERGING, GREY, INK, VERMILION, dress, mixed, plain

__all__ = ["recipe_changes", "recipe_table", "selection_comparison"]

_KEYS = ("model", "recipe", "selection", "seed")
_SIZES = ("heads_ablated", "heads_total", "n_mlps")
_CHANGE = ("change", "lower", "upper")
_ROW, _LETTER = 22, 6.4  # pixels: height of a row of dots, width of a label's letter
_COLOUR_CAP = 25  # percent at which the table's colours end
_PLAIN = {"ticks": "", "showline": False, "ticklabelstandoff": 6}


def recipe_rows(ds: xr.Dataset, *, random: bool = False) -> pd.DataFrame:
    """The entries of recipes with ``label`` (model and what goes) and ``chosen`` (how its heads were chosen).

    Args:
        ds: of kind "sweep_recipes".
        random: whether entries with heads at random are among them; they are if there are no others.

    Raises:
        InputError: ``ds`` is of another kind, or has no entries.
    """
    table = some(entries(ds, "sweep_recipes", *_KEYS, *_SIZES, *_CHANGE, "stands"), "heavy recipes")
    table = table.assign(place=range(len(table)))
    informed = table[table["selection"].astype(str) != "random"]
    table = table if random or informed.empty else informed
    labels = [f"{row['model']} ({recipe_words(row)})" for row in told(table)]
    chosen = [selection_words(str(s), int(k)) for s, k in zip(table["selection"], table["seed"], strict=True)]
    recipes: dict[str, set[str]] = {}
    for label, recipe in zip(labels, table["recipe"].astype(str), strict=True):
        recipes.setdefault(label, set()).add(recipe)
    # two recipes of the same size need their names
    labels = [
        f"{label}, {recipe}" if len(recipes[label]) > 1 else label
        for label, recipe in zip(labels, table["recipe"].astype(str), strict=True)
    ]
    return table.assign(label=labels, chosen=chosen)


def recipe_changes(ds: xr.Dataset, *, random: bool = False) -> go.Figure:
    """What heavy recipes cost in every metric, with intervals.

    Args:
        ds: of kind "sweep_recipes".
        random: whether heads at random are drawn beside informed choices.

    Returns:
        A panel a metric with a row a recipe and a dot for each choice of its heads; filled where the change stands
        after Holm's correction. Below 0 is better.

    Raises:
        InputError: ``ds`` is of another kind, or has no entries.
    """
    table, metrics = recipe_rows(ds, random=random), names(ds, "metric")
    rows = list(dict.fromkeys(table["label"]))
    kinds = list(dict.fromkeys(table["selection"].astype(str)))
    fig = make_subplots(rows=1, cols=len(metrics), shared_yaxes=True, horizontal_spacing=0.025)
    numbers = {name: array(ds, name, "entry", "metric") for name in (*_CHANGE, "stands")}
    for column, metric in enumerate(metrics):
        for i, kind in enumerate(kinds):
            mine = table[table["selection"] == kind]
            own = {name: values[mine["place"], column] for name, values in numbers.items()}
            low = -0.32 + 0.64 * i / max(len(kinds) - 1, 1) if len(kinds) > 1 else 0.0
            y = np.array([rows.index(label) + low for label in mine["label"]])
            fig.add_trace(_dots(mine, metric, own, y, _selection_colour(kind, i)), row=1, col=column + 1)
        fig.add_vline(x=0, line={"color": GREY, "width": 1}, row=1, col=column + 1)
        fig.update_xaxes(title_text=f"{plain(metric)} (%)", nticks=5, row=1, col=column + 1)
    for i, kind in enumerate(kinds):
        marker = {"color": _selection_colour(kind, i), "size": 8}
        words = "heads at random" if kind == "random" else f"heads {selection_words(kind)}"
        legend_only(fig, words, mode="markers", marker=marker)
    labels = [plain(label) for label in rows]
    fig.update_yaxes(tickvals=list(range(len(rows))), ticktext=labels, range=[len(rows) - 0.5, -0.5], **_PLAIN)
    lost = int((~np.isfinite(numbers["change"][table["place"]])).any(axis=1).sum())
    return dress(
        fig,
        "What heavy ablations change, by metric",
        f"relative change of the geometric mean over datasets, below 0 is better; {intervals_of(ds)}; filled: the "
        f"change stands after Holm's correction{f'; {lost} without all results' if lost else ''}",
        plot_height=max(140, _ROW * len(rows) * max(len(kinds), 2)),
        legend_rows=1,
        min_width=round(60 + _LETTER * max(len(label) for label in labels) + 130 * len(metrics)),
    )


def _selection_colour(kind: str, place: int) -> str:
    return mixed(GREY, 0.8) if kind == "random" else (BLUE if kind == "listed" else CATEGORICAL[(place + 2) % 6])


def _dots(rows: pd.DataFrame, metric: str, own: dict[str, np.ndarray], y: np.ndarray, colour: str) -> go.Scatter:
    change, lower, upper = (100 * own[name] for name in _CHANGE)
    return go.Scatter(
        x=change,
        y=y,
        mode="markers",
        error_x=bars_between(change, lower, upper, color=colour),
        marker={"symbol": symbols(own["stands"] > 0), "color": colour, "size": 8},
        name=metric,
        showlegend=False,
        customdata=[
            f"{plain(row['label'])}, {plain(row['chosen'])}<br>{plain(metric)} {_told(own, i)}"
            for i, row in enumerate(told(rows))
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _told(own: dict[str, Any], i: int) -> str:
    if not np.isfinite(own["change"][i]):
        return "unknown"
    return f"{change_text(own['change'][i])} {span_text(own['lower'][i], own['upper'][i])}"


def recipe_table(ds: xr.Dataset, *, random: bool = False) -> go.Figure:
    """Heavy recipes as a table: change of every metric with its interval, datasets resilient and improved.

    Args:
        ds: of kind "sweep_recipes" with ``n_resilient``, ``n_improved`` and ``n_datasets``.
        random: whether heads at random have rows beside informed choices.

    Returns:
        A row a recipe and choice of heads, a column a metric; bold where the change stands after Holm's correction,
        coloured by the change (blue is better). The last columns count datasets whose MASE rises by less than 5 %
        (resilient) and falls (improved).

    Raises:
        InputError: ``ds`` is of another kind, lacks the counts, or has no entries.
    """
    entries(ds, "sweep_recipes", "n_resilient", "n_improved", "n_datasets")
    table, metrics = recipe_rows(ds, random=random), names(ds, "metric")
    several = table["chosen"].nunique() > 1
    labels = [plain(f"{row['label']}, {row['chosen']}" if several else row["label"]) for row in told(table)]
    numbers = {name: array(ds, name, "entry", "metric")[table["place"]] for name in (*_CHANGE, "stands")}
    columns = [f"%Δ{plain(metric)}" for metric in metrics] + ["resilient", "improved"]
    text, hover = [], []
    for i, row in enumerate(told(table)):
        own = [{name: values[i] for name, values in numbers.items()}] * len(metrics)
        counts = [f"{int(row[n])} of {int(row['n_datasets'])}" for n in ("n_resilient", "n_improved")]
        text.append([_table_cell(values, k) for k, values in enumerate(own)] + counts)
        words = ["datasets with a rise of MASE below 5 %", "datasets with a lower MASE"]
        hover.append(
            [f"{plain(metric)} {_told(own[k], k)}" for k, metric in enumerate(metrics)]
            + [f"{count} {what}" for count, what in zip(counts, words, strict=True)]
        )
    colours = np.nan_to_num(100 * numbers["change"]).clip(-_COLOUR_CAP, _COLOUR_CAP)
    fig = go.Figure(
        go.Heatmap(
            x=columns,
            y=np.arange(len(labels)),
            z=np.concatenate([colours, np.zeros((len(labels), 2))], axis=1),
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
    fig.update_xaxes(side="top", ticks="", showline=False, title_text="")
    fig.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels, autorange="reversed", **_PLAIN)
    return dress(
        fig,
        "Heavy ablations: change of every metric, and how many datasets bear them",
        f"% change of the geometric mean over datasets [{intervals_of(ds)[:-1]}], lower is better; bold: stands after "
        "Holm's correction; resilient: MASE rises by less than 5 %, improved: it falls",
        plot_height=40 * len(labels),
        above=34,
        below=12,
        min_width=round(40 + _LETTER * max(len(label) for label in labels) + 96 * len(columns)),
    )


def _table_cell(values: dict[str, np.ndarray], k: int) -> str:
    if not np.isfinite(values["change"][k]):
        return "–"
    main = change_text(values["change"][k], 2)[:-2]
    main = f"<b>{main}</b>" if values["stands"][k] else main
    span = span_text(values["lower"][k], values["upper"][k]).replace(" %]", "]")
    return f'{main}<br><span style="font-size:10px">{span}</span>' if span else main


def selection_comparison(ds: xr.Dataset) -> go.Figure:
    """Whether it matters which heads go: informed choices against random heads at the same counts.

    Args:
        ds: of kind "sweep_selection", with ``diff`` and its interval along ``pair`` (``pair_model``, ``pair_recipe``).

    Returns:
        Left the change of MASE of a recipe: the informed choice, filled where it stands after Holm's correction, each
        random seed, and the mean of these; right the informed choice minus the mean of the random ones, which is
        below 0 where the choice is better.

    Raises:
        InputError: ``ds`` is of another kind, or has no entries.
    """
    what = "recipes against random heads"
    table = entries(ds, "sweep_selection", *_KEYS, *_CHANGE, "stands", "diff", "diff_lower", "diff_upper")
    table, remark = finished(some(table, what), "change")
    table = some(table, what).assign(label=[f"{m}, {r}" for m, r in zip(table["model"], table["recipe"], strict=True)])
    rows = list(dict.fromkeys(table["label"]))
    fig = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.62, 0.38], horizontal_spacing=0.03)
    random = table["selection"].astype(str) == "random"
    for i, (kind, mine) in enumerate(table[~random].groupby("selection", sort=False)):
        y = np.array([rows.index(label) - 0.22 + 0.1 * i for label in mine["label"]])
        trace = _choice(mine, f"heads {selection_words(str(kind))}", y, CATEGORICAL[2 * i % 6], symbols(mine["stands"]))
        fig.add_trace(trace, row=1, col=1)
    drawn = table[random]
    if len(drawn):
        means = drawn.groupby("label", sort=False)["change"].mean()
        fig.add_trace(_means(means, rows), row=1, col=1)
        y = np.array([rows.index(label) + 0.22 for label in drawn["label"]])
        seeds = _choice(drawn, "heads at random, a seed each", y, mixed(GREY, 0.8), "circle-open", size=6)
        fig.add_trace(seeds, row=1, col=1)
    fig.add_trace(_differences(ds, rows), row=1, col=2)
    for column in (1, 2):
        fig.add_vline(x=0, line={"color": GREY, "width": 1}, row=1, col=column)
    labels = [plain(label) for label in rows]
    fig.update_yaxes(tickvals=list(range(len(rows))), ticktext=labels, range=[len(rows) - 0.5, -0.5], **_PLAIN)
    fig.update_xaxes(title_text="change of MASE (%)", rangemode="tozero", row=1, col=1)
    fig.update_xaxes(
        title_text="informed − mean of random<br>(percentage points)", rangemode="tozero", nticks=5, row=1, col=2
    )
    return dress(
        fig,
        "Does it matter which heads go? Informed choices against random ones",
        f"the same number of heads in each layer and the same MLPs; {intervals_of(ds)}; blue filled: stands after "
        f"Holm's correction; right: below 0, the choice beats chance{remark}",
        plot_height=max(140, 62 * len(rows)),
        legend_rows=1,
        below=68,
        min_width=round(160 + _LETTER * max(len(label) for label in labels) + 380),
    )


def _means(means: pd.Series, rows: list[str]) -> go.Scatter:
    values = 100 * means.to_numpy(float)
    return go.Scatter(
        x=values,
        y=[rows.index(str(label)) for label in means.index],
        mode="markers",
        name="mean of the random choices",
        marker={"symbol": "diamond", "color": VERMILION, "size": 9},
        customdata=[f"{plain(label)}, mean of random<br>{change_text(v / 100)}" for label, v in means.items()],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _differences(ds: xr.Dataset, rows: list[str]) -> go.Scatter:
    """Informed minus random, a dot a recipe."""
    pairs = zip(ds["pair_model"].values, ds["pair_recipe"].values, strict=True)
    labels = [f"{model}, {recipe}" for model, recipe in pairs]
    shown = [i for i, label in enumerate(labels) if label in rows]
    value, lower, upper = (100 * array(ds, name, "pair")[shown] for name in ("diff", "diff_lower", "diff_upper"))
    spans = [
        f"{change_text(v / 100)[:-2]} {span_text(a / 100, b / 100).replace(' %]', ']')}"
        for v, a, b in zip(value, lower, upper, strict=True)
    ]
    return go.Scatter(
        x=value,
        y=[rows.index(labels[i]) for i in shown],
        mode="markers",
        name="informed minus random",
        showlegend=False,
        error_x=bars_between(value, lower, upper, color=INK),
        marker={"symbol": "circle", "color": INK, "size": 8},
        customdata=[f"{plain(labels[i])}<br>{span} percentage points" for i, span in zip(shown, spans, strict=True)],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _choice(rows: pd.DataFrame, name: str, y: np.ndarray, colour: str, symbol: Any, size: int = 9) -> go.Scatter:
    value, lower, upper = (100 * rows[column].to_numpy(float) for column in _CHANGE)
    spans = [
        f"{change_text(v / 100)} {span_text(a / 100, b / 100)}" for v, a, b in zip(value, lower, upper, strict=True)
    ]
    chosen = [selection_words(str(s), int(k)) for s, k in zip(rows["selection"], rows["seed"], strict=True)]
    return go.Scatter(
        x=value,
        y=y,
        mode="markers",
        name=name,
        error_x=bars_between(value, lower, upper, color=colour, thickness=0.8 if size < 9 else 1.4),
        marker={"symbol": symbol, "color": colour, "size": size},
        customdata=[
            f"{plain(label)}, {plain(how)}<br>{span}"
            for label, how, span in zip(rows["label"], chosen, spans, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
