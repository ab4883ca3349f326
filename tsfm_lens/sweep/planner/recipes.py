"""Recipes: sets of heads and MLPs to ablate together, from files.

Read :class:`Recipe` first (the fields of a file), then :func:`to_entries` (the variants
of a recipe on a model). Many recipes go by heads@k, the smallest number of heads that a
layer can keep within a tolerance of the error. The published recipes and released lists
of heads come with the package; how heads are ranked is in ``orders.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from tsfm_lens.core.errors import InputError, UnknownNameError, unknown_name
from tsfm_lens.data.checked import Strict, complaints, read_fields
from tsfm_lens.models.lens import Lens
from tsfm_lens.sweep.planner.orders import needs_series, parse_orders, rankings
from tsfm_lens.sweep.planner.variants import PlanEntry, VariantPlanner, list_kinds

LayerSelection = tuple[int, ...] | Literal["all", "middle third", "others"]
HeadRanking = Mapping[int, Sequence[int]]
"""Layer -> heads, the first to be ablated first."""
_FOLDER = files("tsfm_lens.sweep.planner")


@dataclass(frozen=True)
class Released:
    """Heads that each layer of a model keeps (heads@1pp), as its authors released them.

    Attributes:
        architecture, model: what they were measured on.
        n_heads: number of heads in each layer.
        kept: number of heads that each layer keeps.
        heads: ablated heads by layer, the first to go first; None if only their numbers
            are known.
        source: where the numbers are from.
    """

    architecture: str
    model: str
    n_heads: int
    kept: tuple[int, ...]
    heads: Mapping[int, tuple[int, ...]] | None
    source: str


@cache
def released_lists() -> dict[str, Released]:
    """Read all released lists by architecture.

    They are in the order of the paper's figure 11.

    Returns:
        The lists by architecture.
    """
    lists = {}
    for name in ("timesfm-2.5", "toto-1", "chronos-bolt", "moirai-1.1"):
        file = _FOLDER / "released_lists" / f"{name}.yaml"
        row = yaml.safe_load(file.read_text(encoding="utf-8"))
        ablated_heads = row.pop("heads", None)
        heads = None
        if ablated_heads:
            # a layer without an entry loses no head
            heads = {
                layer: tuple(ablated_heads.get(layer, ()))
                for layer in range(len(row["kept"]))
            }
        lists[name] = Released(**{**row, "kept": tuple(row["kept"])}, heads=heads)
    return lists


# architectures that open the weights of another, whose recipes they share
SAME_WEIGHTS = {"timesfm-2.5-transformers": "timesfm-2.5"}


def at_depth(layers: Sequence[int], of: int, n_layers: int) -> list[int]:
    """Return the layers of a model of another depth that correspond to ``layers``.

    ``layers`` are of a model with ``of`` layers. A layer of this model corresponds if
    its middle lies, at the same relative depth, within one of them; if there is none,
    the nearest one is returned.
    """
    # in units of the layers of the model of ``layers``, whose layer i spans i to i + 1
    middles = [(layer + 0.5) / n_layers * of for layer in range(n_layers)]
    matching = [layer for layer, middle in enumerate(middles) if int(middle) in layers]
    if matching or not layers:
        return matching

    def distance(layer: int) -> float:
        return min(abs(middles[layer] - depth - 0.5) for depth in layers)

    return [min(range(n_layers), key=distance)]


def middle_third(n_layers: int) -> list[int]:
    """Return the layers that the paper means by "middle layers".

    They are 7 to 13 of 20, as it says, and 4 to 7 of 12.
    """
    if n_layers < 3:
        raise InputError(
            "a statement about middle layers needs three layers or more, this model"
            f" has {n_layers}"
        )
    # both ends are rounded up, which agrees with the paper's example of 20 layers
    return list(range(ceil(n_layers / 3), ceil(2 * n_layers / 3)))


class LayersAt(Strict):
    """Layers that keep heads@k, or ``extra`` heads more.

    "others" are all layers that the recipe does not name elsewhere.
    """

    layers: LayerSelection
    extra: int = Field(default=0, ge=0)


class Recipe(Strict):
    """Heads and MLPs that are ablated together.

    Attributes:
        name, title, source, model, note: for readers; the name tells recipes apart.
        architecture, n_layers, n_heads: the models that it is written for; any of them
            if empty or None.
        heads: ablated heads by layer.
        kept_heads: number of heads that stay, by layer.
        layers_at: layers that are ablated down to heads@k.
        released: released list that heads@k are taken from; measured on the model if
            None.
        mlps: layers whose MLP is ablated.
        order: in which heads are ablated where the recipe gives only their number.
        scale: whether it is scaled to models of other sizes.
        unknown: why the recipe cannot be run, where its publication leaves it open.
    """

    name: str
    title: str = ""
    source: str = ""
    model: str = ""
    note: str = ""
    architecture: str = ""
    n_layers: int | None = Field(default=None, ge=1)
    n_heads: int | None = Field(default=None, ge=1)
    heads: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    kept_heads: dict[int, int] = Field(default_factory=dict)
    layers_at: tuple[LayersAt, ...] = ()
    released: str | None = None
    mlps: LayerSelection = ()
    order: str = "stable_rank:low"
    scale: bool = False
    unknown: str = ""

    @field_validator("order")
    @classmethod
    def _check_order(cls, value: str) -> str:
        try:
            orders = parse_orders([value])
        except UnknownNameError as error:
            # pydantic names the field of a ValueError; our error is a KeyError, which
            # would pass through it
            raise ValueError(str(error)) from error
        if len(orders) != 1:
            raise ValueError(
                f"{value!r} stands for {len(orders)} orders, expected one, such as"
                f" '{value}:low'"
            )
        return value

    @field_validator("released")
    @classmethod
    def _check_released(cls, value: str | None) -> str | None:
        if value is not None and value not in released_lists():
            raise ValueError(
                str(unknown_name("released list", value, released_lists()))
            )
        return value

    @model_validator(mode="after")
    def _check_layers(self) -> Recipe:
        """Check that something is ablated, and that no layer is named twice."""
        ablates = self.heads or self.kept_heads or self.layers_at or self.mlps
        if not (self.unknown or ablates):
            raise ValueError(
                "ablates nothing; give heads, kept_heads, layers_at or mlps"
            )
        if self.mlps == "others":
            raise ValueError("mlps are layers, 'all' or 'middle third'")
        layers = [*self.heads, *self.kept_heads]
        layers += [
            layer
            for group in self.layers_at
            if isinstance(group.layers, tuple)
            for layer in group.layers
        ]
        twice = sorted({layer for layer in layers if layers.count(layer) > 1})
        if twice:
            raise ValueError(f"layer {twice[0]} is named twice")
        return self

    @property
    def lists(self) -> Released | None:
        """Released list that the recipe refers to."""
        if self.released:
            return released_lists()[self.released]
        return None

    @property
    def measured(self) -> bool:
        """Whether heads@k must be measured on the model itself."""
        return bool(self.layers_at) and self.released is None

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """Numbers of layers and of heads in a layer that the recipe is written for."""
        lists = self.lists
        if lists is None:
            return self.n_layers, self.n_heads
        return len(lists.kept), lists.n_heads


def recipe_names() -> list[str]:
    """List the recipes that come with the package.

    They include those that their publication leaves open.

    Returns:
        Names, sorted.
    """
    return sorted(Path(file.name).stem for file in (_FOLDER / "recipe_files").iterdir())


def read_recipe(source: str | Path) -> Recipe:
    """Read a recipe by name, or from a YAML or JSON file."""
    if str(source) in recipe_names():
        text = (_FOLDER / "recipe_files" / f"{source}.yaml").read_text(encoding="utf-8")
        return parse_recipe(yaml.safe_load(text), str(source))
    file = Path(source)
    if not file.is_file():
        raise unknown_name(
            "recipe", source, recipe_names(), hint="Or give a YAML or JSON file."
        )
    fields = read_fields(file, "the recipe", "fields such as name, heads")
    return parse_recipe({"name": file.stem, **fields}, str(file))


def parse_recipe(content: Mapping[str, Any], where: str = "the recipe") -> Recipe:
    """Build a recipe from plain values."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        text = complaints(
            error,
            "a recipe",
            lambda at: list((LayersAt if at[:1] else Recipe).model_fields),
        )
        raise InputError(f"{where}: {text}") from error


def select_targets(
    recipe: Recipe,
    lens: Lens,
    *,
    measured: HeadRanking | None = None,
    scale: bool | None = None,
) -> tuple[dict[int, list[int]], list[int]]:
    """Return the heads and MLPs that a recipe ablates in a model.

    ``measured`` has the heads that each layer loses at heads@k, if the recipe needs it.
    """
    if recipe.unknown:
        raise InputError(f"recipe {recipe.name!r} cannot be run: {recipe.unknown}")
    is_scaled = recipe.scale if scale is None else scale
    if not is_applicable(recipe, lens) and not is_scaled:
        stack = lens.wiring.output_stack
        layers, heads = recipe.sizes
        raise InputError(
            f"recipe {recipe.name!r} is for {recipe.architecture or 'a model'} with"
            f" {layers or 'any number of'} layers of {heads or 'any number of'} heads;"
            f" {lens.model_id} is {lens.wiring.architecture} with {stack.n_layers} of"
            f" {stack.n_heads}. Set scale: true to take the same shares of heads at the"
            " same depths"
        )
    fitted = _FittedRecipe(recipe, lens, measured)
    # a layer that loses no head is no part of the variant
    by_layer = {
        layer: indices for layer, indices in sorted(fitted.heads().items()) if indices
    }
    return by_layer, fitted.layers(recipe.mlps, range(fitted.stack.n_layers))


def to_entries(
    recipe: Recipe,
    planner: VariantPlanner,
    *,
    measured: HeadRanking | None = None,
    random_seeds: Sequence[int] = (),
    scale: bool | None = None,
) -> list[PlanEntry]:
    """Plan a recipe, and random sets of the same size.

    A random set has as many heads of each layer, and the same MLPs. Sets are distinct,
    from each other and from the recipe's.

    Returns:
        Entries of the plan.
    """
    heads, mlps = select_targets(recipe, planner.lens, measured=measured, scale=scale)
    explicit = (
        is_applicable(recipe, planner.lens)
        and not recipe.kept_heads
        and not recipe.measured
    )
    # a list of counts alone is filled in by an order as well
    explicit = explicit and (recipe.lists is None or recipe.lists.heads is not None)
    if explicit:
        selection = "listed"
    else:
        selection = recipe.order.partition(":")[0]
    # by layer, so that the random sets differ from the recipe only in which heads they
    # ablate
    keep = {
        layer: planner.stack.n_heads - len(indices) for layer, indices in heads.items()
    }
    entries = [planner.recipe(recipe.name, heads, mlps, selection=selection)]
    if keep:
        entries += planner.random(recipe.name, keep, random_seeds, mlps, chosen=heads)
    return entries


class _FittedRecipe:
    """Recipe on one model, whose depth and number of heads may differ."""

    def __init__(
        self, recipe: Recipe, lens: Lens, measured: HeadRanking | None
    ) -> None:
        self.recipe = recipe
        self.lens = lens
        self.measured = measured
        self.stack = lens.wiring.output_stack
        self.fits = is_applicable(recipe, lens)
        # layers whose attention has heads to ablate
        self.attending = [
            layer
            for layer in range(self.stack.n_layers)
            if list_kinds(self.stack, layer)
        ]
        # the sizes that layers and counts of the recipe are written in
        layers, heads = recipe.sizes
        self.of_layers = self.stack.n_layers if self.fits or layers is None else layers
        self.of_heads = self.stack.n_heads if self.fits or heads is None else heads

    def heads(self) -> dict[int, list[int]]:
        """Return the ablated heads by layer."""
        listed = self.recipe.heads
        counted = self.recipe.kept_heads
        heads: dict[int, list[int]] = {}
        counts = {
            layer: self.of_heads - len(set(indices))
            for layer, indices in listed.items()
        }
        valid_heads = range(self.stack.n_heads)
        for layer in self.layers(tuple(listed), self.attending):
            if self.fits:
                heads[layer] = list(dict.fromkeys(listed[layer]))
            else:
                # indices of heads mean nothing in another model: as many are taken in
                # the recipe's order
                heads[layer] = self._first(layer, counts)
            for head in heads[layer]:
                if head not in valid_heads:
                    raise unknown_name(
                        f"head in layer {layer}", head, map(str, valid_heads)
                    )
        heads |= {
            layer: self._first(layer, counted)
            for layer in self.layers(tuple(counted), self.attending)
        }
        for group in self.recipe.layers_at:
            # "others" are the layers without an entry so far; a later group that names
            # one of them replaces its entry
            if group.layers == "others":
                layers = [layer for layer in self.attending if layer not in heads]
            else:
                layers = self.layers(group.layers, self.attending)
            for layer in layers:
                ablated = self._at_k(layer)
                heads[layer] = ablated[: max(len(ablated) - group.extra, 0)]
        return heads

    def layers(self, selection: LayerSelection, valid: Sequence[int]) -> list[int]:
        """Return the layers of this model that a selection means, among valid ones."""
        if selection == "all":
            return list(valid)
        if selection == "middle third":
            return middle_third(self.stack.n_layers)
        assert isinstance(selection, tuple)
        if not self.fits:
            return [
                layer
                for layer in at_depth(selection, self.of_layers, self.stack.n_layers)
                if layer in valid
            ]
        # ``at_depth`` returns layers of this model, but a recipe may name a layer that
        # it does not have
        for layer in selection:
            if layer not in valid:
                label = f"layer in {self.lens.model_id} for recipe {self.recipe.name!r}"
                raise unknown_name(label, layer, map(str, valid))
        return list(selection)

    def _at_k(self, layer: int) -> list[int]:
        """Return the heads that are ablated at heads@k, in order of ablation."""
        lists = self.recipe.lists
        if lists is None:
            if self.measured is None or layer not in self.measured:
                raise InputError(
                    f"recipe {self.recipe.name!r} takes layer {layer} to heads@k, which"
                    " is not measured; measure it (heads_at in a sweep), or name a"
                    " released list"
                )
            return list(self.measured[layer])
        if self.fits and lists.heads is not None:
            return list(lists.heads[layer])
        return self._first(layer, dict(enumerate(lists.kept)))

    def _first(self, layer: int, counts: Mapping[int, int]) -> list[int]:
        """Return the heads of a layer to ablate, the first in the recipe's order.

        ``counts`` has the number of heads that stay, by layer of the recipe's model.
        """
        # the layer of the recipe's model in which the middle of this one lies
        depth = int((layer + 0.5) / self.stack.n_layers * self.of_layers)
        if depth not in counts:
            # a model so shallow that no layer lies at this depth has the nearest
            depth = min(counts, key=lambda candidate: abs(candidate - depth))
        if not 0 <= counts[depth] <= self.of_heads:
            raise InputError(
                f"layer {depth} cannot keep {counts[depth]} heads, it has"
                f" {self.of_heads}"
            )
        # the same share of heads, in whole heads of this model
        n_kept = round(counts[depth] / self.of_heads * self.stack.n_heads)
        return self._ranking[layer][: self.stack.n_heads - n_kept]

    @cached_property
    def _ranking(self) -> dict[int, list[int]]:
        (order,) = parse_orders([self.recipe.order])
        if needs_series(order):
            raise InputError(
                f"recipe {self.recipe.name!r} goes by {order}, which is measured on"
                " data; name its heads"
            )
        return rankings(self.lens, [order])[order]


def is_applicable(recipe: Recipe, lens: Lens) -> bool:
    """Test if a recipe is written for this architecture and these sizes."""
    architecture = SAME_WEIGHTS.get(lens.wiring.architecture, lens.wiring.architecture)
    stack = lens.wiring.output_stack
    layers, heads = recipe.sizes
    return (
        # what a recipe does not state, it does not require
        recipe.architecture in ("", architecture)
        and layers in (None, stack.n_layers)
        and heads in (None, stack.n_heads)
    )
