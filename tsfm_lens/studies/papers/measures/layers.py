"""Measures of layers: sizes of models, what a layer adds, and forecasts without it.

There is one function for each figure of the paper, registered by the figure's id. Read
:func:`distances` first. Claims compare the middle third of the layers with the layers
before and after it. The ablated forecasts come from
:mod:`tsfm_lens.studies.papers.measures.heads`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tsfm_lens.core.axes import EMBEDDING
from tsfm_lens.core.errors import InputError, MissingExtraError
from tsfm_lens.data import as_series
from tsfm_lens.hooks import Component
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import entropic_rank, layer_gain, logit_lens
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure
from tsfm_lens.studies.papers.measures.heads import forecast_ablated
from tsfm_lens.studies.papers.verdicts import (
    POSITIVE,
    SPEARMAN_BOUNDS,
    ClaimPart,
    Verdict,
    combine_tests,
)
from tsfm_lens.sweep.planner.recipes import middle_third
from tsfm_lens.testing import published

# by architecture: the name that the paper gives the model, and its published size
SIZES = {
    "timesfm-2.5": ("TimesFM 2.5", "200m"),
    "chronos": ("Chronos", "base"),
    "chronos-bolt": ("Chronos-Bolt", "base"),
    "toto-1": ("Toto 1.0", "Open-Base-1.0"),
    "moirai-1.1": ("Moirai 1.1", "base"),
}
# percent of the error by which a layer must improve the forecast to count; the paper
# tolerates as much where it ablates heads (heads@1pp)
SMALLEST_GAIN = 1.0


@measure("S3-SYS")
def sizes(context: Context) -> MeasuredValues:
    """Count parameters in millions, layers, heads and steps per token.

    If no model is given, models are built at the published sizes.
    """
    if context.optional_run is not None:
        architecture = context.model.wiring.architecture
        if architecture not in SIZES:
            return MeasuredValues()
        name, _ = SIZES[architecture]
        return MeasuredValues(_model_sizes(name, context.model))
    values = {}
    missing = []
    for architecture, (name, size) in SIZES.items():
        try:
            # unchecked, since nothing is forecast
            lens = load(published(architecture, size), check=False)
            values.update(_model_sizes(name, lens))
        except MissingExtraError:
            missing.append(name)
    # of this second size the paper gives the number of parameters alone
    small = load(published("chronos-bolt", "small"), check=False)
    values["Chronos-Bolt small: parameters"] = _millions(small)
    return MeasuredValues(
        values, {"not installed": ", ".join(missing)} if missing else {}
    )


def _model_sizes(name: str, lens: Lens) -> dict[str, float]:
    stack = lens.wiring.output_stack
    # the first stack is the one that reads the series
    reading_stack = lens.wiring.stacks[0]
    encoded = lens.encode(as_series(np.sin(np.arange(256.0))))
    spans = encoded.spans[reading_stack.name]
    return {
        f"{name}: parameters": _millions(lens),
        f"{name}: layers": stack.n_layers,
        f"{name}: heads per layer": stack.n_heads,
        # of the longest token, since special tokens cover no step
        f"{name}: steps per token": max(
            stop - start for start, stop in zip(spans.start, spans.stop, strict=True)
        ),
    }


def _millions(lens: Lens) -> float:
    """Count the parameters in millions."""
    return sum(part.numel() for part in lens.parameters()) / 1e6


def _layer_values(data: xr.DataArray) -> np.ndarray:
    """Return (layer, …) the values of all layers, without the embedding."""
    layers = [layer for layer in data["layer"].values if layer != EMBEDDING]
    return np.asarray(data.sel(layer=layers).transpose("layer", ...).values)


def split_thirds(n_layers: int) -> tuple[list[int], list[int], list[int]]:
    """Split the layers into those before, in and after the middle third."""
    middle = middle_third(n_layers)
    return list(range(middle[0])), middle, list(range(middle[-1] + 1, n_layers))


def _layers_label(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}"


@measure("S3-F1D")
def logit_entropy(context: Context) -> MeasuredValues:
    """Measure the entropy of the logits after each layer."""
    if context.model.adapter.readout != "token":
        raise InputError(
            f"{context.model.model_id} has no logits; the entropy after each layer is"
            " of token models"
        )
    groups = context.in_groups("entropy after each layer")
    # (layer, window)
    entropy = np.concatenate(
        [_layer_values(logit_lens(run)["entropy"].mean("step")) for run in groups],
        axis=1,
    )
    before, middle, after = split_thirds(len(entropy))
    middle_entropy = entropy[middle].mean(0)
    quantity = "logit entropy, nats"
    rises = [
        ClaimPart(
            f"it lies above that after {_layers_label(layers)}",
            middle_entropy - entropy[layers].mean(0),
            quantity,
        )
        for layers in (before, after)
    ]
    fall = ClaimPart(
        "it lies below that of the middle layers",
        middle_entropy - entropy[-1],
        quantity,
    )
    statements = {
        "raise_entropy": context.verdict(*rises),
        "consolidates": context.verdict(fall),
    }
    result = MeasuredValues(settings=context.settings(), claims=statements)
    for layer, by_window in enumerate(entropy):
        result.add(f"median entropy, layer {layer}", np.median(by_window))
    _add_means(result, context, "mean entropy", entropy, POSITIVE)
    result.units = dict.fromkeys(result.values, "nats")
    return result


def _add_means(
    result: MeasuredValues,
    context: Context,
    label: str,
    values: np.ndarray,
    bounds: tuple[float, float],
) -> None:
    """Add the mean over windows of each layer, with its interval.

    ``values`` are (layer, window) or (layer, seed, window).
    """
    for layer, by_window in enumerate(values):
        result.mean(
            f"{label}, layer {layer}",
            by_window,
            context.select_series(by_window.shape[-1]),
            bounds,
        )


@measure("S3-F1E")
def entropic_ranks(context: Context) -> MeasuredValues:
    """Measure the entropic rank of the heads of each layer."""
    groups = [entropic_rank(run) for run in context.in_groups("entropic rank")]
    # (layer, window)
    entropy = np.concatenate(
        [_layer_values(group["entropy"]) for group in groups], axis=1
    )
    tokens = np.concatenate([group["tokens"].values for group in groups])
    rank = np.exp(entropy)
    before, middle, after = split_thirds(len(rank))
    parts = [
        ClaimPart(
            f"than in {_layers_label(layers)}",
            rank[middle].mean(0) - rank[layers].mean(0),
            "entropic rank",
        )
        for layers in (before, after)
    ]
    result = MeasuredValues(
        settings=context.settings(), claims={"higher_rank": context.verdict(*parts)}
    )
    # the interval is of the mean over windows; the estimate is the mean over tokens,
    # which is the same only if all windows have equally many tokens
    equal_tokens = len(set(tokens.tolist())) == 1
    for layer, by_window in enumerate(entropy):
        mean = context.mean(by_window, POSITIVE)
        bounds = np.exp([mean.low, mean.high]) if equal_tokens else (np.nan, np.nan)
        result.add(
            f"entropic rank, layer {layer}",
            np.exp(np.average(by_window, weights=tokens)),
            *bounds,
        )
    return result


@measure("S3-F2", kinds=("heads", "mlp"))
@measure("S3-F8", kinds=("heads",))
@measure("S3-F9", kinds=("mlp",))
def distances(context: Context, *, kinds: Sequence[str]) -> MeasuredValues:
    """Measure how far forecasts move without the heads, the MLP, or both, of a layer.

    The distance is Spearman's, between the ablated and the full model's forecasts.
    Whatever is not attention counts as the MLP.
    """
    stack = context.model.wiring.output_stack
    recipes = {
        str(layer): [
            Component(stack.name, layer, row.kind)
            for row in stack.rows(layer)
            if ("heads" if isinstance(row, Attention) else "mlp") in kinds
        ]
        for layer in range(stack.n_layers)
    }
    ablated = forecast_ablated(context, recipes, "forecasts without layers")
    # (layer, seed, window)
    distance = ablated["spearman_distance"].values
    statements = {"ablatable": context.verdict(*ablatable_parts(distance))}
    if len(kinds) == 1:
        statements["varies"] = _varies(context, distance)
    result = MeasuredValues(
        settings=context.settings(over_seeds=True), claims=statements
    )
    _add_means(result, context, "mean Spearman distance", distance, SPEARMAN_BOUNDS)
    return result


def ablatable_parts(distance: np.ndarray) -> list[ClaimPart]:
    """Compare the middle layers with all earlier, all later, the first and the last.

    ``distance`` is (layer, seed, window).
    """
    before, middle, after = split_thirds(len(distance))
    middle_distance = distance[middle].mean(0)
    text = "the middle layers move the forecast less than "
    # in a small model the first layer is the only earlier one, and counts once
    rest = dict.fromkeys((tuple(before), tuple(after), (0,), (len(distance) - 1,)))
    return [
        ClaimPart(
            text + _layers_label(layers),
            distance[list(layers)].mean(0) - middle_distance,
            "Spearman distance",
        )
        for layers in rest
    ]


def _varies(context: Context, distance: np.ndarray) -> Verdict:
    """Test whether layers differ in how far they move the forecast.

    The two layers are chosen on the first half of the series and compared on the
    second.
    """
    labels = np.array(context.select_series(distance.shape[-1]))
    names = list(dict.fromkeys(labels.tolist()))
    # on the windows on which they are chosen as the extremes, any two layers differ
    first = np.isin(labels, names[: len(names) // 2])
    # a single series has no first half: a part without margins stays undecided
    if not first.any():
        text = "two layers chosen on the first half of the windows differ on the second"
        return combine_tests([ClaimPart(text, np.empty(0), "")], [])
    mean_by_layer = distance[..., first].mean((1, 2))
    max_layer = int(mean_by_layer.argmax())
    min_layer = int(mean_by_layer.argmin())
    text = (
        f"layer {max_layer} moves the forecast more than layer {min_layer},"
        " chosen on the first half of the windows"
    )
    margins = (distance[max_layer] - distance[min_layer])[:, ~first]
    return combine_tests(
        [ClaimPart(text, margins, "Spearman distance")], labels[~first].tolist()
    )


@measure("S3-F22")
def gains(context: Context) -> MeasuredValues:
    """Measure the gain of each layer over the one before.

    It is the change of the error in percent: a negative gain is an improvement.
    """
    gain = xr.concat(
        [
            layer_gain(logit_lens(run))["gain"]
            for run in context.in_groups("gain of each layer")
        ],
        dim="series",
    )
    result = MeasuredValues(settings=context.settings())
    parts = []
    for metric in gain["metric"].values:
        values = _layer_values(gain.sel(metric=metric))
        for layer, by_window in enumerate(values):
            median = context.median(by_window)
            result.add(
                f"median gain, {metric}, layer {layer}",
                median.estimate,
                median.low,
                median.high,
                unit="%",
            )
        for layer in middle_third(len(values)):
            text = f"no improvement by layer {layer}: {metric}"
            quantity = f"gain + {SMALLEST_GAIN:g} %"
            # positive unless the error falls by more than the tolerance
            parts.append(ClaimPart(text, values[layer] + SMALLEST_GAIN, quantity))
    result.claims["no_improvement"] = context.verdict(*parts)
    return result
