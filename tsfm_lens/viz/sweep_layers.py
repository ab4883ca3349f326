"""Sweeps of layers, groups and ranges of layers across datasets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import listed, num

_ENTRY = ("model", "family", "part", "first", "last")
_CHANGE = ("change", "lower", "upper", "significant")
_DISTANCE = ("spearman_distance", "spearman_distance_lower", "spearman_distance_upper")
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
    """Describe which single layers matter, which changes are significant, and where the forecast keeps its shape."""
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
            out.append(
                f"{model}: without a group of layers, {sweep.sizes_words(groups)}."
            )
    return out


def _single_layers(rows: pd.DataFrame, model: str, part: str) -> list[str]:
    small = int((rows["change"] < _SMALL).sum())
    named = rows.loc[rows["significant"], "first"].tolist()
    which = f" (layer{sweep.plural_s(named)} {sweep.runs(named)})" if named else ""
    verb = "costs" if small == 1 else "cost"
    counted_layers = sweep.counted(len(rows), "layer")
    layers = f"{small} of {counted_layers} {verb} less than {percent(_SMALL)}"
    summary = f"{model}: without the {sweep.PARTS[part]} of one layer, {sweep.sizes_words(rows)}{which}; {layers}."
    if len(rows) < 2:
        return [summary]
    leaders = {
        row["distance_leads"]: row
        for row in sweep.told(rows[rows["distance_leads"] != ""])
    }
    verbs = {"lowest": "keeps its shape best", "highest": "loses its shape most"}
    parts = [
        f"{verb} without layer {leaders[side]['first']} (Spearman distance {num(leaders[side]['spearman_distance'])})"
        for side, verb in verbs.items()
        if side in leaders
    ]
    often = sweep.often_first(
        rows.assign(name="layer " + rows["first"].astype(str)),
        "name",
        "distance_lead_share",
    )
    span = f"moves by a Spearman distance of {' to '.join(map(num, rows['spearman_distance'].agg(['min', 'max'])))}"
    redraws = f"; in bootstrap samples it moves most without {often}" if often else ""
    return [summary, f"The forecast {listed(parts) if parts else span}{redraws}."]


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
            f"changes by {sweep.change_text(longest['change'])} ({sweep.verdict(longest['significant'])})."
        )
    return out


def _distances(table: pd.DataFrame) -> xr.Dataset:
    """Return the distance of the forecast without single layers and groups, (model, part, span, first)."""
    rows = _sized(table[table["family"].isin(("layers", "groups"))])
    span = rows["size"].astype(str) + " layers in a row"
    rows["span"] = span.where(rows["size"] > 1, "single layer")
    index = ["model", "part", "span", "first"]
    return sweep.labelled(rows, index, "spearman_distance", "spearman_distance_")


def _ranges(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE over growing ranges, (model, range, size)."""
    rows = _sized(table[table["family"] == "ranges"])
    rows["range"] = rows["part"].map(sweep.PARTS)
    # one growing range, or one for each first layer
    if rows.duplicated(["model", "part", "size"]).any():
        rows["range"] += " from layer " + rows["first"].astype(str)
    return sweep.labelled(rows, ["model", "range", "size"], "change")


draw_distances = generic_figure(
    "sweep_effects",
    "spearman_distance",
    "Distance of the forecast without layers and groups of layers.",
    prepare=_distances,
    options={"model": 0, "part": "both"},
    variables=(*_ENTRY, *_CHANGE, *_DISTANCE),
)
draw_ranges = generic_figure(
    "sweep_effects",
    "change",
    "Error over growing ranges of layers.",
    prepare=_ranges,
    options={"model": 0},
    variables=(*_ENTRY, *_CHANGE),
)


@panels("sweep_effects")
def _effects(table: pd.DataFrame) -> Iterator[FigurePanel]:
    spans = table["family"].isin(("layers", "groups"))
    for part in sweep.PARTS:
        words = partial(read_distances, part=part)
        rows = table[spans & (table["part"] == part)]
        yield from sweep.panels_by_model(draw_distances, words, rows, part)
    ranges = table[table["family"] == "ranges"]
    yield from sweep.panels_by_model(draw_ranges, read_ranges, ranges)
