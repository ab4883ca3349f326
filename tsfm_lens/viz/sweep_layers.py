"""Sweeps of layers, groups and ranges of layers across datasets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.errors import unknown_name
from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import fit
from tsfm_lens.viz.sheet import Panel, blank, shortened, text_width
from tsfm_lens.viz.theme import CATEGORICAL, GREY, mixed, percent, plain
from tsfm_lens.viz.words import listed, num

__all__ = ["component_errors", "layer_distances", "range_curves"]
_CHANGE = ("model", "family", "label", "part", "first", "last", "change", "lower", "upper", "stands")
_DISTANCE = ("spearman_distance", "spearman_distance_lower", "spearman_distance_upper")
_MASE = ("mase", "baseline_mase")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_BAR, _NAME = 0.19, 220  # width of a bar where models are 1 apart; pixels of a line of a model's name
_BARS = {"none": "unablated", "mlp": "without MLP", "heads": "without all heads", "both": "without heads and MLP"}
_SMALL = 0.01  # a change of MASE that a reader would call small

SWEEP_EFFECTS = measurement("sweep_effects", subject=sweep.sweep_subject)


def _sized(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``size``, the number of layers of an entry; ``first`` is -1 for none."""
    return table.assign(size=table["last"] - table["first"] + 1)


def read_distances(table: pd.DataFrame, part: str) -> list[str]:
    """Describe which single layers matter, which changes stand, and where the forecast keeps its shape."""
    rows = _sized(table)
    rows = rows[(rows["part"] == part) & rows["family"].isin(("layers", "groups"))]
    rows = rows[np.isfinite(rows["spearman_distance"])]
    out = []
    for model in sweep.models_in(rows):
        mine = rows[rows["model"] == model]
        single, groups = mine[mine["size"] == 1], mine[mine["size"] > 1]
        if len(single):
            out += _single_layers(single, model, part)
        if len(groups):
            standing = int(groups["stands"].sum())
            out.append(
                f"Of {sweep.counted(len(groups), 'change')} of MASE without a group of layers, {standing} "
                f"stand{'s' if standing == 1 else ''}."
            )
    return out


def _single_layers(rows: pd.DataFrame, model: str, part: str) -> list[str]:
    small = int((rows["change"].abs() < _SMALL).sum())
    standing = rows.loc[rows["stands"], "first"].tolist()
    word = "the changes of layers" if len(standing) > 1 else "the change of layer"
    which = f"{word} {sweep.runs(standing)} stand{'' if len(standing) > 1 else 's'}" if standing else "no change stands"
    summary = (
        f"{model}: without the {sweep.PARTS[part]} of one layer, {small} of {sweep.counted(len(rows), 'layer')} "
        f"change{'s' if small == 1 else ''} MASE by less than "
        f"{percent(_SMALL)}; {which} after Holm's correction{sweep.family_of(rows)}."
    )
    if len(rows) < 2:
        return [summary]
    leaders = {row["distance_leads"]: row for row in sweep.told(rows[rows["distance_leads"] != ""])}
    verbs = {"lowest": "keeps its shape best", "highest": "loses its shape most"}
    parts = [
        f"{verb} without layer {leaders[side]['first']} (Spearman distance {num(leaders[side]['spearman_distance'])})"
        for side, verb in verbs.items()
        if side in leaders
    ]
    span = f"{num(rows['spearman_distance'].min())} to {num(rows['spearman_distance'].max())}"
    none = f"No layer stands out by how far the forecast moves without it (Spearman distance {span})."
    return [summary, f"The forecast {listed(parts)}." if parts else none]


def read_components(table: pd.DataFrame) -> list[str]:
    """State what the most ablatable layer of every model costs, part by part."""
    rows = _sized(table)
    layers = rows[(rows["family"] == "layers") & (rows["size"] == 1) & np.isfinite(rows["change"])]
    out = []
    for best in sweep.told(most_ablatable(layers)):
        parts = [
            f"{sweep.change_words(row)}{', which stands,' if row['stands'] else ''} without its "
            f"{sweep.PARTS[row['part']]}"
            for row in sweep.told(layers[(layers["model"] == best["model"]) & (layers["first"] == best["first"])])
        ]
        which = f"{best['model']} bears the loss of layer {best['first']} best"
        if best["leads"] != "lowest":
            which = f"{best['model']}: no layer's loss stands out as the cheapest; drawn is layer {best['first']}"
        out.append(f"{which}: its MASE of {num(best['baseline_mase'])} changes by {listed(parts)}.")
    return out


def read_ranges(table: pd.DataFrame) -> list[str]:
    """State how long a range may get before the error rises, by part."""
    rows = _sized(table)
    rows = rows[(rows["family"] == "ranges") & np.isfinite(rows["change"])]
    out = []
    for (model, part), lengths in rows.groupby(["model", "part"], sort=False):
        fine = lengths[lengths["change"] < _SMALL]
        longest = sweep.told(lengths.sort_values("size"))[-1]
        reach = f"rises by {percent(_SMALL)} or more at once"
        if len(fine):
            reach = f"stays within {percent(_SMALL)} up to {sweep.counted(int(fine['size'].max()), 'layer')}"
        out.append(
            f"{model}, without {sweep.PARTS[str(part)]}: the MASE {reach}; over all "
            f"{sweep.counted(longest['size'], 'layer')} it "
            f"changes by {sweep.change_text(longest['change'])}{', which stands' if longest['stands'] else ''}."
        )
    return out


@SWEEP_EFFECTS.figure(variables=(*_DISTANCE, *_CHANGE))
def layer_distances(table: pd.DataFrame, *, part: str = "both") -> go.Figure:
    """Draw how far the forecast moves without single layers and without groups of consecutive layers.

    Args:
        part: what of a layer goes: "both" (its heads and its MLP), "heads" or "mlp".
    """
    rows = _sized(table)
    if part not in sweep.PARTS:
        raise unknown_name("part", part, sweep.PARTS)
    rows = rows[rows["family"].isin(("layers", "groups")) & (rows["part"] == part)]
    rows, remark = sweep.finished(rows, f"layers or groups of layers ({sweep.PARTS[part]})", "spearman_distance")
    models = sweep.models_in(rows)
    grid = panel_grid([(model,) for model in models], row_height=210, most=3)
    for model, panel in zip(models, grid, strict=True):
        for i, size in enumerate(sorted(set(rows["size"]))):
            mine = rows[(rows["model"] == model) & (rows["size"] == size)].sort_values("first")
            _distances(panel, mine, int(size), CATEGORICAL[i % len(CATEGORICAL)], _SHAPES[i % len(_SHAPES)])
    grid.y(rangemode="tozero")
    title_axes(grid, "layer", "Spearman distance")
    sweep.whole_ticks(grid, float(rows["last"].max()))
    return grid.dress(
        f"How far the forecast moves without the {sweep.PARTS[part]} of layers",
        "Spearman distance to the unablated forecast (0: same shape, 1: unrelated) with " + sweep.intervals_of(table),
        sweep.STANDS,
        remark,
    )


def _distances(panel: Panel, rows: pd.DataFrame, size: int, colour: str, shape: str) -> None:
    across = {"type": "data", "array": np.full(len(rows), (size - 1) / 2), "thickness": 1.2, "width": 0}
    panel.dots(
        (rows["first"].to_numpy(float) + rows["last"].to_numpy(float)) / 2,
        rows["spearman_distance"].to_numpy(float),
        "single layer" if size == 1 else f"{size} layers in a row",
        "%{customdata}<br>Spearman distance %{y:.4g}",
        customdata=_hover(rows),
        colour=colour,
        size=8,
        symbol=sweep.symbols(rows["stands"], shape),
        error_y=sweep.whiskers(rows, "spearman_distance", colour=colour),
        error_x=across | {"color": colour} if size > 1 else None,
        mode="lines+markers" if size == 1 else "markers",
        line={"color": mixed(colour, 0.35), "width": 1},
    )


def _hover(rows: pd.DataFrame) -> list[str]:
    """Write the hover boxes of entries."""
    return [
        f"{plain(row['label'])}<br>MASE {sweep.change_text(row['change']) if np.isfinite(row['change']) else 'unknown'}"
        for row in sweep.told(rows)
    ]


@SWEEP_EFFECTS.figure(variables=(*_MASE, *_CHANGE))
def component_errors(table: pd.DataFrame) -> go.Figure:
    """Draw the error without the most ablatable layer of every model: without its MLP, its heads, and all of it."""
    rows = _sized(table)
    layers, _ = sweep.finished(
        rows[(rows["family"] == "layers") & (rows["size"] == 1)], "single layers", "mase", "change"
    )
    best = {str(row["model"]): int(row["first"]) for row in sweep.told(most_ablatable(layers))}
    labels = [
        plain(f"{shortened(model, _NAME, 12, 3)}\nlayer {layer}").replace("\n", "<br>") for model, layer in best.items()
    ]
    canvas = blank(30 + 96 * len(best), 400)
    panel, longest = next(iter(canvas)), 0.0
    for i, (part, words) in enumerate(_BARS.items()):
        bars = pd.DataFrame([_bar(layers, model, layer, part) for model, layer in best.items()])
        places = np.arange(len(best)) + _BAR * (i - (len(_BARS) - 1) / 2)
        panel.bars(
            places,
            bars["mase"],
            words,
            f"%{{customdata[0]}}<br>{words}: %{{customdata[1]}}",
            customdata=[
                [f"{plain(m)}<br>layer {k}", text] for (m, k), text in zip(best.items(), bars["text"], strict=True)
            ],
            colour=mixed(GREY, 0.45) if part == "none" else sweep.PART_COLOURS[part],
            across=True,
            width=0.94 * _BAR,
            error_x=sweep.whiskers(bars, "mase"),
        )
        # beside the axes, where no bar and no interval reaches
        for y, text in zip(places, bars["text"], strict=True):
            panel.note(text, 1, y, xref="paper", xshift=6, yref="y", xanchor="left", align="left")
            longest = max(longest, text_width(text, 11))
    sweep.label_rows(canvas, labels)
    canvas.x(sweep.MASE_WORDS, rangemode="tozero")
    # some of it is bold
    canvas.fig.update_layout(barmode="overlay", margin_r=round(14 + 1.1 * longest))
    canvas.min_width += round(1.1 * longest)
    return canvas.dress(
        "Error without the parts of the most ablatable layer of every model",
        f"the layer whose heads and MLP together cost least; {sweep.intervals_of(table)} of the change; bold: the "
        "change stands after Holm's correction",
    )


def most_ablatable(layers: pd.DataFrame) -> pd.DataFrame:
    """Return of each model the row of the single layer whose removal raises the MASE least."""
    whole, _ = sweep.finished(layers[layers["part"] == "both"], "whole layers", "change")
    return whole.loc[whole.groupby("model", sort=False)["change"].idxmin()]


def _bar(layers: pd.DataFrame, model: str, layer: int, part: str) -> dict[str, float | str]:
    """Return length, ends of the interval and text of one bar."""
    base = sweep.baseline_of(layers, model)
    rows = sweep.told(layers[(layers["model"] == model) & (layers["first"] == layer) & (layers["part"] == part)])
    row = rows[0] if rows else {"mase": base if part == "none" else np.nan, "lower": np.nan, "upper": np.nan}
    # four digits with their zeros, so that labels below each other align
    text = f"{row['mase']:#.4g}".rstrip(".") if np.isfinite(row["mase"]) else ""
    if rows:
        text = f"{text}   {sweep.change_words(row)}"
    ends = {f"mase_{name}": base * (1 + row[name]) for name in ("lower", "upper")}
    return {"mase": row["mase"], **ends, "text": f"<b>{text}</b>" if row.get("stands") else text}


@SWEEP_EFFECTS.figure(variables=(*_MASE, *_CHANGE))
def range_curves(table: pd.DataFrame) -> go.Figure:
    """Draw the error as a contiguous range of layers loses its heads, its MLPs, or both."""
    rows = _sized(table)
    rows, remark = sweep.finished(rows[rows["family"] == "ranges"], "growing ranges", "mase", "change")
    models, titles = sweep.models_in(rows), []
    for model in models:
        longest = rows[rows["model"] == model].sort_values("size").iloc[-1]
        titles.append((model, f"at the most layers {int(longest['first'])} to {int(longest['last'])}"))
    grid = panel_grid(titles, row_height=210, most=3)
    for model, panel in zip(models, grid, strict=True):
        base = sweep.baseline_of(rows, model)
        for part in [part for part in sweep.PARTS if part in set(rows["part"])]:
            mine = rows[(rows["model"] == model) & (rows["part"] == part)]
            # one growing range, or one for each first layer
            which = mine["first"] if mine["size"].duplicated().any() else mine["size"] * 0
            for _, chain in mine.groupby(which, sort=False):
                _range_line(panel, chain.sort_values("size"), base, part)
        sweep.level(panel, base, "dash")
    bases = rows["baseline_mase"].to_numpy(float)
    lines = np.concatenate([rows["mase"].to_numpy(float), bases])
    ends = np.concatenate([bases * (1 + rows[name].to_numpy(float)) for name in ("lower", "upper")])
    cut = fit(grid, lines, ends, reach=0.25)
    title_axes(grid, "layers in the range", "MASE")
    sweep.whole_ticks(grid, float(rows["size"].max()))
    words = f"{sweep.MASE_WORDS}; dashed: unablated; bands: {sweep.intervals_of(table)} of the change"
    return grid.dress("Error as a growing range of layers is ablated", words, cut, sweep.STANDS, remark)


def _range_line(panel: Panel, rows: pd.DataFrame, base: float, part: str) -> None:
    colour, x = sweep.PART_COLOURS[part], rows["size"].to_numpy(float)
    sweep.band(panel, x, rows, base, colour)
    panel.line(
        x,
        rows["mase"].to_numpy(float),
        f"without their {sweep.PARTS[part]}",
        "%{customdata}<br>MASE %{y:.4g}",
        customdata=_hover(rows),
        colour=colour,
        width=1.6,
        mode="lines+markers",
        marker={"symbol": sweep.symbols(rows["stands"]), "color": colour, "size": 7},
    )


@SWEEP_EFFECTS.panels
def _effects(table: pd.DataFrame) -> Iterator[ReportPanel]:
    for part in sweep.PARTS:
        layers = table[table["family"].isin(("layers", "groups")) & (table["part"] == part)]
        draw, words = partial(layer_distances, part=part), partial(read_distances, part=part)
        yield from sweep.sweep_panel(f"layer_distances-{part}", layers, draw, words)
    layers, ranges = (table[table["family"] == family] for family in ("layers", "ranges"))
    yield from sweep.sweep_panel("component_errors", layers, component_errors, read_components)
    yield from sweep.sweep_panel("range_curves", ranges, range_curves, read_ranges)
