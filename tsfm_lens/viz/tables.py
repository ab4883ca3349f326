"""Tables that several measurements make of their numbers.

A panel of a report has one under its figure.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.clocks import on_clock
from tsfm_lens.viz.select import find_unit, names


def tokens_table(ds: xr.Dataset, variable: str, least: float) -> pd.DataFrame:
    """Return query–key pairs with at least ``least``, and the steps they cover.

    There is a row for each pair, of each layer and head where the variable has these.
    """
    rest = [str(dim) for dim in ds[variable].dims if dim not in ("query", "key")]
    values = ds[variable].transpose(*rest, "query", "key").values
    # a comparison with NaN is false, so a pair without a value has no row
    *outer, query, key = np.nonzero(values >= least)
    columns = {
        dim: np.array(names(ds, dim))[position]
        for dim, position in zip(rest, outer, strict=True)
    }
    for side, position in (("query", query), ("key", key)):
        columns |= {
            f"{side}_{part}": ds[f"{side}_{part}"].values[position]
            for part in ("start", "stop", "special")
        }
    return pd.DataFrame(columns | {variable: values[(*outer, query, key)]})


def steps_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate the steps of one series: its name, the date where known, the unit."""
    table = pd.DataFrame(
        {
            "series": [names(ds, "series")[series]] * ds.sizes["step"],
            "step": names(ds, "step"),
        }
    )
    if "forecast_timestamp" in ds.coords:
        stamps = ds["forecast_timestamp"]
        if "series" in stamps.dims:
            stamps = stamps.isel(series=series)
        table["timestamp"] = on_clock(stamps.values, stamps.attrs.get("clock", ""))
    table["unit"] = find_unit(ds, series)
    return table


def quantile_table(ds: xr.Dataset, series: int, **at: int) -> pd.DataFrame:
    """Return the steps of one series, with a column for each quantile.

    ``at`` has positions along other dimensions; their labels are the first columns.
    """
    table = steps_table(ds, series)
    for position, (dim, index) in enumerate(at.items()):
        table.insert(position, dim, names(ds, dim)[index])
    values = (
        ds["quantile_forecast"]
        .isel(at | {"series": series})
        .transpose("quantile", "step")
        .values.astype(float)
    )
    return table.assign(
        **{
            f"q{float(level):g}": row
            for level, row in zip(ds["quantile"].values, values, strict=True)
        }
    )
