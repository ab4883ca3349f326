"""The numbers behind each figure as tables."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.data.formulas import to_csv
from tsfm_lens.report.readings import head_entropy
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, names, unit_of
from tsfm_lens.viz.shares import attribution_shares
from tsfm_lens.viz.tokens import token_axis

_PLAIN = 150_000  # bytes; longer tables are compressed


@dataclass(frozen=True)
class Download:
    """A table as a link that needs no server.

    Attributes:
        name: file name. href: the whole file as a data URI. note: rows, columns, size.
    """

    name: str
    href: str
    note: str


def download(table: pd.DataFrame, name: str) -> Download:
    """Six significant digits as CSV; gzipped where long."""
    content = to_csv(table, float_format="%.6g").encode()
    kind = "text/csv;charset=utf-8"
    if len(content) > _PLAIN:
        content, kind, name = gzip.compress(content, mtime=0), "application/gzip", f"{name}.gz"
    href = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    size = f"{len(content) / 1000:.0f} kB" if len(content) >= 1000 else f"{len(content)} bytes"
    return Download(name=name, href=href, note=f"{len(table)} rows, {len(table.columns)} columns, {size}")


def forecast_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """A row per step: date, quantiles, truth."""
    table = _steps(ds, series)
    _add_quantiles(table, ds, array(ds, "quantile_forecast", "quantile", "step", series=series))
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    return table


def lens_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """A row per layer and step: quantiles."""
    parts = []
    for i, layer in enumerate(names(ds, "layer")):
        part = _steps(ds, series)
        part.insert(0, "layer", layer)
        _add_quantiles(part, ds, array(ds, "quantile_forecast", "quantile", "step", series=series, layer=i))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def map_table(fig: go.Figure, ds: xr.Dataset, series: int, least: float = 1e-3) -> pd.DataFrame:
    """A row per drawn cell of the logit map that holds at least ``least`` probability."""
    parts = []
    for trace in fig.data:
        if trace.type != "heatmap":
            continue
        mass, edges = np.asarray(trace.customdata, dtype=float), np.asarray(trace.y, dtype=float)
        row, column = np.nonzero(mass >= least)
        group = int(trace.meta["steps"])
        parts.append(
            pd.DataFrame(
                {
                    "layer": trace.name,
                    "step": np.array(names(ds, "step"))[column * group],
                    **({"steps": group} if group > 1 else {}),
                    "value_from": edges[row],
                    "value_to": edges[row + 1],
                    "probability": mass[row, column],
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table["unit"] = unit_of(ds, series)
    return table


def frame(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """A row per combination of labels, a column per variable; variables must share their dimensions."""
    return ds[list(variables)].reset_coords(drop=True).to_dataframe().reset_index()


def tokens_table(ds: xr.Dataset, variable: str, least: float) -> pd.DataFrame:
    """A row per query and key (and layer and head) with at least ``least``: what they cover, the value."""
    others = [str(dim) for dim in ds[variable].dims if dim not in ("query", "key")]
    values = ds[variable].transpose(*others, "query", "key").values
    *outer, query, key = np.nonzero(values >= least)
    columns = {dim: np.array(names(ds, dim))[place] for dim, place in zip(others, outer, strict=True)}
    for side, place in (("query", query), ("key", key)):
        columns |= {f"{side}_{part}": ds[f"{side}_{part}"].values[place] for part in ("start", "stop", "special")}
    return pd.DataFrame(columns | {variable: values[(*outer, query, key)]})


def entropy_table(ds: xr.Dataset) -> pd.DataFrame:
    """A row per layer and series: the measures, mean over steps."""
    measures = [m for m in ("entropy", "n_peaks", "effective_vocabulary") if m in ds]
    layers, ids = names(ds, "layer"), names(ds, "series")
    table = pd.DataFrame({"layer": np.repeat(layers, len(ids)), "series": np.tile(ids, len(layers))})
    for measure in measures:
        table[measure] = array(ds, measure, "layer", "series", "step").mean(axis=-1).ravel()
    return table


def gain_table(ds: xr.Dataset) -> pd.DataFrame:
    """A row per metric, layer and series: error and gain in percent."""
    metrics, layers, ids = names(ds, "metric"), names(ds, "layer"), names(ds, "series")
    index = pd.MultiIndex.from_product([metrics, layers, ids], names=["metric", "layer", "series"])
    table = index.to_frame(index=False)
    if "error" in ds:
        table["error"] = array(ds, "error", "metric", "layer", "series").ravel()
    table["gain_percent"] = array(ds, "gain", "metric", "layer", "series").ravel()
    return table


def ablation_table(ds: xr.Dataset, metric: str) -> pd.DataFrame:
    """A row per component: the effect on every series and the median."""
    effect = array(ds, metric, "component", "series")
    table = pd.DataFrame({"component": names(ds, "component")})
    for coord in ("stack", "kind", "layer_index", "head"):
        table[coord] = ds[coord].values
    table["median"] = medians(effect)
    for i, name in enumerate(names(ds, "series")):
        table[f"{metric}: {name}"] = effect[:, i]
    return table


def ablated_forecast_table(ds: xr.Dataset, series: int, components: list[str]) -> pd.DataFrame:
    """A row per step: truth, the unablated forecast, the forecast without each component."""
    table = _steps(ds, series)
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    table["unablated"] = array(ds, "baseline_forecast", "step", series=series)
    known = names(ds, "component")
    for component in components:
        values = array(ds, "forecast", "step", component=known.index(component), series=series)
        table[f"without {component}"] = values
    return table


def attribution_table(ds: xr.Dataset, decomposition: str, series: int) -> pd.DataFrame:
    """A row per component: the mean contribution and that of every step."""
    shares = attribution_shares(ds, decomposition=decomposition, series=series)
    table = pd.DataFrame({"component": shares.components, "unit": shares.unit})
    table["mean"] = shares.values.mean(axis=1)
    steps = pd.DataFrame(shares.values, columns=[f"step {s}" for s in names(ds, "step")])
    return pd.concat([table, steps], axis=1)


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """A row per head: entropy, largest weight, weight on special tokens; means over queries."""
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    layers, heads = names(ds, "layer"), names(ds, "head")
    table = pd.DataFrame({"layer": np.repeat(layers, len(heads)), "head": np.tile(heads, len(layers))})
    table["entropy_nats"] = head_entropy(pattern).ravel()
    table["largest_weight"] = pattern.max(axis=-1).mean(axis=-1).ravel()
    table["special_weight"] = pattern[..., token_axis(ds, "key").aside].sum(axis=-1).mean(axis=-1).ravel()
    return table


def pattern_table(ds: xr.Dataset, layer: int, head: int, least: float = 1e-4) -> pd.DataFrame:
    """A row per query and key with at least ``least`` weight: what they cover, the weight."""
    weights = array(ds, "pattern", "query", "key", layer=layer, head=head)
    query, key = np.nonzero(weights >= least)
    columns: dict[str, np.ndarray] = {}
    for side, place in (("query", query), ("key", key)):
        axis = token_axis(ds, side)
        columns |= {
            f"{side}_start": axis.start[place],
            f"{side}_stop": axis.stop[place],
            f"{side}_special": axis.special[place],
        }
    return pd.DataFrame(columns | {"weight": weights[query, key]})


def _steps(ds: xr.Dataset, series: int) -> pd.DataFrame:
    count = ds.sizes["step"]
    table = pd.DataFrame({"series": [names(ds, "series")[series]] * count, "step": names(ds, "step")})
    if "forecast_timestamp" in ds.coords:
        stamps = ds["forecast_timestamp"]
        table["timestamp"] = (stamps.isel(series=series) if "series" in stamps.dims else stamps).values
    table["unit"] = unit_of(ds, series)
    return table


def _add_quantiles(table: pd.DataFrame, ds: xr.Dataset, values: np.ndarray) -> None:
    for level, row in zip(ds["quantile"].values, values, strict=True):
        table[f"q{float(level):g}"] = row
