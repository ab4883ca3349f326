"""The released lists of heads@1pp, and which layers the paper's recipes take to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

import yaml

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.wiring import Stack


@dataclass(frozen=True)
class Released:
    """heads@1pp of one model as its authors released them.

    Attributes:
        architecture, model: of the checkpoint.
        n_heads: in a layer.
        kept: heads kept, by layer.
        heads: layer -> heads ablated, the first to go first; None where only their number is known.
        source: where it was published.
    """

    architecture: str
    model: str
    n_heads: int
    kept: tuple[int, ...]
    heads: Mapping[int, tuple[int, ...]] | None
    source: str


@cache
def released_lists() -> dict[str, Released]:
    """Everything that was released, by architecture, in the order of the paper's figure 11."""
    found = {}
    for name in ("timesfm-2.5", "toto-1", "chronos-bolt", "moirai-1.1"):
        text = (files("tsfm_lens.sweep") / "released_lists" / f"{name}.yaml").read_text(encoding="utf-8")
        row = yaml.safe_load(text)
        listed = row.pop("heads", None)
        # a layer without an entry loses no head
        heads = listed and {layer: tuple(listed.get(layer, ())) for layer in range(len(row["kept"]))}
        found[name] = Released(**{**row, "kept": tuple(row["kept"])}, heads=heads)
    return found


# kept heads by layer, counted in the lists that the paper's authors released
RELEASED = {name: (each.n_heads, each.kept) for name, each in released_lists().items()}
SAME_WEIGHTS = {"timesfm-2.5-transformers": "timesfm-2.5"}


@dataclass(frozen=True)
class Recipe:
    """Layers of one model whose heads and MLPs go.

    Attributes:
        source: the model that it was written for, a key of ``RELEASED``.
        layers: at heads@1pp.
        mlps: layers without their MLP.
        others: heads kept beyond heads@1pp in all other layers; None leaves those complete.
    """

    source: str
    layers: tuple[int, ...]
    mlps: tuple[int, ...] = ()
    others: int | None = None

    @property
    def of(self) -> int:
        """Layers of that model."""
        return len(RELEASED[self.source][1])


TIMESFM = Recipe("timesfm-2.5", tuple(range(7, 14)), (10, 11))
TIMESFM_ALL = Recipe("timesfm-2.5", tuple(range(7, 14)), (10, 11), others=1)
TOTO = Recipe("toto-1", (2, 9, 10, 11))
BOLT = Recipe("chronos-bolt", tuple(range(11)), tuple(range(1, 10)))


def released_counts(architecture: str, stack: Stack) -> tuple[int, ...] | None:
    """Kept heads by layer as released, None for a model of other sizes than the one that they were counted on."""
    found = RELEASED.get(SAME_WEIGHTS.get(architecture, architecture))
    if found is None or (stack.n_heads, stack.n_layers) != (found[0], len(found[1])):
        return None
    return found[1]


def scaled_counts(source: str, n_layers: int, n_heads: int) -> dict[int, int]:
    """Kept heads by layer for a model of other sizes: the released share of heads at the same depth, rounded.

    Args:
        source: a key of ``RELEASED``.
        n_layers, n_heads: of the model at hand.
    """
    heads, counts = RELEASED[source]
    depth = [int((layer + 0.5) / n_layers * len(counts)) for layer in range(n_layers)]
    return {layer: round(counts[place] / heads * n_heads) for layer, place in enumerate(depth)}


def at_depth(layers: Sequence[int], of: int, n_layers: int) -> list[int]:
    """Layers of a model of another depth: those whose middle lies, relative to the whole, within one of ``layers``.

    Args:
        layers: of a model with ``of`` layers.
        n_layers: of the model at hand; where it is so shallow that no middle lies there, the nearest layer counts.
    """
    middles = [(layer + 0.5) / n_layers * of for layer in range(n_layers)]
    found = [layer for layer, middle in enumerate(middles) if int(middle) in layers]
    if found or not layers:
        return found
    return [min(range(n_layers), key=lambda layer: min(abs(middles[layer] - each - 0.5) for each in layers))]


def middle_third(n_layers: int) -> list[int]:
    """The layers that the paper's words "middle layers" are taken for: 7 to 13 of 20, as it says, and 4 to 7 of 12.

    Raises:
        InputError: fewer than three layers.
    """
    if n_layers < 3:
        raise InputError(f"a statement about middle layers needs three layers or more, this model has {n_layers}")
    return list(range(ceil(n_layers / 3), ceil(2 * n_layers / 3)))


def kept_heads(
    recipe: Recipe, counts: Mapping[int, int], n_layers: int, n_heads: int
) -> tuple[dict[int, int], list[int]]:
    """What a recipe keeps on a model.

    Args:
        recipe: of the paper, scaled to the model's depth.
        counts: layer -> heads@1pp.
        n_layers, n_heads: of the model.

    Returns:
        Layer -> heads kept, for every layer that loses some; and the layers that lose their MLP.
    """
    full = at_depth(recipe.layers, recipe.of, n_layers)
    keep = {layer: counts[layer] for layer in full if layer in counts}
    if recipe.others is not None:
        rest = {layer: min(kept + recipe.others, n_heads) for layer, kept in counts.items() if layer not in keep}
        keep = {**keep, **rest}
    lost = {layer: kept for layer, kept in sorted(keep.items()) if kept < n_heads}
    return lost, at_depth(recipe.mlps, recipe.of, n_layers)
