"""Sweeps of layers, groups and ranges of layers across datasets.

:func:`generic_figure` makes the figures; :func:`read_distances` and :func:`read_ranges`
describe them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.generic import generic_figure

_ENTRY = ("model", "family", "part", "first", "last")
_CHANGE = ("change", "lower", "upper", "significant")
_DISTANCE = ("spearman_distance", "spearman_distance_lower", "spearman_distance_upper")

measurement(
    "sweep_effects",
    title="Layers and their parts across datasets",
    theme="Sweeps",
    summary="layers, groups and ranges of layers, and their parts, across datasets",
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
    single = rows[rows["size"] == 1]
    groups = rows[rows["size"] > 1]
    layers = "layer " + single["first"].astype(str)
    subject = f"without the {sweep.PARTS[part]} of one layer"
    return [
        *sweep.say_changes(single, subject, layers),
        *sweep.say_changes(groups, "without a group of layers", groups["label"]),
    ]


def _read_spans(table: pd.DataFrame, part: str) -> list[str]:
    """State how far single layers move the shape of the forecast, then their errors."""
    single = _sized(table)
    single = single[(single["size"] == 1) & single["spearman_distance"].notna()]
    texts = []
    for model, rows in single.groupby("model", sort=False):
        low, high = (
            f"{row['spearman_distance']:.2f} (layer {row['first']})"
            for row in sweep.told(rows.sort_values("spearman_distance").iloc[[0, -1]])
        )
        texts.append(
            f"{model}: without the {sweep.PARTS[part]} of one layer, the Spearman"
            f" distance from the whole model's forecast is {low} to {high}."
        )
    return [*texts, *read_distances(table, part)]


def read_ranges(table: pd.DataFrame) -> list[str]:
    """State by how much the error rises without ranges of layers, by part."""
    rows = _sized(table)
    rows = rows[rows["family"] == "ranges"]
    out = []
    for part, lengths in rows.groupby("part", sort=False):
        subject = f"without {sweep.PARTS[str(part)]} of a range of layers"
        out += sweep.say_changes(lengths, subject, lengths["label"])
    return out


def _distances(table: pd.DataFrame) -> xr.Dataset:
    """Return the distance of the forecast without single layers and groups.

    It is (model, part, span, first).
    """
    rows = _sized(table[table["family"].isin(("layers", "groups"))])
    span = rows["size"].astype(str) + " layers in a row"
    rows["span"] = span.where(rows["size"] > 1, "single layer")
    index = ["model", "part", "span", "first"]
    ds = sweep.labelled(rows, index, "spearman_distance", "spearman_distance_")
    if (rows["size"] == 1).all():
        ds["first"].attrs["long_name"] = "layer"
    return ds


def _ranges(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE over growing ranges, (model, range, size)."""
    rows = _sized(table[table["family"] == "ranges"])
    rows["range"] = rows["part"].map(sweep.PARTS)
    # A sweep has one growing range, or one for each first layer. Then two ranges have
    # the same length, and are told apart by where they start.
    if rows.duplicated(["model", "part", "size"]).any():
        rows["range"] += " from layer " + rows["first"].astype(str)
    return sweep.labelled(rows, ["model", "range", "size"], "change")


draw_distances = generic_figure(
    "sweep_effects",
    "spearman_distance",
    "How far the shape of the forecast moves without layers and groups of layers.",
    prepare=_distances,
    options={"model": 0, "part": "both"},
    variables=(*_ENTRY, *_CHANGE, *_DISTANCE),
)
draw_ranges = generic_figure(
    "sweep_effects",
    "change",
    "Error over growing ranges of layers; ratio of geometric means.",
    prepare=_ranges,
    options={"model": 0},
    variables=(*_ENTRY, *_CHANGE),
)


@panels("sweep_effects")
def _effects(table: pd.DataFrame) -> Iterator[FigurePanel]:
    spans = table["family"].isin(("layers", "groups"))
    for part, words in sweep.PARTS.items():
        about = f"How far the shape of the forecast moves without {words} of layers."
        draw = partial(draw_distances, about=about)
        text = partial(_read_spans, part=part)
        rows = table[spans & (table["part"] == part)]
        yield from sweep.panels_by_model(draw, text, rows, part)
    ranges = table[table["family"] == "ranges"]
    yield from sweep.panels_by_model(draw_ranges, read_ranges, ranges)
