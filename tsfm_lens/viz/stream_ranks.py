"""Ranks of embedded series and of the residual stream from layer to layer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.findings import judged
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, layer_name, model_of, names, shown
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.weights import level_position
from tsfm_lens.viz.words import layer_names, layers, listed, num, signed

__all__ = ["rank_flow_map"]

_MAX_NUMBERED = 200  # cells of a map that still have room for their number


def read_flow_map(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State the rank of the stream and of W_Q at both ends of the depth."""
    place = level_position(ds, epsilon)
    level = f"{float(ds['epsilon'].values[place]):g}"
    stream = array(ds, "epsilon_rank", "stream", epsilon=place)
    weights = array(ds, "weight_rank", "layer", epsilon=place)
    out = [
        f"At ε = {level} the stream uses {int(stream[0])} of {ds.sizes['mode']} directions at the embedding and "
        f"{int(stream[-1])} after the last layer."
    ]
    if len(weights) > 1:
        most = ds.sizes["weight_mode"]
        out.append(
            f"W_Q uses {int(weights[0])} of {most} directions in the first layer, {int(weights[-1])} in the last."
        )
    return out


def read_bound(ds: xr.Dataset) -> list[str]:
    """State whether theorem 4 applies to the model, and whether its bound is exceeded."""
    bound, values = (
        array(ds, "bound", "layer", "mode"),
        array(ds, "singular_value", "stream", "mode"),
    )
    keys, outputs = (
        array(ds, name, "layer") for name in ("query_key_norm", "value_norm")
    )
    finite = np.isfinite(bound)
    if not finite.any():
        return [
            *_read_measured_bound(ds),
            f"Theorem 4 does not apply to this model. It requires {ds.attrs['least_depth']} or more layers of "
            f"{ds.attrs['heads']} heads (here {ds.sizes['layer']}) and norms up to 1 (here query–key products reach "
            f"{num(float(keys.max()))}, value–output products {num(float(outputs.max()))}).",
        ]
    above = int((values[1:] / values[1:, :1] > bound)[finite].sum())
    outcome = (
        "is never exceeded"
        if not above
        else f"is exceeded {above} times (it ignores norms and MLPs)"
    )
    return [
        *_read_measured_bound(ds),
        f"The bound of theorem 4 applies to {int(finite.any(1).sum())} of {len(bound)} layers and {outcome}.",
    ]


def _read_measured_bound(ds: xr.Dataset) -> list[str]:
    """State how near the attentions come to the largest possible rise of the rank."""
    if "attention_bound" not in ds:
        return []
    bound, values = (
        array(ds, f"attention_{name}", "layer", "mode") for name in ("bound", "value")
    )
    says = np.isfinite(bound) & (bound < 1)
    if not says.any():
        return [
            "With measured constants, the inequality behind theorem 4 puts no limit on the rank."
        ]
    with np.errstate(divide="ignore"):
        near = float((bound[says] / values[says]).min())
    above = int((values > bound * (1 + 1e-6) + 1e-12)[says].sum())
    outcome = "is never exceeded" if not above else f"is exceeded {above} times"
    return [
        f"With measured constants, the inequality behind theorem 4 bounds {says.sum()} of {says.size} relative "
        f"singular values below 1. The bound {outcome} and is at least {num(near)} times the measured value."
    ]


def read_rank_rise(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State by how much the rank of single series rises."""
    place = level_position(ds, epsilon)
    level, words = f"{float(ds['epsilon'].values[place]):g}", layers(ds, "stream")
    rise = judged(ds, "rank_rise", "stream", epsilon=place)
    most = [f"{words[i]} ({rise.told(i, signed)} directions)" for i in rise.named(1)]
    what = (
        f"differs most from that of their embedding after {most[0]}"
        if most
        else "stays that of their embedding"
    )
    return [
        f"At ε = {level} the rank of single series {what}.",
        *rise.standing(words, "streams"),
    ]


@figure(
    "flow_of_ranks",
    "Ranks of the stream and of W_Q, layer by ε.",
    table=(
        "epsilon_rank",
        "rank_share",
        "told",
        *(f"rank_rise_{part}" for part in ("size", "low", "high")),
    ),
    sentences=lambda ds: read_flow_map(ds) + read_rank_rise(ds),
)
def rank_flow_map(ds: xr.Dataset) -> go.Figure:
    """Draw layer × ε maps: the rank of the stream that each layer reads, and of the layer's W_Q."""
    levels = [f"{float(level):g}" for level in ds["epsilon"].values]
    streams = _stream_names(ds)
    valid = array(ds, "told", "stream", "epsilon") > 0
    ranks = np.where(valid, array(ds, "epsilon_rank", "stream", "epsilon"), np.nan)
    weights = array(ds, "weight_rank", "layer", "epsilon")
    height = max(24 * len(streams), 130)
    titles = ["stream after", "W_Q of"]
    canvas = sheet(
        [height],
        [1, 1],
        titles=titles,
        column_gap=0.16,
        min_width=240 + 2 * 46 * len(levels),
    )
    for panel, values, rows, word in zip(
        canvas, (ranks, weights), (streams, layer_names(ds)), titles, strict=True
    ):
        hover = f"{word}, %{{y}}<br>ε %{{x}}: rank %{{z}}"
        panel.cells(
            values, levels, rows, hover, write="{:.0f}".format, printed=_MAX_NUMBERED
        )
        panel.x("ε", type="category", ticks="")
        panel.y(
            type="category",
            autorange="reversed",
            ticks="",
            dtick=1 if len(rows) <= 24 else 2,
        )
    canvas.colours(
        colour_scale(
            "ε-rank",
            low=0.0,
            high=float(max(ds.sizes["mode"], ds.sizes["weight_mode"])),
        )
    )
    return canvas.dress(
        f"Flow of ranks through {model_of(ds)}",
        f"singular values above ε of the largest; {_stack_words(ds)}, {int(ds.attrs.get('tokens', 0))} tokens of "
        f"{shown(names(ds, 'series'))}",
        "" if valid.all() else "empty: rounding of the forward may hide the rank",
    )


def _stream_names(ds: xr.Dataset) -> list[str]:
    """Name the streams: "embedding", then after each layer."""
    return [layer_name(label) for label in names(ds, "stream")]


def _stack_words(ds: xr.Dataset) -> str:
    """Name the stack that the streams are of."""
    stack = str(ds.attrs.get("stack", ""))
    return f"stream of the {stack}" if stack else "residual stream"


def read_embedding_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State how many directions the families use, and which single signals differ beyond their intervals."""
    place = level_position(ds, epsilon)
    level, families = f"{float(ds['epsilon'].values[place]):g}", names(ds, "family")
    rank, full = (
        array(ds, "epsilon_rank", "family", epsilon=place),
        np.asarray(ds["full"].values),
    )
    valid = array(ds, "told", "family", epsilon=place) > 0
    counts = [
        f"{name} {int(rank[i])} of {int(full[i])}"
        for i, name in enumerate(families)
        if valid[i]
    ]
    if not counts:
        return [f"At ε = {level} rounding may hide every rank."]
    out = [f"Directions used by embedded tokens at ε = {level}: {listed(counts)}."]
    low, high = (
        array(ds, f"signal_rank_{end}", "family", epsilon=place)
        for end in ("low", "high")
    )
    several = [i for i in np.flatnonzero(high > low) if valid[i]]
    if len(several) > 1:
        most = max(several, key=lambda i: low[i])
        others = [i for i in several if i != most]
        next_high = max(high[i] for i in others)
        out.append(
            f"A single signal of {families[most]} uses the most directions, {num(low[most])} to {num(high[most])}; "
            f"one of any other family at most {num(next_high)}."
            if low[most] > next_high
            else "The intervals of the direction counts of single signals overlap."
        )
    return out


def read_token_angles(ds: xr.Dataset) -> list[str]:
    """State how far apart tokens lie, against random lines."""
    means = array(ds, "mean_angle", "family")
    angles = [
        f"{name} {num(means[i])}°"
        for i, name in enumerate(names(ds, "family"))
        if np.isfinite(means[i])
    ]
    if not angles:
        return ["All tokens are zero, so they have no angles."]
    random = num(float(ds.attrs["random_angle"]))
    return [
        f"Mean angles between two tokens: {listed(angles)}; between random lines {random}°."
    ]


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
    sentences=read_token_angles,
)
