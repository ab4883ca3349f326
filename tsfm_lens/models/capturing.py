"""Memory of a run that keeps activations: what it keeps, what it needs meanwhile, and its parts.

Activations that are kept grow with the number of series whatever the parts. So a capture that keeps too much is
refused before it runs. Both sizes are guessed first, by far too high; where the guess does not fit they are measured
on one item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.recorder import Reducer
from tsfm_lens.models import batching
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.memory import VARIABLE, OverLimit, free_bytes, in_words, is_given, limit_of, measured


@dataclass
class Keeping:
    """Activations that a run keeps.

    Attributes:
        lens: the model.
        names: exact names of hook points.
        reducers: applied to an activation before it is kept, by name.
        device: where they are kept; the model's if None.
        gradients: whether gradients are kept as well.
        sizes: bytes by name, counted on the fly by :meth:`note`.
    """

    lens: LensBase
    names: Sequence[str]
    reducers: Mapping[str, Reducer]
    device: torch.device | str | None = None
    gradients: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    _last: Tensor | None = None

    def whole(self) -> list[str]:
        """List the hook points that need the batch to run in one piece."""
        points = self.lens.registry.points
        unmarked = {name for name, function in self.reducers.items() if not getattr(function, "by_row", False)}
        across_rows = [name for name in self.names if points[name].row_axis or name in unmarked]
        return [*self.lens.registry.session.across_rows(), *across_rows]

    @property
    def elsewhere(self) -> bool:
        """True if activations leave the device that the model runs on."""
        return self.device is not None and torch.device(self.device).type != self.lens.device.type

    def guess(self, tokens: int, paths: int, passes: int) -> int:
        """Estimate the bytes that are kept of one item, if every step were a token."""
        points, wiring = self.lens.registry.points, self.lens.wiring
        numbers, wide = 0, batching.width_of_output(self.lens)
        for name in self.names:
            stack = wiring.stack(points[name].stack)
            lengths = {"batch": 1, "pos": tokens, "query": tokens, "key": tokens, "head": stack.n_heads}
            lengths |= {"d_head": stack.d_head, "d_model": stack.d_model, "d_mlp": stack.d_mlp}
            numbers += math.prod(lengths.get(axis, wide) for axis in points[name].axes)
        return 4 * numbers * paths * passes * (2 if self.gradients else 1)

    def note(self, point: Point, value: Tensor) -> None:
        """Count the bytes that would be kept of an activation."""
        if point.name not in self.names:
            return
        reducer = self.reducers.get(point.name)
        if reducer is None:
            storage = value.untyped_storage()
            # views of one tensor, such as queries and keys, hold it once
            again = self._last is not None and self._last.untyped_storage()._cdata == storage._cdata
            size, self._last = 0 if again else storage.nbytes(), value
        else:
            # a reducer of the caller's own must not run twice
            size = reducer(value.detach()).nbytes if getattr(reducer, "by_row", False) else 0
        self.sizes[point.name] = self.sizes.get(point.name, 0) + size * (2 if self.gradients else 1)


@dataclass(frozen=True)
class Run:
    """Run of a capture.

    Attributes:
        words: its name, for messages.
        items: of the batch.
        at_once: items that the run would take at once.
        guess: bytes that one item needs, by far too high.
        storage: bytes of one item that are kept, by far too high.
        one: runs one item.
        uncut: why the batch cannot run in parts, "" if it can.
        times: the factor from the measured need to that of a run.
        per_item: series of an item.
    """

    words: str
    items: int
    at_once: int
    guess: int
    storage: int
    one: Callable[[], Any]
    uncut: str = ""
    times: int = 1
    per_item: int = 1


def items_at_once(
    keeping: Keeping, run: Run, memory: int | str | None, connect: Callable[[], AbstractContextManager[Any]]
) -> int:
    """Count the items of a capture that may run at once.

    Args:
        keeping: the activations to keep.
        run: the run.
        memory: see ``lens.forecast``.
        connect: connects the hook points, where one item has to be measured.

    Raises:
        InputError: the activations, or the run's own need beside them, do not fit; nothing has run by then.
    """
    lens = keeping.lens
    most = getattr(lens.adapter, "rows_at_once", None)
    if most is not None and not run.uncut:
        run = replace(run, at_once=min(run.at_once, max(1, most // run.per_item)))
    guess = run.storage * run.items + run.guess * run.at_once
    if guess <= batching.LITTLE and not is_given(memory):
        return run.at_once
    limit = limit_of(memory, lens.device)
    room = limit_of(memory, torch.device(keeping.device)) if keeping.elsewhere and keeping.device else limit
    if guess <= min(limit, room):
        return run.at_once
    keeping.sizes.clear()
    try:
        with connect(), lens.registry.attach(), lens.registry.observed(keeping.note):
            _, need = measured(run.one, lens.device, limit)
    except OverLimit:
        raise InputError(_refusal(keeping, run, limit + 1, 0, limit, more=True)) from None
    need *= run.times
    squared = {name for name in keeping.names if lens.registry.points[name].row_axis}
    sizes = {name: size * run.items ** (2 if name in squared else 1) for name, size in keeping.sizes.items()}
    keeping.sizes.update(sizes)
    total = sum(sizes.values())
    remainder = limit - (0 if keeping.elsewhere else total)
    together = run.at_once if run.uncut else 1
    if total > room or need * together > remainder:
        raise InputError(_refusal(keeping, run, need * together, total, min(limit, room)))
    if run.uncut:
        return run.at_once
    comfortable = remainder if is_given(memory) else min(remainder, max(batching.comfort(lens.device), need))
    return min(run.at_once, max(1, comfortable // max(need, 1)))


def _refusal(keeping: Keeping, run: Run, need: int, activations: int, limit: int, *, more: bool = False) -> str:
    """Compose the refusal of a capture: how much it needs, how much is free, and how to reduce it."""
    largest = sorted(keeping.sizes, key=lambda name: keeping.sizes[name], reverse=True)[:3]
    per_item = max(1, (need // (run.at_once if run.uncut else 1)) + activations // run.items)
    ways = []
    if run.items > 1 and limit >= per_item:
        ways.append(f"run at most {limit // per_item} of the {run.items} items at once")
    if largest:
        ways.append(f"keep fewer hook points (names_filter=…; the largest are {', '.join(largest)})")
    if keeping.names:
        ways.append("keep less of each (reduce=…, such as tsfm_lens.hooks.last_query)")
    ways += [run.uncut] if run.uncut else []
    ways.append(f"raise memory=… or {VARIABLE}")
    amount = "more than " if more else "about "
    points = f" with {len(keeping.names)} hook points" if keeping.names else ""
    of_it = f" ({in_words(activations)} of it activations that are kept)" if activations else ""
    return (
        f"{run.words}{points} needs {amount}{in_words(need + activations)}{of_it}; "
        f"{in_words(free_bytes(keeping.lens.device))} is free and memory allows {in_words(limit)}. To make it fit: "
        + "; ".join(ways)
    )
