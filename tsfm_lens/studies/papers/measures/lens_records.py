"""Answers to the items of the tsfm-lens paper on small models, from their records.

The records are of order 1 of the queue: forecasts of three small models without parts
of them, on 37 series, beside random parts and untrained twins. Read
:func:`ablated_layers` first. A claim of the paper is tested over series, on every model
that it can be asked of, and holds only if it does on all; a claim that a part of the
model is special is asked of its null as well, "more so than in untrained twins" or
"than of random heads".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product
from types import MappingProxyType

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.studies.experiments.records import record
from tsfm_lens.studies.papers.context import from_record
from tsfm_lens.studies.papers.measures.induction import (
    HeadScores,
    inducing,
    overlap_verdict,
    proportions,
    threshold_verdicts,
)
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.papers.verdicts import (
    FAILS,
    HOLDS,
    LEVEL,
    POSITIVE,
    SPEARMAN_BOUNDS,
    UNDECIDED,
    ClaimPart,
    Tested,
    Verdict,
    judge_parts,
    undecided,
)
from tsfm_lens.sweep.planner.recipes import middle_third, read_recipe

Parts = defaultdict[str, list[ClaimPart]]
"""Parts of claims, by claim."""
HEADED = ("bolt-nano", "chronos-nano")
MODELS = {**{name: name for name in HEADED}, "ztxtech/fracast-0": "fracast"}
"""Names of the models in the records."""
PLAIN = "plain"
MODEL = "model"
WITHIN = 0.01
"""Relative rise of the error within which heads can go (heads@1pp)."""
SERIES = "series"
GROUPS = {"both": "layers", "heads": "all heads", "mlp": "mlps"}
LETTERS = {"both": "cm", "mlp": "m"}
"""Codes of a layer of fracast, which has convolutions and no heads."""
TEXTS = {"both": "heads and MLP", "heads": "all heads", "mlp": "the MLP"}
OWN = ("own middle third", "own all", "own one head more")
PUBLISHED = ("timesfm-28", "timesfm-51", "toto-29", "bolt-60", "bolt-released")
MILD = 0.11
"""Rise of MASE above which no heavy ablation of table 1 comes: 10.71 % at most."""
TWINS = "more so than in untrained twins"
SMALLEST_GAIN = 1.0
"""Percent of the error by which a layer must improve the forecast to count.

The paper tolerates as much where it ablates heads (heads@1pp).
"""
RELEASED = {
    "S3-F6": "timesfm-28",
    "S3-F13": "timesfm-51",
    "S3-F14": "toto-29",
    "S3-F15": "bolt-60",
}
"""Recipes whose heads and MLPs are counted, by item."""
METRICS = {
    "MASE": "MASE",
    "NRMSE": "NRMSE",
    "sMAPE": "SMAPE",
    "CRPS": "CRPS",
    "MSIS": "MSIS",
}
RECIPES = {
    "TimesFM 2.5, 28 % of heads, 2 MLPs": "timesfm-28",
    "Toto, 29 % of heads": "toto-29",
    "Toto, 29 % of heads, 1 MLP": "toto-29-1mlp",
    "Toto, 43 % of heads": "toto-43",
    "Chronos-Bolt, 28 % of heads, 6 MLPs": "bolt-28-6mlp",
    "Chronos-Bolt, 42 % of heads, 6 MLPs": "bolt-42-6mlp",
}
"""Recipes of the rows of tables 1 and 4; the paper leaves some open."""


# --- records --------------------------------------------------------------------------


@cache
def ablations(model: str) -> xr.Dataset:
    """Load a model's ablations, with ``rise``, the logarithm of MASE over the plain."""
    data = record(f"lens_ablations_{MODELS[model]}")
    error: xr.DataArray = xr.apply_ufunc(np.log, data["MASE"])
    rise = (error - error.sel(variant=PLAIN)).mean("seed")
    moved = data["spearman_distance"].mean("seed")
    return data.assign(rise=rise, moved=moved)


def variants(data: xr.Dataset, family: str, text: str = "") -> list[str]:
    """List the variants of a family whose names start with a text."""
    names = map(str, data["variant"].values)
    return [name for name in names if name.startswith(f"{family} | {text}")]


def single_layers(data: xr.Dataset, kind: str) -> list[str]:
    """List the variants without a part of one layer each, from the first layer on."""
    names = variants(data, GROUPS[kind])
    if not variants(data, "all heads"):
        end = f":{LETTERS.get(kind)}"
        names = [name for name in variants(data, "layers") if name.endswith(end)]
    return [name for name in names if name.count(":") == 1]


def _result(models: Iterable[str] = HEADED) -> MeasuredValues:
    data = ablations(HEADED[0])
    return MeasuredValues(
        settings={
            "model": ", ".join(models),
            "series": f"{data.sizes['series']}: 13 bundled and 24 chaotic ones",
            "horizon": str(data.attrs["horizon"]),
            "intervals over": SERIES,
        }
    )


def _prefixed(model: str, parts: Sequence[ClaimPart]) -> list[ClaimPart]:
    return [replace(part, words=f"{model} {part.words}") for part in parts]


def _judge(
    result: MeasuredValues,
    parts: Mapping[str, Sequence[ClaimPart]],
    twins: Mapping[str, Sequence[Tested]] = MappingProxyType({}),
) -> MeasuredValues:
    """Add the verdicts on claims, tested over series, and over untrained twins."""
    for claim, tested in parts.items():
        result.claims[claim] = judge_parts(SERIES, *tested)
    for claim, tests in twins.items():
        result.claims[f"{claim}, {TWINS}"] = Verdict(tuple(tests), "twin")
    return result


def beyond_twins(model: str, own: float, twins: np.ndarray, of: str) -> Tested:
    """Test that a number of the model is above those of its untrained twins.

    The p-value is the share of the model and its twins that reach the model's number.
    Twins whose forecasts have no order are left out.
    """
    twins = twins[np.isfinite(twins)]
    reached = (twins >= own).sum()
    high, low = (
        float((1 + count) / (1 + len(twins)))
        for count in (reached, (twins <= own).sum())
    )
    outcome = UNDECIDED
    if high <= LEVEL:
        outcome = HOLDS
    elif low <= LEVEL:
        outcome = FAILS
    why = f"{reached} of {len(twins)} untrained twins reach it"
    return Tested(model, of, outcome, p=high, why=why)


def split_thirds(n_layers: int) -> tuple[list[int], list[int], list[int]]:
    """Split the layers into those before, in and after the middle third."""
    middle = middle_third(n_layers)
    return list(range(middle[0])), middle, list(range(middle[-1] + 1, n_layers))


def _layers_label(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    return f"layers {layers[0]} to {layers[-1]}"


def ablatable_parts(distance: np.ndarray) -> list[ClaimPart]:
    """Compare the middle layers with all earlier, all later, the first and the last.

    ``distance`` is (layer, seed, window).
    """
    before, middle, after = split_thirds(len(distance))
    middle_distance = distance[middle].mean(0)
    # in a small model the first layer is the only earlier one, and counts once
    rest = dict.fromkeys((tuple(before), tuple(after), (0,), (len(distance) - 1,)))
    return [
        ClaimPart(
            f"than {_layers_label(layers)}",
            distance[list(layers)].mean(0) - middle_distance,
            "Spearman distance",
        )
        for layers in rest
    ]


# --- layers ---------------------------------------------------------------------------


def _twin_moves(model: str, kind: str) -> np.ndarray:
    """Return (twin, layer, series) the distances of forecasts of twins."""
    data = record("lens_twin_ablations").sel(model=model)
    end = {"both": r":h\d+m$", "heads": r":h\d+$", "mlp": r":m$"}[kind]
    names = [name for name in data["variant"].values if re.search(end, str(name))]
    moved = data["spearman_distance"].sel(variant=names)
    return np.asarray(moved.transpose("twin", "variant", "series").values)


def _ablatability(moved: np.ndarray) -> float:
    """Average how much less the middle layers move a forecast than the ends."""
    parts = ablatable_parts(moved)
    return float(np.mean([pd.Series(part.margins.ravel()).mean() for part in parts]))


def ablated_layers(kind: str) -> MeasuredValues:
    """Compare forecasts without a part of each layer, on models and untrained twins."""
    models = [model for model in MODELS if single_layers(ablations(model), kind)]
    result = _result(models)
    parts = Parts(list)
    twins = []
    for model in models:
        data = ablations(model)
        moved = data["moved"].sel(variant=single_layers(data, kind)).values
        parts["ablatable"] += _prefixed(model, ablatable_parts(moved))
        if kind != "both":
            most, least, margins = _chosen_layers(moved)
            words = f"{model} layer {most} against layer {least}"
            parts["varies"].append(ClaimPart(words, margins, "Spearman distance"))
        for layer, of_layer in enumerate(moved):
            text = f"{model}: mean Spearman distance, layer {layer}"
            result.mean(text, of_layer, bounds=SPEARMAN_BOUNDS)
        if model in HEADED:
            of_twins = np.array(list(map(_ablatability, _twin_moves(model, kind))))
            of = "distance at the ends less that of the middle"
            twins.append(beyond_twins(model, _ablatability(moved), of_twins, of))
    return _judge(result, parts, {"middle layers are more ablatable": twins})


def _chosen_layers(values: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Choose the highest and the lowest layer on every other series.

    Third comes their difference on the others; values are (layer, series).
    """
    by_layer = values[:, ::2].mean(1)
    most, least = int(by_layer.argmax()), int(by_layer.argmin())
    return most, least, (values[most] - values[least])[1::2]


for _item, _kind in (("S3-F2", "both"), ("S3-F8", "heads"), ("S3-F9", "mlp")):
    from_record(_item)(partial(ablated_layers, _kind))


def _changes(result: MeasuredValues, data: xr.Dataset, rows: dict[str, str]) -> None:
    """Add relative changes of MASE of variants in percent, by their texts."""
    for text, variant in rows.items():
        mean, low, high = _percent(data["rise"].sel(variant=variant).values)
        result.add(f"change of MASE {text}", mean, low, high, unit="%")


def _percent(logs: np.ndarray) -> np.ndarray:
    """Return the mean of logarithms, with its interval, as a change in percent."""
    spread = MeasuredValues()
    spread.mean("", logs)
    low, high = spread.intervals[""]
    return 100 * np.expm1([spread.values[""], low, high])


@from_record("S3-F3")
def most_ablatable() -> MeasuredValues:
    """Measure errors without parts of the layer that can best go."""
    result = _result(MODELS)
    for model in MODELS:
        data = ablations(model)
        both = data["rise"].sel(variant=single_layers(data, "both"))
        layer = int(both.mean("series").values.argmin())
        result.add(f"{model}: most ablatable layer", layer)
        kinds = {kind: single_layers(data, kind) for kind in TEXTS}
        rows = {
            f"without {TEXTS[kind]} of that layer, {model}": names[layer]
            for kind, names in kinds.items()
            if names
        }
        _changes(result, data, rows)
    return result


@from_record("S3-F4")
def ranges() -> MeasuredValues:
    """Measure errors without ranges of layers; the claim is about two other models."""
    result = _result(MODELS)
    for model in MODELS:
        data = ablations(model)
        families = ("all heads", "mlps") if model in HEADED else ("ranges",)
        rows = {
            f"without {name.partition(' | ')[2]}, {model}": name
            for family in families
            for name in variants(data, family)
            if name.count(":") > 1
        }
        _changes(result, data, rows)
    why = (
        "it compares Chronos-Bolt with Toto: both checkpoints (0.8 and 0.6 GB) and"
        " GIFT-Eval, 97 data sets, are needed"
    )
    result.claims["half_mlps"] = undecided(why, "change of MASE")
    return result


def _by_layer(name: str) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield models of a record of layers, with its variables over layers alone."""
    data = record("lens_layers")
    layers = [layer for layer in data["layer"].values if layer != "embed"]
    for model in HEADED:
        of_model = data.sel(model=model, layer=layers)
        if of_model[name].sel(subject=MODEL).notnull().all():
            yield model, of_model


def _risen(values: np.ndarray) -> list[ClaimPart]:
    """Compare the middle layers of (layer, series) with those before and after."""
    before, middle, after = split_thirds(len(values))
    return [
        ClaimPart(words, values[middle].mean(0) - values[layers].mean(0), "")
        for words, layers in (("than before", before), ("than after", after))
    ]


def _of_layers(
    name: str, claim: str, quantity: str, scale: Callable[..., np.ndarray] = np.asarray
) -> MeasuredValues:
    parts = Parts(list)
    twins = []
    result = _result([])
    for model, data in _by_layer(name):
        # (subject, layer, series)
        values = scale(data[name].transpose("subject", "layer", "series").values)
        parts[claim] += _prefixed(model, _risen(values[0]))
        size = [np.mean([part.margins.mean() for part in _risen(of)]) for of in values]
        twins.append(beyond_twins(model, size[0], np.array(size[1:]), quantity))
        for layer, of_layer in enumerate(values[0]):
            text = f"{model}: mean {quantity}, layer {layer}"
            result.mean(text, of_layer, bounds=POSITIVE)
    result.settings["model"] = ", ".join(test.words for test in twins)
    return _judge(result, parts, {"the middle layers stand out": twins})


@from_record("S3-F1D")
def logit_entropy() -> MeasuredValues:
    """Compare the entropy of the logits after the layers."""
    result = _of_layers("logit_entropy", "raise_entropy", "logit entropy, nats")
    falls = []
    for model, data in _by_layer("logit_entropy"):
        entropy = data["logit_entropy"].sel(subject=MODEL).values
        _, middle, _ = split_thirds(len(entropy))
        fall = entropy[middle].mean(0) - entropy[-1]
        falls.append(ClaimPart(model, fall, "logit entropy, nats"))
    return _judge(result, {"consolidates": falls})


@from_record("S3-F1E")
def entropic_ranks() -> MeasuredValues:
    """Compare the entropic rank of the heads of the layers."""
    return _of_layers("write_entropy", "higher_rank", "entropic rank", np.exp)


@from_record("S3-F22")
def gains() -> MeasuredValues:
    """Measure by how much the middle layers improve the forecast that is read there."""
    result = _result()
    parts = []
    twins = []
    for model, data in _by_layer("error"):
        error = data["error"].transpose("subject", "metric", "layer", "series")
        gain = 100 * error.diff("layer").values / error.isel(layer=slice(-1)).values
        _, middle, _ = split_thirds(error.sizes["layer"])
        # the first layer has no gain, so layer 1 is at 0
        of_middle = gain[:, :, np.array(middle) - 1]
        changes = np.median(of_middle, axis=-1).mean((1, 2))
        of = "median change of the error by the middle layers, %"
        twins.append(beyond_twins(model, changes[0], changes[1:], of))
        for metric, of_metric in zip(error["metric"].values, gain[0], strict=True):
            for layer, values in enumerate(of_metric, start=1):
                text = f"{model}: median gain, {metric}, layer {layer}"
                result.add(text, np.median(values), unit="%")
                if layer in middle:
                    words = f"{model} layer {layer} {metric}"
                    of = f"gain + {SMALLEST_GAIN:g} %"
                    parts.append(ClaimPart(words, values + SMALLEST_GAIN, of))
    claim = "the middle layers do not improve the forecast"
    return _judge(result, {"no_improvement": parts}, {claim: twins})


# --- heads ----------------------------------------------------------------------------


def _stable_ranks(model: str) -> np.ndarray:
    """Return (layer, head) the stable ranks of a model's cross-attention."""
    data = record("lens_heads").sel(model=model, subject=MODEL)
    return np.asarray(data["stable_rank"].values)


def _orders(model: str) -> dict[str, np.ndarray]:
    """Return the heads of each layer (layer, head) in the order in which they go."""
    low = _stable_ranks(model).argsort(axis=1)
    return {"lowest stable rank first": low, "highest first": low[:, ::-1]}


def _without(data: xr.Dataset, layer: int, heads: Sequence[int]) -> np.ndarray:
    """Return (series,) the rise of the error without some heads of a layer."""
    code = "".join(map(str, sorted(heads)))
    rise = data["rise"].sel(variant=f"heads {layer} | {layer}:h{code}")
    return np.asarray(rise.values)


def _kept(data: xr.Dataset, layer: int, order: Sequence[int]) -> int:
    """Count the heads that are kept at heads@1pp, in an order."""
    for count in range(len(order), 0, -1):
        if np.expm1(_without(data, layer, order[:count]).mean()) < WITHIN:
            return len(order) - count
    return len(order)


@from_record("S3-F7", "S3-F10", "S3-F11")
def heads_kept() -> MeasuredValues:
    """Ablate the heads of each layer by stable rank, beside all sets of as many."""
    result = _result()
    parts = []
    for model in HEADED:
        data = ablations(model)
        logs: xr.DataArray = xr.apply_ufunc(np.log, data["MASE"])
        error = logs.mean(("seed", "series"))
        relative = error.sel(variant=PLAIN) - error.sel(variant="seasonal naive")
        text = f"{model}: MASE over the seasonal naive's, whole model"
        result.add(text, np.exp(float(relative)))
        orders = _orders(model)
        n_layers, n_heads = _stable_ranks(model).shape
        for layer in range(n_layers):
            for text, order in orders.items():
                kept = _kept(data, layer, order[layer].tolist())
                result.add(f"{model}: heads kept in layer {layer}, {text}", kept)
        counts = range(1, n_heads)
        # what any set of as many heads does is averaged over all sets
        saved = {
            text: np.mean(
                [
                    _any(data, layer, n_heads, count)
                    - _without(data, layer, order[layer].tolist()[:count])
                    for layer in range(n_layers)
                    for count in counts
                ],
                axis=0,
            )
            for text, order in orders.items()
        }
        # the order is chosen on every other series, and tested on the others
        best = max(saved, key=lambda text: float(saved[text][::2].mean()))
        words = f"{model} {best}"
        of = "rise of log MASE of all sets of as many heads, less that of the order"
        parts.append(ClaimPart(words, saved[best][1::2], of))
    result.notes = (
        "in a layer of four heads the paper's counts of 12 or 16 do not compare",
    )
    return _judge(result, {"ranked": parts})


def _any(data: xr.Dataset, layer: int, n_heads: int, count: int) -> np.ndarray:
    """Average the rise of the error over all sets of so many heads of a layer."""
    sets = combinations(range(n_heads), count)
    return np.mean([_without(data, layer, heads) for heads in sets], axis=0)


def _heavy(
    published: Sequence[str] = (), metrics: Sequence[str] = ()
) -> MeasuredValues:
    """Compare recipes at heads@1pp with as many parts drawn from anywhere.

    Claims are about the model's own heads@1pp. Of the published recipes, which are
    scaled to the model, and of further metrics there are numbers alone.
    """
    result = _result()
    parts = Parts(list)
    for model, family in product(HEADED, (*OWN, *published)):
        data = ablations(model)
        (chosen,) = variants(data, family, "chosen")
        random = variants(data, family, "random anywhere")
        rise = data["rise"]
        own = rise.sel(variant=chosen).values
        drawn = rise.sel(variant=random)
        name = f"{family}, {model}"
        code = chosen.partition(": ")[2]
        gone = sum(map(len, re.findall(r"h(\d+)", code)))
        share = 100 * gone / _stable_ranks(model).size
        result.add(f"{name}: heads ablated", share, unit="%")
        result.add(f"{name}: MLPs ablated", code.count("m"))
        reached = np.sum(np.mean(drawn.values, axis=1) <= np.mean(own))
        text = f"{name}: draws of {len(random)} that raise MASE no more"
        result.add(text, reached)
        logs = {"MASE": own, "MASE, parts at random": drawn.mean("variant").values}
        for metric in metrics:
            logarithm: xr.DataArray = xr.apply_ufunc(np.log, data[metric])
            by_recipe = "recipe" in logarithm.dims
            rows = (
                {"recipe": [family, PLAIN]}
                if by_recipe
                else {"variant": [chosen, PLAIN]}
            )
            of_recipe, of_plain = logarithm.mean("seed").sel(rows).values
            logs[metric] = of_recipe - of_plain
        for metric, values in logs.items():
            numbers = _percent(values)
            result.add(f"{name}: change of {metric}", *numbers, unit="%")
        if family in OWN:
            of = "rise of log MASE of random parts, less that of the recipe"
            margins = drawn.mean("variant").values - own
            parts["random_destroys"].append(ClaimPart(name, margins, of))
            of = f"log of {1 + MILD:g} less the rise of log MASE"
            parts["mild"].append(ClaimPart(name, np.log(1 + MILD) - own, of))
    result.notes = ("heads@1pp are found on the series that errors are measured on",)
    return _judge(result, parts)


from_record("S3-T1")(lambda: _heavy(PUBLISHED, ["CRPS"]))
from_record("S3-T4")(lambda: _heavy(PUBLISHED, ["NRMSE", "sMAPE", "CRPS", "MSIS"]))


def _figure(recipe: str) -> MeasuredValues:
    """Add the counts of the released lists to what is measured here."""
    result = _heavy()
    percent, n_mlps = released_share(recipe)
    counts = {"heads": percent, "MLPs ablated": float(n_mlps)}
    return replace(result, values={**counts, **result.values})


for _item, _name in RELEASED.items():
    from_record(_item)(partial(_figure, _name))


def released_share(name: str) -> tuple[float, int]:
    """Count the heads that a recipe ablates, in percent of all, and its MLPs.

    A layer is ablated down to heads@1pp, the smallest number of heads that keeps the
    error within one percent, as the paper's authors released it.
    """
    recipe = read_recipe(name)
    lists = recipe.lists
    # a recipe that is measured on the model would have none
    assert lists is not None
    named_layers = {
        layer
        for group in recipe.layers_at
        if isinstance(group.layers, tuple)
        for layer in group.layers
    }
    count = 0
    for group in recipe.layers_at:
        # without numbers, a group of these recipes is "others": all unnamed layers
        layers = (
            group.layers
            if isinstance(group.layers, tuple)
            else set(range(len(lists.kept))) - named_layers
        )
        # a group keeps its extra heads beside the released number
        count += sum(
            max(lists.n_heads - lists.kept[layer] - group.extra, 0) for layer in layers
        )
    return 100 * count / (lists.n_heads * len(lists.kept)), len(recipe.mlps)


@from_record("S3-F16", "S3-F17", "S3-F18", "S3-F19")
def by_series() -> MeasuredValues:
    """Compare the heads of the layer that can best go with those of the worst."""
    result = _result()
    claim = "MASE rises less without those heads than without as many random heads"
    parts = Parts(list)
    for model in HEADED:
        data = ablations(model)
        rise = data["rise"].sel(variant=single_layers(data, "heads")).values
        for layer, values in enumerate(rise):
            far = f"{model}: series on which MASE rises by a quarter, layer {layer}"
            result.add(far, (values > np.log(1.25)).sum())
        most, least, margins = _chosen_layers(rise)
        words = f"{model} layer {least} beside layer {most}"
        parts["kinder"].append(ClaimPart(words, margins, "rise of log MASE"))
        # as many heads as a layer has, drawn from anywhere
        random = data["rise"].sel(variant=variants(data, "random", "random heads"))
        margins = (random.mean("variant").values - rise[least])[1::2]
        words = f"{model} layer {least} beside random heads"
        parts[claim].append(ClaimPart(words, margins, "rise of log MASE"))
    result.settings["layers"] = "chosen on every other series, tested on the others"
    return _judge(result, parts)


@from_record("S3-F20")
def sharp_heads() -> MeasuredValues:
    """Compare forecasts without sharp, diffuse and random heads of cross-attention."""
    result = _result()
    parts = Parts(list)
    for model in HEADED:
        data = ablations(model)
        heads = record("lens_heads").sel(model=model, subject=MODEL)
        entropy = heads["entropy"].mean("series").values
        names = np.array(variants(data, "cross heads"))
        order = names[entropy.ravel().argsort()]
        first, *others = order
        parts["sharp_head"] += _sharp_parts(
            data, f"{model}, 1 head", first, others[-1], others
        )
        for count in (2, 3):
            one, other, random = (
                variants(data, "sharp", f"{text} {count}")
                for text in ("sharpest", "most diffuse", "random")
            )
            name = f"{model}, {count} heads"
            parts["six_heads"] += _sharp_parts(data, name, one[0], other[0], random)
        for name in ("sharpest 2", "most diffuse 2"):
            (variant,) = variants(data, "sharp", name)
            moved = data["moved"].sel(variant=variant).values
            text = f"{model}: mean Spearman distance without the {name}"
            result.mean(text, moved, bounds=SPEARMAN_BOUNDS)
    result.notes = (
        "six of 144 heads are 4 %; here two and three of 12 heads are ablated",
    )
    return _judge(result, parts)


def _sharp_parts(
    data: xr.Dataset, name: str, sharp: str, diffuse: str, random: Sequence[str]
) -> list[ClaimPart]:
    moved = data["moved"]
    own = moved.sel(variant=sharp)
    others = {
        "diffuse": moved.sel(variant=diffuse),
        "random": moved.sel(variant=random).mean("variant"),
    }
    rise = data["rise"].sel(variant=sharp).values
    return [
        ClaimPart(f"{name}: the error rises", rise, "log ratio of MASE"),
        *(
            ClaimPart(
                f"{name}: the forecast moves further than without {text} heads",
                (own - other).values,
                "Spearman distance",
            )
            for text, other in others.items()
        ),
    ]


# --- induction ------------------------------------------------------------------------


def _scores(subject: str) -> HeadScores:
    """Return the scores of chronos-nano's heads, or of a twin's."""
    data = record("lens_heads").sel(model="chronos-nano", subject=subject)
    prefix, copy, entropy = (
        data[name].stack(heads=("layer", "head")).values
        for name in ("prefix_matching", "copy_score", "entropy")
    )
    known = np.isfinite(copy).all(axis=1)
    return HeadScores(prefix[known], copy[known], entropy, 0)


def _of_heads() -> tuple[MeasuredValues, HeadScores]:
    result = _result(["chronos-nano"])
    result.settings["sequences"] = "64, in 16 parts"
    return result, _scores(MODEL)


def _twin_scores() -> list[HeadScores]:
    """Return the scores of the twins that have a copy score."""
    names = map(str, record("lens_heads")["subject"].values)
    twins = [_scores(name) for name in names if name != MODEL]
    return [twin for twin in twins if len(twin.prefix)]


NO_INDUCTION = (
    "no head of chronos-nano is an induction head by the paper's thresholds: a model"
    " that has some is needed, as amazon/chronos-t5-base (200 million parameters,"
    " 0.8 GB)"
)


@from_record("S3-T5")
def overlap() -> MeasuredValues:
    """Measure the overlap of induction and sharp heads."""
    result, scores = _of_heads()
    for name, values in proportions(*scores.bootstrap_means).items():
        result.add(name, values[0])
    result.claims["better_than_random"] = _if_inducing(scores, overlap_verdict(scores))
    return result


@from_record("S3-F23")
def thresholds() -> MeasuredValues:
    """Measure how the scores of heads go together."""
    result, scores = _of_heads()
    result.claims |= threshold_verdicts(scores)
    result.claims["relaxed"] = _if_inducing(scores, result.claims["relaxed"])
    together = result.claims["scores_go_together"].parts
    of_twins = [_correlations(threshold_verdicts(twin)) for twin in _twin_scores()]
    tests = [
        beyond_twins(part.words, own, np.array(twins), part.of)
        for part, own, *twins in zip(
            together, _correlations(result.claims), *of_twins, strict=True
        )
    ]
    _judge(result, {}, {"the scores of heads go together": tests})
    names = ("prefix-matching score", "copy score", "normalised entropy")
    means = [values[0] for values in scores.bootstrap_means]
    correlation = pd.DataFrame(dict(zip(names, means, strict=True))).corr()
    for one, other in combinations(names, 2):
        text = f"correlation of {one} and {other} over heads"
        result.add(text, correlation.loc[one, other])
    return result


def _correlations(claims: Mapping[str, Verdict]) -> list[float]:
    """Return the correlations of the scores that a claim says go together."""
    spans = [part.interval for part in claims["scores_go_together"].parts]
    return [span.estimate for span in spans if span is not None]


def _if_inducing(scores: HeadScores, verdict: Verdict) -> Verdict:
    """Return a verdict on induction heads, open where there is none."""
    return verdict if _inducing(scores) else undecided(NO_INDUCTION, "")


@from_record("S3-HENT", "S3-PREF")
def head_counts() -> MeasuredValues:
    """Count sharp heads and induction heads, of the model and of its twins."""
    result, scores = _of_heads()
    twins = _twin_scores()
    for text, count in (("sharp", _sharp), ("induction", _inducing)):
        result.add(
            f"{text} heads of all",
            100 * count(scores) / scores.entropy.shape[1],
            unit="%",
        )
        result.add(f"{text} heads", count(scores))
        most = max(map(count, twins))
        result.add(f"{text} heads of an untrained twin, at most", most)
    return result


def _sharp(scores: HeadScores) -> int:
    return round(
        12 * float(proportions(*scores.bootstrap_means)["proportion sharp"][0])
    )


def _inducing(scores: HeadScores) -> int:
    prefix, copy, _ = scores.bootstrap_means
    return int(inducing(prefix, copy)[0].sum())


# --- patches --------------------------------------------------------------------------


@from_record("S3-F21")
def patches() -> MeasuredValues:
    """Measure the cross-attention between patches of bolt-nano on Lorenz-63."""
    data = record("lens_patches").isel(model=0)
    ordinary = data["key_special"].values == 0
    # the last layer and head, as the paper's are the last third of each
    attention = data["attention"].isel(layer=-1, head=-1).transpose("key", "query")
    patch = int(attention.values[ordinary].sum(1).argmax())
    width = int(data["key_stop"][0] - data["key_start"][0])
    result = MeasuredValues(
        {
            "context patches": float(ordinary.sum()),
            "context tokens with the register": float(data.sizes["key"]),
            "decoder patches": float(data.sizes["query"]),
            "patch that layer 3, head 4 attends to most": float(patch),
            "first step of that patch": float(patch * width),
        },
        {"model": "bolt-nano", "head": "layer 2, head 3", "series": "Lorenz-63"},
    )
    why = (
        "a head 7 and a layer 3 are needed, which no embedded model has:"
        " amazon/chronos-bolt-small (48 million parameters, 0.2 GB)"
    )
    result.claims["ablated_last"] = undecided(why, "stable rank of the weights")
    return result
