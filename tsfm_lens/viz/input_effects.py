"""Effects of the input over many items, and a line for each item.

:func:`item_overview` tabulates the items, the worst forecast first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.input_attribution import BOTH_WAYS, VERBS, direction
from tsfm_lens.viz.panels import name_segments
from tsfm_lens.viz.select import find_unit
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.words import measured, num

_MAX_ITEMS = 3  # named in sentences

generic_figure(
    "input_effects",
    "size",
    "Size of each segment's effect over the series.",
    table=("effect", "size", "value"),
    sentences=summary(
        "Largest effects of segments on forecasts{size:basis}: {size:largest MASE}.",
        effect="size",
        noun="segments",
    ),
)


def item_overview(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the items: the error, and the segment that moves the forecast most.

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


generic_figure(
    "input_effects",
    "error",
    "Error of each item's forecast.",
    table=item_overview,
    sentences=read_items,
)
