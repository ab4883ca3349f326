"""Attention to a repeated motif, head by head."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, kind_word, model_of, position
from tsfm_lens.viz.standing import Standing
from tsfm_lens.viz.theme import number, percent
from tsfm_lens.viz.words import head_at

__all__ = ["repeated_motif_map"]
_TARGETS = {
    "after_last": "what followed the last match",
    "last": "the last match itself",
    "after_any": "what followed any match",
}

REPEATED_MOTIF = measurement(
    "repeated_motif",
    theme="Behaviour",
    title="Repeated motifs",
    summary="repeated random motif in values, for every model, with a control",
    description="A motif of random values comes several times. How much attention heads give to its last instance, "
    "against the same steps of a series in which nothing comes again.",
    source="after Olsson et al. 2022",
)


def read_motif(ds: xr.Dataset) -> list[str]:
    """Count the heads that look at the motif's last instance more than at the same steps of a series without one."""
    advantage = Standing(ds, "advantage", "layer", "head", target=0)
    heads = advantage.stands_out & (advantage.estimate > 0)
    first = advantage.leader(heads)
    most = f", most of all {head_at(ds, first)} ({advantage.told(first, percent)})" if first is not None else ""
    return [
        f"{int(heads.sum())} of {heads.size} heads give more of their attention there than in the control, which "
        f"has no motif that comes again{most}."
    ]


@REPEATED_MOTIF.figure(
    "Attention to the last instance of a repeated motif.",
    variables=("prefix_matching", "control", "advantage", "chance"),
    table=("prefix_matching", "control", "advantage"),
    sentences=read_motif,
)
def repeated_motif_map(ds: xr.Dataset, *, target: str = "after_last") -> go.Figure:
    """Draw which heads look at what followed a match, beyond what they look at anyway.

    Args:
        ds: of kind "repeated_motif".
        target: "after_last", "last" or "after_any".

    Returns:
        Three layer × head maps: attention in series that repeat a motif, at the same places in series that repeat
        nothing, and the difference.
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
