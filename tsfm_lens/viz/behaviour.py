"""What heads do with recurring values: motif matching and parroting, layer × head."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.head_maps import HeadMap, head_maps
from tsfm_lens.viz.select import array, check, model_of, names, position, series_position, shown
from tsfm_lens.viz.theme import number

__all__ = ["head_parroting_map", "repeated_motif_map"]

_KINDS = {"self_attn": "self-attention", "cross_attn": "cross-attention"}
_TARGETS = {
    "after_last": "what followed the last match",
    "last": "the last match itself",
    "after_any": "what followed any match",
}
_CHANGES = {
    "copy_error_change": ("off the copied lag", "change of distance (std)"),
    "parrot_error_change": ("off the naive parrot", "change of distance (std)"),
    "truth_error_change": ("off the truth", "change of error (std)"),
}


def repeated_motif_map(ds: xr.Dataset, *, target: str = "after_last") -> go.Figure:
    """Which heads look at what followed a match, beyond what they look at anyway.

    Args:
        ds: of kind "repeated_motif".
        target: "after_last", "last" or "after_any".

    Returns:
        Three layer × head maps: attention in series that repeat a motif, at the same places in series that repeat
        nothing, and the difference.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such target.
    """
    check(ds, "repeated_motif", "prefix_matching", "control", "advantage", "chance")
    at = position(ds, "target", target)
    plain, control, advantage = (
        array(ds, name, "layer", "head", target=at) for name in ("prefix_matching", "control", "advantage")
    )
    top = float(max(plain.max(), control.max()))
    panels = [
        HeadMap(plain, "repeated motifs", "attention", low=0.0, high=top),
        HeadMap(control, "nothing repeated", "attention", low=0.0, high=top),
        HeadMap(advantage, "difference", "difference of attention", diverging=True),
    ]
    low, high = ds.attrs.get("motif", ("?", "?"))
    kind = _KINDS.get(str(ds.attrs.get("attention")), str(ds.attrs.get("attention", "attention")))
    remarks = [
        f"{kind}; {ds.sizes['series']} random motifs of {low} to {high} tokens, shown {ds.attrs.get('repeats', '?')} "
        f"times or more; even spread: {number(float(ds['chance'].values[at]))}"
    ]
    if "relative_copy_error" in ds:
        middle = float(np.median(ds["relative_copy_error"].values))
        remarks.append(f"forecast error {number(middle)} of the mean's")
    word = _TARGETS.get(target, target)
    return head_maps(ds, panels, f"Attention of {model_of(ds)} to {word}", "; ".join(remarks))


def head_parroting_map(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Where each head looks, and how the forecast without it departs from copying.

    Args:
        ds: of kind "head_parroting".
        series: id, or place counted from 0; the mean over series where known if None.

    Returns:
        Layer × head maps: attention at the copied lag, by how much further the ablated forecast lies from the copy
        and from the naive parrot, and, with a truth, the change of its error.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series.
    """
    check(ds, "head_parroting", "mass", "chance", "lag", "copy_error_change", "parrot_error_change")
    at = list(range(ds.sizes["series"])) if series is None else [series_position(ds, series)]
    panels = [HeadMap(_mean(ds, "mass", at), "attention at the lag", "share of attention", low=0.0)]
    for name, (title, bar) in _CHANGES.items():
        # nothing is known of a parrot where no context is long enough for one
        if name in ds and np.isfinite(values := _mean(ds, name, at)).any():
            panels.append(HeadMap(values, title, bar, diverging=True))
    lags = ds["lag"].values[at]
    known = lags[np.isfinite(lags)]
    chance = ds["chance"].values[at]
    words = ", ".join(f"{lag:.0f}" for lag in known[:6]) + (" …" if len(known) > 6 else "")
    even = number(float(np.nanmean(chance))) if np.isfinite(chance).any() else "unknown"
    blind = int(ds["vacuous"].values[at].sum()) if "vacuous" in ds else 0
    even += f" (every token lies at the lag in {blind} of {len(at)} series, which says nothing)" if blind else ""
    return head_maps(
        ds,
        panels,
        f"Parroting by the heads of {model_of(ds)}",
        f"{'mean over ' if len(at) > 1 else ''}{shown([names(ds, 'series')[i] for i in at])}; "
        f"lag {words or 'unknown'}; even spread: {even}; heads ablated one by one, brown: further off without it",
    )


def _mean(ds: xr.Dataset, name: str, at: list[int]) -> np.ndarray:
    """Mean over the series that have a value, (layer, head)."""
    values = array(ds, name, "layer", "head", "series")[..., at]
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.where(known.any(axis=-1), total / np.maximum(known.sum(axis=-1), 1), np.nan)
