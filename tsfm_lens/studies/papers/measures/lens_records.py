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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.probes.attention import SHARP_BELOW
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
    interval,
    undecided,
)
from tsfm_lens.sweep.planner.recipes import middle_third, read_recipe

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
SMALLEST_GAIN = 1.0
"""Percent of the error by which a layer must improve the forecast to count.

The paper tolerates as much where it ablates heads (heads@1pp).
"""


# --- records --------------------------------------------------------------------------


@cache
def ablations(model: str) -> xr.Dataset:
    """Load a model's ablations, with ``rise``, the logarithm of MASE over the plain."""
    data = record(f"lens_ablations_{MODELS[model]}")
    error = xr.apply_ufunc(np.log, data["MASE"])
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


def _rises(data: xr.Dataset, names: Sequence[str]) -> np.ndarray:
    """Return (variant, series) the rise of the error of some variants."""
    return np.asarray(data["rise"].sel(variant=names).values)


def _result(models: Iterable[str] = HEADED) -> MeasuredValues:
    data = ablations(HEADED[0])
    settings = {
        "model": list(models),
        "series": f"{data.sizes['series']}: 13 bundled and 24 chaotic ones",
        "horizon": data.attrs["horizon"],
        "intervals over": SERIES,
    }
    return MeasuredValues(settings=settings, over=SERIES)


def _judge_twins(result: MeasuredValues, claim: str, *numbers: Any) -> None:
    """Add a part to a claim that is tested by :func:`beyond_twins` of these numbers."""
    claim = f"{claim}, more so than in untrained twins"
    earlier = result.claims.get(claim, Verdict(())).parts
    result.claims[claim] = Verdict((*earlier, beyond_twins(*numbers)), "twin")


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


def ablatable_parts(distance: np.ndarray, model: str = "") -> list[ClaimPart]:
    """Compare the middle layers with all earlier, all later, the first and the last.

    ``distance`` is (layer, seed, window).
    """
    before, middle, after = split_thirds(len(distance))
    middle_distance = distance[middle].mean(0)
    # in a small model the first layer is the only earlier one, and counts once
    rest = dict.fromkeys((tuple(before), tuple(after), (0,), (len(distance) - 1,)))
    return [
        ClaimPart(
            f"{model} than {_layers_label(layers)}",
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
    names = [name for name in data["variant"].values if re.search(end, name)]
    moved = data["spearman_distance"].sel(variant=names)
    return np.asarray(moved.transpose("twin", "variant", "series").values)


def _ablatability(moved: np.ndarray) -> float:
    """Average how much less the middle layers move a forecast than the ends."""
    parts = ablatable_parts(moved)
    return float(np.mean([pd.Series(part.margins).mean() for part in parts]))


@from_record("S3-F2", kind="both")
@from_record("S3-F8", kind="heads")
@from_record("S3-F9", kind="mlp")
def ablated_layers(*, kind: str) -> MeasuredValues:
    """Compare forecasts without a part of each layer, on models and untrained twins."""
    models = [model for model in MODELS if single_layers(ablations(model), kind)]
    result = _result(models)
    for model in models:
        data = ablations(model)
        moved = data["moved"].sel(variant=single_layers(data, kind)).values
        result.claim("ablatable", *ablatable_parts(moved, model))
        if kind != "both":
            most, least, margins = _chosen_layers(moved)
            words = f"{model} layer {most} against layer {least}"
            result.judge("varies", margins, "Spearman distance", words)
        text = f"{model}: mean Spearman distance, layer {{}}"
        result.means(text, dict(enumerate(moved)), SPEARMAN_BOUNDS)
        if model in HEADED:
            of_twins = np.array(list(map(_ablatability, _twin_moves(model, kind))))
            claim = "middle layers are more ablatable"
            of = "distance at the ends less that of the middle"
            own = _ablatability(moved)
            _judge_twins(result, claim, model, own, of_twins, of)
    return result


def _chosen_layers(values: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Choose the highest and the lowest layer on every other series.

    Third comes their difference on the others; values are (layer, series).
    """
    by_layer = values[:, ::2].mean(1)
    most, least = int(by_layer.argmax()), int(by_layer.argmin())
    return most, least, (values[most] - values[least])[1::2]


def _add_change(result: MeasuredValues, text: str, logs: np.ndarray) -> None:
    """Add the mean of logarithms, with its interval, as a change in percent."""
    mean = interval(logs)
    numbers = 100 * np.expm1([mean.estimate, mean.low, mean.high])
    result.add(text, *numbers, unit="%")


@from_record("S3-F3")
def most_ablatable() -> MeasuredValues:
    """Measure errors without parts of the layer that can best go."""
    result = _result(MODELS)
    for model in MODELS:
        data = ablations(model)
        both = _rises(data, single_layers(data, "both"))
        layer = int(both.mean(1).argmin())
        result.add(f"{model}: most ablatable layer", layer)
        for kind, text in TEXTS.items():
            if names := single_layers(data, kind):
                text = f"change of MASE without {text} of that layer, {model}"
                _add_change(result, text, _rises(data, names)[layer])
    return result


@from_record("S3-F4")
def ranges() -> MeasuredValues:
    """Measure errors without ranges of layers; the claim is about two other models."""
    result = _result(MODELS)
    for model in MODELS:
        data = ablations(model)
        for family in ("all heads", "mlps") if model in HEADED else ("ranges",):
            for name in variants(data, family):
                if name.count(":") > 1:
                    part = name.partition(" | ")[2]
                    text = f"change of MASE without {part}, {model}"
                    _add_change(result, text, _rises(data, name))
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


def _risen(values: np.ndarray, model: str = "") -> list[ClaimPart]:
    """Compare the middle layers of (layer, series) with those before and after."""
    before, middle, after = split_thirds(len(values))
    return [
        ClaimPart(
            f"{model} than {words}", values[middle].mean(0) - values[rest].mean(0), ""
        )
        for words, rest in (("before", before), ("after", after))
    ]


def _of_layers(
    name: str, claim: str, quantity: str, scale: Callable[..., np.ndarray] = np.asarray
) -> MeasuredValues:
    result = _result([])
    models = []
    for model, data in _by_layer(name):
        # (subject, layer, series)
        values = scale(data[name].transpose("subject", "layer", "series").values)
        result.claim(claim, *_risen(values[0], model))
        size = [np.mean([part.margins.mean() for part in _risen(of)]) for of in values]
        twins = np.array(size[1:])
        stand_out = "the middle layers stand out"
        _judge_twins(result, stand_out, model, size[0], twins, quantity)
        models.append(model)
        text = f"{model}: mean {quantity}, layer {{}}"
        result.means(text, dict(enumerate(values[0])), POSITIVE)
    result.settings["model"] = ", ".join(models)
    return result


@from_record("S3-F1D")
def logit_entropy() -> MeasuredValues:
    """Compare the entropy of the logits after the layers."""
    of = "logit entropy, nats"
    result = _of_layers("logit_entropy", "raise_entropy", of)
    for model, data in _by_layer("logit_entropy"):
        entropy = data["logit_entropy"].sel(subject=MODEL).values
        _, middle, _ = split_thirds(len(entropy))
        fall = entropy[middle].mean(0) - entropy[-1]
        result.judge("consolidates", fall, of, model)
    return result


@from_record("S3-F1E")
def entropic_ranks() -> MeasuredValues:
    """Compare the entropic rank of the heads of the layers."""
    return _of_layers("write_entropy", "higher_rank", "entropic rank", np.exp)


@from_record("S3-F22")
def gains() -> MeasuredValues:
    """Measure by how much the middle layers improve the forecast that is read there."""
    result = _result()
    for model, data in _by_layer("error"):
        error = data["error"].transpose("subject", "metric", "layer", "series")
        gain = 100 * error.diff("layer").values / error.isel(layer=slice(-1)).values
        _, middle, _ = split_thirds(error.sizes["layer"])
        for metric, of_metric in zip(error["metric"].values, gain[0], strict=True):
            for layer, values in enumerate(of_metric, start=1):
                text = f"{model}: median gain, {metric}, layer {layer}"
                result.add(text, np.median(values), unit="%")
                if layer in middle:
                    words = f"{model} layer {layer} {metric}"
                    of = f"gain + {SMALLEST_GAIN:g} %"
                    result.judge("no_improvement", values + SMALLEST_GAIN, of, words)
        # the first layer has no gain, so layer 1 is at 0
        of_middle = gain[:, :, np.array(middle) - 1]
        changes = np.median(of_middle, axis=-1).mean((1, 2))
        of = "median change of the error by the middle layers, %"
        text = "the middle layers do not improve the forecast"
        _judge_twins(result, text, model, changes[0], changes[1:], of)
    return result


# --- heads ----------------------------------------------------------------------------


def _heads(model: str) -> xr.Dataset:
    """Load what was measured of the heads of a model, without its twins."""
    return record("lens_heads").sel(model=model, subject=MODEL)


def _without(data: xr.Dataset, layer: int, heads: Iterable[int]) -> np.ndarray:
    """Return (series,) the rise of the error without some heads of a layer."""
    code = "".join(map(str, sorted(heads)))
    return _rises(data, f"heads {layer} | {layer}:h{code}")


def _kept(data: xr.Dataset, layer: int, order: Sequence[int]) -> int:
    """Count the heads that are kept at heads@1pp, in an order."""
    for kept in range(len(order)):
        gone = order[: len(order) - kept]
        if np.expm1(_without(data, layer, gone).mean()) < WITHIN:
            return kept
    return len(order)


@from_record("S3-F7", "S3-F10", "S3-F11")
def heads_kept() -> MeasuredValues:
    """Ablate the heads of each layer by stable rank, beside all sets of as many."""
    result = _result()
    for model in HEADED:
        data = ablations(model)
        error = xr.apply_ufunc(np.log, data["MASE"]).mean(("seed", "series"))
        relative = error.sel(variant=PLAIN) - error.sel(variant="seasonal naive")
        text = f"{model}: MASE over the seasonal naive's, whole model"
        result.add(text, np.exp(float(relative)))
        # (layer, head), the heads of each layer in the order in which they go
        low = _heads(model)["stable_rank"].values.argsort(axis=1)
        orders = {"lowest stable rank first": low, "highest first": low[:, ::-1]}
        for layer, (text, order) in product(range(len(low)), orders.items()):
            kept = _kept(data, layer, order[layer])
            result.add(f"{model}: heads kept in layer {layer}, {text}", kept)
        # what any set of as many heads does is averaged over all sets
        saved = {
            text: np.mean(
                [
                    np.mean(
                        [
                            _without(data, layer, heads)
                            for heads in combinations(range(len(of)), n)
                        ],
                        axis=0,
                    )
                    - _without(data, layer, of[:n])
                    for layer, of in enumerate(order)
                    for n in range(1, len(of))
                ],
                axis=0,
            )
            for text, order in orders.items()
        }
        # the order is chosen on every other series, and tested on the others
        best = max(saved, key=lambda text: float(saved[text][::2].mean()))
        words = f"{model} {best}"
        of = "rise of log MASE of all sets of as many heads, less that of the order"
        result.judge("ranked", saved[best][1::2], of, words)
    result.notes = (
        "in a layer of four heads the paper's counts of 12 or 16 do not compare",
    )
    return result


@from_record("S3-T1", published=PUBLISHED, metrics=["CRPS"])
@from_record("S3-T4", published=PUBLISHED, metrics=["NRMSE", "sMAPE", "CRPS", "MSIS"])
def heavy(
    *, published: Sequence[str] = (), metrics: Sequence[str] = ()
) -> MeasuredValues:
    """Compare recipes at heads@1pp with as many parts drawn from anywhere.

    Claims are about the model's own heads@1pp. Of the published recipes, which are
    scaled to the model, and of further metrics there are numbers alone.
    """
    result = _result()
    for model, family in product(HEADED, (*OWN, *published)):
        data = ablations(model)
        (chosen,) = variants(data, family, "chosen")
        random = _rises(data, variants(data, family, "random anywhere"))
        own = _rises(data, chosen)
        name = f"{family}, {model}"
        code = chosen.partition(": ")[2]
        gone = sum(map(len, re.findall(r"h(\d+)", code)))
        share = 100 * gone / _heads(model)["stable_rank"].size
        result.add(f"{name}: heads ablated", share, unit="%")
        result.add(f"{name}: MLPs ablated", code.count("m"))
        text = f"{name}: draws of {len(random)} that raise MASE no more"
        result.add(text, np.sum(random.mean(1) <= own.mean()))
        logs = {"MASE": own, "MASE, parts at random": random.mean(0)}
        for metric in metrics:
            logarithm = xr.apply_ufunc(np.log, data[metric]).mean("seed")
            rows = {"variant": [chosen, PLAIN]}
            if "recipe" in logarithm.dims:
                rows = {"recipe": [family, PLAIN]}
            of_recipe, of_plain = logarithm.sel(rows).values
            logs[metric] = of_recipe - of_plain
        for metric, values in logs.items():
            _add_change(result, f"{name}: change of {metric}", values)
        if family in OWN:
            of = "rise of log MASE of random parts, less that of the recipe"
            result.judge("random_destroys", random.mean(0) - own, of, name)
            of = f"log of {1 + MILD:g} less the rise of log MASE"
            result.judge("mild", np.log(1 + MILD) - own, of, name)
    result.notes = ("heads@1pp are found on the series that errors are measured on",)
    return result


@from_record("S3-F15", recipe="bolt-60")
@from_record("S3-F14", recipe="toto-29")
@from_record("S3-F13", recipe="timesfm-51")
@from_record("S3-F6", recipe="timesfm-28")
def counted_heads(*, recipe: str) -> MeasuredValues:
    """Add the counts of the released lists to what is measured here."""
    percent, n_mlps = released_share(recipe)
    result = heavy()
    result.values = {"heads": percent, "MLPs ablated": float(n_mlps), **result.values}
    return result


def released_share(name: str) -> tuple[float, int]:
    """Count the heads that a recipe ablates, in percent of all, and its MLPs.

    A layer is ablated down to heads@1pp, the smallest number of heads that keeps the
    error within one percent, as the paper's authors released it.
    """
    recipe = read_recipe(name)
    lists = recipe.lists
    # a recipe that is measured on the model would have none
    assert lists is not None
    left = dict(enumerate(lists.kept))
    count = 0
    for group in recipe.layers_at:
        # without numbers, a group of these recipes is "others": all layers not named
        # so far
        layers = group.layers if isinstance(group.layers, tuple) else [*left]
        # a group keeps its extra heads beside the released number
        kept = [left.pop(layer) + group.extra for layer in layers]
        count += sum(max(lists.n_heads - number, 0) for number in kept)
    return 100 * count / (lists.n_heads * len(lists.kept)), len(recipe.mlps)


@from_record("S3-F16", "S3-F17", "S3-F18", "S3-F19")
def by_series() -> MeasuredValues:
    """Compare the heads of the layer that can best go with those of the worst."""
    result = _result()
    of = "rise of log MASE"
    beside_random = (
        "MASE rises less without those heads than without as many random heads"
    )
    for model in HEADED:
        data = ablations(model)
        rise = _rises(data, single_layers(data, "heads"))
        far = f"{model}: series on which MASE rises by a quarter, layer {{}}"
        result.add_each(far, dict(enumerate((rise > np.log(1.25)).sum(1))))
        most, least, margins = _chosen_layers(rise)
        words = f"{model} layer {least} beside"
        result.judge("kinder", margins, of, f"{words} layer {most}")
        # as many heads as a layer has, drawn from anywhere
        random = _rises(data, variants(data, "random", "random heads")).mean(0)
        margins = (random - rise[least])[1::2]
        result.judge(beside_random, margins, of, f"{words} random heads")
    result.settings["layers"] = "chosen on every other series, tested on the others"
    return result


@from_record("S3-F20")
def sharp_heads() -> MeasuredValues:
    """Compare forecasts without sharp, diffuse and random heads of cross-attention."""
    result = _result()
    for model in HEADED:
        data = ablations(model)
        entropy = _heads(model)["entropy"].mean("series").values
        names = np.array(variants(data, "cross heads"))
        first, *others = names[entropy.ravel().argsort()]
        name = f"{model}, 1 head"
        result.claim("sharp_head", *_sharp_parts(data, name, first, others[-1], others))
        for count in (2, 3):
            (sharp,), (diffuse,), random = (
                variants(data, "sharp", f"{text} {count}")
                for text in ("sharpest", "most diffuse", "random")
            )
            name = f"{model}, {count} heads"
            result.claim("six_heads", *_sharp_parts(data, name, sharp, diffuse, random))
        for name in ("sharpest 2", "most diffuse 2"):
            (variant,) = variants(data, "sharp", name)
            moved = data["moved"].sel(variant=variant).values
            text = f"{model}: mean Spearman distance without the {name}"
            result.mean(text, moved, SPEARMAN_BOUNDS)
    result.notes = (
        "six of 144 heads are 4 %; here two and three of 12 heads are ablated",
    )
    return result


def _sharp_parts(
    data: xr.Dataset, name: str, sharp: str, diffuse: str, random: Sequence[str]
) -> list[ClaimPart]:
    moved = data["moved"]
    parts = [
        ClaimPart(f"{name}: the error rises", _rises(data, sharp), "log ratio of MASE")
    ]
    for text, others in (("diffuse", [diffuse]), ("random", random)):
        other = moved.sel(variant=others).mean("variant")
        margins = (moved.sel(variant=sharp) - other).values
        words = f"{name}: the forecast moves further than without {text} heads"
        parts.append(ClaimPart(words, margins, "Spearman distance"))
    return parts


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
    names = record("lens_heads")["subject"].values
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
    result.claims = threshold_verdicts(scores)
    result.claims["relaxed"] = _if_inducing(scores, result.claims["relaxed"])
    # (model and twins, part)
    found = np.array(
        [
            _correlations(result.claims),
            *map(_correlations, map(threshold_verdicts, _twin_scores())),
        ]
    )
    for part, own, of_twins in zip(
        result.claims["scores_go_together"].parts, found[0], found[1:].T, strict=True
    ):
        claim = "the scores of heads go together"
        _judge_twins(result, claim, part.words, own, of_twins, part.of)
    names = ("prefix-matching score", "copy score", "normalised entropy")
    means = [values[0] for values in scores.bootstrap_means]
    correlation = pd.DataFrame(means, names).T.corr()
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
        share = 100 * count(scores) / scores.entropy.shape[1]
        result.add(f"{text} heads of all", share, unit="%")
        result.add(f"{text} heads", count(scores))
        most = max(map(count, twins))
        result.add(f"{text} heads of an untrained twin, at most", most)
    return result


def _sharp(scores: HeadScores) -> int:
    return int((scores.bootstrap_means[2][0] < SHARP_BELOW).sum())


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
            "context patches": ordinary.sum(),
            "context tokens with the register": data.sizes["key"],
            "decoder patches": data.sizes["query"],
            "patch that layer 3, head 4 attends to most": patch,
            "first step of that patch": patch * width,
        },
        {"model": "bolt-nano", "head": "layer 2, head 3", "series": "Lorenz-63"},
    )
    why = (
        "a head 7 and a layer 3 are needed, which no embedded model has:"
        " amazon/chronos-bolt-small (48 million parameters, 0.2 GB)"
    )
    result.claims["ablated_last"] = undecided(why, "stable rank of the weights")
    return result
