"""Parroting heads: attention to what followed the best match."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.panels import means
from tsfm_lens.viz.select import array, model_of, over_series, series_rows
from tsfm_lens.viz.standing import Standing
from tsfm_lens.viz.theme import number
from tsfm_lens.viz.words import count_of, head_at, verb

__all__ = ["head_parroting_map"]
_CHANGES = {
    "copy_error_change": ("off the copied lag", "change of distance"),
    "parrot_error_change": ("off the naive parrot", "change of distance"),
    "truth_error_change": ("off the truth", "change of error"),
}


HEAD_PARROTING = measurement(
    "head_parroting",
    theme="Behaviour",
    title="Heads that copy",
    summary="which heads look at the copied lag, and which the copy needs",
    description="How much attention each head gives to the lag that the forecast copies, and how much further from the "
    "copy the forecast is without the head.",
    source="tsfm-lens, section 4",
)


def read_heads(ds: xr.Dataset) -> list[str]:
    """Count the heads that look at the copied lag, and those that the copy needs."""
    mass, change = (Standing(ds, name, "layer", "head") for name in ("mass", "copy_error_change"))
    essential = change.stands_out & (change.estimate > 0)
    n_attending, n_essential, whole = int(mass.stands_out.sum()), int(essential.sum()), mass.estimate.size
    out = [
        f"{count_of(n_attending, whole, 'heads')} {verb(n_attending, 'give')} the copied lag more of "
        f"{verb(n_attending, 'their', 'its')} attention than an even spread would, beyond the noise.",
        f"{count_of(n_essential, whole, 'heads')} {verb(n_essential, 'are', 'is')} needed for the copy: without "
        f"{verb(n_essential, 'each of them', 'it')} the forecast is further from it, beyond the noise.",
    ]
    first = change.leader(essential)
    if first is not None:
        out.append(f"The copy needs {head_at(ds, first)} most.")
    if "vacuous" in ds and ds["vacuous"].values.any():
        out.append("For some series the tokens of the forecast cover so many steps that the share tells nothing.")
    return out


@HEAD_PARROTING.figure(
    "What every head adds to the copy of the context.",
    variables=("mass", "chance", "lag", "copy_error_change", "parrot_error_change"),
    table=("mass", "copy_error_change", "parrot_error_change"),
    sentences=read_heads,
)
def head_parroting_map(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw where each head looks, and how the forecast without it departs from copying.

    Args:
        ds: of kind "head_parroting".
        series: id, or place counted from 0; the mean over series where known if None.

    Returns:
        Layer × head maps: attention at the copied lag, and by how much further without the head the forecast lies from
        the copy, the naive parrot and the truth, where known.
    """
    at = series_rows(ds, series)
    # what stands out does so over all series
    noise = {name: finding(ds, name, "layer", "head") if series is None else None for name in ("mass", *_CHANGES)}
    mass = _mean(ds, "mass", at)
    maps = [HeadMap(mass, "attention at the lag", "share of attention", low=0.0, noise=noise["mass"])]
    for name, (title, word) in _CHANGES.items():
        # nothing is known of a parrot where no context is long enough for one
        if name in ds and np.isfinite(values := _mean(ds, name, at)).any():
            maps.append(HeadMap(values, title, word, "std", diverging=True, noise=noise[name]))
    lags = ds["lag"].values[at]
    distinct = list(dict.fromkeys(lags[np.isfinite(lags)]))
    chance = ds["chance"].values[at]
    words = ", ".join(f"{lag:.0f}" for lag in distinct[:6]) + (" …" if len(distinct) > 6 else "")
    even = number(float(np.nanmean(chance))) if np.isfinite(chance).any() else "unknown"
    blind = int(ds["vacuous"].values[at].sum()) if "vacuous" in ds else 0
    even += f" (every token lies at the lag in {blind} of {len(at)} series, which says nothing)" if blind else ""
    return head_maps(
        ds,
        maps,
        f"Parroting by the heads of {model_of(ds)}",
        over_series(ds, at),
        f"lag {words or 'unknown'}; even spread: {even}; heads ablated one by one, brown: further off without it",
    )


def _mean(ds: xr.Dataset, name: str, at: list[int]) -> np.ndarray:
    """Average over the series that have a value, (layer, head)."""
    values = array(ds, name, "layer", "head", "series")[..., at]
    return means(values.reshape(-1, len(at))).reshape(values.shape[:2])
