"""The paper's figures of heavy ablations: 6B, 6C and 12 to 15."""

from __future__ import annotations

from collections.abc import Callable

import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.lens import Lens
from tsfm_lens.paper.registry import Entry, Plate, Request
from tsfm_lens.pipeline import Task
from tsfm_lens.probes.head_choice import attention_over_time
from tsfm_lens.sweep.released import (
    BOLT,
    TIMESFM,
    TIMESFM_ALL,
    TOTO,
    Recipe,
    at_depth,
    kept_heads,
    released_counts,
    scaled_counts,
)

SHOWN = 4  # series at most
DRAWS = 8  # sample paths of each of the many forecasts that heads@1pp takes
HORIZON, TAIL = 512, 512  # steps of the paper's forecasts and of the drawn context


def counts_for(lens: Lens, recipe: Recipe, task: Task, seed: int) -> tuple[dict[int, int], dict[int, str], str]:
    """heads@1pp of every layer: as released, or measured on the series at hand.

    Where all heads of the recipe's layers are needed, so that it would take none, the released counts of the model
    that it was written for are scaled to this one.

    Returns:
        Layer -> kept heads; layer -> the order of stable rank to ablate in; and where both come from, in words.
    """
    stack = lens.wiring.output_stack
    found = released_counts(lens.wiring.architecture, stack)
    layers = stack.layers_with(attention_over_time(stack))[1]
    if found is not None:
        orders = dict.fromkeys(layers, "low")
        return (
            {layer: found[layer] for layer in layers},
            orders,
            "heads@1pp as released by the paper's authors, low stable rank first",
        )
    steps = min(task.horizon, lens.adapter.longest_pass)
    truth = lens.forecast(task.context, steps, seed=seed).median if task.truth is None else task.truth[:, :steps]
    draws = DRAWS if lens.adapter.readout == "token" else None
    measured = probes.heads_at_1pp(lens, task.context, steps, truth=truth, paired=True, num_samples=draws, seed=seed)
    words = f"heads@1pp measured on these series over {steps} steps, both orders of stable rank"
    kept = {int(layer): int(n) for layer, n in zip(measured["layer"].values, measured["kept"].values, strict=True)}
    orders = {int(x): str(o) for x, o in zip(measured["layer"].values, measured["order"].values, strict=True)}
    taken = at_depth(recipe.layers, recipe.of, stack.n_layers)
    if any(kept[layer] < stack.n_heads for layer in taken if layer in kept):
        return kept, orders, words
    scaled = scaled_counts(recipe.source, stack.n_layers, stack.n_heads)
    words = (
        f"on these series every head of these layers is needed (heads@1pp over {steps} steps), so that the counts are "
        f"those released for {recipe.source}, scaled to {stack.n_layers} layers of {stack.n_heads} heads"
    )
    return {layer: scaled[layer] for layer in layers}, orders, words


def recipe_components(
    lens: Lens, recipe: Recipe, counts: dict[int, int], orders: dict[int, str], seed: int
) -> tuple[list[Component], list[Component]]:
    """A recipe's components, with heads chosen by stable rank and with as many at random; both with its MLPs."""
    stack = lens.wiring.output_stack
    keep, mlp_layers = kept_heads(recipe, counts, stack.n_layers, stack.n_heads)
    mlps = [
        Component(stack.name, layer, row.kind)
        for layer in mlp_layers
        for row in stack.rows(layer)
        if row.kind.endswith("mlp")
    ]
    informed: list[Component] = []
    for layer, kept in keep.items():
        informed += probes.heads_by_stable_rank(lens, {layer: kept}, order=orders[layer], paired=True)
    return informed + mlps, probes.random_heads(lens, keep, seed=seed, paired=True) + mlps


def heavy_forecasts(request: Request, recipe: Recipe, *, informed: bool, random: bool) -> tuple[xr.Dataset | None, str]:
    """Forecasts under a recipe of the paper; None where it takes nothing from this model."""
    task = request.long_task(HORIZON)
    counts, orders, source = counts_for(request.lens, recipe, task, request.seed)
    chosen, drawn = recipe_components(request.lens, recipe, counts, orders, request.seed)
    recipes = {}
    if informed and chosen:
        recipes["by stable rank"] = chosen
    if random and drawn:
        recipes["at random"] = drawn
    if not recipes:
        return None, f"{source}: every layer of the recipe needs all of its heads, so that nothing is ablated"
    ds = probes.ablation_recipes(request.lens, task.context, task.horizon, recipes, truth=task.truth, seed=request.seed)
    ds.attrs["heads_at_1pp"] = " ".join(f"{layer}:{kept}" for layer, kept in counts.items())
    return ds, f"{source}; layers scaled to {request.lens.wiring.output_stack.n_layers} of the paper's {recipe.of}."


def _drawing(recipe: Recipe, *, original: bool, informed: bool, random: bool) -> Callable[[Request], list[Plate]]:
    def draw(request: Request) -> list[Plate]:
        few = _first(request)
        ds, note = heavy_forecasts(few, recipe, informed=informed, random=random)
        if ds is None:
            raise InputError(f"this figure has no ablated forecast of {request.lens.model_id}: {note}")
        names = [str(name) for name in ds["recipe"].values]
        chosen = names if original else names[1:]
        tail = min(TAIL, 2 * ds.sizes["step"])
        return [Plate("", viz.recipe_forecasts(ds, recipes=chosen, context_steps=tail), (ds,), note)]

    return draw


def _originals(request: Request) -> list[Plate]:
    few = _first(request)
    task = few.long_task(HORIZON)
    # one branch alone, so that the plain forecasts come from the same road as those of 6C
    stack = few.lens.wiring.output_stack
    some = Component(stack.name, 0, stack.rows(0)[-1].kind)
    ds = probes.ablation_recipes(few.lens, task.context, task.horizon, {"-": [some]}, truth=task.truth, seed=few.seed)
    ds = ds.isel(recipe=[0])
    return [Plate("", viz.recipe_forecasts(ds, context_steps=min(TAIL, 2 * task.horizon)), (ds,))]


def _first(request: Request) -> Request:
    """The same request for the first series that a figure has room for, whole items."""
    groups = list(dict.fromkeys(request.series.groups))
    kept: list[int] = []
    for group in groups:
        members = [i for i, each in enumerate(request.series.groups) if each == group]
        if kept and len(kept) + len(members) > SHOWN:
            break
        kept += members
    series = request.series.select(kept)
    return Request(request.lens, series, request.horizon, request.holdout, request.seed)


_COMPUTES = "heads_at_1pp where no released counts fit, heads_by_stable_rank, ablation_recipes"
ENTRIES = (
    Entry(
        "6B",
        "Long forecasts of the complete model.",
        "ablation_recipes, of which the original is drawn",
        ("recipe_forecasts",),
        _originals,
        "TimesFM 2.5; the last 512 of 2048 context steps drawn",
    ),
    Entry(
        "6C",
        "Long forecasts with the middle third of the layers at heads@1pp and two MLPs removed.",
        _COMPUTES,
        ("recipe_forecasts",),
        _drawing(TIMESFM, original=False, informed=True, random=False),
        "TimesFM 2.5, layers 7 to 13 at heads@1pp (27.5 % of heads), MLPs 10 and 11 removed",
    ),
    Entry(
        "12",
        "As 6C with as many heads of each layer drawn at random.",
        _COMPUTES + ", random_heads",
        ("recipe_forecasts",),
        _drawing(TIMESFM, original=True, informed=False, random=True),
        "TimesFM 2.5, random heads at the counts of figure 6C",
    ),
    Entry(
        "13",
        "Original forecasts, all layers ablated by stable rank, and as many heads at random.",
        _COMPUTES + ", random_heads",
        ("recipe_forecasts",),
        _drawing(TIMESFM_ALL, original=True, informed=True, random=True),
        "TimesFM 2.5, layers 7 to 13 at heads@1pp, all others at 1 + heads@1pp, MLPs 10 and 11 removed (51.25 % of "
        "heads)",
    ),
    Entry(
        "14",
        "Original forecasts, and those with a third of the layers at heads@1pp.",
        _COMPUTES,
        ("recipe_forecasts",),
        _drawing(TOTO, original=True, informed=True, random=False),
        "Toto, multivariate; layers 2, 9, 10 and 11 at heads@1pp (29.2 % of heads)",
    ),
    Entry(
        "15",
        "Original forecasts, and those with nearly all layers at heads@1pp and most MLPs removed.",
        _COMPUTES,
        ("recipe_forecasts",),
        _drawing(BOLT, original=True, informed=True, random=False),
        "Chronos-Bolt base, layers 0 to 10 at heads@1pp (59.7 % of heads), MLPs 1 to 9 removed",
    ),
)
