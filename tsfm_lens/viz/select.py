"""Reading a labelled result: its kind, and the places of series, layers, heads and methods in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as as_index
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.registry import check
from tsfm_lens.viz import theme
from tsfm_lens.viz.theme import significant, true_minus


def names(ds: xr.Dataset, dim: str) -> list[str]:
    """Return the labels along ``dim`` as strings; positions where it has no labels."""
    if dim not in ds.dims:
        return []
    return [str(v) for v in ds[dim].values]


def segment_words(ds: xr.Dataset) -> list[str]:
    """Name segments as figures do: their steps with true minus signs."""
    return [true_minus(name) for name in names(ds, "segment")]


def position(ds: xr.Dataset, dim: str, value: str | int, *, what: str | None = None) -> int:
    """Return the position of a label along ``dim``; a negative integer counts from the end."""
    labels = names(ds, dim)
    if str(value) in labels:
        return labels.index(str(value))
    if not isinstance(value, str) and -len(labels) <= as_index(value) < 0:
        return as_index(value) % len(labels)
    raise unknown_name(what or dim, value, labels, hint=f"There are {len(labels)}.")


def series_position(ds: xr.Dataset, series: str | int) -> int:
    """Return the position of a series, by its place (an integer) or its id (a string)."""
    labels = names(ds, "series")
    if isinstance(series, str):
        return position(ds, "series", series)
    if -len(labels) <= as_index(series) < len(labels):
        return as_index(series) % len(labels)
    raise unknown_name("series", series, labels, hint=f"There are {len(labels)}, counted from 0.")


def series_rows(ds: xr.Dataset, series: str | int | None) -> list[int]:
    """Return the place of one series, of all for None; errors as in :func:`series_position`."""
    return list(range(ds.sizes["series"])) if series is None else [series_position(ds, series)]


def forecast_series(ds: xr.Dataset, most: int | None = None) -> list[int]:
    """Return places of the series that are forecast, the first ``most`` of them; covariates are not."""
    roles = ds["role"].values if "role" in ds.coords else ["target"] * ds.sizes.get("series", 1)
    return [place for place, role in enumerate(roles) if role == "target"][:most]


def over_series(ds: xr.Dataset, rows: Sequence[int], how: str = "mean") -> str:
    """Name the series that a figure shows, and how several were put together."""
    ids = names(ds, "series")
    return f"{how} over " * (len(rows) > 1) + shown([ids[i] for i in rows])


def positions(ds: xr.Dataset, dim: str, values: Sequence[str | int] | None) -> list[int]:
    """Return several positions along ``dim``, all of them for None; errors as in :func:`position`."""
    return list(range(ds.sizes[dim])) if values is None else [position(ds, dim, v) for v in values]


def median_position(quantiles: np.ndarray) -> int:
    """Return the position of the quantile next to 0.5."""
    return int(np.argmin(np.abs(np.asarray(quantiles, dtype=float) - 0.5)))


def statistic_of(ds: xr.Dataset) -> str:
    """Name the middle of a read-out forecast: "median", "mean", or "expected value" over tokens."""
    statistic = str(ds.attrs.get("statistic", ""))
    return statistic if statistic in ("mean", "expected value") else "median"


def unit_of(ds: xr.Dataset, series: int | None = None) -> str:
    """Return the unit of the data, of one series where each has its own; "" if it is not known."""
    own = ""
    if "units" in ds.coords and series is not None and ds["units"].dims == ("series",):
        own = str(ds["units"].values[series])
    unit = own or str(ds.attrs.get("units", "") or "")
    return "" if unit == "data units" else unit


def value_title(ds: xr.Dataset, series: int | None = None, word: str = "value") -> str:
    """Return the title of an axis in data units."""
    return f"{word} ({unit_of(ds, series) or 'data units'})"


def model_of(ds: xr.Dataset) -> str:
    """Return the model's name for titles."""
    return str(ds.attrs.get("model", "") or "unnamed model")


def layer_name(label: str) -> str:
    """Write a layer's label in words: "embedding" or "layer 3"."""
    return "embedding" if label == "embed" else f"layer {label}"


def kind_word(kind: str) -> str:
    """Write a kind of component in words."""
    words = {"mlp": "MLP", "embed": "embedding", "bias": "output biases"}
    return words.get(kind) or kind.replace("_", "-").replace("attn", "attention")


def layer_names(ds: xr.Dataset, rows: Sequence[int] | None = None) -> list[str]:
    """Name the layers in words, all or those at some places."""
    labels = [layer_name(label) for label in names(ds, "layer")]
    return labels if rows is None else [labels[i] for i in rows]


def array(ds: xr.Dataset, variable: str, *dims: str, **at: Any) -> np.ndarray:
    """Return a variable as float64, cut at ``at`` (by position) and laid out as ``dims``."""
    if variable not in ds:
        check(ds, str(ds.attrs.get("kind")), variable)
    cut = ds[variable].isel(at, missing_dims="ignore")
    if set(cut.dims) != set(dims):
        raise InputError(
            f"variable {variable!r} has dimensions {tuple(ds[variable].dims)}, expected {(*at, *dims)} in any order."
        )
    return np.asarray(cut.transpose(*dims).values, dtype=float)


def shown(ids: Sequence[str], limit: int = 3) -> str:
    """List series ids for a subtitle: all when few, else how many."""
    return ", ".join(ids) if len(ids) <= limit else f"{len(ids)} series"


_MAX_NAMES = 3  # heads alike that are named


def num(value: float) -> str:
    """Write three significant digits."""
    return significant(value, 3)


def signed(value: float) -> str:
    """Write three significant digits with a true sign."""
    return f"{'' if value < 0 else '+'}{num(value)}"


def capital(text: str) -> str:
    """Write the text as a sentence begins."""
    return text[:1].upper() + text[1:]


def nats_of(entropy: float) -> str:
    """Write an entropy to three digits."""
    return theme.nats(entropy, 3)


def listed(words: list[str]) -> str:
    """Join words with commas and an "and"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def layers(ds: xr.Dataset, dim: str = "layer") -> list[str]:
    """Name the layers in words."""
    words = [layer_name(v) for v in names(ds, dim)]
    return ["the embedding" if word == "embedding" else word for word in words]


def measured(unit: str) -> Callable[[float], str]:
    """Return a function that writes a value in this unit."""
    return lambda value: f"{num(value)} {unit}".rstrip()


def head_at(ds: xr.Dataset, place: int) -> str:
    """Name the head at a flat place of (layer, head)."""
    layer, head = divmod(int(place), ds.sizes["head"])
    return f"{layer_name(names(ds, 'layer')[layer])}, head {names(ds, 'head')[head]}"


def count_of(count: int, whole: int, noun: str) -> str:
    """Write how many of a whole, as a sentence begins: "None of the 12 heads", "1 of 12 heads"."""
    return f"{count} of {whole} {noun}" if count else f"None of the {whole} {noun}"


def verb(count: int, plural: str, single: str = "") -> str:
    """Inflect a verb for so many: "give" for two, "gives" for none and one."""
    return plural if count > 1 else single or f"{plural}s"


def is_head(ds: xr.Dataset, values: np.ndarray, flat: int, write: Callable[[float], str]) -> str:
    """Name the head at a flat place, and all that cannot be told from it, as "is …" or "are …"."""
    alike = [i for i, value in enumerate(np.ravel(values)) if write(value) == write(np.ravel(values)[flat])]
    if len(alike) > _MAX_NAMES:
        return f"are {len(alike)} heads alike"
    return f"{'is' if len(alike) == 1 else 'are'} {listed([head_at(ds, i) for i in alike])}"


def extremes(values: np.ndarray) -> tuple[int, int]:
    """Return flat places of the smallest and the largest finite value."""
    flat = np.asarray(values, dtype=float).ravel()
    return int(np.nanargmin(flat)), int(np.nanargmax(flat))


def frame(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """Tabulate variables that share their dimensions, a row per combination of labels, a column per variable."""
    return ds[list(variables)].reset_coords(drop=True).to_dataframe().reset_index()


def tokens_table(ds: xr.Dataset, variable: str, least: float) -> pd.DataFrame:
    """Tabulate query–key pairs (of each layer and head) with at least ``least``: what they cover, the value."""
    others = [str(dim) for dim in ds[variable].dims if dim not in ("query", "key")]
    values = ds[variable].transpose(*others, "query", "key").values
    *outer, query, key = np.nonzero(values >= least)
    columns = {dim: np.array(names(ds, dim))[place] for dim, place in zip(others, outer, strict=True)}
    for side, place in (("query", query), ("key", key)):
        columns |= {f"{side}_{part}": ds[f"{side}_{part}"].values[place] for part in ("start", "stop", "special")}
    return pd.DataFrame(columns | {variable: values[(*outer, query, key)]})


def steps_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate the steps of one series: its name, the date where known, the unit."""
    count = ds.sizes["step"]
    table = pd.DataFrame({"series": [names(ds, "series")[series]] * count, "step": names(ds, "step")})
    if "forecast_timestamp" in ds.coords:
        stamps = ds["forecast_timestamp"]
        table["timestamp"] = (stamps.isel(series=series) if "series" in stamps.dims else stamps).values
    table["unit"] = unit_of(ds, series)
    return table


def add_quantiles(table: pd.DataFrame, ds: xr.Dataset, values: np.ndarray) -> None:
    """Add a column per quantile. ``values``: (quantile, step)."""
    for level, row in zip(ds["quantile"].values, values, strict=True):
        table[f"q{float(level):g}"] = row
