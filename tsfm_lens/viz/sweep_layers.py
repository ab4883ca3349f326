"""Sweeps of layers, groups and ranges of layers across datasets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.core.registry import FigurePanel, figure, measurement, panels
from tsfm_lens.errors import unknown_name
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import fit
from tsfm_lens.viz.sheet import Panel
from tsfm_lens.viz.theme import CATEGORICAL, mixed, plain

__all__ = ["layer_distances", "range_curves"]
_CHANGE = (
    "model",
    "family",
    "label",
    "part",
    "first",
    "last",
    "change",
    "lower",
    "upper",
    "significant",
)
_DISTANCE = ("spearman_distance", "spearman_distance_lower", "spearman_distance_upper")
_MASE = ("mase", "baseline_mase")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_SMALL = 0.01  # a change of MASE that a reader would call small

measurement(
    "sweep_effects",
    title="Layers and their parts across datasets",
    theme="Sweeps",
    summary=("layers, groups and ranges of layers, and their parts, across datasets"),
    description=(
        "Whole layers, only their heads, or only their MLPs are ablated: one by "
        "one, in groups, and over growing ranges. Changes are relative to the "
        "unablated model on the same windows."
    ),
    source="tsfm-lens, figures 2 to 4, 8 and 9",
    paper=(
        "S3-F3",
        "S3-F4",
    ),
    subject=sweep.sweep_subject,
)


def _sized(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``size``, the number of layers of an entry; ``first`` is -1 for none."""
    return table.assign(size=table["last"] - table["first"] + 1)


def read_distances(table: pd.DataFrame, part: str) -> list[str]:
    """Describe which single layers matter, and which changes are significant."""
    rows = _sized(table)
    rows = rows[(rows["part"] == part) & rows["family"].isin(("layers", "groups"))]
    single, groups = rows[rows["size"] == 1], rows[rows["size"] > 1]
    layers = "layer " + single["first"].astype(str)
    subject = f"without the {sweep.PARTS[part]} of one layer"
    return [
        *sweep.say_changes(single, subject, layers),
        *sweep.say_changes(groups, "without a group of layers", groups["label"]),
    ]


def read_ranges(table: pd.DataFrame) -> list[str]:
    """State by how much the error rises without ranges of layers, by part."""
    rows = _sized(table)
    rows = rows[rows["family"] == "ranges"]
    out = []
    for part, lengths in rows.groupby("part", sort=False):
        subject = f"without {sweep.PARTS[str(part)]} of a range of layers"
        out += sweep.say_changes(lengths, subject, lengths["label"])
    return out


@figure(
    "sweep_effects",
    ("Distance of the forecast without layers and groups of layers."),
    variables=(*_DISTANCE, *_CHANGE),
)
def layer_distances(table: pd.DataFrame, *, part: str = "both") -> go.Figure:
    """Draw how far the forecast moves without single layers and without groups of consecutive layers.

    Args:
        part: what of a layer goes: "both" (its heads and its MLP), "heads" or "mlp".
    """
    rows = _sized(table)
    if part not in sweep.PARTS:
        raise unknown_name("part", part, sweep.PARTS)
    rows = rows[rows["family"].isin(("layers", "groups")) & (rows["part"] == part)]
    rows, remark = sweep.finished(
        rows, f"layers or groups of layers ({sweep.PARTS[part]})", "spearman_distance"
    )
    models = sweep.models_in(rows)
    grid = panel_grid([(model,) for model in models], row_height=210, most=3)
    for model, panel in zip(models, grid, strict=True):
        for i, size in enumerate(sorted(set(rows["size"]))):
            mine = rows[(rows["model"] == model) & (rows["size"] == size)].sort_values(
                "first"
            )
            _distances(
                panel,
                mine,
                int(size),
                CATEGORICAL[i % len(CATEGORICAL)],
                _SHAPES[i % len(_SHAPES)],
            )
    grid.y(rangemode="tozero")
    title_axes(grid, "layer", "Spearman distance")
    sweep.whole_ticks(grid, float(rows["last"].max()))
    return grid.dress(
        f"How far the forecast moves without the {sweep.PARTS[part]} of layers",
        "Spearman distance to the unablated forecast (0: same shape, 1: unrelated) with "
        + sweep.intervals_of(table),
        sweep.SIGNIFICANT,
        remark,
    )


def _distances(
    panel: Panel, rows: pd.DataFrame, size: int, colour: str, shape: str
) -> None:
    across = {
        "type": "data",
        "array": np.full(len(rows), (size - 1) / 2),
        "thickness": 1.2,
        "width": 0,
    }
    panel.dots(
        (rows["first"].to_numpy(float) + rows["last"].to_numpy(float)) / 2,
        rows["spearman_distance"].to_numpy(float),
        "single layer" if size == 1 else f"{size} layers in a row",
        "%{customdata}<br>Spearman distance %{y:.4g}",
        customdata=_hover(rows),
        colour=colour,
        size=8,
        symbol=sweep.symbols(rows["significant"], shape),
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


@figure(
    "sweep_effects",
    "Error over growing ranges of layers.",
    variables=(*_MASE, *_CHANGE),
)
def range_curves(table: pd.DataFrame) -> go.Figure:
    """Draw the error as a contiguous range of layers loses its heads, its MLPs, or both."""
    rows = _sized(table)
    rows, remark = sweep.finished(
        rows[rows["family"] == "ranges"], "growing ranges", "mase", "change"
    )
    models, titles = sweep.models_in(rows), []
    for model in models:
        longest = rows[rows["model"] == model].sort_values("size").iloc[-1]
        titles.append(
            (
                model,
                f"at the most layers {int(longest['first'])} to {int(longest['last'])}",
            )
        )
    grid = panel_grid(titles, row_height=210, most=3)
    for model, panel in zip(models, grid, strict=True):
        base = sweep.baseline_of(rows, model)
        for part in [part for part in sweep.PARTS if part in set(rows["part"])]:
            mine = rows[(rows["model"] == model) & (rows["part"] == part)]
            # one growing range, or one for each first layer
            which = (
                mine["first"] if mine["size"].duplicated().any() else mine["size"] * 0
            )
            for _, chain in mine.groupby(which, sort=False):
                _range_line(panel, chain.sort_values("size"), base, part)
        sweep.level(panel, base, "dash")
    bases = rows["baseline_mase"].to_numpy(float)
    lines = np.concatenate([rows["mase"].to_numpy(float), bases])
    ends = np.concatenate(
        [bases * (1 + rows[name].to_numpy(float)) for name in ("lower", "upper")]
    )
    cut = fit(grid, lines, ends, reach=0.25)
    title_axes(grid, "layers in the range", "MASE")
    sweep.whole_ticks(grid, float(rows["size"].max()))
    words = f"{sweep.MASE_WORDS}; dashed: unablated; bands: {sweep.intervals_of(table)} of the change"
    return grid.dress(
        "Error as a growing range of layers is ablated",
        words,
        cut,
        sweep.SIGNIFICANT,
        remark,
    )


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
        marker={
            "symbol": sweep.symbols(rows["significant"]),
            "color": colour,
            "size": 7,
        },
    )


@panels("sweep_effects")
def _effects(table: pd.DataFrame) -> Iterator[FigurePanel]:
    for part in sweep.PARTS:
        layers = table[
            table["family"].isin(("layers", "groups")) & (table["part"] == part)
        ]
        draw, words = (
            partial(layer_distances, part=part),
            partial(read_distances, part=part),
        )
        yield from sweep.sweep_panel(f"layer_distances-{part}", layers, draw, words)
    yield from sweep.sweep_panel(
        "range_curves", table[table["family"] == "ranges"], range_curves, read_ranges
    )
