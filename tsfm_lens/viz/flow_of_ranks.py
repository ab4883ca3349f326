"""Flow of ranks: ranks of the residual stream from layer to layer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.logit_lens import few_ticks
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, layer_name, layer_names, model_of, names, shown
from tsfm_lens.viz.sheet import blank, sheet
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import BLUE, GREY, VERMILION, mixed, plain
from tsfm_lens.viz.weight_ranks import depth_lines, level_position, relative
from tsfm_lens.viz.words import layers, num, signed

__all__ = ["rank_flow_map", "rank_flow_spectra", "rank_rise"]
_MAX_NUMBERED = 200  # cells of a map that still have room for their number


FLOW_OF_RANKS = measurement(
    "flow_of_ranks",
    theme="Activations",
    title="Flow of ranks",
    summary="how many directions the stream uses before each layer, and each W_Q, with the bound of theorem 4",
    description="Every layer mixes what it reads in ways that are not linear, so that the rank of the stream may grow "
    "with the depth, and with it the rank that the next layer can use.",
    source="Flow of ranks, section 4, figure 5 and theorem 4",
    paper=("S0-F5", "S0-F6"),
)


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
    """State whether theorem 4 says something of the model, and whether it holds there."""
    bound, values = array(ds, "bound", "layer", "mode"), array(ds, "singular_value", "stream", "mode")
    keys, outputs = (array(ds, name, "layer") for name in ("query_key_norm", "value_norm"))
    finite = np.isfinite(bound)
    if not finite.any():
        return [
            *_read_measured_bound(ds),
            f"Theorem 4 says nothing of this model: it asks for {ds.attrs['least_depth']} layers or more with "
            f"{ds.attrs['heads']} heads, of which there are {ds.sizes['layer']}, and for norms up to 1, where "
            f"query–key products reach {num(float(keys.max()))} and value–output products {num(float(outputs.max()))}.",
        ]
    above = int((values[1:] / values[1:, :1] > bound)[finite].sum())
    outcome = "is exceeded nowhere" if not above else f"is exceeded {above} times: norms and MLPs are not part of it"
    return [
        *_read_measured_bound(ds),
        f"The bound of theorem 4 applies to {int(finite.any(1).sum())} of {len(bound)} layers and {outcome}.",
    ]


def _read_measured_bound(ds: xr.Dataset) -> list[str]:
    """State how near the attentions come to what they could add to the rank at most."""
    if "attention_bound" not in ds:
        return []
    bound, values = (array(ds, f"attention_{name}", "layer", "mode") for name in ("bound", "value"))
    says = np.isfinite(bound) & (bound < 1)
    if not says.any():
        return ["With measured constants the inequality behind theorem 4 allows the attentions any rank."]
    with np.errstate(divide="ignore"):
        near = float((bound[says] / values[says]).min())
    above = int((values > bound * (1 + 1e-6) + 1e-12)[says].sum())
    outcome = "is exceeded nowhere" if not above else f"is exceeded {above} times"
    return [
        f"With measured constants the inequality behind theorem 4 bounds {says.sum()} of {says.size} relative singular "
        f"values after the first attentions below 1, {outcome}, and is at least {num(near)} times what was measured."
    ]


def read_rank_rise(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State whether the rank of single series rises, where that stands out of the spread over series."""
    place = level_position(ds, epsilon)
    level, words = f"{float(ds['epsilon'].values[place]):g}", layers(ds, "stream")
    estimate, low, high = (
        array(ds, f"rank_rise_{part}", "stream", epsilon=place) for part in ("estimate", "low", "high")
    )
    stands = np.flatnonzero(array(ds, "rank_rise_stands_out", "stream", epsilon=place) > 0)
    if not len(stands):
        return [f"At ε = {level} the rank of single series neither rises nor falls beyond what differs between series."]
    last = int(stands[-1])
    ends = f", {signed(low[last])} to {signed(high[last])}" if high[last] > low[last] else ""
    return [
        f"At ε = {level} the rank of single series differs from that of their embedding after {len(stands)} of "
        f"{len(words) - 1} layers; the last of these is {words[last]}, with "
        f"{signed(estimate[last])} directions{ends}."
    ]


@FLOW_OF_RANKS.figure(
    "Ranks of the stream and of W_Q, layer by ε.",
    variables=("epsilon_rank", "weight_rank", "told"),
    table=("epsilon_rank", "rank_share", "told"),
    sentences=read_flow_map,
)
def rank_flow_map(ds: xr.Dataset) -> go.Figure:
    """Draw layer × ε maps: the rank of the stream that each layer reads, and of the layer's W_Q.

    Args:
        ds: of kind "flow_of_ranks".

    Returns:
        Two heat maps on one colour scale; the deeper the lower. Cells that rounding of the forward may hide are empty.
    """
    levels = [f"{float(level):g}" for level in ds["epsilon"].values]
    streams = _stream_names(ds)
    valid = array(ds, "told", "stream", "epsilon") > 0
    ranks = np.where(valid, array(ds, "epsilon_rank", "stream", "epsilon"), np.nan)
    weights = array(ds, "weight_rank", "layer", "epsilon")
    height = max(24 * len(streams), 130)
    titles = ["stream after", "W_Q of"]
    canvas = sheet([height], [1, 1], titles=titles, column_gap=0.16, min_width=240 + 2 * 46 * len(levels))
    for panel, values, rows, word in zip(canvas, (ranks, weights), (streams, layer_names(ds)), titles, strict=True):
        hover = f"{word}, %{{y}}<br>ε %{{x}}: rank %{{z}}"
        panel.cells(values, levels, rows, hover, write="{:.0f}".format, printed=_MAX_NUMBERED)
        panel.x("ε", type="category", ticks="")
        panel.y(type="category", autorange="reversed", ticks="", dtick=1 if len(rows) <= 24 else 2)
    canvas.colours(colour_scale("ε-rank", low=0.0, high=float(max(ds.sizes["mode"], ds.sizes["weight_mode"]))))
    return canvas.dress(
        f"Flow of ranks through {model_of(ds)}",
        f"singular values above ε of the largest; {_stack_words(ds)}, {int(ds.attrs.get('tokens', 0))} tokens of "
        f"{shown(names(ds, 'series'))}",
        "" if valid.all() else "empty: rounding of the forward may hide the rank",
    )


@FLOW_OF_RANKS.figure(
    "Singular values of the stream and of W_Q through the depth.",
    variables=("singular_value", "weight_singular_value", "bound"),
    table=lambda ds: frame(ds, "weight_rank").merge(frame(ds, "query_key_norm", "value_norm"), on="layer"),
    sentences=read_bound,
)
def rank_flow_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of the stream before each layer and after the last, and of each layer's W_Q.

    Args:
        ds: of kind "flow_of_ranks".

    Returns:
        Two panels on one logarithmic axis, the deeper the darker, what theorem 4 allows after each layer dotted; in a
        third the stream after each first attention and, dashed, what is allowed with measured constants, where known.
    """
    values = relative(array(ds, "singular_value", "stream", "mode"), array(ds, "rounding_floor", "stream"))
    weights = relative(array(ds, "weight_singular_value", "layer", "weight_mode"))
    bound = array(ds, "bound", "layer", "mode")
    growth = "attention_bound" in ds and bool(np.isfinite(array(ds, "attention_bound", "layer", "mode")).any())
    titles = ["stream", "W_Q", *["after attention"] * growth]
    canvas = sheet(
        [280], [1] * len(titles), titles=titles, column_gap=0.06, min_width=280 * len(titles), shared_yaxes=True
    )
    left, right, *rest = canvas
    labels = layer_names(ds)
    for panel in rest:
        allowed, attention = (array(ds, f"attention_{name}", "layer", "mode") for name in ("bound", "value"))
        depth_lines(panel, labels, np.where(attention > 0, attention, np.nan), "mode")
        for place, (label, line) in enumerate(zip(labels, allowed, strict=True)):
            hover = f"allowed after the attention of {label}, mode %{{x}}<br>%{{y:.3g}} of the largest"
            colour = mixed(VERMILION, 0.35 + 0.65 * (place + 1) / len(labels))
            upto, modes = np.where(line < 1, line, np.nan), np.arange(1, len(line) + 1)
            panel.line(modes, upto, "allowed, measured constants", hover, colour=colour, width=1, dash="dash")
    depth_lines(left, _stream_names(ds), values, "mode")
    depth_lines(right, labels, weights, "mode")
    modes = np.arange(1, bound.shape[1] + 1)
    for label, line in zip(labels, bound, strict=True):
        if np.isfinite(line).any():
            hover = f"allowed after {label}, mode %{{x}}<br>%{{y:.3g}} of the largest"
            left.line(modes, line, "bound of theorem 4", hover, colour=VERMILION, width=1, dash="dot")
    canvas.y(**log_axis(np.concatenate([values.ravel(), weights.ravel()])))
    left.y("singular value / largest")
    canvas.x("mode")
    return canvas.dress(
        f"Spectra of the stream and of W_Q through the depth of {model_of(ds)}",
        "the deeper the darker",
        f"{_stack_words(ds)}, {shown(names(ds, 'series'))}",
        "theorem 4 says nothing of this model" if np.isnan(bound).all() else "",
    )


@FLOW_OF_RANKS.figure(
    "How the rank of single series rises through the depth.",
    variables=("rank_rise",),
    table=("rank_rise_estimate", "rank_rise_low", "rank_rise_high", "rank_rise_stands_out"),
    sentences=read_rank_rise,
)
def rank_rise(ds: xr.Dataset, *, epsilon: float | None = None) -> go.Figure:
    """Draw by how much the rank of single series rises from the embedding through the depth.

    Args:
        ds: of kind "flow_of_ranks".
        epsilon: one of the result's; the one in the middle unless given.

    Returns:
        A thin line per series, and their mean with its interval, hollow where the rise does not stand out.
    """
    place = level_position(ds, epsilon)
    rise, labels = array(ds, "rank_rise", "stream", "series", epsilon=place), _stream_names(ds)
    finite = np.isfinite(rise).any(axis=0)
    canvas = blank(280)
    panel = canvas.panel()
    panel.level(0, layer="below")
    for name, line in zip(np.array(names(ds, "series"))[finite], rise[:, finite].T, strict=True):
        hover = f"{plain(name)}, %{{text}}<br>%{{y:+.3g}} directions"
        panel.line(labels, line, "one series each", hover, colour=mixed(GREY, 0.55), width=1, text=labels)
    noise = finding(ds, "rank_rise", "stream", unit="directions", epsilon=place)
    if noise is not None and finite.any():
        mean = noise.estimate
        panel.line(labels, mean, "mean over series", colour=BLUE, width=2.5, legend=False)
        hover = "mean over series, %{text}<br>%{y:+.3g} directions"
        panel.dots(labels, mean, "mean over series", hover, colour=BLUE, size=8, text=labels, noise=noise)
    panel.x("stream", type="category")
    few_ticks(canvas, labels)
    panel.y("rank, less that of the embedding")
    return canvas.dress(
        f"Rise of the rank of single series through {model_of(ds)}",
        f"singular values above {float(ds['epsilon'].values[place]):g} of the largest of a series' own tokens",
        f"{_stack_words(ds)}, {int(finite.sum())} series",
    )


def _stream_names(ds: xr.Dataset) -> list[str]:
    """Name the streams: "embedding", then after each layer."""
    return [layer_name(label) for label in names(ds, "stream")]


def _stack_words(ds: xr.Dataset) -> str:
    """Name the stack that the streams are of."""
    stack = str(ds.attrs.get("stack", ""))
    return f"stream of the {stack}" if stack else "residual stream"
