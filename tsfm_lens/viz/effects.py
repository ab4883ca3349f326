"""Direct effects of components, and how much of them later ones undo."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.viz.findings import WORTH_A_WORD, judged
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import names
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import listed

_MAX_NAMES = 3  # components in a sentence


def read_effects(ds: xr.Dataset) -> list[str]:
    """Describe the components with the largest direct and total effects on the forecast."""
    labels, way = names(ds, "component"), ablation_word(ds)
    direct, total = (
        judged(ds, f"{effect}_share", "component") for effect in ("direct", "total")
    )
    most = [
        [
            f"{labels[flat]} ({share.told(flat, percent)})"
            for flat in share.named(_MAX_NAMES)
        ]
        for share in (direct, total)
    ]
    none = f"of any component is below {percent(WORTH_A_WORD)} of its series' range"
    return [
        f"Largest direct effects of components {way}, as shares of the series' range{direct.basis}: {listed(most[0])}."
        if most[0]
        else f"The direct effect {none}.",
        f"Largest total effects, with all that follows: {listed(most[1])}."
        if most[1]
        else f"The total effect {none}.",
        *total.standing(labels, "components"),
    ]


def read_self_repair(ds: xr.Dataset) -> list[str]:
    """State how many direct effects later components undo, and where they undo most."""
    repair, labels = judged(ds, "self_repair", "component"), names(ds, "component")
    count = int(np.isfinite(repair.size).sum())
    if not count:
        return ["No direct effect is large enough to say what share of it is undone."]
    undone, added = (
        int((side & repair.significant).sum())
        for side in (repair.size > 0, repair.size < 0)
    )
    most = [
        f"{labels[i]} ({repair.told(i, percent)})"
        for i in repair.named(_MAX_NAMES, repair.size > 0)
    ]
    return [
        f"{count} components have a direct effect large enough to say what share of it later components undo.",
        f"Self-repair is largest for {listed(most)}."
        if most
        else "Later components undo none of these effects.",
        f"Self-repair is significantly positive for {undone} and negative for {added} of them.",
    ]


def ablation_word(ds: xr.Dataset) -> str:
    """Write what was put in a component's place, as a verb."""
    how = str(ds.attrs.get("how", "zero"))
    return {
        "zero": "set to zero",
        "mean": "set to its mean",
        "resample": "resampled",
        "noise": "replaced by noise",
        "corrupted": "taken from the corrupted run",
    }.get(how, how)


generic_figure(
    "causal_effects",
    "self_repair",
    "Share of an ablation's direct effect that later layers undo.",
    table=("direct_share", "total_share", "self_repair"),
    sentences=lambda ds: read_effects(ds) + read_self_repair(ds),
)
