"""How each table or figure of the paper is measured here: one function an id."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, MissingExtraError
from tsfm_lens.hooks import Component
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.paper import measures_heads
from tsfm_lens.paper.measuring import Asked, Found, as_numbers, per_layer
from tsfm_lens.probes import ablation_recipes, entropic_rank, head_spectra, layer_gain, logit_lens, rollout_maps
from tsfm_lens.sweep.plan.recipes import read_recipe
from tsfm_lens.sweep.plan.released import middle_third


def _by_layer(data: xr.DataArray) -> tuple[np.ndarray, list[int], list[int]]:
    """Values of the numbered layers, and which of them are in the middle and which are not."""
    values = data.sel(layer=[name for name in data["layer"].values if str(name).isdigit()]).values
    middle = middle_third(len(values))
    return values, middle, [layer for layer in range(len(values)) if layer not in middle]


def _sizes(asked: Asked) -> Found:
    named = {
        "timesfm-2.5": ("TimesFM 2.5", "200m"),
        "chronos": ("Chronos", "base"),
        "chronos-bolt": ("Chronos-Bolt", "base"),
        "toto-1": ("Toto 1.0", "Open-Base-1.0"),
        "moirai-1.1": ("Moirai 1.1", "base"),
    }
    if asked.lens is not None:
        architecture = asked.lens.wiring.architecture
        return Found(_size(named[architecture][0], asked.lens) if architecture in named else {})
    values, missing = {}, []
    for architecture, (name, size) in named.items():
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
        f"{name}: heads a layer": stack.n_heads,
        f"{name}: steps a token": _steps_a_token(lens),
    }


def _steps_a_token(lens: Lens) -> int:
    """Steps that the longest token of a series covers, read off an encoded series."""
    context = as_series(np.sin(np.arange(256.0)))
    # the stack that reads the series comes first
    spans = lens.encode(context).spans[lens.wiring.stacks[0].name]
    return max(stop - start for start, stop in zip(spans.start, spans.stop, strict=True))


def _millions(lens: Lens) -> float:
    return sum(part.numel() for part in lens.parameters()) / 1e6


def _logit_entropy(asked: Asked) -> Found:
    result = logit_lens(asked.run)
    if "entropy" not in result:
        raise InputError(f"{asked.model.model_id} has no logits; the entropy after each layer is of token models")
    entropy, middle, others = _by_layer(result["entropy"].mean("step").median("series"))
    inside = float(np.mean(entropy[middle]))
    statements = {
        "the middle layers' median logit entropy lies above that of the other layers": inside
        > float(np.mean(entropy[others])),
        "the last layer's median logit entropy lies below the middle layers'": float(entropy[-1]) < inside,
    }
    more = per_layer("median entropy", entropy)
    return Found({**as_numbers(statements), **more}, asked.settings(), dict.fromkeys(more, "nats"))


def _entropic_rank(asked: Asked) -> Found:
    rank, middle, others = _by_layer(entropic_rank(asked.run)["rank"])
    holds = float(np.mean(rank[middle])) > float(np.mean(rank[others]))
    statement = {"the middle layers' entropic rank lies above that of the other layers": holds}
    return Found({**as_numbers(statement), **per_layer("entropic rank", rank)}, asked.settings())


def _distances(what: str, chosen: Callable[[str, bool], bool]) -> Callable[[Asked], Found]:
    def measure(asked: Asked) -> Found:
        stack = asked.model.wiring.output_stack
        middle = middle_third(stack.n_layers)
        recipes = {
            str(layer): [
                Component(stack.name, layer, row.kind)
                for row in stack.rows(layer)
                if chosen(row.kind, isinstance(row, Attention))
            ]
            for layer in range(stack.n_layers)
        }
        told = partial(asked.tell, "forecasts without layers")
        result = ablation_recipes(asked.run, recipes, progress=told)
        distance = result["spearman_distance"].sel(recipe=list(recipes)).mean("series").values
        ends = float(np.mean(distance[[0, -1]]))
        words = f"ablating {what} of a middle layer moves the forecast less than that of the first and last layers"
        statement = {words: float(np.mean(distance[middle])) < ends}
        return Found({**as_numbers(statement), **per_layer("mean Spearman distance", distance)}, asked.settings())

    return measure


def released_share(name: str) -> tuple[float, int]:
    """Heads that a recipe of the paper ablates, in percent of all, and MLPs, counted in the released heads@1pp."""
    recipe = read_recipe(name)
    lists = recipe.lists
    assert lists is not None
    listed = {layer for each in recipe.layers_at if isinstance(each.layers, tuple) for layer in each.layers}
    going = 0
    for each in recipe.layers_at:
        layers = each.layers if isinstance(each.layers, tuple) else set(range(len(lists.kept))) - listed
        going += sum(max(lists.n_heads - lists.kept[layer] - each.extra, 0) for layer in layers)
    return 100 * going / (lists.n_heads * len(lists.kept)), len(recipe.mlps)


def _released(quantity: str, recipe: str) -> Callable[[Asked], Found]:
    def measure(asked: Asked) -> Found:
        share, mlps = released_share(recipe)
        return Found({quantity: share, "MLPs ablated": float(mlps)})

    return measure


def _patches(asked: Asked) -> Found:
    stack = asked.model.wiring.output_stack
    if "cross_attn" not in stack.attention_kinds() or asked.model.adapter.readout == "token":
        raise InputError(
            f"{asked.model.model_id} has no cross-attention between patches; the figure is of Chronos-Bolt"
        )
    layer, head = min(3, stack.n_layers - 1), min(4, stack.n_heads - 1)
    maps = rollout_maps(asked.run.select([0]), keys="window")
    ordinary = np.flatnonzero(maps["key_special"].values == "")
    mass = maps["attention"].sel(layer=str(layer), head=head).values[ordinary].sum(axis=1)
    patch = int(mass.argmax())
    width = int(maps["key_stop"].values[ordinary[0]] - maps["key_start"].values[ordinary[0]])
    ranks = head_spectra(asked.model, kind="cross_attn", products=["QK"])["stable_rank"].sel(product="QK")
    values = {
        "context patches": float(len(ordinary)),
        "context tokens with the register": float(maps.sizes["key"]),
        "decoder patches": float(maps.sizes["query"]),
        "patch that layer 3, head 4 attends to most": float(patch),
        "first step of that patch": float(patch * width),
    }
    if stack.n_heads > 7 and stack.n_layers > 3:
        order = np.argsort(ranks.sel(layer="3").values)
        last = any(set(end.tolist()) == {0, 7} for end in (order[:2], order[-2:]))
        values |= as_numbers({"by stable rank, heads 0 and 7 of layer 3 are ablated last": last})
    for row in dict.fromkeys((0, layer)):
        each = ranks.sel(layer=str(row)).values
        values |= {f"stable rank of layer {row}, head {index}": float(rank) for index, rank in enumerate(each)}
    return Found(values, {**asked.settings(), "windows": "1", "head": f"layer {layer}, head {head}"})


def _gains(asked: Asked) -> Found:
    result = logit_lens(asked.run)
    gain = layer_gain(result)["gain"]
    statements: dict[str, bool] = {}
    more: dict[str, float] = {}
    for metric in gain["metric"].values:
        median, middle, _ = _by_layer(gain.sel(metric=metric).median("series"))
        words = f"the median gain of the middle layers is no improvement: {metric}"
        statements[words] = bool(np.median(median[middle]) >= 0)
        more |= per_layer(f"median gain, {metric}", median)
    return Found({**as_numbers(statements), **more}, asked.settings(), dict.fromkeys(more, "%"))


MEASURES: dict[str, Callable[[Asked], Found]] = {
    "S3-SYS": _sizes,
    "S3-F1D": _logit_entropy,
    "S3-F1E": _entropic_rank,
    "S3-F2": _distances("heads and MLP", lambda kind, heads: True),
    "S3-F6": _released("heads ablated with layers 7 to 13 at heads@1pp", "timesfm-28"),
    "S3-F8": _distances("all heads", lambda kind, heads: heads),
    "S3-F9": _distances("the MLP", lambda kind, heads: not heads),
    "S3-F13": _released(
        "heads ablated with layers 7 to 13 at heads@1pp and all others at one head more",
        "timesfm-51",
    ),
    "S3-F14": _released("heads ablated with layers 2, 9, 10 and 11 at heads@1pp", "toto-29"),
    "S3-F15": _released("heads ablated with layers 0 to 10 at heads@1pp", "bolt-60"),
    "S3-F20": measures_heads.without_sharp_heads,
    "S3-F21": _patches,
    "S3-F22": _gains,
    "S3-F23": measures_heads.thresholds,
    "S3-HENT": measures_heads.sharp_share,
    "S3-PREF": measures_heads.induction_share,
    "S3-RRT": measures_heads.motif_tokens,
    "S3-T5": measures_heads.table_5,
}
