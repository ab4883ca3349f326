"""Attention as kernel regression."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.needs import CROSS_ATTENTION
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import extremes, head_at, num
from tsfm_lens.viz import concentration_bound_plot, kernel_bandwidths, tilt_map
from tsfm_lens.viz.select import array


def read_bandwidths(ds: xr.Dataset) -> list[str]:
    """Describe how narrow kernels are, and how much they differ between directions."""
    widths = array(ds, "bandwidth", "layer", "head", "mode")
    narrow, wide = np.nanmin(widths, axis=-1), np.nanmax(widths, axis=-1)
    at = int(np.nanargmin(narrow))
    return [
        f"The narrowest kernel is that of {head_at(ds, at)}, with a bandwidth of {num(narrow.flat[at])} along its "
        f"first direction; in the median head the widest direction is {num(np.nanmedian(wide / narrow))} times as "
        "wide as the narrowest."
    ]


def read_tilt(ds: xr.Dataset) -> list[str]:
    """Count the heads in which keys draw attention by their length alone."""
    share = array(ds, "tilt_share", "layer", "head")
    low, high = extremes(share)
    strong = int((share >= 1).sum())
    return [
        f"The tilt is weakest in {head_at(ds, low)} ({num(share.flat[low])}) and strongest in {head_at(ds, high)} "
        f"({num(share.flat[high])}); it varies as much as the scores themselves, or more, in {strong} of "
        f"{share.size} heads."
    ]


def read_bound(ds: xr.Dataset) -> list[str]:
    """State where the bound holds, where it says something, and how close it comes."""
    missing, bound = (array(ds, name, "layer", "head", "query") for name in ("missing", "bound"))
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    if not usable.any():
        return ["The conditions of the proposition hold nowhere, so it bounds nothing here."]
    informative = usable & (bound < 1)
    out = [
        f"The conditions hold for {int(usable.sum())} of {usable.size} heads and queries, and the bound is below 1 for "
        f"{int(informative.sum())} of them; everywhere else it is vacuous: no attention could exceed it."
    ]
    if informative.any():
        ratio = float(np.median(bound[informative] / np.maximum(missing[informative], 1e-16)))
        out.append(f"There it is {num(ratio)} times what is measured, in the median.")
    violations = int((missing[usable] > bound[usable] * (1 + 1e-6) + 1e-9).sum())
    out.append(
        "It is exceeded nowhere." if not violations else f"It is exceeded {violations} times, which it must not be."
    )
    return out


def _kernel(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(kernel_bandwidths(ds), frame(ds, "bandwidth"), read_bandwidths(ds))
    yield Plate(tilt_map(ds), frame(ds, "tilt_share", "identity_error"), read_tilt(ds))
    yield Plate(concentration_bound_plot(ds), frame(ds, "missing", "bound", "applicable"), read_bound(ds))


MEASUREMENTS = (
    Measurement(
        kind="kernel_regression",
        theme="Weights alone",
        about="attention as kernel regression: bandwidths, tilt, and how concentrated it must be",
        heading="Attention as kernel regression",
        guide="A cross-attention head averages the context with weights that are a Gaussian kernel, in the singular "
        "directions of its query–key product, times a tilt towards long keys. A proposition bounds how much attention "
        "can fall outside one key.",
        compute=on_first("kernel_regression"),
        plates=_kernel,
        figures=(
            Figure("kernel_bandwidths", "Bandwidths of the kernel that each head is."),
            Figure("tilt_map", "How much of the attention is tilt, not kernel."),
            Figure("concentration_bound_plot", "Measured concentration and its bound."),
        ),
        source="tsfm-lens, section 4, equation 1 and proposition C.1",
        needs=CROSS_ATTENTION,
    ),
)
