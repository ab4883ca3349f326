"""Effects of fine-tuning by component: what moved, and what setting it back costs.

:func:`generic_figure` makes the figure; :func:`read_weight_effects` describes it.
"""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from tsfm_lens.core.registry import measurement
from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import (
    array,
    name_model,
    name_statistic,
)
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import percent

_HALF = 0.5

measurement(
    "weight_effects",
    title="Effects of tuned weights",
    theme="Causes",
    summary=(
        "which components' weights differ from the base model's, and what setting "
        "each back does"
    ),
    description=(
        "Each component of a fine-tuned model is set back to the base model's "
        "weights, alone and one after the other. How far weights moved says nothing "
        "about what that does to the forecast, so both are shown. Each model "
        "forecasts by itself, a token model on its own path. Effects are shares of "
        "the series' range, errors ratios, so units do not matter."
    ),
    source="LoRA, Hu et al. 2021, arXiv:2106.09685",
    maker="made of two models and a run: `tsfm_lens.probes.weight_effects` makes it",
)


def read_weight_effects(ds: xr.Dataset) -> list[str]:
    """State whether anything was tuned, and which of it matters.

    Further sentences say where the weights moved most, and what the error gains.
    """
    if ds.attrs["identical"]:
        return [
            f"Nothing differs: {name_model(ds)} is the base model {ds.attrs['base']},"
            " weight for weight."
        ]
    out = summarize(
        ds,
        "Components whose weights differ from those of {base}: {components}; most, as a"
        " share of their norm: {relative_norm:largest percent}.",
        "{adapters} adapters beside their matrices are read as what they add.",
        "Components that move the forecast most when set back alone, as shares of the "
        "series' range{share:basis}: {share:largest percent}.",
        effect="share",
        noun="components",
        components=ds.sizes["component"],
        adapters=ds.attrs["adapters"] or None,
    )
    if np.isfinite(ds["share_size"]).any():
        # the last sentence compares with untrained models, no rivals of a tuned one
        out = out[:-1]
    if "base_error_change" in ds:
        out += _read_errors(ds)
    return out


def _read_errors(ds: xr.Dataset) -> list[str]:
    """State what tuning did to the error of the forecasts.

    A sentence says how few components undo half of it.
    """
    change = read_estimate(ds, "base_error_change")
    together = array(ds, "cumulative_error_change_size", "back")
    gain = float(change.size)
    # change is of no dimensions: one number over series, and how many it acts on
    if not gain or not change.acts:
        return [
            f"Tuning left the error of the {name_statistic(ds)} forecast as it was."
        ]
    # together[n] is the change with the first n components set back, the last with all
    first = None
    if len(together) > 2 and together[-1]:
        first = int(np.argmax(together / together[-1] >= _HALF))
    return summarize(
        ds,
        "Tuning changed the error of the {word} forecast by {share} of the base"
        " model's; that is {verdict}.",
        "Setting back the first {first} of {count} components undoes half of that.",
        word=name_statistic(ds),
        share=change.told(0, _of_base, over=True) if np.isfinite(gain) else None,
        verdict=change.for_others(),
        first=first,
        count=len(together) - 1,
    )


def _of_base(change: float) -> str:
    """Write what tuning adds to the base model's error.

    ``change`` is the logarithm of the base model's error over the tuned model's.
    """
    # the logarithm is of base over tuned, so its negative is of tuned over base
    share = math.expm1(-change)
    return f"{'+' if share >= 0 else ''}{percent(share)}"


def _with_shares(ds: xr.Dataset) -> xr.Dataset:
    """Add the shares of no component where no weight differs."""
    if "share" in ds:
        return ds
    return ds.assign(share=ds["relative_norm"])


generic_figure(
    "weight_effects",
    "share",
    "Change of the forecast with each component set back to the base model.",
    prepare=_with_shares,
    table=("norm", "relative_norm", "rank", "share"),
    sentences=read_weight_effects,
)
