"""Attribution cut to what a figure or a sentence speaks of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.noise import Finding
from tsfm_lens.viz.select import array, check, median_position, names, position, series_position, statistic_of, unit_of
from tsfm_lens.viz.theme import percent

_METHOD_WORDS = {
    "logit": "logit attribution",
    "probability": "probability attribution",
    "expected_value": "expected-value attribution",
    "lens_difference": "lens differences",
    "linearised": "linearised attribution",
    "integrated": "integrated attribution",
}


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Attribution of one decomposition to one series.

    Attributes:
        components: names, (component,).
        values: (component, step), in ``unit``.
        series, decomposition, unit, note: for titles; ``note`` states target and completeness error.
        noise: what the result knows of the noise of each component's mean over steps, (component,).
    """

    components: list[str]
    values: np.ndarray
    series: str
    decomposition: str
    unit: str
    note: str
    noise: Finding | None = None


def attribution_shares(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
) -> Shares:
    """Cut an attribution to one series, decomposition and quantile, without whole layers (sums of the others).

    Args:
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        quantile: level, for patch models; the median unless given.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such decomposition, series or quantile.
    """
    check(ds, "attribution", "attribution")
    at = series_position(ds, series)
    which = 0 if decomposition is None else position(ds, "decomposition", decomposition)
    label = names(ds, "decomposition")[which]
    cut = ds.isel(decomposition=which, series=at)
    unit = str(ds["unit"].values[which]) if "unit" in ds.coords else ""
    data_unit = unit_of(ds, at)
    unit = data_unit if unit in ("", "data units") and data_unit else unit or "data units"
    note, noise = [], _noise(cut, unit)
    if "quantile" in ds.dims:
        levels = np.asarray(ds["quantile"].values, dtype=float)
        place = median_position(levels) if quantile is None else int(np.argmin(np.abs(levels - quantile)))
        if quantile is not None and abs(levels[place] - quantile) > 1e-6:
            raise unknown_name("quantile", quantile, [f"{v:g}" for v in levels])
        cut = cut.isel(quantile=place)
        middle = abs(levels[place] - 0.5) < 1e-6
        # only the median's noise is known
        noise = noise if middle else None
        note.append(f"of the {statistic_of(ds)}" if middle else f"of the {levels[place]:g} quantile")
    if "completeness_error" in ds:
        error = float(ds["completeness_error"].isel(decomposition=which, series=at))
        note.append(f"completeness error {percent(error)}")
    values = array(cut, "attribution", "component", "step")
    components = names(ds, "component")
    if "kind" in ds.coords:
        fine = np.asarray([str(k) != "layer" for k in ds["kind"].values])
        if fine.any():
            values, noise = values[fine], noise and noise.at(fine)
            components = [c for c, keep in zip(components, fine, strict=True) if keep]
    words = _METHOD_WORDS.get(label, label)
    return Shares(
        components=components,
        values=values,
        series=names(ds, "series")[at],
        decomposition=words,
        unit=unit,
        note="; ".join(note),
        noise=noise,
    )


def _noise(cut: xr.Dataset, unit: str) -> Finding | None:
    """Compare one series and decomposition with its noise floor, (component,); None where no floor is known."""
    if "attribution_share_floor" not in cut:
        return None
    mean = array(cut, "mean_attribution", "component")
    floor = float(cut["attribution_share_floor"]) * float(np.abs(mean).sum())
    return Finding(mean, mean, mean, np.abs(mean) > floor, floor, floor, unit)
