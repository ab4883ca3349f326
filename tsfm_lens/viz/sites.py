"""Components, and sites in the residual stream, in order of depth.

:func:`find_positions` sorts those of a result into :class:`Sites`, whose labels and
ticks fit on an axis. A place is named after the hook that reads it, such as
"hook_resid_mid".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.viz.select import kind_word, names
from tsfm_lens.viz.theme import plain

# Order of streams within a layer; indices of the writers lie between. All other
# streams, such as "hook_resid_post", come after these.
_STREAM_ORDER = {
    "hook_embed": -2,
    "hook_resid_pre": -1,
    "hook_resid_mid": 100,
    "hook_resid_mid2": 101,
}
# Order of computation within a layer. Every kind that is not here, such as
# self-attention, comes first.
_KIND_ORDER = {"cross_attn": 1, "mlp": 2, "layer": 3}
OUTPUT = "output"  # the last receiver of paths
_MAX_NAMES = 40  # rows or columns that still have room for a name each


@dataclass(frozen=True)
class Sites:
    """Components, or sites in the residual stream, sorted by depth.

    Attributes:
        order: their positions in the result.
        names, stack, kind, layer, head: of each in this order; ``head`` is negative
            where there is none.
    """

    order: np.ndarray
    names: list[str]
    stack: list[str]
    kind: list[str]
    layer: np.ndarray
    head: np.ndarray

    @property
    def labels(self) -> list[str]:
        """Names as figures write them.

        Streams are named by their position, components without the stack where there is
        only one.
        """
        one = len(set(self.stack)) == 1
        return [
            _label(*item, one)
            for item in zip(self.names, self.stack, self.layer, strict=True)
        ]

    @property
    def breaks(self) -> list[float]:
        """Borders between two sites, where a new layer or stack begins.

        There are none between streams, and none where each layer has one place.
        """
        keys = list(zip(self.stack, self.layer.tolist(), strict=True))
        starts = [i for i in range(1, len(keys)) if keys[i] != keys[i - 1]]
        if len(set(keys)) < len(keys) and "stream" not in self.kind:
            return [i - 0.5 for i in starts]
        return []

    def ticks(self, most: int = _MAX_NAMES) -> dict[str, Any]:
        """Return ticks of an axis over the sites.

        Each place has a tick with its name. Where there are more than ``most``, a tick
        stands for all sites of one kind in a layer, and some of these ticks are
        skipped.
        """
        if len(self.names) <= most:
            return {
                "tickvals": list(range(len(self.names))),
                "ticktext": [plain(label) for label in self.labels],
            }
        several = len(set(self.stack)) > 1
        rows: list[tuple[Any, ...]] = list(
            zip(self.stack, self.layer.tolist(), self.kind, strict=True)
        )
        blocks = _blocks(rows)
        # every second, third … block, with the division rounded up
        blocks = blocks[:: -(-len(blocks) // most)]
        texts = [
            " ".join([*(key[:1] * several), f"layer {key[1]}", *map(str, key[2:])])
            for key, _ in blocks
        ]
        return {
            "tickvals": [middle for _, middle in blocks],
            "ticktext": [plain(text) for text in texts],
        }

    def what(self) -> str:
        """Name the sites for a subtitle."""
        of_stack = ""
        if any(self.stack):
            of_stack = (
                f" of the {' and '.join(dict.fromkeys(filter(None, self.stack)))}"
            )
        if set(self.kind) == {"stream"}:
            return f"residual stream{of_stack}"
        if (self.head >= 0).all():
            word = "heads"
        elif (self.head < 0).all():
            word = "attention and MLP"
        else:
            word = "heads and MLPs"
        return f"{word}{of_stack}"


def coordinate(ds: xr.Dataset, name: str) -> np.ndarray:
    """Return a coordinate of the components."""
    if name not in ds.coords:
        raise InputError(
            f"the components need the coordinate {name!r} (stack, kind, layer and"
            " head)."
        )
    return np.asarray(ds[name].values)


def find_positions(ds: xr.Dataset) -> Sites:
    """Return the components as sites, sorted by depth.

    Those of one branch stay in the order of the result.
    """
    along = {name: coordinate(ds, name) for name in ("stack", "kind", "layer", "head")}
    for name, values in along.items():
        if len(values) != ds.sizes["component"]:
            raise InputError(f"the coordinate {name!r} does not lie along 'component'.")
    stack, kind, layer, head = along.values()
    return _sort(
        names(ds, "component"),
        stack.astype(str).tolist(),
        kind.astype(str).tolist(),
        layer.astype(int),
        head.astype(int),
    )


def by_layer(ds: xr.Dataset) -> xr.Dataset:
    """Lay components out as a map.

    Returns:
        The variables over (layer, head, …): a layer has its heads, its MLP and the
        whole layer as columns. Rows name the stack, and columns the kind of attention,
        where a model has several.
    """
    # the embedding is of no layer
    ds = ds.isel(component=coordinate(ds, "layer") >= 0)
    sites = find_positions(ds)
    has_stacks = len(set(sites.stack)) > 1
    of_heads = zip(sites.kind, sites.head, strict=True)
    kinds = {kind for kind, head in of_heads if head >= 0}
    rows = []
    # heads come first, then attention as a whole, MLPs and whole layers
    columns: dict[str, int] = {}
    labels = []
    for stack, layer, kind, head in zip(
        sites.stack, sites.layer, sites.kind, sites.head, strict=True
    ):
        rows.append(f"{layer} ({stack})" if has_stacks else str(layer))
        label = kind_word(kind).removesuffix("-attention")
        rank = _KIND_ORDER.get(kind, 1)
        if head >= 0:
            label = f"{label} {head}" if len(kinds) > 1 else str(head)
            rank = 0
        elif kind in kinds:
            label = f"{label}, all heads"
        columns.setdefault(label, rank)
        labels.append(label)
    keys = pd.MultiIndex.from_arrays([rows, labels], names=["layer", "head"])
    along = [name for name in ds.coords if "component" in ds[name].dims]
    flat = ds.isel(component=sites.order).drop_vars(along)
    flat = flat.assign_coords(xr.Coordinates.from_pandas_multiindex(keys, "component"))
    grid = flat.unstack("component").sel(
        layer=list(dict.fromkeys(rows)), head=sorted(columns, key=columns.__getitem__)
    )
    if any(columns.values()):
        grid["head"].attrs["long_name"] = "component"
    return grid


def _sort(
    labels: list[str],
    stack: list[str],
    kind: list[str],
    layer: np.ndarray,
    head: np.ndarray,
) -> Sites:
    """Sort sites by stack, layer and the order of computation in a layer."""
    # the result has stacks in the order of computation, of which names say nothing
    stacks = list(dict.fromkeys(stack))
    kinds = sorted(dict.fromkeys(kind), key=lambda item: _KIND_ORDER.get(item, 0))

    def depth(i: int) -> tuple[int, int, int]:
        stream = _STREAM_ORDER.get(labels[i].rsplit(".", 1)[-1], 102)
        return (
            stacks.index(stack[i]),
            int(layer[i]),
            stream if kind[i] == "stream" else kinds.index(kind[i]),
        )

    # sorted() is stable, so heads of one branch stay in the order of the result
    order = np.array(sorted(range(len(labels)), key=depth), dtype=int)
    labels, stack, kind = ([text[i] for i in order] for text in (labels, stack, kind))
    return Sites(order, labels, stack, kind, layer[order], head[order])


def _label(name: str, stack: str, layer: int, one_stack: bool) -> str:
    """Name one place; see :attr:`Sites.labels`."""
    point = name.rsplit(".", 1)[-1]
    of_stack = ""
    if stack and not one_stack:
        of_stack = f"{stack} "
    if point == "hook_embed":
        return f"{of_stack}embedding"
    if point.startswith("hook_resid"):
        relation = {"hook_resid_pre": "before", "hook_resid_post": "after"}.get(
            point, "within"
        )
        return (
            f"{of_stack}{relation} layer {layer}{' (2)' if point.endswith('2') else ''}"
        )
    if one_stack and stack:
        return name.removeprefix(f"{stack}.")
    return name


def _blocks(keys: list[Any]) -> list[tuple[Any, float]]:
    """Return runs of equal keys, with the middle of each."""
    runs = [
        (key, list(group))
        for key, group in groupby(range(len(keys)), key=keys.__getitem__)
    ]
    return [(key, (members[0] + members[-1]) / 2) for key, members in runs]
