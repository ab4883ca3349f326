"""Circuits of every size: the share recovered by the best, and by random components.

:func:`generic_figure` draws the curves. They are measured in
:mod:`tsfm_lens.probes.circuit_curve`.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.viz.effects import ablation_word
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.summary import summarize

__all__ = []


def read_curve(ds: xr.Dataset) -> list[str]:
    """State the areas of both directions, beside those of random orders."""
    kept = ds.sel(direction="best kept")
    removed = ds.sel(direction="best removed")
    orders = int(ds.attrs.get("orders", 1))
    random = (
        "The CPR of {draws:whole} random orders is {random_kept:min} to"
        " {random_kept:max} with components kept, and {random_removed:min} to"
        " {random_removed:max} with components removed."
    )
    if ds.sizes["draw"] == 1:
        random = (
            "The CPR of a random order is {random_kept:min} with components kept, and"
            " {random_removed:min} with components removed."
        )
    return summarize(
        ds,
        "Components are ranked by {ranking}; what is left out is {ablation}.",
        "Some have equal scores: the curves are means over {orders:whole} orders of"
        " these.",
        "With the best components kept, the area under the share recovered (CPR) is"
        " {cpr_kept}, and that under its distance from 1 (CMD) {cmd_kept}"
        " (medians over series).",
        "With the best removed first, the CPR is {cpr_removed}: the lower, the"
        " sooner the forecast is lost.",
        random,
        ablation=ablation_word(ds),
        orders=orders if orders > 1 else None,
        cpr_kept=kept["cpr"].median("series"),
        cmd_kept=kept["cmd"].median("series"),
        cpr_removed=removed["cpr"].median("series"),
        random_kept=kept["random_cpr"],
        random_removed=removed["random_cpr"],
    )


def curves(ds: xr.Dataset) -> xr.Dataset:
    """Return the curves of both directions, each beside the median random one."""
    best = ds["recovered"].mean("series")
    random = ds["random_recovered"].median("draw")
    random = random.assign_coords(direction=["random kept", "random removed"])
    parts = [best]
    # without draws there is nothing to compare with
    if np.isfinite(random).any():
        parts.append(random)
    joined = xr.concat(parts, "direction").rename("recovered")
    joined.attrs["long_name"] = "share recovered"
    return xr.Dataset({"recovered": joined}, attrs=ds.attrs)


generic_figure(
    "circuit_curve",
    "recovered",
    "Share recovered by circuits of every size, of the best and of random components.",
    prepare=curves,
    table=["recovered", "faithfulness"],
    sentences=read_curve,
)
