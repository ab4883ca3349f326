"""Measures of heads: forecasts without sharp heads, shares ablated, attended patches.

A head is sharp if the entropy of its attention is low. Read :func:`forecast_ablated`
first, which other modules use as well: it compares forecasts with and without given
components. Entropies and ablations themselves are probes of :mod:`tsfm_lens.probes`;
induction heads are in :mod:`tsfm_lens.studies.papers.measures.induction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks import Component
from tsfm_lens.probes import (
    ablation_recipes,
    autoregressive_attention,
    diffuse_heads,
    head_entropy,
    head_spectra,
    sharp_heads,
)
from tsfm_lens.probes.recipes import ORIGINAL
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure
from tsfm_lens.studies.papers.verdicts import (
    SPEARMAN_BOUNDS,
    ClaimPart,
    Verdict,
    exactly,
)
from tsfm_lens.sweep.planner.recipes import read_recipe

# the paper measures Spearman distances over so many first steps of a forecast
COMPARED = 64


def forecast_ablated(
    context: Context,
    recipes: Mapping[str, Sequence[Component]],
    label: str,
    *,
    steps: int | None = None,
    offset: int = 0,
) -> xr.Dataset:
    """Compare forecasts without components with the full model's, for every seed.

    Progress is reported under ``label``, after ``offset`` units of work of the caller.

    Returns:
        Dataset over (recipe, seed, series): ``spearman_distance``, and where there is a
        truth ``error_ratio``, the log of the mean absolute error over the full model's.
    """
    runs = [
        run if steps is None else run.shortened(steps) for run in context.runs_by_seed()
    ]
    if runs[0].horizon < 2:
        raise InputError(
            "the Spearman distance compares the order of a forecast's steps; give a"
            " horizon of 2 or more"
        )
    by_seed = []
    for seed_index, run in enumerate(runs):
        done_before = offset + seed_index * len(recipes)

        # `before` is bound here, since the next round of the loop changes done_before
        def report(count: int, _: int, before: int = done_before) -> None:
            context.report(label, before + count, offset + len(runs) * len(recipes))

        result = ablation_recipes(run, recipes, progress=report)
        changes = result[["spearman_distance"]]
        if "mae" in result:
            # an error of 0 has no logarithm
            error = result["mae"].where(result["mae"] > 0)
            changes = changes.assign(
                error_ratio=np.log(error / error.sel(recipe=ORIGINAL, drop=True))
            )
        by_seed.append(changes.sel(recipe=list(recipes)))
    return xr.concat(by_seed, dim="seed").transpose("recipe", "seed", "series")


@measure("S3-F20")
def without_sharp_heads(context: Context) -> MeasuredValues:
    """Measure how far forecasts move without sharp and without diffuse heads."""
    windows = len(context.run.batch)
    seeds = len(context.runs_by_seed())

    def report(number: int, _: int) -> None:
        # the four recipes below follow, for every seed
        context.report("attention of every window", number, windows + 4 * seeds)

    steps = min(COMPARED, context.run.horizon)
    # head_entropy() refuses a horizon longer than one pass
    entropy = head_entropy(
        context.run.shortened(min(steps, context.model.adapter.longest_pass)),
        progress=report,
    )
    # at most half of all heads, so that no head is in both sets
    count = min(6, entropy["entropy"].size // 2)
    recipes = {
        "sharpest": sharp_heads(entropy),
        "most diffuse": diffuse_heads(entropy),
        "sharpest six": sharp_heads(entropy, count),
        "most diffuse six": diffuse_heads(entropy, count),
    }
    forecasts = forecast_ablated(
        context, recipes, "forecasts without heads", steps=steps, offset=windows
    )
    distance = forecasts["spearman_distance"]

    def claim(sharp: str, diffuse: str, heads: str) -> Verdict:
        error_rise = forecasts["error_ratio"].sel(recipe=sharp).values
        excess = (distance.sel(recipe=sharp) - distance.sel(recipe=diffuse)).values
        without = f"without the {sharp} {heads}"
        return context.verdict(
            ClaimPart(
                f"{without} the forecast's error rises",
                error_rise,
                "log ratio of mean absolute errors",
            ),
            ClaimPart(
                f"{without} it moves further than without the {diffuse}",
                excess,
                "Spearman distance",
            ),
        )

    settings = {**context.settings(over_seeds=True), "steps compared": str(steps)}
    claims = {
        "sharp_head": claim("sharpest", "most diffuse", "head"),
        "six_heads": claim("sharpest six", "most diffuse six", "heads"),
    }
    percent = 100 * count / entropy["entropy"].size
    result = MeasuredValues({"six heads of all": percent}, settings, claims=claims)
    for name in recipes:
        values = distance.sel(recipe=name).values
        result.mean(
            f"mean Spearman distance without the {name}",
            values,
            context.select_series(values.shape[-1]),
            bounds=SPEARMAN_BOUNDS,
        )
    return result


@measure("S3-HENT")
def sharp_share(context: Context) -> MeasuredValues:
    """Count the heads that the paper calls sharp, also in percent of all."""
    entropies = head_entropy(
        context.run, progress=partial(context.report, "attention of every window")
    )
    values = {
        "normalised entropy below which a head is sharp": float(
            entropies.attrs["sharp_below"]
        ),
        "sharp heads of all": 100 * float(entropies["sharp"].mean()),
        "heads of the decoder's cross-attention": float(entropies["sharp"].size),
        "sharp heads": float(entropies["sharp"].sum()),
    }
    settings = context.settings()
    # counts have no interval
    settings.pop("intervals over")
    return MeasuredValues(values, settings)


@measure("S3-F6", recipe="timesfm-28")
@measure("S3-F13", recipe="timesfm-51")
@measure("S3-F14", recipe="toto-29")
@measure("S3-F15", recipe="bolt-60")
def released_shares(context: Context, *, recipe: str) -> MeasuredValues:
    """Count the heads, in percent of all, and the MLPs that a recipe ablates."""
    percent, n_mlps = released_share(recipe)
    return MeasuredValues({"heads": percent, "MLPs ablated": float(n_mlps)})


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


@measure("S3-F21")
def patches(context: Context) -> MeasuredValues:
    """Measure the cross-attention between patches, and stable ranks of heads."""
    stack = context.model.wiring.output_stack
    if (
        "cross_attn" not in stack.attention_kinds()
        or context.model.adapter.readout == "token"
    ):
        raise InputError(
            f"{context.model.model_id} has no cross-attention between patches; the"
            " figure is of Chronos-Bolt"
        )
    # the paper's head, or the last that a smaller model has
    layer = min(3, stack.n_layers - 1)
    head = min(4, stack.n_heads - 1)
    maps = autoregressive_attention(context.run.select([0]), keys="window")
    ordinary = np.flatnonzero(maps["key_special"].values == "")
    # (key, query)
    attention = maps["attention"].sel(layer=layer, head=head).values
    patch = int(attention[ordinary].sum(axis=1).argmax())
    width = int(
        maps["key_stop"].values[ordinary[0]] - maps["key_start"].values[ordinary[0]]
    )
    settings = {
        **context.settings(),
        "windows": "1",
        "head": f"layer {layer}, head {head}",
    }
    settings.pop("intervals over")
    values = {
        "context patches": float(len(ordinary)),
        "context tokens with the register": float(maps.sizes["key"]),
        "decoder patches": float(maps.sizes["query"]),
        "patch that layer 3, head 4 attends to most": float(patch),
        "first step of that patch": float(patch * width),
    }
    result = MeasuredValues(values, settings)
    ranks = head_spectra(context.model, kind="cross_attn", products=["QK"])[
        "stable_rank"
    ].sel(product="QK")
    if stack.n_heads > 7 and stack.n_layers > 3:
        # The paper's claim is that heads 0 and 7 of layer 3 are ablated last by stable
        # rank. The two lowest and the two highest ranks both count as last.
        order = np.argsort(ranks.sel(layer=3).values)
        holds = any(set(end.tolist()) == {0, 7} for end in (order[:2], order[-2:]))
        result.claims["ablated_last"] = Verdict(
            (exactly("", holds, "stable rank of the weights"),)
        )
    for row in dict.fromkeys((0, layer)):
        for index, rank in enumerate(ranks.sel(layer=row).values):
            result.add(f"stable rank of layer {row}, head {index}", rank)
    return result
