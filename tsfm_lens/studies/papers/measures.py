"""Measures of the paper's tables and figures: one function per id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, MissingExtraError
from tsfm_lens.hooks import Component
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.probes import entropic_rank, head_spectra, layer_gain, logit_lens, rollout_maps
from tsfm_lens.studies.papers import measures_heads, measures_induction
from tsfm_lens.studies.papers.measures_definitions import MEASURES_OF_DEFINITIONS
from tsfm_lens.studies.papers.measures_lowrank import MEASURES_OF_LOW_RANK
from tsfm_lens.studies.papers.measures_ranks import MEASURES_OF_RANKS
from tsfm_lens.studies.papers.measures_samformer import MEASURES_OF_SAMFORMER
from tsfm_lens.studies.papers.measures_structured import MEASURES_OF_STRUCTURED
from tsfm_lens.studies.papers.measures_theory import MEASURES_OF_THEORY
from tsfm_lens.studies.papers.measuring import Asked, Found, Sheet
from tsfm_lens.studies.papers.values import (
    ABLATABLE,
    ABLATED_LAST,
    CONSOLIDATES,
    HIGHER_RANK,
    NO_IMPROVEMENT,
    RAISE_ENTROPY,
    VARIES,
    WHOLE,
)
from tsfm_lens.studies.papers.verdicts import Part, Verdict, exactly, judged
from tsfm_lens.sweep.plan.recipes import read_recipe
from tsfm_lens.sweep.plan.released import middle_third


def _sizes(request: Asked) -> Found:
    titles = {
        "timesfm-2.5": ("TimesFM 2.5", "200m"),
        "chronos": ("Chronos", "base"),
        "chronos-bolt": ("Chronos-Bolt", "base"),
        "toto-1": ("Toto 1.0", "Open-Base-1.0"),
        "moirai-1.1": ("Moirai 1.1", "base"),
    }
    if request.lens is not None:
        architecture = request.lens.wiring.architecture
        return Found(_size(titles[architecture][0], request.lens) if architecture in titles else {})
    values, missing = {}, []
    for architecture, (name, size) in titles.items():
        try:
            values.update(_size(name, load(architectures()[architecture].build(size), check=False)))
        except MissingExtraError:
            missing.append(name)
    small = load(architectures()["chronos-bolt"].build("small"), check=False)
    values["Chronos-Bolt small: parameters"] = _millions(small)
    return Found(values, {"not installed": ", ".join(missing)} if missing else {})


def _size(name: str, lens: Lens) -> dict[str, float]:
    stack = lens.wiring.output_stack
    return {
        f"{name}: parameters": _millions(lens),
        f"{name}: layers": stack.n_layers,
        f"{name}: heads per layer": stack.n_heads,
        f"{name}: steps per token": _steps_per_token(lens),
    }


def _steps_per_token(lens: Lens) -> int:
    """Count the steps that the longest token of a series covers, read off an encoded series."""
    context = as_series(np.sin(np.arange(256.0)))
    # the stack that reads the series comes first
    spans = lens.encode(context).spans[lens.wiring.stacks[0].name]
    return max(stop - start for start, stop in zip(spans.start, spans.stop, strict=True))


def _millions(lens: Lens) -> float:
    return sum(part.numel() for part in lens.parameters()) / 1e6


# an improvement by less, in percent of the error, is none: the paper's own tolerance of heads@1pp
SMALLEST_GAIN = 1.0


def _layer_values(data: xr.DataArray) -> np.ndarray:
    """Select the values of the numbered layers, the layer first."""
    names = [name for name in data["layer"].values if str(name).isdigit()]
    return np.asarray(data.sel(layer=names).transpose("layer", ...).values)


def _thirds(n_layers: int) -> tuple[list[int], list[int], list[int]]:
    """Split the layers into those before the middle third, those in it, and those after it."""
    middle = middle_third(n_layers)
    return list(range(middle[0])), middle, list(range(middle[-1] + 1, n_layers))


def _logit_entropy(request: Asked) -> Found:
    if request.model.adapter.readout != "token":
        raise InputError(f"{request.model.model_id} has no logits; the entropy after each layer is of token models")
    tables = [
        _layer_values(logit_lens(run)["entropy"].mean("step")) for run in request.in_groups("entropy after each layer")
    ]
    entropy = np.concatenate(tables, axis=1)
    before, middle, after = _thirds(len(entropy))
    inside = entropy[middle].mean(0)
    of = "logit entropy, nats"
    rises = request.judge(
        Part(f"it lies above that after {_layers(before)}", inside - entropy[before].mean(0), of),
        Part(f"it lies above that after {_layers(after)}", inside - entropy[after].mean(0), of),
    )
    falls = request.judge(Part("it lies below that of the middle layers", inside - entropy[-1], of))
    sheet = Sheet(request)
    sheet.means("mean entropy", entropy)
    units = dict.fromkeys(sheet.values, "nats")
    medians = {
        f"median entropy, layer {layer}": float(np.median(of_windows)) for layer, of_windows in enumerate(entropy)
    }
    units |= dict.fromkeys(medians, "nats")
    claims = {RAISE_ENTROPY: rises, CONSOLIDATES: falls}
    return Found({**medians, **sheet.values}, request.settings(), units, sheet.intervals, claims)


def _layers(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}"


def _entropic_rank(request: Asked) -> Found:
    groups = [entropic_rank(run) for run in request.in_groups("entropic rank")]
    entropy = np.concatenate([_layer_values(group["entropy"]) for group in groups], axis=1)
    tokens = np.concatenate([group["tokens"].values for group in groups])
    rank = np.exp(entropy)
    before, middle, after = _thirds(len(rank))
    inside = rank[middle].mean(0)
    verdict = request.judge(
        Part(f"than in {_layers(before)}", inside - rank[before].mean(0), "entropic rank"),
        Part(f"than in {_layers(after)}", inside - rank[after].mean(0), "entropic rank"),
    )
    values, intervals = {}, {}
    for layer, of_windows in enumerate(entropy):
        name = f"entropic rank, layer {layer}"
        values[name] = float(np.exp(np.average(of_windows, weights=tokens)))
        mean = request.over(of_windows)
        # the mean over tokens is that over windows where all have as many
        if np.isfinite(mean.low) and len(set(tokens.tolist())) == 1:
            intervals[name] = (float(np.exp(mean.low)), float(np.exp(mean.high)))
    return Found(values, request.settings(), intervals=intervals, claims={HIGHER_RANK: verdict})


def _distances(what: str, selects: Callable[[str, bool], bool]) -> Callable[[Asked], Found]:
    def measure(request: Asked) -> Found:
        stack = request.model.wiring.output_stack
        layers = list(map(str, range(stack.n_layers)))
        recipes = {
            layer: [
                Component(stack.name, int(layer), row.kind)
                for row in stack.rows(int(layer))
                if selects(row.kind, isinstance(row, Attention))
            ]
            for layer in layers
        }
        distance = measures_heads.forecasts_without(request, recipes, "forecasts without layers")["spearman_distance"]
        values = distance.values
        claims = {ABLATABLE.format(what=what): request.judge(*ablatable_parts(values))}
        if what != WHOLE:
            claims[VARIES.format(what=what)] = _varies(request, values)
        sheet = Sheet(request)
        sheet.means("mean Spearman distance", values)
        return Found(sheet.values, request.settings(over_seeds=True), intervals=sheet.intervals, claims=claims)

    return measure


def ablatable_parts(distance: np.ndarray) -> list[Part]:
    """Compare the middle layers with the others, by distance (layer, seed, window)."""
    before, middle, after = _thirds(len(distance))
    inside, last = distance[middle].mean(0), len(distance) - 1
    others = dict.fromkeys((tuple(before), tuple(after), (0,), (last,)))
    return [
        Part(
            f"the middle layers move the forecast less than {_layers(layers)}",
            distance[list(layers)].mean(0) - inside,
            "Spearman distance",
        )
        for layers in others
    ]


def _varies(request: Asked, distance: np.ndarray) -> Verdict:
    """Test whether layers differ: choose two on the first half of the series, compare them on the second."""
    labels = np.array(request.series_of(distance.shape[-1]))
    names = list(dict.fromkeys(labels.tolist()))
    first = np.isin(labels, names[: len(names) // 2])
    part = Part("two layers chosen on the first half of the windows differ on the second", np.empty(0), "")
    if not first.any():
        return judged([part], [])
    mean = distance[..., first].mean((1, 2))
    most, least = int(mean.argmax()), int(mean.argmin())
    words = f"layer {most} moves the forecast more than layer {least}, chosen on the first half of the windows"
    margins = (distance[most] - distance[least])[:, ~first]
    return judged([Part(words, margins, "Spearman distance")], labels[~first].tolist())


def released_share(name: str) -> tuple[float, int]:
    """Count the heads that a recipe ablates, in percent of all, and its MLPs, by the released heads@1pp."""
    recipe = read_recipe(name)
    lists = recipe.lists
    assert lists is not None
    explicit = {layer for group in recipe.layers_at if isinstance(group.layers, tuple) for layer in group.layers}
    count = 0
    for group in recipe.layers_at:
        layers = group.layers if isinstance(group.layers, tuple) else set(range(len(lists.kept))) - explicit
        count += sum(max(lists.n_heads - lists.kept[layer] - group.extra, 0) for layer in layers)
    return 100 * count / (lists.n_heads * len(lists.kept)), len(recipe.mlps)


def _share_measure(quantity: str, recipe: str) -> Callable[[Asked], Found]:
    def measure(request: Asked) -> Found:
        share, mlps = released_share(recipe)
        return Found({quantity: share, "MLPs ablated": float(mlps)})

    return measure


def _patches(request: Asked) -> Found:
    stack = request.model.wiring.output_stack
    if "cross_attn" not in stack.attention_kinds() or request.model.adapter.readout == "token":
        raise InputError(
            f"{request.model.model_id} has no cross-attention between patches; the figure is of Chronos-Bolt"
        )
    layer, head = min(3, stack.n_layers - 1), min(4, stack.n_heads - 1)
    maps = rollout_maps(request.run.select([0]), keys="window")
    ordinary = np.flatnonzero(maps["key_special"].values == "")
    mass = maps["attention"].sel(layer=str(layer), head=head).values[ordinary].sum(axis=1)
    patch = int(mass.argmax())
    width = int(maps["key_stop"].values[ordinary[0]] - maps["key_start"].values[ordinary[0]])
    ranks = head_spectra(request.model, kind="cross_attn", products=["QK"])["stable_rank"].sel(product="QK")
    values = {
        "context patches": float(len(ordinary)),
        "context tokens with the register": float(maps.sizes["key"]),
        "decoder patches": float(maps.sizes["query"]),
        "patch that layer 3, head 4 attends to most": float(patch),
        "first step of that patch": float(patch * width),
    }
    claims = {}
    if stack.n_heads > 7 and stack.n_layers > 3:
        order = np.argsort(ranks.sel(layer="3").values)
        last = any(set(end.tolist()) == {0, 7} for end in (order[:2], order[-2:]))
        claims[ABLATED_LAST] = exactly("", true=last, of="stable rank of the weights")
    for row in dict.fromkeys((0, layer)):
        ranks_of_heads = ranks.sel(layer=str(row)).values
        values |= {
            f"stable rank of layer {row}, head {index}": float(rank) for index, rank in enumerate(ranks_of_heads)
        }
    settings = {**request.settings(), "windows": "1", "head": f"layer {layer}, head {head}"}
    settings.pop("intervals over")
    return Found(values, settings, claims=claims)


def _gains(request: Asked) -> Found:
    groups = [layer_gain(logit_lens(run))["gain"] for run in request.in_groups("gain of each layer")]
    gain = xr.concat(groups, dim="series")
    parts, medians, intervals = [], {}, {}
    for metric in gain["metric"].values:
        values = _layer_values(gain.sel(metric=metric))
        for layer, of_windows in enumerate(values):
            median = request.median(of_windows)
            medians[f"median gain, {metric}, layer {layer}"] = median.estimate
            if np.isfinite(median.low):
                intervals[f"median gain, {metric}, layer {layer}"] = (median.low, median.high)
        parts += [
            Part(
                f"no improvement by layer {layer}: {metric}",
                values[layer] + SMALLEST_GAIN,
                f"gain + {SMALLEST_GAIN:g} %",
            )
            for layer in middle_third(len(values))
        ]
    return Found(
        medians, request.settings(), dict.fromkeys(medians, "%"), intervals, {NO_IMPROVEMENT: request.judge(*parts)}
    )


MEASURES: dict[str, Callable[[Asked], Found]] = {
    "S3-SYS": _sizes,
    "S3-F1D": _logit_entropy,
    "S3-F1E": _entropic_rank,
    "S3-F2": _distances(WHOLE, lambda kind, heads: True),
    "S3-F6": _share_measure("heads ablated with layers 7 to 13 at heads@1pp", "timesfm-28"),
    "S3-F8": _distances("all heads", lambda kind, heads: heads),
    "S3-F9": _distances("the MLP", lambda kind, heads: not heads),
    "S3-F13": _share_measure(
        "heads ablated with layers 7 to 13 at heads@1pp and all others at one head more",
        "timesfm-51",
    ),
    "S3-F14": _share_measure("heads ablated with layers 2, 9, 10 and 11 at heads@1pp", "toto-29"),
    "S3-F15": _share_measure("heads ablated with layers 0 to 10 at heads@1pp", "bolt-60"),
    "S3-F20": measures_heads.without_sharp_heads,
    "S3-F21": _patches,
    "S3-F22": _gains,
    "S3-F23": measures_induction.thresholds,
    "S3-HENT": measures_heads.sharp_share,
    "S3-PREF": measures_induction.induction_share,
    "S3-RRT": measures_induction.motif_tokens,
    "S3-T5": measures_induction.table_5,
    **MEASURES_OF_THEORY,
    **MEASURES_OF_DEFINITIONS,
    **MEASURES_OF_LOW_RANK,
    **MEASURES_OF_SAMFORMER,
    **MEASURES_OF_STRUCTURED,
}
# of several models, each in turn
MEASURES_OF_MODELS: dict[str, Callable[[Iterator[Asked]], Found]] = {**MEASURES_OF_RANKS}
