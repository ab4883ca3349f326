"""Recording of activations, in parts of the batch if memory is short.

Read :class:`Capture` first: what one run keeps, and how. :func:`select_names` resolves
the hook points, and :func:`rollout_spans` gives the time steps of the tokens of every
pass. The hooks that record are set in :mod:`tsfm_lens.hooks.recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import HookError, InputError, UnknownNameError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import Activations, TokenSpans
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.names import get_name, select
from tsfm_lens.hooks.recorder import (
    NamesFilter,
    Reducer,
    passed_before,
    record,
    select_reducers,
)
from tsfm_lens.hooks.tl_names import find_point
from tsfm_lens.models.adapter import check_gradients
from tsfm_lens.models.architecture import Encoded, name_rows
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.batching import (
    LITTLE,
    Range,
    by_row_hint,
    check_request,
    count_tokens,
    cut,
    estimate_activation_bytes,
    estimate_bytes,
    explain_unsplittable,
    fitting,
    forecast_part,
    free_bytes,
    memory_limit,
    plan,
    retry_halved,
)
from tsfm_lens.models.forecast import Forecast, check_finite

T = TypeVar("T")


@dataclass(frozen=True)
class Capture:
    """Activations that one run keeps, and the ways to run it."""

    lens: LensBase
    batch: SeriesBatch
    names: list[str]
    reduce: Reducer | Mapping[str, Reducer] | None = None
    device: torch.device | str | None = None
    loss: Callable[[Tensor], Tensor] | None = None
    rollout: bool = False
    stop: int | str | Component | None = None

    @cached_property
    def reducers(self) -> dict[str, Reducer]:
        """Reducer of each hook point that has one."""
        return select_reducers(self.names, self.reduce)

    @property
    def batch_coupled(self) -> list[str]:
        """Hook points that need the batch to run in one piece."""
        points = self.lens.registry.points
        # a reducer may mix rows, unless it is marked; and parts are joined along the
        # first axis, where an attention between series has its tokens
        row_wise = {
            name
            for name, function in self.reducers.items()
            if getattr(function, "by_row", False)
        }
        coupled = [
            name
            for name in self.names
            if points[name].row_axis or (name in self.reducers and name not in row_wise)
        ]
        return [*self.lens.registry.session.across_rows(), *coupled]

    def item_bytes(self, lengths: Mapping[str, int], times: int = 1) -> int:
        """Estimate the bytes of activations that one item keeps.

        What a reducer leaves is not counted.

        Returns:
            Bytes.

        Raises:
            InputError: all items together take more than the memory allows.
        """
        lens = self.lens
        items = len(set(self.batch.groups))
        names = [name for name in self.names if name not in self.reducers]
        # gradients are as large as the activations
        copies = times if self.loss is None else 2 * times
        sizes = {
            name: size * copies
            for name, size in estimate_activation_bytes(lens, names, lengths).items()
        }
        total = items * sum(sizes.values())
        if total > LITTLE:
            if self.device:
                device = torch.device(self.device)
            else:
                device = lens.device
            limit = memory_limit(device)
            if total > limit:
                largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
                raise InputError(
                    f"{len(self.names)} hook points of {len(self.batch)} series take"
                    f" about {total / 2**20:,.1f} MiB;"
                    f" {free_bytes(device) / 2**20:,.1f} is free, of which they may"
                    f" take {limit / 2**20:,.1f}. To make it fit: keep fewer hook"
                    f" points (names_filter=…; the largest are {', '.join(largest)});"
                    " keep less of each (reduce=…, such as"
                    " tsfm_lens.hooks.last_query); run at most"
                    f" {max(1, limit * items // total)} of the {items} items at once"
                )
        return total // items

    def forward(
        self,
        encoded: Encoded,
        read: Callable[[Tensor, Encoded], Tensor] = lambda output, _part: output,
    ) -> tuple[Tensor, Activations]:
        """Return the output and the activations of a forward, run in parts.

        ``read`` may take something else out of the output of each part.
        """
        lens = self.lens
        batch_coupled = self.batch_coupled
        stored_bytes = self.item_bytes(count_tokens(encoded))

        def run(start: int, stop: int) -> Tensor:
            if stop - start == len(encoded.batch):
                part = encoded
            else:
                part = encoded.part(start, stop)
            output = lens.forward(part, stop_at_layer=self.stop)
            if self.loss is not None:
                # at once for each part, so that its graph is freed before the next part
                # runs
                self.loss(output).backward()
            return read(output, part)

        # gradients are requested, whatever the caller's setting
        with torch.enable_grad() if self.loss is not None else nullcontext():
            has_graph = torch.is_grad_enabled() and any(
                weight.requires_grad for weight in lens.parameters()
            )
            if batch_coupled:
                unsplittable_reason = by_row_hint(batch_coupled)
            # the joined output would hold the graphs of all parts, so that parts saved
            # no memory
            elif has_graph:
                unsplittable_reason = "run it under torch.no_grad(), to run in parts"
            else:
                unsplittable_reason = ""
            if unsplittable_reason:
                ranges = [(0, len(encoded.batch))]
            else:
                ranges = forward_ranges(lens, encoded, stored_bytes)
            outputs, activations = self._run(ranges, run, unsplittable_reason)
            activations.spans = encoded.spans
            output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
            return output, activations

    def forecast_recorded(self, **run: Any) -> tuple[Forecast, Activations]:
        """Return a forecast and the activations of all its passes."""
        lens = self.lens
        batch = self.batch
        if lens.adapter.passes > 1:
            raise InputError(
                "every forecast of this model runs on x and on -x; to record one run,"
                " compile TimesFM with force_flip_invariance=False, and leave"
                " lens.adapter.clampsym of Timestral False"
            )
        request = check_request(lens, batch, **run)
        batch_coupled = self.batch_coupled
        passes = 1
        if lens.adapter.rollout == "refeed":
            # each pass encodes the whole context anew, and all its activations are kept
            passes = -(-request.horizon // lens.adapter.longest_pass)
        stored_bytes = self.item_bytes(request.lengths(), request.paths * passes)
        ranges = plan(request, batch_coupled, stored_bytes)
        outer = 1
        if lens.wiring.sample_major:
            outer = request.paths
        parts, activations = self._run(
            ranges,
            lambda *part: forecast_part(request, *part),
            explain_unsplittable(request, batch_coupled),
            outer,
        )
        activations.spans_at = rollout_spans(lens.adapter, batch, request.horizon)
        forecast = Forecast.joined(parts, batch)
        check_finite(forecast, lens.wiring.architecture)
        return forecast, activations

    def _run(
        self,
        ranges: Iterable[Range],
        run: Callable[[int, int], T],
        unsplittable_reason: str,
        outer: int = 1,
    ) -> tuple[list[T], Activations]:
        """Run ranges of the batch, and record each.

        ``outer`` sample paths vary more slowly than the rows of a part.

        Returns:
            The outputs of all ranges, and their activations joined.
        """

        def record_range(start: int, stop: int) -> tuple[T, Activations]:
            activations = self._empty()
            options: dict[str, Any] = {
                "device": self.device,
                "reduce": self.reduce,
                "gradients": self.loss is not None,
            }
            with record(self.lens.registry, self.names, activations, **options):
                return run(start, stop), activations

        results = retry_halved(record_range, self.batch, ranges, unsplittable_reason)
        outputs = [output for output, _ in results]
        records = [activations for _, activations in results]
        if len(records) == 1:
            return outputs, records[0]
        return outputs, self._joined(records, outer)

    def _empty(self) -> Activations:
        lens = self.lens
        return Activations(
            lens.registry.points,
            self.rollout,
            name_rows(self.batch, lens.adapter.packed),
            sample_major=lens.wiring.sample_major,
            attrs=lens.provenance(),
            source=lens.registry,
        )

    def _joined(self, parts: Sequence[Activations], outer: int) -> Activations:
        """Join the activations of parts, which are emptied.

        Returns:
            The activations of the whole batch.

        Raises:
            HookError: the parts made different numbers of passes.
        """
        joined = self._empty()
        joined.reduced |= parts[0].reduced
        # taken out of the parts name by name, so that not all are held twice at once
        for name in list(parts[0].recorded):
            calls_by_part = [part.recorded.pop(name) for part in parts]
            if len({len(calls) for calls in calls_by_part}) > 1:
                counts = ", ".join(str(len(calls)) for calls in calls_by_part)
                raise HookError(f"{name} ran {counts} times in parts of one batch")
            joined.recorded[name] = []
            for calls in zip(*calls_by_part, strict=True):
                # rows are (sample path, row of the part) where a library draws
                # sample-major, else the first axis has length 1: parts are joined
                # within each path
                values = [call.value.unflatten(0, (outer, -1)) for call in calls]
                value = torch.cat(values, dim=1).flatten(0, 1)
                joined.recorded[name].append(replace(calls[0], value=value))
        return joined


def select_names(
    lens: LensBase, names_filter: NamesFilter, stop: int | str | Component | None
) -> list[str]:
    """Return the names of the hook points that a run keeps.

    Errors are those of :meth:`Lens.run_with_cache`.
    """
    points = lens.registry.points
    selected = set[str]()
    names_filter = get_name(names_filter)
    if names_filter is None:
        # it has an axis of heads beside that of the stream
        names = [name for name in points if not name.endswith("hook_result")]
    elif callable(names_filter):
        names = [*filter(names_filter, points)]
    else:
        patterns = [names_filter] if isinstance(names_filter, str) else names_filter
        for name in patterns:
            if isinstance(name, str) and find_point(name)[1].isdigit():
                # refuses a head that does not exist
                lens.components(name)
            selected.update(select(points, name))
        # in the registry's order, whatever that of the patterns
        names = [name for name in points if name in selected]
    if not names:
        raise UnknownNameError(
            f"names_filter={names_filter!r} selects no hook point; lens.hook_table()"
            " lists them"
        )
    if stop is None:
        return names
    reachable = set(passed_before(lens.registry, stop))
    late = [name for name in names if name not in reachable]
    # what a predicate or a default selects is cut without complaint: no name was given
    if late and names_filter is not None and not callable(names_filter):
        raise InputError(
            f"a forward with stop_at_layer={stop!r} does not come to {late[0]}; leave"
            " it out"
        )
    return [name for name in names if name in reachable]


def forward_ranges(
    lens: LensBase, encoded: Encoded, stored_bytes: int = 0
) -> list[Range]:
    """Plan the parts of a single forward, of about equal size."""
    items = encoded.n_items
    series = len(encoded.batch)
    if items == 1:
        return [(0, series)]
    per_item = -(-series // items)
    need = estimate_bytes(lens, count_tokens(encoded), 1, per_item) + stored_bytes
    fit = fitting(need, items, lens.device)
    max_rows = lens.adapter.rows_at_once
    if max_rows is not None:
        fit = min(fit, max(1, max_rows // per_item))
    number = -(-items // fit)
    return cut(encoded.batch, -(-items // number) * per_item)


def check_recordable(
    lens: LensBase,
    rollout: bool,
    gradients: bool,
    loss: Callable[[Tensor], Tensor] | None,
) -> None:
    """Refuse to record a run that cannot be recorded.

    Errors are those of :meth:`Lens.run_with_cache`.
    """
    if gradients and (rollout or loss is None):
        raise InputError(
            "gradients need a single forward and a scalar: run_with_cache(...,"
            " incl_bwd=True, loss=fn) with rollout=False"
        )
    if gradients:
        check_gradients(lens.wiring)


SpansAt = Callable[[str, int, int, int, int], TokenSpans]
"""Function that gives the spans of the tokens of a pass.

It takes the stack, the number of forecast steps read out before, the position of the
first token, the number of tokens, and the number of tokens of the first pass.
"""


def rollout_spans(adapter: Any, batch: SeriesBatch, horizon: int) -> SpansAt:
    """Return a function that gives the time steps of every pass of a forecast."""
    spans_of_step: dict[int, dict[str, TokenSpans]] = {}

    def shift_spans(step: int) -> dict[str, TokenSpans]:
        """Return the spans of a pass whose context has grown by ``step`` steps.

        They are counted from the start of the whole forecast.
        """
        if step not in spans_of_step:
            # spans depend on the lengths alone
            longer = tuple(np.zeros(length + step) for length in batch.lengths)
            visible = replace(batch, values=longer).tail(adapter.context_length)
            # an adapter that makes its own examples may not take zeros, so that the
            # batch itself is encoded
            if getattr(adapter, "example", None) is not None:
                visible = batch
            remainder = max(1, min(adapter.longest_pass, horizon - step))
            spans = adapter.encode(visible, horizon=remainder).spans
            spans_of_step[step] = {
                stack: tokens.shifted(step) for stack, tokens in spans.items()
            }
        return spans_of_step[step]

    def spans_at(
        stack: str, step: int, offset: int, n_tokens: int, n_first: int
    ) -> TokenSpans:
        output = adapter.wiring.output_stack.name
        if adapter.rollout == "tokens":
            # beyond the native horizon the context grows by whole forecasts, and
            # decoding starts anew
            growth = 0
            if adapter.restarts:
                growth = step // adapter.prediction_length * adapter.prediction_length
            if stack == output:
                return TokenSpans.patches(growth + offset, n_tokens, 1)
            return shift_spans(growth)[stack]
        if adapter.rollout == "cache":
            base = shift_spans(0)[stack]
            width = base.stop[0] - base.start[0]
            # the first pass of a cached rollout ends where the forecast starts, however
            # long a context it was given
            return TokenSpans.patches(width * (offset - n_first), n_tokens, width)
        spans = shift_spans(step if adapter.rollout == "refeed" else 0)[stack]
        # some libraries append empty patches for the steps still to come
        n_missing = n_tokens - len(spans)
        if n_missing > 0:
            width = spans.stop[-1] - spans.start[-1]
            spans += TokenSpans.patches(spans.stop[-1], n_missing, width)
        return spans

    return spans_at
