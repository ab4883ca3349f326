"""Ranks of embedded series and of the residual stream from layer to layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, layer_name, model_of, names, positions, shown
from tsfm_lens.viz.sheet import blank, sheet
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.theme import CATEGORICAL, VERMILION, mixed, plain
from tsfm_lens.viz.weights import angle_map, depth_lines, level_position, relative
from tsfm_lens.viz.words import layer_names, listed, num

__all__ = ["embedding_spectra", "rank_flow_map", "rank_flow_spectra", "token_angle_map"]

_MAX_NUMBERED = 200  # cells of a map that still have room for their number


def read_flow(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State the rank of the stream and of W_Q at both ends of the depth, and where that of single series rises."""
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
    """State whether theorem 4 applies to the model, and whether its bound is exceeded."""
    relative = array(ds, "singular_value", "stream", "mode")
    relative = relative[1:] / relative[1:, :1]
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
            "Theorem 4 does not apply to this model. It requires {least_depth:whole} or "
            "more layers of {heads} heads (here {depth}) and norms up to 1 (here query–key "
            "products reach {query_key_norm:max}, value–output products {value_norm:max})."
        )
    return summarize(
        ds,
        "With measured constants, the inequality behind theorem 4 bounds {limits:count} "
        "relative singular values below 1; a bound is at least {near} times the measured "
        "value, and exceeded {above:whole} times.",
        theorem,
        limits=limits if "attention_bound" in ds else None,
        near=(measured / value.where(value > 0)).where(limits).min(),
        above=((value > measured * (1 + 1e-6) + 1e-12) & limits).sum(),
        layers=labelled(ds, applies.any(axis=1), "layer"),
        exceeded=exceeded,
        depth=ds.sizes["layer"],
    )


@figure(
    "flow_of_ranks",
    "Ranks of the stream and of W_Q, layer by ε.",
    table=(
        "epsilon_rank",
        "rank_share",
        "told",
        *(f"rank_rise_{part}" for part in ("size", "low", "high")),
    ),
    sentences=read_flow,
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


@figure(
    "flow_of_ranks",
    "Singular values of the stream and of W_Q through the depth.",
    table=lambda ds: frame(ds, "weight_rank").merge(
        frame(ds, "query_key_norm", "value_norm"), on="layer"
    ),
    sentences=read_bound,
)
def rank_flow_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of the stream before each layer and after the last, and of each layer's W_Q."""
    values = relative(
        array(ds, "singular_value", "stream", "mode"),
        array(ds, "rounding_floor", "stream"),
    )
    weights = relative(array(ds, "weight_singular_value", "layer", "weight_mode"))
    bound = array(ds, "bound", "layer", "mode")
    growth = "attention_bound" in ds and bool(
        np.isfinite(array(ds, "attention_bound", "layer", "mode")).any()
    )
    titles = ["stream", "W_Q", *["after attention"] * growth]
    canvas = sheet(
        [280],
        [1] * len(titles),
        titles=titles,
        column_gap=0.06,
        min_width=280 * len(titles),
        shared_yaxes=True,
    )
    left, right, *rest = canvas
    labels = layer_names(ds)
    for panel in rest:
        allowed, attention = (
            array(ds, f"attention_{name}", "layer", "mode")
            for name in ("bound", "value")
        )
        depth_lines(panel, labels, np.where(attention > 0, attention, np.nan), "mode")
        for place, (label, line) in enumerate(zip(labels, allowed, strict=True)):
            hover = f"allowed after the attention of {label}, mode %{{x}}<br>%{{y:.3g}} of the largest"
            colour = mixed(VERMILION, 0.35 + 0.65 * (place + 1) / len(labels))
            upto, modes = np.where(line < 1, line, np.nan), np.arange(1, len(line) + 1)
            panel.line(
                modes,
                upto,
                "allowed, measured constants",
                hover,
                colour=colour,
                width=1,
                dash="dash",
            )
    depth_lines(left, _stream_names(ds), values, "mode")
    depth_lines(right, labels, weights, "mode")
    modes = np.arange(1, bound.shape[1] + 1)
    for label, line in zip(labels, bound, strict=True):
        if np.isfinite(line).any():
            hover = f"allowed after {label}, mode %{{x}}<br>%{{y:.3g}} of the largest"
            left.line(
                modes,
                line,
                "bound of theorem 4",
                hover,
                colour=VERMILION,
                width=1,
                dash="dot",
            )
    canvas.y(**log_axis(np.concatenate([values.ravel(), weights.ravel()])))
    left.y("singular value / largest")
    canvas.x("mode")
    which = f"{_stack_words(ds)}, {shown(names(ds, 'series'))}"
    title = f"Spectra of the stream and of W_Q through the depth of {model_of(ds)}"
    silent = "theorem 4 does not apply" if np.isnan(bound).all() else ""
    return canvas.dress(title, "the deeper the darker", which, silent)


def _stream_names(ds: xr.Dataset) -> list[str]:
    """Name the streams: "embedding", then after each layer."""
    return [layer_name(label) for label in names(ds, "stream")]


def _stack_words(ds: xr.Dataset) -> str:
    """Name the stack that the streams are of."""
    stack = str(ds.attrs.get("stack", ""))
    return f"stream of the {stack}" if stack else "residual stream"


def read_embedding_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State how many directions the families use, and single signals of them with intervals."""
    one = ds.isel(epsilon=level_position(ds, epsilon))
    one = one.isel(family=one["told"].values > 0)
    if not one.sizes["family"]:
        return [f"At ε = {float(one['epsilon']):g} rounding may hide every rank."]
    ends = (one[f"signal_rank_{end}"].values for end in ("low", "high"))
    signals = [
        f"{name} ({num(low)} to {num(high)})"
        for name, low, high in zip(names(one, "family"), *ends, strict=True)
        if high > low
    ]
    return summarize(
        one,
        "Directions used by embedded tokens at ε = {epsilon}: {epsilon_rank:each whole}; "
        "possible are at most {full:max whole}.",
        "Directions of a single signal, 95 % intervals: {signals}.",
        signals=listed(signals) if signals else None,
    )


@figure(
    "embedding_ranks",
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
def embedding_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of embedded families of signals, and of the vocabulary."""
    values = relative(
        array(ds, "singular_value", "family", "mode"),
        array(ds, "rounding_floor", "family"),
    )
    tokens = array(ds, "tokens", "family").astype(int)
    modes, canvas = np.arange(1, values.shape[1] + 1), blank(300)
    panel = canvas.panel()
    for place, (family, line) in enumerate(
        zip(names(ds, "family"), values, strict=True)
    ):
        # a single direction is no line
        alone = int(np.isfinite(line).sum() == 1)
        hover = f"{plain(family)}, {tokens[place]} tokens, mode %{{x}}<br>%{{y:.3g}} of the largest"
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        panel.line(
            modes, line, family, hover, colour=colour, width=1.8, dots=7.0 * alone
        )
    panel.y("singular value / largest", **log_axis(values))
    panel.x("mode")
    remarks = [
        "tokens before the first layer",
        "each spectrum relative to its largest value",
    ]
    return canvas.dress(f"Spectra of series as {model_of(ds)} embeds them", *remarks)


@figure(
    "embedding_ranks",
    "Angles between embedded tokens, family by family.",
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
def token_angle_map(
    ds: xr.Dataset, *, families: Sequence[str] | None = None
) -> go.Figure:
    """Draw angles between embedded tokens, a panel per family: dark where two tokens lie on one line.

    Args:
        families: to draw, all unless given.
    """
    rows = positions(ds, "family", families)
    labels = [names(ds, "family")[place] for place in rows]
    grid = panel_grid([(label,) for label in labels], row_height=190)
    angles = array(ds, "angle", "family", "token", "other_token")[rows]
    for panel, values, label in zip(grid, angles, labels, strict=True):
        angle_map(
            panel, values, f"{plain(label)}<br>tokens %{{y}} and %{{x}}: %{{z:.1f}}°"
        )
    title_axes(grid, "token", "token")
    grid.y(autorange="reversed")
    grid.colours(colour_scale("angle (degrees)", low=0.0, high=90.0, dark_low=True))
    return grid.dress(
        f"Angles between tokens that {model_of(ds)} embeds",
        "tokens before the first layer, as lines",
        f"dark: on one line; random lines lie {float(ds.attrs['random_angle']):.0f}° apart",
        "empty: tokens that are zero, or fewer of them",
    )
