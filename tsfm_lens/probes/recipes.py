"""Heavy ablations: forecasts when many heads and MLPs go at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae, relative_change
from tsfm_lens.ablation.points import Progress
from tsfm_lens.ablation.rollouts import forecast_variants
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Attention, Wiring
from tsfm_lens.models.ablating import knock_outs, reference_activations
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import Measure, noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.head_choice import diffuse_heads, sharp_heads
from tsfm_lens.probes.zero_ablation import rank_distance, seasonal_scales, size_of
from tsfm_lens.registry import probe

__all__ = ["ablated_share", "ablation_recipes"]

ORIGINAL = "original"


def _sharp_and_diffuse(results: Any) -> tuple[Run, dict[str, Sequence[Component]]]:
    """Choose a tenth of the heads: the sharpest, and the most diffuse."""
    entropy = results["head_entropy"]
    count = max(1, entropy["entropy"].size // 10)
    return results.run, {"sharp heads": sharp_heads(entropy, count), "diffuse heads": diffuse_heads(entropy, count)}


@probe(
    "recipes",
    _sharp_and_diffuse,
    words="ablation_recipes without a tenth of the heads, the sharpest or the most diffuse by head_entropy",
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
    """Forecast with all components of a recipe ablated together, along the rollout, each recipe under the same draws.

    Args:
        run: the forecast to explain, also beyond one pass, by the library's own forecasts; with a truth for the errors.
        recipes: name -> components or globs. The plain forecast is "original" and always there.
        how, reference: what takes the components' place; see :meth:`Lens.ablate`.
        quantiles: levels of the forecasts; those of the run's own forecast if None.
        progress: called with (done, of) after each forecast.

    Returns:
        Dataset of kind "recipes" over ``recipe`` ("original" first) and ``series``: ``quantile_forecast`` (…, quantile,
        step) and, of sampling models, ``sample`` (…, draw, step), in data units; ``spearman_distance`` to the original;
        ``spread_ratio``, the median forecast's standard deviation over that of as many last context steps; with a truth
        ``mae``, ``mase``, and ``mae_change``, ablated over original less 1; for distance and change what
        :func:`tsfm_lens.probes.findings.judge` adds. Per recipe ``components``, ``n_heads``, ``heads_share`` of all
        heads of the kinds of attention that it touches, and ``n_mlps``.

    Source:
        tsfm-lens paper, section 5, figures 6 and 12 to 15 (S3-HEAVY, S3-SPEAR).

    Raises:
        InputError: no recipe, an empty one, or one of the name "original".
        UnknownNameError: a component does not exist.

    Example:
        >>> probes.ablation_recipes(run, {"no MLPs": ["decoder.*.mlp"]})["recipe"].values.tolist()
        ['original', 'no MLPs']
    """
    lens = run.lens
    components_of = _resolve(lens, recipes or {})
    activations = reference_activations(lens, how, reference, run.horizon) if how in ("mean", "resample") else None
    variants = [
        Variant(name, tuple(knock_outs(lens, components, how, activations)) if components else ())
        for name, components in components_of.items()
    ]
    # where the run's own levels will do, its forecast is the original
    plain = run.forecast if quantiles is None else None
    options: dict[str, Any] = {"num_samples": run.num_samples, "seed": run.seed, "progress": progress}
    options["quantiles"] = run.forecast.levels if quantiles is None else quantiles
    result = forecast_variants(lens, run.batch, run.horizon, variants[plain is not None :], **options)
    forecasts, samples = result.quantiles, result.samples
    if plain is not None:
        forecasts = np.concatenate([plain.quantiles[None], forecasts])
        samples = None if plain.samples is None else np.concatenate([plain.samples[None], samples])
    data = run.dataset().assign_coords(recipe=list(components_of), quantile=list(result.levels))
    data["quantile_forecast"] = (("recipe", "series", "quantile", "step"), forecasts)
    if samples is not None:
        data["sample"] = (("recipe", "series", "draw", "step"), samples)
    counts = [ablated_share(lens.wiring, components) for components in components_of.values()]
    data = data.assign(
        components=("recipe", [" ".join(map(str, parts)) for parts in components_of.values()]),
        n_heads=("recipe", [heads for heads, _, _ in counts]),
        heads_share=("recipe", [heads / total if total else 0.0 for heads, total, _ in counts]),
        n_mlps=("recipe", [mlps for _, _, mlps in counts]),
    )
    middle = int(np.argmin(np.abs(np.array(result.levels) - 0.5)))
    source = "tsfm-lens paper, section 5, figures 6 and 12 to 15 (S3-HEAVY)"
    facts = {"how": how, "num_samples": 0 if samples is None else samples.shape[2], "statistic": "median"}
    data.attrs = run.describe("recipes", "Forecasts under heavy ablation", source, **facts)
    return _add_effects(data, run.rolled_out(), forecasts[:, :, middle])


def ablated_share(wiring: Wiring, components: Sequence[Component]) -> tuple[int, int, int]:
    """Count the heads that a recipe takes, all heads of the kinds of attention touched, and the MLPs that it takes.

    Args:
        wiring: of the model.
        components: heads, branches or layers.

    Example:
        >>> probes.ablated_share(lens.wiring, lens.components("decoder.0.cross_attn"))
        (4, 12, 0)
    """
    heads: set[tuple[str, str, int, int]] = set()
    mlps: set[tuple[str, int]] = set()
    for component in components:
        stack = wiring.stack(component.stack)
        for row in stack.rows(component.layer):
            if component.kind not in (None, row.kind):
                continue
            if not isinstance(row, Attention):
                mlps.add((stack.name, component.layer))
                continue
            indices = range(stack.n_heads) if component.head is None else [component.head]
            heads |= {(stack.name, row.kind, component.layer, head) for head in indices}
    total = 0
    for name, kind in {(name, kind) for name, kind, _, _ in heads}:
        stack = wiring.stack(name)
        total += stack.n_heads * len(stack.layers_with(kind)[1])
    return len(heads), total, len(mlps)


def _resolve(lens: Lens, recipes: Mapping[str, Sequence[str | Component]]) -> dict[str, list[Component]]:
    """Return the components of every recipe, the original with none of them first."""
    if not recipes:
        raise InputError("no recipe is given; expected a name and the components to ablate, such as {'x': ['0.mlp']}")
    components_of: dict[str, list[Component]] = {ORIGINAL: []}
    for name, components in recipes.items():
        if name == ORIGINAL:
            raise InputError(f"a recipe is called {ORIGINAL!r}, which is the name of the plain forecast")
        if isinstance(components, str | Component) or not components:
            raise InputError(f"recipe {name!r} is {components!r}, expected a list of components or globs")
        components_of[name] = lens.components(*components)
    return components_of


def _add_effects(data: xr.Dataset, run: Run, medians: np.ndarray) -> xr.Dataset:
    """Add distances, spreads and errors of median forecasts (recipe, series, step), and what stands out."""
    steps, where = medians.shape[-1], ("recipe", "series")
    measures: dict[str, Measure] = {"spearman_distance": rank_distance} if steps > 1 else {}
    past = np.array([np.nanstd(values[-steps:]) for values in run.batch.values])
    spread = medians.std(axis=-1)
    data["spread_ratio"] = (where, np.divide(spread, past, out=np.full_like(spread, np.nan), where=past > 0))
    if run.truth is not None:
        truth = run.truth
        error = mae(medians, truth)
        data["mae"], data["mase"] = (where, error), (where, error / seasonal_scales(run.batch))
        measures["mae_change"] = lambda other, plain: relative_change(mae(other, truth), mae(plain, truth))
    for name, measure in measures.items():
        data[name] = (where, measure(medians, medians[0]))
        floor, effect = noise_floor(run, size_of(measure)), data[name].where(data["recipe"] != ORIGINAL)
        data = judge(data, name, floor=floor, signed=name == "mae_change", values=effect)
    return data
