"""Effects of the input over many items, and a line for each item.

:func:`item_overview` tabulates the items, the worst forecast first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.contributions import BOTH_WAYS, direction
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.input_attribution import VERBS, describe_method
from tsfm_lens.viz.panels import name_segments
from tsfm_lens.viz.select import find_unit, name_model
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.words import measured, num

__all__ = ["item_map"]

_MAX_ITEMS = 3  # named in sentences
_MAX_ROWS = 12  # of the map


def read_effects(ds: xr.Dataset) -> list[str]:
    """State the largest effects over the items, with segments named as in figures."""
    named = ds.assign_coords(segment=name_segments(ds))
    return summarize(
        named,
        "Largest effects of segments on forecasts, in multiples of the seasonal-naive"
        " error{size:basis}: {size:largest}.",
        effect="size",
        noun="segments",
    )


def item_overview(ds: xr.Dataset) -> pd.DataFrame:
    """Return the items: the error, and the segment that moves the forecast most.

    Errors are in multiples of the context's mean absolute seasonal difference; the
    largest comes first. Without a truth the items are sorted by the largest effect. The
    effect is in data units, its size and its mean over steps; its direction is "up",
    "down" or "both ways".
    """
    rows = []
    for index, name in enumerate(ds["series"].values.astype(str)):
        item = ds.isel(series=index)
        sizes = item["size"].values
        row: dict[str, Any] = {"series": name, "error": float(item["error"])}
        if np.isfinite(sizes).any():
            largest = int(np.nanargmax(sizes))
            unit = float(item["unit"])
            mean = float(item["effect"].values[largest])
            row |= {
                # with the dates of this item, which may differ from the others'
                "largest": name_segments(ds.isel(series=[index]))[largest],
                "effect": float(sizes[largest]) * unit,
                "mean": mean * unit,
                "direction": direction(mean, float(sizes[largest])),
                "unit": find_unit(ds, index),
            }
        rows.append(row)
    columns = ["series", "error", "largest", "effect", "mean", "direction", "unit"]
    table = pd.DataFrame(rows, columns=columns)
    order = "error" if table["error"].notna().any() else "effect"
    return table.sort_values(order, ascending=False, ignore_index=True)


def read_items(ds: xr.Dataset) -> list[str]:
    """Say how far off the first items are, and what moves their forecasts."""
    sentences = []
    rows = item_overview(ds).head(_MAX_ITEMS).to_dict("records")
    for row in rows:
        clauses = []
        if np.isfinite(row["error"]):
            clauses.append(f"error {num(row['error'])} MASE")
        if isinstance(row["largest"], str):
            way = row["direction"]
            verb = VERBS[way]
            # what goes one way goes so by the mean, not by its size at a step
            amount = row["effect"] if way == BOTH_WAYS else abs(row["mean"])
            size = measured(row["unit"])(amount)
            clauses.append(f"{row['largest']} {verb} the forecast most, by {size}")
        if clauses:
            sentences.append(f"{row['series']}: {'; '.join(clauses)}.")
    return sentences


def effects_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the effect of each segment on each item."""
    return frame(ds, "effect", "size", "value")


def say_items(ds: xr.Dataset) -> list[str]:
    """Say in one text what moves the first items, then what moves all of them."""
    return [" ".join(read_items(ds)), *read_effects(ds)]


@figure(
    "input_effects",
    "Size of each segment's effect on each item's forecast.",
    table=effects_table,
    sentences=say_items,
)
def item_map(ds: xr.Dataset) -> go.Figure:
    """Draw how far each segment moves the forecast of each item, as a map.

    The items stand as in the overview, at most so many that cells have room for
    numbers.

    Args:
        ds: result of kind "input_effects".

    Returns:
        One map, segment × item, of mean sizes at a step; dots of a single item. They
        are in multiples of the error of the seasonal-naive forecast.

    Example:
        >>> fig = viz.item_map(explain.input_effects(run, parts=3))
        >>> fig.layout.meta["title"]
        'Input effects on the forecasts by chronos-nano'
    """
    rows = item_overview(ds)["series"].head(_MAX_ROWS).values
    # without the test, whose medians are over the items
    sizes = ds[["size", "start", "stop"]].sel(series=rows)
    sizes["size"].attrs["long_name"] = "mean size of effects"
    return draw_variable(
        sizes,
        "size",
        title=f"Input effects on the forecasts by {name_model(ds)}",
        remarks=[
            "mean size at a step, in multiples of the seasonal-naive error",
            f"{describe_method(ds)}; {len(rows)} of {ds.sizes['series']} items",
        ],
    )


generic_figure(
    "input_effects",
    "size",
    "Size of each segment's effect over the series.",
    table=effects_table,
    sentences=read_effects,
)
generic_figure(
    "input_effects",
    "error",
    "Error of each item's forecast.",
    table=item_overview,
    sentences=read_items,
)
