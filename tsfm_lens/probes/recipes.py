"""Heavy ablations: many heads and MLPs ablated at once, and how they are chosen.

:func:`ablation_recipes` forecasts without the components of each recipe. The functions
before it choose heads by stable rank, by attention entropy or at random. Ablations of
one component at a time are in ``zero_ablation``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.rollouts import Progress, forecast_variants
from tsfm_lens.core.choices import checked_how
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.hooks.wiring import Attention, Wiring
from tsfm_lens.models.ablating import (
    draw_options,
    knock_outs,
    reference_activations,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    marked_dataset,
    noise_floor,
)
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import attention_over_time
from tsfm_lens.probes.given import called, check_option
from tsfm_lens.probes.weights import head_spectra
from tsfm_lens.probes.zero_ablation import (
    compute_size,
    error_change,
    rank_distance,
    seasonal_scales,
    shapeless,
)

__all__ = [
    "ablation_recipes",
    "diffuse_heads",
    "heads_by_stable_rank",
    "random_heads",
    "sharp_heads",
]

ORDERS = ("low", "high")


def heads_by_stable_rank(
    lens: Lens,
    keep: Mapping[int, int],
    *,
    order: str = "low",
    kind: str | None = None,
    paired: bool = True,
) -> list[Component]:
    """Return the heads to ablate by the stable rank of W_Q W_Kᵀ, in model order.

    Each layer keeps a given number of heads.

    Args:
        lens: the model; layers are those of the output stack.
        keep: layer -> number of heads kept.
        order: heads of a layer to ablate first, those of "low" or of "high" stable
            rank.
        kind: kind of attention that is ranked; the last one over time if None.
        paired: also ablate the heads of the same index in the layer's other attentions
            over time, as the paper does.

    Returns:
        Components, layer by layer, those of a layer in the order of their index.

    Source:
        tsfm-lens paper, definition 5.2 and appendix B (S3-ORD, S3-H1PP, S3-ZA-H).

    Raises:
        InputError: ``keep`` exceeds the number of heads, or ``order`` is neither.
        UnknownNameError: no such layer or kind of attention.

    Example:
        >>> len(probes.heads_by_stable_rank(lens, {0: 1, 1: 2}, paired=False))
        5
    """
    check_option("order", order, ORDERS)
    attention, n_heads = _check_layers(lens, keep, kind)
    ranks = head_spectra(lens, kind=attention, products=["QK"])["order"].sel(
        product="QK"
    )
    ascending = {
        # sorting the ranks gives the heads in ascending order
        layer: np.argsort(ranks.sel(layer=layer).values)
        for layer in keep
    }
    step = 1 if order == "low" else -1
    chosen = {
        layer: heads[::step][: n_heads - keep[layer]].tolist()
        for layer, heads in ascending.items()
    }
    return _list_heads(lens, chosen, attention, paired)


def random_heads(
    lens: Lens,
    keep: Mapping[int, int],
    *,
    seed: int = 0,
    kind: str | None = None,
    paired: bool = True,
) -> list[Component]:
    """Draw heads at random without replacement.

    Each layer loses as many as :func:`heads_by_stable_rank` takes.

    Args:
        lens: the model; layers are those of the output stack.
        keep: layer -> number of heads kept.
        seed: of the draw.
        kind: kind of attention that is drawn from; the last one over time if None.
        paired: also take the heads of the same index in the layer's other attentions
            over time.

    Returns:
        Components, layer by layer.

    Raises:
        InputError: ``keep`` exceeds the number of heads.
        UnknownNameError: no such layer or kind of attention.

    Example:
        >>> [str(head) for head in probes.random_heads(lens, {0: 3}, paired=False)]
        ['decoder.0.cross_attn.2']
    """
    attention, n_heads = _check_layers(lens, keep, kind)
    rng = np.random.default_rng(seed)
    chosen = {
        # a full permutation draws alike whatever is kept: fewer heads kept only add to
        # the list
        layer: rng.permutation(n_heads)[: n_heads - count].tolist()
        for layer, count in keep.items()
    }
    return _list_heads(lens, chosen, attention, paired)


def sharp_heads(entropy: xr.Dataset, count: int = 1) -> list[Component]:
    """Return the heads of lowest attention entropy, the sharpest first.

    Args:
        entropy: result of kind "head_entropy" or "autoregressive_attention".
        count: number of heads.

    Returns:
        ``count`` components, the sharpest first.

    Raises:
        InputError: the result has no entropy of heads, or fewer heads than ``count``.

    Example:
        >>> len(probes.sharp_heads(probes.head_entropy(run), 2))
        2
    """
    return _sort_by_entropy(entropy, count, 1.0)


def diffuse_heads(entropy: xr.Dataset, count: int = 1) -> list[Component]:
    """Return the heads of highest attention entropy, the most diffuse first.

    Args:
        entropy: result of kind "head_entropy" or "autoregressive_attention".
        count: number of heads.

    Returns:
        ``count`` components, the most diffuse first.

    Raises:
        InputError: the result has no entropy of heads, or fewer heads than ``count``.

    Example:
        >>> len(probes.diffuse_heads(probes.head_entropy(run), 2))
        2
    """
    return _sort_by_entropy(entropy, count, -1.0)


def _check_layers(
    lens: Lens, keep: Mapping[int, int], kind: str | None
) -> tuple[str, int]:
    """Check layers and counts; return the kind of attention and its heads a layer."""
    stack = lens.wiring.output_stack
    attention, layers = stack.find_layers(
        attention_over_time(stack) if kind is None else kind
    )
    for layer, count in keep.items():
        if layer not in layers:
            raise unknown_name(f"layer with {attention}", layer, map(str, layers))
        if not 0 <= count <= stack.n_heads:
            raise InputError(
                f"layer {layer} cannot keep {count} heads, it has {stack.n_heads}"
            )
    return attention, stack.n_heads


def _list_heads(
    lens: Lens, indices: Mapping[int, Sequence[int]], kind: str, paired: bool
) -> list[Component]:
    """Return heads by layer and index, in model order.

    If ``paired``, heads of the layer's other attentions over time are included.
    """
    stack = lens.wiring.output_stack
    heads = []
    for layer, layer_heads in indices.items():
        for attention in stack.attentions(layer):
            if attention.kind == kind or (paired and attention.over == "time"):
                heads += [
                    Component(stack.name, layer, attention.kind, head)
                    for head in layer_heads
                ]
    return sorted(
        heads,
        key=lambda component: (
            component.layer,
            component.kind or "",
            component.head or 0,
        ),
    )


def _sort_by_entropy(entropy: xr.Dataset, count: int, sign: float) -> list[Component]:
    """Return heads by entropy, the lowest first for a sign of 1, the highest for -1."""
    is_dataset = isinstance(entropy, xr.Dataset)
    if (
        not is_dataset
        or "entropy" not in entropy
        or set(entropy["entropy"].dims) != {"layer", "head"}
    ):
        if is_dataset:
            label = f"of kind {entropy.attrs.get('kind')!r}"
        else:
            label = called(entropy)
        raise InputError(
            "heads are sorted by a result with entropy (layer, head), such as"
            f" probes.head_entropy(...) gives; this one is {label}"
        )
    values = entropy["entropy"].stack(layer_head=("layer", "head"))
    if not 1 <= count <= values.size:
        raise InputError(f"count is {count}, expected 1 to {values.size} heads")
    order = np.argsort(sign * values.values, kind="stable")[:count]
    stack = str(entropy.attrs.get("stack", ""))
    kind = str(entropy.attrs["attention"])
    return [
        Component(stack, int(layer), kind, int(head))
        for layer, head in values["layer_head"].values[order]
    ]


ORIGINAL = "original"


def _sharp_and_diffuse(results: Any) -> tuple[Run, dict[str, Sequence[Component]]]:
    """Choose a tenth of the heads: the sharpest, and the most diffuse."""
    entropy = results["head_entropy"]
    count = max(1, entropy["entropy"].size // 10)
    return results.run, {
        "sharp heads": sharp_heads(entropy, count),
        "diffuse heads": diffuse_heads(entropy, count),
    }


@probe(
    _sharp_and_diffuse,
    title="Heavy ablation",
    theme="Causes",
    summary=(
        "heavy ablations: many heads and MLPs at once, chosen by stable rank, "
        "entropy or at random"
    ),
    description=(
        "Many heads and MLPs are set to zero at once. How far the forecast moves "
        "shows how much of the model it needs."
    ),
    source="tsfm-lens paper, section 5, figures 6 and 12 to 15 (S3-HEAVY)",
    paper=(
        "S3-F6",
        "S3-F13",
        "S3-F14",
        "S3-F15",
        "S3-F20",
    ),
    computes=(
        "ablation_recipes without a tenth of the heads, the sharpest or the most"
        " diffuse by head_entropy"
    ),
)
def ablation_recipes(
    run: Run,
    recipes: Mapping[str, Sequence[str | Component]] | None = None,
    *,
    how: str = "zero",
    reference: Any = None,
    quantiles: Sequence[float] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Forecast with all components of each recipe ablated together.

    Forecasts go along the rollout, under the same draws.

    Args:
        run: the forecast to explain, also beyond one pass; forecasts are the library's
            own. Errors need a truth.
        recipes: name -> components or globs. The plain forecast is "original" and
            always there.
        how: "zero", "mean", "resample" or "noise", which replaces the components.
        reference: activations, or series to record them on, from which "mean" and
            "resample" take their values.
        quantiles: levels of the forecasts; those of the run's own forecast if None.
        progress: called with (done, of) after each forecast.

    Returns:
        Dataset of kind "ablation_recipes"; ``recipe`` begins with "original".

        - ``quantile_forecast`` (recipe, series, quantile, step): in data units.
        - ``sample`` (recipe, series, draw, step): in data units, of sampling models.
        - ``mean_shift`` (recipe, series): mean distance of the medians from the
          original's, in data units.
        - ``spearman_distance`` (recipe, series): 1 - rank correlation with the
          original.
        - ``spread_ratio`` (recipe, series): standard deviation of the median forecast
          over that of as many last context steps.
        - ``mae`` (in data units), ``mase`` (recipe, series): with a truth.
        - ``mae_change`` (recipe, series): ablated over original, less 1, with a truth.
        - ``components`` (recipe): their names.
        - ``n_heads``, ``n_mlps`` (recipe): how many of them are ablated.
        - ``heads_share`` (recipe): share of all heads of the kinds of attention that it
          touches.

        Distance and change come with what :func:`.estimates.add_estimates` adds.

    Source:
        tsfm-lens paper, section 5, figures 6 and 12 to 15 (S3-HEAVY, S3-SPEAR).

    Raises:
        InputError: no recipe, an empty one, or one of the name "original".
        UnknownNameError: a component does not exist.

    Example:
        >>> data = probes.ablation_recipes(run, {"no MLPs": ["decoder.*.mlp"]})
        >>> data["recipe"].values.tolist()
        ['original', 'no MLPs']
    """
    lens = run.lens
    resolved = _resolve(lens, recipes or {})
    activations = None
    if checked_how(how):
        activations = reference_activations(lens, how, reference, run.horizon)
    variants = []
    for name, components in resolved.items():
        interventions = list[Intervention]()
        if components:
            interventions = knock_outs(
                lens, components, how, activations, **draw_options(how, run.seed)
            )
        variants.append(Variant(name, tuple(interventions)))
    # where the run's own levels will do, its forecast is the original, which saves one
    plain = None
    if quantiles is None:
        plain = run.forecast
    result = forecast_variants(
        lens,
        run.batch,
        run.horizon,
        # without the first, which is the original
        variants[plain is not None :],
        num_samples=run.num_samples,
        seed=run.seed,
        progress=progress,
        quantiles=run.forecast.levels if quantiles is None else quantiles,
    )
    forecasts = result.quantiles
    samples = result.samples
    if plain is not None:
        forecasts = np.concatenate([plain.quantiles[None], forecasts])
        if plain.samples is None:
            samples = None
        else:
            samples = np.concatenate([plain.samples[None], samples])
    data = marked_dataset(
        run.as_rollout(), recipe=list(resolved), quantile=list(result.levels)
    )
    data["quantile_forecast"] = (("recipe", "series", "quantile", "step"), forecasts)
    if samples is not None:
        data["sample"] = (("recipe", "series", "draw", "step"), samples)
    counts = [ablated_share(lens.wiring, parts) for parts in resolved.values()]
    n_heads, totals, n_mlps = np.array(counts).T
    labels = [" ".join(map(str, parts)) for parts in resolved.values()]
    data = data.assign(
        components=("recipe", labels),
        n_heads=("recipe", n_heads),
        # a recipe of MLPs alone touches no kind of attention
        heads_share=("recipe", ratio(n_heads, totals, 0.0)),
        n_mlps=("recipe", n_mlps),
    )
    # the caller's levels need not hold 0.5
    median = int(np.argmin(np.abs(np.array(result.levels) - 0.5)))
    data.attrs = {
        "how": how,
        "num_samples": 0 if samples is None else samples.shape[2],
        "statistic": "median",
    }
    return _add_effects(data, run.as_rollout(), forecasts[:, :, median])


def ablated_share(
    wiring: Wiring, components: Sequence[Component]
) -> tuple[int, int, int]:
    """Return how many heads and MLPs a recipe ablates, and all heads of these kinds.

    The result is the ablated heads, all heads of the kinds of attention concerned, and
    the MLPs.
    """
    # sets, as a recipe may name a head, its branch and its layer
    heads = set()
    mlps = set()
    for component in components:
        stack = wiring.stack(component.stack)
        for writer in stack.rows(component.layer):
            if component.kind not in (None, writer.kind):
                continue
            if not isinstance(writer, Attention):
                mlps.add((stack.name, component.layer))
                continue
            indices = (
                range(stack.n_heads) if component.head is None else [component.head]
            )
            heads |= {
                (stack.name, writer.kind, component.layer, head) for head in indices
            }
    total = 0
    for name, kind in {(name, kind) for name, kind, _, _ in heads}:
        stack = wiring.stack(name)
        total += stack.n_heads * len(stack.find_layers(kind)[1])
    return len(heads), total, len(mlps)


def _resolve(
    lens: Lens, recipes: Mapping[str, Sequence[str | Component]]
) -> dict[str, list[Component]]:
    """Return the components of every recipe, the original with none of them first."""
    if not recipes:
        raise InputError(
            "no recipe is given; expected a name and the components to ablate, such as"
            " {'x': ['0.mlp']}"
        )
    resolved: dict[str, list[Component]] = {ORIGINAL: []}
    for name, components in recipes.items():
        if name == ORIGINAL:
            raise InputError(
                f"a recipe is called {ORIGINAL!r}, which is the name of the plain"
                " forecast"
            )
        if isinstance(components, str | Component) or not components:
            raise InputError(
                f"recipe {name!r} is {components!r}, expected a list of components or"
                " globs"
            )
        resolved[name] = lens.components(*components)
    return resolved


def _add_effects(data: xr.Dataset, run: Run, medians: np.ndarray) -> xr.Dataset:
    """Return a result with distances, spreads and errors of medians, and tests.

    Medians are (recipe, series, step).
    """
    steps = medians.shape[-1]
    axes = ("recipe", "series")
    # one step has no order
    if steps > 1:
        measures = {"spearman_distance": rank_distance(run)}
    else:
        measures = {}
    past = np.array([np.nanstd(values[-steps:]) for values in run.batch.values])
    # no spread, so that the ratio to it is undefined
    past = np.where(cached_flat_contexts(run), 0.0, past)
    data["mean_shift"] = (axes, np.abs(medians - medians[0]).mean(axis=-1))
    spread = medians.std(axis=-1)
    data["spread_ratio"] = (axes, ratio(spread, past))
    if run.truth is not None:
        truth = run.truth
        error = mae(medians, truth)
        data["mae"] = (axes, error)
        data["mase"] = (axes, error / seasonal_scales(run))
        measures["mae_change"] = error_change(run, truth)
    for name, measure in measures.items():
        data[name] = (axes, measure(medians, medians[0]))
        floor = noise_floor(run, compute_size(measure))
        # the original has no effect on itself, so it is no test
        effect = data[name].where(data["recipe"] != ORIGINAL)
        data = add_estimates(
            data,
            name,
            floor=floor,
            signed=name == "mae_change",
            values=effect,
            flat_forecasts=shapeless(run, name),
        )
    return data
