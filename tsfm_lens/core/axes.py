"""Labels of the axes that results share.

:func:`depth_coords` numbers the places of a residual stream through the depth of a
model. Shapes and units of single results are stated where they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# what the ids of an item begin with that nobody has named
_UNNAMED = "series-0/"
EMBEDDING = -1
"""Label of the embedding along ``layer`` and ``stream``; layers count from 0."""


def layer_name(layer: int | str) -> str:
    """Write the label of a layer in words: "embedding" or "layer 3"."""
    if str(layer) == str(EMBEDDING):
        return "embedding"
    return f"layer {layer}"


def depth_coords(dim: str, n_layers: int) -> dict[str, Any]:
    """Return coordinates of a stream after the embedding and after every layer.

    They are the number along ``dim``, and its name as the coordinate ``{dim}_label``.

    Example:
        >>> axes.depth_coords("layer", 2)["layer_label"]
        ('layer', ['embedding', 'layer 0', 'layer 1'])
    """
    layers = list(range(EMBEDDING, n_layers))
    return {dim: layers, f"{dim}_label": (dim, list(map(layer_name, layers)))}


def short_ids(ids: Sequence[str]) -> list[str]:
    """Write series ids without the item, where this is a single one without a name."""
    if all(name.startswith(_UNNAMED) for name in ids):
        return [name.removeprefix(_UNNAMED) for name in ids]
    return list(ids)
