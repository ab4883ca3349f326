"""Direct effects of components, and how much of them later ones undo.

:func:`ablation_word` names the kinds of ablation for several modules;
:func:`generic_figure` makes the figure.
"""

from __future__ import annotations

import xarray as xr

from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.nulls import describe_nulls
from tsfm_lens.viz.select import names
from tsfm_lens.viz.summary import summarize


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


def read_effects(ds: xr.Dataset) -> list[str]:
    """Describe the largest effects, what later components undo, and the nulls."""
    out = summarize(
        ds,
        "Largest direct effects of components {way}, as shares of the series' "
        "range{direct_share:basis}: {direct_share:largest percent}.",
        "Largest total effects, with all that follows: {total_share:largest percent}.",
        "Self-repair, the share of a direct effect that later components undo"
        " (negative: they add to it): {self_repair:largest percent}; significant for"
        " {self_repair:significant}.",
        effect="total_share",
        noun="components",
        way=ablation_word,
    )
    labels = names(ds, "component")
    for name, word in (("direct_share", "direct"), ("total_share", "total")):
        for at in read_estimate(ds, name, "component").named(1):
            subject = f"{labels[at]}, by its {word} effect: of"
            out += describe_nulls(ds, name, "component", at=at, subject=subject)
    return out


generic_figure(
    "causal_effects",
    "self_repair",
    "Share of an ablation's direct effect that later layers undo.",
    table=("direct_share", "total_share", "self_repair"),
    sentences=read_effects,
)
