"""Reading a labelled result: its kind, and which series, layer, head or method is meant."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name

DRAWN_BY = {
    "ablation": "ablation_heatmap or ablation_forecasts",
    "attention": "attention_map or attention_grid",
    "attention_flow": "attention_flow_map",
    "attribution": "attribution_bars or attribution_heatmap",
    "attribution_patching": "patching_map or attribution_patching_scatter",
    "circuit": "circuit_graph, circuit_forecasts or circuit_curve",
    "edges": "path_map",
    "effects": "effects_scatter or self_repair_bars",
    "entropic_rank": "entropic_rank_line",
    "explore": "explore_figure",
    "forecast": "forecast_fan",
    "head_entropy": "head_entropy_map",
    "head_parroting": "head_parroting_map",
    "head_similarity": "head_similarity_map",
    "induction": "induction_maps",
    "induction_overlap": "induction_corner or overlap_thresholds",
    "kernel_regression": "kernel_bandwidths, tilt_map or concentration_bound_plot",
    "lag_attention": "lag_attention_map",
    "layer_gain": "layer_gain",
    "layer_similarity": "similarity_map",
    "lens_logits": "lens_logit_map",
    "lines_of_thought": "thought_lines or thought_counts",
    "logit_lens": "logit_map, lens_forecast or layer_entropy",
    "norm_weighted": "norm_weighted_map",
    "parroting": "parroting_forecast",
    "patch_attention": "patch_attention_grid or selected_patch",
    "patching": "patching_map or patched_forecasts",
    "paths": "path_map",
    "recipes": "recipe_forecasts",
    "repeated_motif": "repeated_motif_map",
    "rollout": "rollout_panels",
    "seasonality": "season_amplitudes",
    "spectra": "stable_rank_map or spectrum_lines",
    "stream_shares": "stream_scheme",
    "sweep_curves": "head_curves",
    "sweep_datasets": "dataset_heatmap",
    "sweep_effects": "layer_distances, component_errors or range_curves",
    "sweep_heads_at": "heads_at_layers",
    "sweep_recipes": "recipe_changes or recipe_table",
    "sweep_selection": "selection_comparison",
}
# results of many runs, which no single lens and series can make
SWEEP_KINDS = tuple(kind for kind in DRAWN_BY if kind.startswith("sweep_"))


def as_dataset(thing: Any) -> Any:
    """A run or a forecast as its dataset; anything else as it is."""
    return thing.to_dataset() if not isinstance(thing, xr.Dataset) and hasattr(thing, "to_dataset") else thing


def check(ds: xr.Dataset, kind: str, *variables: str) -> None:
    """Refuse what is no labelled result of this kind.

    Raises:
        InputError: ``ds`` is no Dataset, has another ``attrs["kind"]``, or lacks one of ``variables``.
    """
    if not isinstance(ds, xr.Dataset):
        raise InputError(f"a labelled result (xarray.Dataset) is needed, not {type(ds).__name__}.")
    found = ds.attrs.get("kind")
    # a run holds its forecast
    if found != kind and (found, kind) != ("run", "forecast"):
        help_text = f" {DRAWN_BY[found]} draws that kind." if found in DRAWN_BY else ""
        raise InputError(f"a Dataset of kind {kind!r} is needed, this one is of kind {found!r}.{help_text}")
    missing = [name for name in variables if name not in ds]
    if missing:
        has = ", ".join(map(str, ds.data_vars)) or "nothing"
        raise InputError(f"the {kind!r} Dataset has no variable {missing[0]!r}; it has {has}.")


def names(ds: xr.Dataset, dim: str) -> list[str]:
    """The labels along ``dim`` as strings; positions where it has no labels."""
    if dim not in ds.dims:
        return []
    return [str(v) for v in ds[dim].values]


def position(ds: xr.Dataset, dim: str, value: str | int, *, what: str | None = None) -> int:
    """Where a label stands along ``dim``; a negative integer counts from the end.

    Raises:
        UnknownNameError: there is no such label; names the nearest.
    """
    labels = names(ds, dim)
    if str(value) in labels:
        return labels.index(str(value))
    if not isinstance(value, str) and -len(labels) <= as_index(value) < 0:
        return as_index(value) % len(labels)
    raise unknown_name(what or dim, value, labels, hint=f"There are {len(labels)}.")


def series_position(ds: xr.Dataset, series: str | int) -> int:
    """Where a series stands, by its place (an integer) or its id (a string).

    Raises:
        UnknownNameError: there is no such series.
    """
    labels = names(ds, "series")
    if isinstance(series, str):
        return position(ds, "series", series)
    if -len(labels) <= as_index(series) < len(labels):
        return as_index(series) % len(labels)
    raise unknown_name("series", series, labels, hint=f"There are {len(labels)}, counted from 0.")


def positions(ds: xr.Dataset, dim: str, values: Sequence[str | int] | None) -> list[int]:
    """Several positions along ``dim``; all of them for None.

    Raises:
        UnknownNameError: one of the labels does not exist.
    """
    return list(range(ds.sizes[dim])) if values is None else [position(ds, dim, v) for v in values]


def median_position(quantiles: np.ndarray) -> int:
    """Where the quantile next to 0.5 stands."""
    return int(np.argmin(np.abs(np.asarray(quantiles, dtype=float) - 0.5)))


def statistic_of(ds: xr.Dataset) -> str:
    """What the middle of a read-out forecast is: "median", "mean", or "expected value" over tokens."""
    found = str(ds.attrs.get("statistic", ""))
    return found if found in ("mean", "expected value") else "median"


def unit_of(ds: xr.Dataset, series: int | None = None) -> str:
    """The unit of the data, of one series where each has its own; "" if it is not known."""
    if "units" in ds.coords and series is not None and ds["units"].dims == ("series",):
        own = str(ds["units"].values[series])
        if own:
            return own
    unit = str(ds.attrs.get("units", "") or "")
    return "" if unit == "data units" else unit


def value_title(ds: xr.Dataset, series: int | None = None, word: str = "value") -> str:
    """The title of an axis in data units."""
    return f"{word} ({unit_of(ds, series) or 'data units'})"


def model_of(ds: xr.Dataset) -> str:
    """The model's name for titles."""
    return str(ds.attrs.get("model", "") or "unnamed model")


def layer_name(label: str) -> str:
    """A layer's label in words: "embedding" or "layer 3"."""
    return "embedding" if label == "embed" else f"layer {label}"


def array(ds: xr.Dataset, variable: str, *dims: str, **at: Any) -> np.ndarray:
    """A variable as float64, cut at ``at`` (by position) and laid out as ``dims``.

    Raises:
        InputError: the variable has other dimensions than ``dims`` after the cut.
    """
    cut = ds[variable].isel(at, missing_dims="ignore")
    if set(cut.dims) != set(dims):
        raise InputError(
            f"variable {variable!r} has dimensions {tuple(ds[variable].dims)}, expected {(*at, *dims)} in any order."
        )
    return np.asarray(cut.transpose(*dims).values, dtype=float)


def shown(ids: Sequence[str], limit: int = 3) -> str:
    """Series ids for a subtitle: all when few, else how many."""
    return ", ".join(ids) if len(ids) <= limit else f"{len(ids)} series"
