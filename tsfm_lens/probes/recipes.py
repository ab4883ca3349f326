"""Heavy ablations: forecasts when many heads and MLPs go at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae, seasonal_scale, spearman_distance
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Attention, Wiring
from tsfm_lens.models.forecast import Forecast, context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.trajectory import describe

ORIGINAL = "original"
Progress = Callable[[int, int], None]


def ablation_recipes(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    recipes: Mapping[str, Sequence[str | Component]] | None = None,
    *,
    truth: Any = None,
    how: str = "zero",
    reference: Any = None,
    quantiles: Sequence[float] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Forecast with all components of a recipe ablated together, along the whole rollout.

    Sampling models draw with the same seed under every recipe, so that differences are the ablation's.

    Args:
        lens: the model.
        series: the context, anything that ``as_series`` takes.
        horizon: forecast steps, also beyond one pass; the model's prediction length if None.
        recipes: name -> components or globs. The plain forecast is "original" and always there.
        truth: (series, step) for the errors.
        how, reference: what takes the components' place; see :meth:`Lens.ablate`.
        quantiles, num_samples, seed: of the forecasts; see :meth:`Lens.forecast`.
        progress: called with (done, of) after each forecast.

    Returns:
        Dataset of kind "recipes" over ``recipe`` ("original" first) and ``series``: ``quantile_forecast``
        (recipe, series, quantile, step) and, of sampling models, ``sample`` (recipe, series, draw, step), in
        data units; ``spearman_distance`` to the original; ``spread_ratio``, the median forecast's standard
        deviation over that of as many last context steps, near 0 where a forecast has fallen to its mean;
        with a truth ``mae`` and ``mase``. Per recipe ``components``, ``n_heads``, ``heads_share`` of all heads
        of the kinds of attention that it touches, and ``n_mlps``.

    Source:
        tsfm-lens paper, section 5, figures 6 and 12 to 15 (S3-HEAVY, S3-SPEAR).

    Raises:
        InputError: no recipe, an empty one, or one of the name "original".
        UnknownNameError: a component does not exist.
    """
    batch = as_series(series)
    steps = lens.adapter.prediction_length if horizon is None else int(horizon)
    chosen = _resolved(lens, recipes or {})
    options: dict[str, Any] = {"quantiles": quantiles, "num_samples": num_samples, "seed": seed}
    made: list[Forecast] = []
    for components in chosen.values():
        if not components:
            made.append(lens.forecast(batch, steps, **options))
        else:
            with lens.ablate(*components, how=how, reference=reference):
                made.append(lens.forecast(batch, steps, **options))
        if progress is not None:
            progress(len(made), len(chosen))
    data = context_dataset(batch, steps, truth).assign_coords(recipe=list(chosen), quantile=list(made[0].levels))
    data["quantile_forecast"] = (("recipe", "series", "quantile", "step"), np.stack([each.quantiles for each in made]))
    if made[0].samples is not None:
        data["sample"] = (("recipe", "series", "draw", "step"), np.stack([each.samples for each in made]))  # type: ignore[misc]
    data = _with_counts(data, lens.wiring, chosen)
    data = _with_distances(data, batch, np.stack([_middle(each) for each in made]))
    data.attrs = describe(
        lens,
        "recipes",
        "Forecasts under heavy ablation",
        "tsfm-lens paper, section 5, figures 6 and 12 to 15 (S3-HEAVY)",
        how=how,
        seed=seed,
        horizon=steps,
        num_samples=0 if made[0].samples is None else made[0].samples.shape[1],
    )
    return data


def ablated_share(wiring: Wiring, components: Sequence[Component]) -> tuple[int, int, int]:
    """How much of a model a recipe takes.

    Args:
        wiring: of the model.
        components: heads, branches or layers.

    Returns:
        Heads ablated; heads that there are of the kinds of attention touched, in their stacks; MLPs ablated.
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


def _resolved(lens: Lens, recipes: Mapping[str, Sequence[str | Component]]) -> dict[str, list[Component]]:
    """The components of every recipe, the original with none of them first."""
    if not recipes:
        raise InputError("no recipe is given; expected a name and the components to ablate, such as {'x': ['0.mlp']}")
    found: dict[str, list[Component]] = {ORIGINAL: []}
    for name, components in recipes.items():
        if name == ORIGINAL:
            raise InputError(f"a recipe is called {ORIGINAL!r}, which is the name of the plain forecast")
        if isinstance(components, str | Component) or not components:
            raise InputError(f"recipe {name!r} is {components!r}, expected a list of components or globs")
        found[name] = lens.components(*components)
    return found


def _middle(forecast: Forecast) -> np.ndarray:
    """(series, step); the quantile nearest the median."""
    return forecast.quantiles[:, int(np.argmin(np.abs(np.array(forecast.levels) - 0.5)))]


def _with_counts(data: xr.Dataset, wiring: Wiring, chosen: Mapping[str, list[Component]]) -> xr.Dataset:
    counts = [ablated_share(wiring, components) for components in chosen.values()]
    return data.assign(
        components=("recipe", [" ".join(map(str, each)) for each in chosen.values()]),
        n_heads=("recipe", [heads for heads, _, _ in counts]),
        heads_share=("recipe", [heads / total if total else 0.0 for heads, total, _ in counts]),
        n_mlps=("recipe", [mlps for _, _, mlps in counts]),
    )


def _with_distances(data: xr.Dataset, batch: SeriesBatch, medians: np.ndarray) -> xr.Dataset:
    """Distances, spreads and errors of median forecasts (recipe, series, step)."""
    steps = medians.shape[-1]
    where = ("recipe", "series")
    if steps > 1:
        distance = spearman_distance(medians, np.broadcast_to(medians[0], medians.shape))
        data["spearman_distance"] = (where, distance)
    past = np.array([np.nanstd(values[-steps:]) for values in batch.values])
    spread = medians.std(axis=-1)
    data["spread_ratio"] = (where, np.divide(spread, past, out=np.full_like(spread, np.nan), where=past > 0))
    if "truth" in data:
        error = mae(medians, data["truth"].values)
        seasons = zip(batch.values, batch.seasonalities, strict=True)
        scale = np.array([seasonal_scale(values, season) for values, season in seasons])
        data["mae"], data["mase"] = (where, error), (where, error / scale)
    return data
