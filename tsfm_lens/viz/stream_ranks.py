"""Ranks of embedded series and of the residual stream from layer to layer.

:func:`generic_figure` makes the figures; :func:`read_flow`, :func:`read_bound` and
:func:`read_embedding_ranks` describe them. Ranks of weights are in
:mod:`tsfm_lens.viz.weights`.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.core.registry import frame
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.weights import level_position
from tsfm_lens.viz.words import listed, num


def read_flow(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Return sentences on the rank of the stream and of W_Q at both ends of the depth.

    A sentence says where the rank of single series rises.
    """
    return summarize(
        ds.isel(epsilon=level_position(ds, epsilon)),
        "At ε = {epsilon} the stream uses, of {directions} directions, "
        "{epsilon_rank:ends whole}.",
        "W_Q uses, of {weight_directions} directions, {weight_rank:ends whole}.",
        "Change of the rank of single series from that of their embedding, in "
        "directions{rank_rise:basis}: {rank_rise:largest signed}.",
        effect="rank_rise",
        noun="streams",
        directions=ds.sizes["mode"],
        weight_directions=ds.sizes["weight_mode"],
    )


def read_bound(ds: xr.Dataset) -> list[str]:
    """State whether theorem 4 applies to the model, and if its bound is exceeded."""
    values = array(ds, "singular_value", "stream", "mode")
    # the first stream is the embedding, on which there is no bound
    relative = values[1:] / values[1:, :1]
    bound = array(ds, "bound", "layer", "mode")
    applies = np.isfinite(bound)
    exceeded = (relative > bound)[applies].sum()
    measured = ds.get("attention_bound", xr.DataArray(np.nan))
    value = ds.get("attention_value", measured)
    limits = measured < 1
    theorem = (
        "The bound of theorem 4 applies to {layers:count} layers and is exceeded "
        "{exceeded:whole} times (it ignores norms and MLPs)."
    )
    if not applies.any():
        theorem = (
            "Theorem 4 does not apply to this model. It requires {least_depth:whole} or"
            " more layers of {heads} heads (here {depth}) and norms up to 1 (here"
            " query–key products reach {query_key_norm:max}, value–output products"
            " {value_norm:max})."
        )
    return summarize(
        ds,
        "With measured constants, the inequality behind theorem 4 bounds {limits:count}"
        " relative singular values below 1; a bound is at least {near} times the"
        " measured value, and exceeded {above:whole} times.",
        theorem,
        limits=limits if "attention_bound" in ds else None,
        near=(measured / value.where(value > 0)).where(limits).min(),
        above=((value > measured * (1 + 1e-6) + 1e-12) & limits).sum(),
        layers=labelled(ds, applies.any(axis=1), "layer"),
        exceeded=exceeded,
        depth=ds.sizes["layer"],
    )


generic_figure(
    "flow_of_ranks",
    "epsilon_rank",
    "Rank of the stream after each layer, at each ε.",
    prepare=lambda ds: ds.assign(epsilon_rank=ds["epsilon_rank"].where(ds["told"])),
    table=(
        "epsilon_rank",
        "rank_share",
        "told",
        *(f"rank_rise_{part}" for part in ("size", "low", "high")),
    ),
    sentences=read_flow,
)
generic_figure(
    "flow_of_ranks",
    "weight_rank",
    "Rank of W_Q of each layer, at each ε.",
)


def read_embedding_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Return sentences on how many directions families of signals use.

    Ranks of single signals have intervals.
    """
    one = ds.isel(epsilon=level_position(ds, epsilon))
    one = one.isel(family=one["told"].values > 0)
    if not one.sizes["family"]:
        return [f"At ε = {float(one['epsilon']):g} rounding may hide every rank."]
    bounds = (one[f"signal_rank_{end}"].values for end in ("low", "high"))
    signals = [
        f"{name} ({num(low)} to {num(high)})"
        for name, low, high in zip(names(one, "family"), *bounds, strict=True)
        if high > low
    ]
    return summarize(
        one,
        "Directions used by embedded tokens at ε = {epsilon}: {epsilon_rank:each"
        " whole}; possible are at most {full:max whole}.",
        f"Directions of a single signal, {CONFIDENCE_TEXT} intervals: {{signals}}.",
        signals=listed(signals) if signals else None,
    )


generic_figure(
    "flow_of_ranks",
    "singular_value",
    "Singular values of the stream through the depth.",
    table=lambda ds: frame(ds, "weight_rank").merge(
        frame(ds, "query_key_norm", "value_norm"), on="layer"
    ),
    sentences=read_bound,
)
generic_figure(
    "embedding_ranks",
    "singular_value",
    "Singular values of embedded families of signals.",
    table=(
        "epsilon_rank",
        "told",
        "signal_rank_estimate",
        "signal_rank_low",
        "signal_rank_high",
    ),
    sentences=read_embedding_ranks,
)
generic_figure(
    "embedding_ranks",
    "mean_angle",
    "Mean angle between two embedded tokens, family by family.",
    table=(
        "tokens",
        "full",
        "mean_angle",
        "stable_rank",
        "effective_rank",
        "participation_ratio",
        "rounding_floor",
    ),
    sentences=summary(
        "Mean angles between two tokens: {mean_angle:each °}; between random lines "
        "{random_angle:°}.",
    ),
)
