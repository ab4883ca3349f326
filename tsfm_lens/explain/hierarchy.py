"""Input attribution from coarse to fine: years into weeks, the heaviest of those into days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.errors import InputError
from tsfm_lens.explain.attribution import attribute_inputs
from tsfm_lens.explain.masking import Reference
from tsfm_lens.explain.segments import Segment, given_parts, item_of, refined, token_edges
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.run import Run

__all__ = ["refine_inputs"]


@saying_once
def refine_inputs(
    run: Run,
    item: int | str = 0,
    method: str = "shapley",
    reference: Reference = "mean",
    *,
    target: int | str = 0,
    parts: Any = 4,
    rounds: int = 2,
    into: int = 4,
    widths: Sequence[int] | None = None,
    share: float = 0.6,
    most: int = 24,
    **how: Any,
) -> xr.Dataset:
    """Attribute to coarse segments, cut those that matter most, and attribute again.

    Each round explains the whole anew by the segments that there are then, so that they add up in every round. A coarse
    segment that moves the forecast up in one part and down in another may look light and stay whole.

    Args:
        run, item, method, reference, target: see :func:`tsfm_lens.explain.attribute_inputs`.
        parts: the first segments, as there.
        rounds: how often the heaviest are cut.
        into: pieces that each is cut into.
        widths: steps of a piece in each round, counted back from the end of its segment, in place of ``into`` and
            ``rounds``: (8760, 168, 24) for years, weeks and days of hours.
        share: of the mass, the mean size of the effect over steps, that the segments to be cut make up.
        most: segments at most; fewer are cut where there would be more.
        how: further arguments of :func:`tsfm_lens.explain.attribute_inputs`.

    Returns:
        What :func:`tsfm_lens.explain.attribute_inputs` gives of the last segments, with ``first`` (segment), the
        segment of the first round that it is of, and the attribute ``cuts``, the segments cut in each round.

    Raises:
        InputError: rounds, into or widths are no numbers of 1 or more, or share is none.

    Example:
        >>> found = explain.refine_inputs(driven, method="occlusion", parts=2, rounds=1, into=2)
        >>> found.sizes["segment"] > 4
        True
    """
    piece_widths = () if widths is None else tuple(widths)
    if not all(map(is_count, (rounds, into, most, *piece_widths))) or not 0 < share <= 1:
        raise InputError(
            f"rounds={rounds!r}, into={into!r}, widths={widths!r}, share={share!r}, most={most!r}; expected numbers of "
            "1 or more, and a share of the mass above 0 and up to 1"
        )
    steps: list[int | None] = [*piece_widths] or [None] * rounds
    edges = token_edges(item_of(run, item))
    current = given_parts(run, item, target, parts)
    origin = {part: part.name for part in current}
    cuts: list[str] = []
    result = attribute_inputs(run, item, method, reference, target=target, parts=current, **how)
    for width in steps:
        finer, cut = _cut(current, _mass(result), width, into, edges, share, most)
        if not cut:
            break
        cuts.append(", ".join(part.name for part in cut))
        origin |= {piece: origin[part] for part in cut for piece in finer if _inside(piece, part)}
        current = finer
        result = attribute_inputs(run, item, method, reference, target=target, parts=current, **how)
    return result.assign_coords(first=("segment", [origin[part] for part in current])).assign_attrs(
        cuts="; ".join(cuts)
    )


def _mass(result: xr.Dataset) -> np.ndarray:
    """Compute the mean size of each segment's effect on the middle of the forecast, (segment,)."""
    middle = result["attribution"].sel(quantile=0.5, method="nearest")
    return np.abs(middle.transpose("segment", "step").values).mean(1)


def _inside(piece: Segment, part: Segment) -> bool:
    return piece.row == part.row and part.start <= piece.start and piece.stop <= part.stop


def _cut(
    current: Sequence[Segment],
    mass: np.ndarray,
    width: int | None,
    into: int,
    edges: Sequence[int],
    share: float,
    most: int,
) -> tuple[tuple[Segment, ...], list[Segment]]:
    """Cut the heaviest segments; return all segments, and those that were cut."""
    finer, cut, total = tuple(current), [], 0.0
    for index in np.argsort(-mass, kind="stable"):
        if total >= share * mass.sum():
            break
        part = current[index]
        trial = refined(finer, [part], into=into, width=width, edges=edges)
        total += float(mass[index])
        if len(finer) < len(trial) <= most:
            finer = trial
            cut.append(part)
    return finer, cut
