"""Direct effects of components, and how much of them later ones undo.

:func:`ablation_word` names the kinds of ablation for several modules;
:func:`generic_figure` makes the figure.
"""

from __future__ import annotations

import xarray as xr

from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.summary import summary


def ablation_word(ds: xr.Dataset) -> str:
    """Write what was put in a component's place, as a verb."""
    method = str(ds.attrs.get("how", "zero"))
    return {
        "zero": "set to zero",
        "mean": "set to its mean",
        "resample": "resampled",
        "noise": "replaced by noise",
        "corrupted": "taken from the corrupted run",
    }.get(method, method)


generic_figure(
    "causal_effects",
    "self_repair",
    "Share of an ablation's direct effect that later layers undo.",
    table=("direct_share", "total_share", "self_repair"),
    sentences=summary(
        "Largest direct effects of components {way}, as shares of the series' "
        "range{direct_share:basis}: {direct_share:largest percent}.",
        "Largest total effects, with all that follows: {total_share:largest percent}.",
        "Self-repair, the share of a direct effect that later components undo"
        " (negative: they add to it): {self_repair:largest percent}; significant for"
        " {self_repair:significant}.",
        effect="total_share",
        noun="components",
        way=ablation_word,
    ),
)
