"""The released numbers of heads@1pp, and which layers the paper's recipes take to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tsfm_lens.hooks.wiring import Stack

# kept heads by layer, counted in the lists that the paper's authors released
RELEASED: dict[str, tuple[int, tuple[int, ...]]] = {
    "timesfm-2.5": (16, (13, 9, 8, 7, 2, 1, 5, 3, 5, 5, 0, 0, 7, 4, 7, 13, 13, 13, 15, 13)),
    "toto-1": (12, (5, 5, 2, 6, 6, 5, 7, 8, 6, 3, 0, 1)),
    "chronos-bolt": (12, (4, 0, 0, 2, 5, 2, 7, 4, 7, 7, 8, 10)),
    "moirai-1.1": (12, (3, 3, 9, 5, 5, 3, 5, 4, 4, 2, 8, 10)),
}
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
