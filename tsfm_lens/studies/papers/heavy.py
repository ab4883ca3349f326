"""Figures of the paper on heavy ablations: 6B, 6C and 12 to 15."""

from __future__ import annotations

from collections.abc import Callable

from tsfm_lens import probes, viz
from tsfm_lens.errors import InputError
from tsfm_lens.figures.entry import FigureFile as Plate
from tsfm_lens.figures.entry import NamedFigure as Entry
from tsfm_lens.figures.entry import long_run
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.sweep.plan.orders import order_words
from tsfm_lens.sweep.plan.recipes import is_for, read_recipe, to_entries
from tsfm_lens.sweep.plan.variants import VariantPlanner

SHOWN = 4  # series at most
HORIZON, TAIL = 512, 512  # steps of the paper's forecasts and of the drawn context
CHOSEN, RANDOM = "by stable rank", "at random"


def recipe_components(lens: Lens, name: str, seed: int) -> dict[str, list[str]]:
    """List what a recipe takes from a model, as a sweep of the same recipe does, and as many heads at random.

    Args:
        lens: the model; other sizes than the recipe's lose the same shares of heads at the same depths.
        name: of a recipe, see :func:`tsfm_lens.sweep.plan.recipes.read_recipe`.
        seed: of the random heads.

    Returns:
        Components by "by stable rank" and, where the recipe takes heads, "at random".
    """
    entries = to_entries(read_recipe(name), VariantPlanner(lens, lens.model_id), random_seeds=(seed,), scale=True)
    words = {"recipes": CHOSEN, "random": RANDOM}
    return {words[entry.family]: list(entry.spec.components) for entry in entries}


def _source(lens: Lens, name: str) -> str:
    """Describe where a recipe's heads come from."""
    recipe, stack = read_recipe(name), lens.wiring.output_stack
    lists = recipe.lists
    assert lists is not None
    order = order_words(recipe.order)
    if is_for(recipe, lens):
        which = "the heads" if lists.heads is not None else f"the numbers of heads ({order})"
        return f"recipe {name}: {which} that the paper's authors released"
    return (
        f"recipe {name} scaled from {len(lists.kept)} layers of {lists.n_heads} heads to {stack.n_layers} of "
        f"{stack.n_heads}: the same shares of heads at the same depths, {order}"
    )


def _plotter(name: str, *, original: bool, informed: bool, random: bool) -> Callable[[Run], list[Plate]]:
    def draw(run: Run) -> list[Plate]:
        few, lens = _first(run), run.lens
        include = {CHOSEN: informed, RANDOM: random}
        recipes = {
            key: components for key, components in recipe_components(lens, name, few.seed).items() if include[key]
        }
        if not recipes:
            raise InputError(f"this figure draws heads at random, and recipe {name} takes none from {lens.model_id}")
        ds = probes.ablation_recipes(long_run(few, HORIZON).rolled_out(), recipes)
        ds.attrs["recipe"] = name
        names = [str(recipe) for recipe in ds["recipe"].values]
        panels = names if original else names[1:]
        tail = min(TAIL, 2 * ds.sizes["step"])
        return [Plate("", viz.recipe_forecasts(ds, recipes=panels, context_steps=tail), (ds,), _source(lens, name))]

    return draw


def _originals(run: Run) -> list[Plate]:
    few = long_run(_first(run), HORIZON)
    # one branch alone, so that the plain forecasts are computed in the same way as those of 6C
    stack = few.lens.wiring.output_stack
    component = Component(stack.name, 0, stack.rows(0)[-1].kind)
    ds = probes.ablation_recipes(few.rolled_out(), {"-": [component]})
    ds = ds.isel(recipe=[0])
    return [Plate("", viz.recipe_forecasts(ds, context_steps=min(TAIL, 2 * few.horizon)), (ds,))]


def _first(run: Run) -> Run:
    """Select the first series that a figure has room for, whole items."""
    groups = list(dict.fromkeys(run.batch.groups))
    rows: list[int] = []
    for group in groups:
        members = [i for i, group_of_series in enumerate(run.batch.groups) if group_of_series == group]
        if rows and len(rows) + len(members) > SHOWN:
            break
        rows += members
    return run.select(rows)


_COMPUTES = "ablation_recipes of the sweep recipe {}"
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
        _COMPUTES.format("timesfm-28"),
        ("recipe_forecasts",),
        _plotter("timesfm-28", original=False, informed=True, random=False),
        "TimesFM 2.5, layers 7 to 13 at heads@1pp (27.5 % of heads), MLPs 10 and 11 removed",
    ),
    Entry(
        "12",
        "As 6C with as many heads of each layer drawn at random.",
        _COMPUTES.format("timesfm-28") + ", random_heads",
        ("recipe_forecasts",),
        _plotter("timesfm-28", original=True, informed=False, random=True),
        "TimesFM 2.5, random heads at the counts of figure 6C",
    ),
    Entry(
        "13",
        "Original forecasts, all layers ablated by stable rank, and as many heads at random.",
        _COMPUTES.format("timesfm-51") + ", random_heads",
        ("recipe_forecasts",),
        _plotter("timesfm-51", original=True, informed=True, random=True),
        "TimesFM 2.5, layers 7 to 13 at heads@1pp, all others at 1 + heads@1pp, MLPs 10 and 11 removed (51.25 % of "
        "heads)",
    ),
    Entry(
        "14",
        "Original forecasts, and those with a third of the layers at heads@1pp.",
        _COMPUTES.format("toto-29"),
        ("recipe_forecasts",),
        _plotter("toto-29", original=True, informed=True, random=False),
        "Toto, multivariate; layers 2, 9, 10 and 11 at heads@1pp (29.2 % of heads)",
    ),
    Entry(
        "15",
        "Original forecasts, and those with nearly all layers at heads@1pp and most MLPs removed.",
        _COMPUTES.format("bolt-60"),
        ("recipe_forecasts",),
        _plotter("bolt-60", original=True, informed=True, random=False),
        "Chronos-Bolt base, layers 0 to 10 at heads@1pp (59.7 % of heads), MLPs 1 to 9 removed",
    ),
)
