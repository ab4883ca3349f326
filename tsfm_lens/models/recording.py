"""Running a lens once and keeping activations, in parts of the batch where the memory asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import HookError, InputError, WiringError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.recorder import NamesFilter, Positions, Reducer, record, reducers_of, resolve_filter
from tsfm_lens.hooks.stopping import passed_before, stopping_point
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models.architecture import Encoded, rows_of
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.batching import Range, by_row_hint, cut, forecast_part, halved, plan, reason_uncut, request_of
from tsfm_lens.models.forecast import Forecast, refuse_non_finite
from tsfm_lens.models.memory import (
    LITTLE,
    VARIABLE,
    fitting,
    free_bytes,
    in_words,
    is_given,
    kept_bytes,
    lengths_of,
    limit_of,
    need_of,
)
from tsfm_lens.models.time_axis import rollout_spans

# bytes of activations that a run keeps without a request
_BESIDE = 2**25
T = TypeVar("T")


@dataclass(frozen=True)
class Capture:
    """Activations that one run keeps.

    Attributes:
        lens: the model.
        batch: the series.
        names: exact names of hook points.
        reduce: function on each activation before it is kept, or one by name or glob.
        device: where they are kept; the model's if None.
        gradients: whether gradients are kept as well.
        rollout: whether a whole forecast runs.
        memory: see ``lens.forecast``.
    """

    lens: LensBase
    batch: SeriesBatch
    names: list[str]
    reduce: Reducer | Mapping[str, Reducer] | Positions | None = None
    device: torch.device | str | None = None
    gradients: bool = False
    rollout: bool = False
    memory: int | str | None = None

    @property
    def whole(self) -> list[str]:
        """Hook points that need the batch to run in one piece."""
        points, reducers = self.lens.registry.points, reducers_of(self.names, self.reduce)
        unmarked = {name for name, function in reducers.items() if not getattr(function, "by_row", False)}
        across = [name for name in self.names if points[name].row_axis or name in unmarked]
        return [*self.lens.registry.session.across_rows(), *across]

    def kept(self, lengths: Mapping[str, int], times: int = 1) -> int:
        """Guess the bytes of one item that are kept; what a reducer leaves is not counted.

        Raises:
            InputError: those of the whole batch do not fit in the memory.
        """
        lens, items = self.lens, len(set(self.batch.groups))
        reduced = reducers_of(self.names, self.reduce)
        sizes = kept_bytes(lens, [name for name in self.names if name not in reduced], lengths)
        sizes = {name: size * times * (2 if self.gradients else 1) for name, size in sizes.items()}
        total = items * sum(sizes.values())
        if total > LITTLE or is_given(self.memory):
            limit = limit_of(self.memory, torch.device(self.device) if self.device else lens.device)
            if total > limit:
                largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
                raise InputError(
                    f"{len(self.names)} hook points of {len(self.batch)} series take about {in_words(total)}; "
                    f"{in_words(free_bytes(lens.device))} is free and memory allows {in_words(limit)}. To make it fit: "
                    f"keep fewer hook points (names_filter=…; the largest are {', '.join(largest)}); keep less of each "
                    "(reduce=…, such as tsfm_lens.hooks.last_query); run at most "
                    f"{max(1, limit * items // total)} of the {items} items at once; raise memory=… or {VARIABLE}"
                )
        return total // items

    def run(
        self, ranges: Iterable[Range], run: Callable[[int, int], T], *, uncut: str, outer: int = 1
    ) -> tuple[list[T], Activations]:
        """Run ranges of the batch and record each.

        Args:
            ranges: of the batch.
            run: (start, stop) -> output.
            uncut: see :func:`tsfm_lens.models.batching.halved`.
            outer: how often the rows of a part repeat (sample paths that stand outside the series).
        """

        def one(start: int, stop: int) -> tuple[T, Activations]:
            acts = self._empty()
            with record(
                self.lens.registry,
                self.names,
                acts,
                device=self.device,
                reduce=self.reduce,
                gradients=self.gradients,
            ):
                return run(start, stop), acts

        results = halved(one, self.batch, ranges, uncut)
        outputs, records = [output for output, _ in results], [acts for _, acts in results]
        return outputs, records[0] if len(records) == 1 else self._joined(records, outer)

    def _empty(self) -> Activations:
        lens, rows = self.lens, rows_of(self.batch, self.lens.adapter.packed)
        major, attrs = lens.wiring.sample_major, lens.provenance()
        return Activations(
            lens.registry.points, self.rollout, rows, sample_major=major, attrs=attrs, source=lens.registry
        )

    def _joined(self, parts: Sequence[Activations], outer: int) -> Activations:
        """Join activations of parts, which are emptied; HookError if their passes differ in number."""
        whole = self._empty()
        whole.reduced |= parts[0].reduced
        for name in list(parts[0].recorded):
            calls = [part.recorded.pop(name) for part in parts]
            if len({len(part) for part in calls}) > 1:
                raise HookError(f"{name} ran {', '.join(str(len(part)) for part in calls)} times in parts of one batch")
            whole.recorded[name] = []
            for same in zip(*calls, strict=True):
                values = [call.value.unflatten(0, (outer, -1)) for call in same]
                whole.recorded[name].append(replace(same[0], value=torch.cat(values, dim=1).flatten(0, 1)))
        return whole


def recorded_run(
    lens: LensBase,
    series: Any,
    names_filter: NamesFilter,
    rollout: bool,
    device: torch.device | str | None,
    reduce: Reducer | Mapping[str, Reducer] | Positions | None,
    loss: Callable[[Tensor], Tensor] | None,
    memory: int | str | None,
    run: dict[str, Any],
) -> tuple[Any, Activations]:
    """Run the lens as :meth:`Lens.run_with_cache` does; ``loss`` is None for a run without gradients."""
    stop = run.pop("stop_at_layer", None)
    names = _names(lens, names_filter, stop)
    batch = series.batch if isinstance(series, Encoded) else as_series(series)
    capture = Capture(lens, batch, names, reduce, device, loss is not None, rollout, memory)
    if rollout:
        return _roll_out(capture, run)
    encoded = series if isinstance(series, Encoded) else lens.encode(batch, **run)
    if loss is None:
        outputs, acts = _forward(capture, encoded, lambda part: lens.forward(part, stop_at_layer=stop))
    else:

        def differentiated(part: Encoded) -> Tensor:
            output = lens.forward(part, stop_at_layer=stop)
            loss(output).backward()
            return output

        # gradients are requested, whatever the caller's setting
        with torch.enable_grad():
            outputs, acts = _forward(capture, encoded, differentiated)
    acts.spans = encoded.spans
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs), acts


def _forward(
    capture: Capture, encoded: Encoded, forward: Callable[[Encoded], Tensor]
) -> tuple[list[Tensor], Activations]:
    """Return the outputs and the activations of a forward in parts."""
    whole, lengths = capture.whole, lengths_of(encoded)
    stored = capture.kept(lengths)
    graph = torch.is_grad_enabled() and any(weight.requires_grad for weight in capture.lens.parameters())
    uncut = by_row_hint(whole) if whole else "run it under torch.no_grad(), to run in parts" if graph else ""
    ranges = [(0, len(encoded.batch))] if uncut else forward_ranges(capture.lens, encoded, capture.memory, stored)
    return capture.run(ranges, lambda start, stop: forward(_part(encoded, start, stop)), uncut=uncut)


def _roll_out(capture: Capture, run: dict[str, Any]) -> tuple[Forecast, Activations]:
    """Return a forecast and the activations of all its passes."""
    lens, batch = capture.lens, capture.batch
    request = request_of(lens, batch, **run, memory=capture.memory)
    whole = capture.whole
    passes = -(-request.horizon // lens.adapter.longest_pass) if lens.adapter.rollout == "refeed" else 1
    stored = capture.kept(request.lengths(), request.paths * passes)
    outer = request.paths if lens.wiring.sample_major else 1
    parts, acts = capture.run(
        plan(request, whole, stored),
        lambda *part: forecast_part(request, *part),
        uncut=reason_uncut(request, whole),
        outer=outer,
    )
    acts.spans_at = rollout_spans(lens.adapter, batch, request.horizon)
    forecast = Forecast.joined(parts, batch)
    refuse_non_finite(forecast, lens.wiring.architecture)
    return forecast, acts


def _names(lens: LensBase, names_filter: NamesFilter, stop: int | str | Component | None) -> list[str]:
    """Return the hook points that a run keeps; errors as in :meth:`Lens.run_with_cache`."""
    names = resolve_filter(lens.registry.points, names_filter)
    if names_filter is None:
        names = [name for name in names if not name.endswith("hook_result")]
    if stop is None:
        return names
    reachable = set(passed_before(lens.registry, stopping_point(lens.wiring, stop)))
    late = [name for name in names if name not in reachable]
    if late and names_filter is not None and not callable(names_filter):
        raise InputError(f"a forward with stop_at_layer={stop!r} does not come to {late[0]}; leave it out")
    return [name for name in names if name in reachable]


def forward_ranges(
    lens: LensBase, encoded: Encoded, memory: int | str | None = None, kept: int = 0, copies: int = 1
) -> list[Range]:
    """Plan the parts of a single forward, of about equal size.

    Args:
        lens: the model.
        encoded: the batch.
        memory: see ``lens.forecast``.
        kept: bytes of one item's activations that are kept beside.
        copies: of each item that run side by side.
    """
    per_item = -(-len(encoded.batch) // encoded.n_items)
    need = copies * (need_of(lens, lengths_of(encoded), 1, per_item) + kept)
    fit = fitting(need, encoded.n_items, memory, lens.device)
    most = lens.adapter.rows_at_once
    if most is not None:
        fit = min(fit, max(1, most // per_item))
    number = -(-encoded.n_items // fit)
    return cut(encoded.batch, -(-encoded.n_items // number) * per_item)


def _part(encoded: Encoded, start: int, stop: int) -> Encoded:
    return encoded if stop - start == len(encoded.batch) else encoded.part(start, stop)


def read_forward(lens: LensBase, encoded: Encoded, read: Callable[[Tensor, Encoded], Tensor]) -> Tensor:
    """Run one forward and read its output, in parts of the batch where the memory asks for it.

    Args:
        lens: the model.
        encoded: the batch.
        read: output of a part, and that part -> (series of the part, …).
    """

    def one(start: int, stop: int) -> Tensor:
        part = _part(encoded, start, stop)
        return read(lens.forward(part), part)

    whole = lens.registry.session.across_rows()
    ranges = [(0, len(encoded.batch))] if whole else forward_ranges(lens, encoded)
    with torch.no_grad():
        outputs = halved(one, encoded.batch, ranges, by_row_hint(whole) if whole else "")
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def recorded_pass(lens: LensBase, encoded: Encoded, names: list[str], *, more: bool) -> tuple[Tensor, Activations]:
    """Return a forward's output and some hook points; with ``more`` also points that others may request, if small."""
    beside = _beside(lens, encoded, names) if more else []
    try:
        output, acts = lens.run_with_cache(encoded, names_filter=[*names, *beside])
    except (HookError, WiringError):
        if not beside:
            raise
        # a point that nobody requested cannot be hooked, as in a compiled module
        return recorded_pass(lens, encoded, names, more=False)
    return output, acts


def recorded_alike(lens: LensBase, recorded: Iterable[Activations], names: Iterable[str]) -> list[Activations]:
    """Select the recordings of forwards that looked into attention, or did not, as one of some hook points would.

    Attention that is looked into runs another kernel, whose last bits differ.
    """
    inside = _looks_inside(lens, names)
    return [acts for acts in recorded if _looks_inside(lens, acts) == inside]


def _looks_inside(lens: LensBase, names: Iterable[str]) -> bool:
    points = lens.registry.points
    return any(points[name].how not in ("site", "result") for name in names if name in points)


def _beside(lens: LensBase, encoded: Encoded, names: list[str]) -> list[str]:
    """List the hook points that a forward passes beside some without running otherwise; none where memory is short."""
    points = lens.registry.points
    if is_given(None) or lens.registry.in_use or any(points[name].row_axis for name in names if name in points):
        return []
    internal = {"scores"} if _looks_inside(lens, names) else {"scores", "pattern", "q", "k", "v", "z"}
    more = [
        name
        for name, point in points.items()
        # the head's output may be as wide as a vocabulary
        if point.how not in internal and not point.row_axis and name not in names and name != "unembed.hook_out"
    ]
    size = sum(kept_bytes(lens, more, lengths_of(encoded)).values()) * encoded.n_items
    return more if size <= _BESIDE else []


def refuse_gradients(wiring: Wiring) -> None:
    """Refuse gradients that are not derivatives.

    Raises:
        InputError: the library rescales its backward pass.
    """
    if not wiring.true_gradients:
        raise InputError(
            f"{wiring.architecture} rescales its backward pass (unit scaling), so its gradients are not the "
            "derivatives; use finite differences, or attribution by lens difference"
        )


def refuse_run(lens: LensBase, rollout: bool, gradients: bool, loss: Callable[[Tensor], Tensor] | None) -> None:
    """Refuse to record a run that cannot be recorded; errors as in :meth:`Lens.run_with_cache`."""
    if gradients and (rollout or loss is None):
        raise InputError(
            "gradients need a single forward and a scalar: run_with_cache(..., incl_bwd=True, loss=fn) "
            "with rollout=False"
        )
    if gradients:
        refuse_gradients(lens.wiring)
        if torch.is_inference_mode_enabled():
            raise InputError("there are no gradients under torch.inference_mode(); leave it, or drop incl_bwd=True")
    if rollout and lens.adapter.passes > 1:
        raise InputError(
            "this model was compiled with force_flip_invariance=True, under which every forecast runs on x and on -x; "
            "compile it with force_flip_invariance=False to record one run"
        )
