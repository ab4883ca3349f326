"""Behaviour of heads at recurring values: motif matching and parroting, layer × head."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, draws, kind_word, model_of, over_series, position, series_rows
from tsfm_lens.viz.theme import number

__all__ = ["head_parroting_map", "repeated_motif_map"]

_TARGETS = {
    "after_last": "what followed the last match",
    "last": "the last match itself",
    "after_any": "what followed any match",
}
_CHANGES = {
    "copy_error_change": ("off the copied lag", "change of distance"),
    "parrot_error_change": ("off the naive parrot", "change of distance"),
    "truth_error_change": ("off the truth", "change of error"),
}


@draws("repeated_motif", needs=("prefix_matching", "control", "advantage", "chance"))
def repeated_motif_map(ds: xr.Dataset, *, target: str = "after_last") -> go.Figure:
    """Draw which heads look at what followed a match, beyond what they look at anyway.

    Args:
        ds: of kind "repeated_motif".
        target: "after_last", "last" or "after_any".

    Returns:
        Three layer × head maps: attention in series that repeat a motif, at the same places in series that repeat
        nothing, and the difference.

    Example:
        >>> fig = viz.repeated_motif_map(results["repeated_motif"])
        >>> fig.layout.meta["title"]
        'Attention of chronos-nano to what followed the last match'
    """
    at = position(ds, "target", target)
    plain, control, advantage = (
        array(ds, name, "layer", "head", target=at) for name in ("prefix_matching", "control", "advantage")
    )
    noise = finding(ds, "advantage", "layer", "head", target=at)
    top = float(max(plain.max(), control.max()))
    low, high = ds.attrs.get("motif", ("?", "?"))
    kind = kind_word(str(ds.attrs.get("attention", "attention")))
    error = float(np.median(ds["relative_copy_error"].values)) if "relative_copy_error" in ds else None
    return head_maps(
        ds,
        [
            HeadMap(plain, "repeated motifs", "attention", low=0.0, high=top),
            HeadMap(control, "nothing repeated", "attention", low=0.0, high=top),
            HeadMap(advantage, "difference", "difference of attention", diverging=True, noise=noise),
        ],
        f"Attention of {model_of(ds)} to {_TARGETS.get(target, target)}",
        f"{kind}; {ds.sizes['series']} random motifs of {low} to {high} tokens, shown {ds.attrs.get('repeats', '?')} "
        f"times or more; even spread: {number(float(ds['chance'].values[at]))}",
        "" if error is None else f"forecast error {number(error)} of the mean's",
    )


@draws("head_parroting", needs=("mass", "chance", "lag", "copy_error_change", "parrot_error_change"))
def head_parroting_map(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw where each head looks, and how the forecast without it departs from copying.

    Args:
        ds: of kind "head_parroting".
        series: id, or place counted from 0; the mean over series where known if None.

    Returns:
        Layer × head maps: attention at the copied lag, by how much further the ablated forecast lies from the copy
        and from the naive parrot, and, with a truth, the change of its error.

    Example:
        >>> fig = viz.head_parroting_map(results["head_parroting"])
        >>> fig.layout.meta["title"]
        'Parroting by the heads of chronos-nano'
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
    finite = np.isfinite(values)
    total = np.where(finite, values, 0.0).sum(axis=-1)
    return np.where(finite.any(axis=-1), total / np.maximum(finite.sum(axis=-1), 1), np.nan)
