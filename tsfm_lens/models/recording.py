"""Running a lens once and keeping activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

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
from tsfm_lens.models.batching import (
    blocks_of,
    cut,
    forecast_part,
    generous,
    generous_run,
    item_forecast,
    parts_of,
    request_of,
)
from tsfm_lens.models.capturing import Keeping, Run, items_at_once
from tsfm_lens.models.forecast import Forecast, refuse_non_finite
from tsfm_lens.models.joining import joined_activations, joined_forecast
from tsfm_lens.models.memory import is_given
from tsfm_lens.models.time_axis import rollout_spans

# bytes of activations that a run keeps without a request
_BESIDE = 2**25


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
    points = lens.registry.points
    stop = run.pop("stop_at_layer", None)
    names = _names(lens, names_filter, stop)
    batch = series.batch if isinstance(series, Encoded) else as_series(series)
    keeping = Keeping(lens, names, reducers_of(names, reduce), device, loss is not None)
    rows = rows_of(batch, lens.adapter.packed)

    def recording(into: Activations) -> AbstractContextManager[Activations]:
        return record(lens.registry, names, into, device=device, reduce=reduce, gradients=loss is not None)

    def empty() -> Activations:
        return Activations(
            points, rollout, rows, sample_major=lens.wiring.sample_major, attrs=lens.provenance(), source=lens.registry
        )

    if rollout:
        return _roll_out(lens, batch, keeping, recording, empty, memory, run)
    encoded = series if isinstance(series, Encoded) else lens.encode(batch, **run)
    forward = partial(lens.forward, stop_at_layer=stop)
    if loss is None:
        return _forward(lens, encoded, keeping, recording, empty, memory, forward)
    acts = empty()
    acts.spans = encoded.spans
    # gradients are requested, whatever the caller's setting
    with torch.enable_grad():
        _items_of_forward(keeping, lambda into: record(lens.registry, names, into), empty, encoded, memory)
        with recording(acts):
            output = forward(encoded)
            loss(output).backward()
    return output, acts


def _names(lens: LensBase, names_filter: NamesFilter, stop: int | str | Component | None) -> list[str]:
    """Return the hook points that a run keeps.

    Raises:
        UnknownNameError: a name matches no hook point.
        InputError: a forward that stops does not come to one of them.
    """
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


Recording = Callable[[Activations], AbstractContextManager[Activations]]


def _roll_out(
    lens: LensBase,
    batch: SeriesBatch,
    keeping: Keeping,
    recording: Recording,
    empty: Callable[[], Activations],
    memory: int | str | None,
    run: dict[str, Any],
) -> tuple[Forecast, Activations]:
    """Return a forecast and the activations of all its passes."""
    request = request_of(lens, batch, **run, memory=memory)
    blocks = blocks_of(request)
    whole = keeping.whole()
    series_per_item = -(-len(batch) // request.items)
    at_once = request.items if whole else -(-max(stop - start for start, stop in blocks) // series_per_item)
    tokens = (request.context + request.horizon + 8) * series_per_item
    passes = -(-request.horizon // lens.adapter.longest_pass) if lens.adapter.rollout == "refeed" else 1
    is_fixed = whole or (request.draws and lens.adapter.readout != "token")
    plan = Run(
        f"a forecast of {len(batch)} series × {request.context} steps and {request.horizon} ahead",
        request.items,
        at_once,
        generous(request),
        keeping.guess(tokens, request.paths, passes + 1),
        lambda: item_forecast(request),
        _uncut(whole) or "give batch_size=…, which draws other paths" if is_fixed else "",
        per_item=series_per_item,
    )
    fit = items_at_once(keeping, plan, memory, lambda: recording(empty())) * series_per_item
    parts = parts_of(request, blocks, fit, whole=bool(whole))
    forecasts, records = [], []
    for part in parts:
        records.append(empty())
        with recording(records[-1]):
            forecasts.append(forecast_part(request, part))
    acts = _together(records, empty, outer=request.paths if lens.wiring.sample_major else 1)
    acts.spans_at = rollout_spans(lens.adapter, batch, request.horizon)
    forecast = joined_forecast(forecasts, batch)
    refuse_non_finite(forecast, lens.wiring.architecture)
    return forecast, acts


def _forward(
    lens: LensBase,
    encoded: Encoded,
    keeping: Keeping,
    recording: Recording,
    empty: Callable[[], Activations],
    memory: int | str | None,
    forward: Callable[[Encoded], Tensor],
) -> tuple[Tensor, Activations]:
    """Return one forward's output and activations."""
    fit = _items_of_forward(keeping, recording, empty, encoded, memory)
    outputs, records = [], []
    number = -(-encoded.n_items // fit)
    series_per_item = -(-len(encoded.batch) // encoded.n_items)
    for start, stop in cut(encoded.batch, -(-encoded.n_items // number) * series_per_item):
        records.append(empty())
        with recording(records[-1]):
            outputs.append(forward(encoded if number == 1 else encoded.part(start, stop)))
    acts = _together(records, empty)
    acts.spans = encoded.spans
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs), acts


def read_forward(lens: LensBase, encoded: Encoded, read: Callable[[Tensor, Encoded], Tensor]) -> Tensor:
    """Run one forward and read its output, in parts of the batch where the memory asks for it.

    Args:
        lens: the model.
        encoded: the batch.
        read: output of a part, and that part -> (series of the part, …).
    """
    nothing = Keeping(lens, (), {})
    with torch.no_grad():
        fit = _items_of_forward(
            nothing, lambda _into: nullcontext(Activations({})), lambda: Activations({}), encoded, None
        )
        series_per_item = -(-len(encoded.batch) // encoded.n_items)
        if fit >= encoded.n_items:
            return read(lens.forward(encoded), encoded)
        parts = [encoded.part(*place) for place in cut(encoded.batch, fit * series_per_item)]
        return torch.cat([read(lens.forward(part), part) for part in parts])


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
    tokens = sum(len(spans) for spans in encoded.spans.values())
    size = Keeping(lens, more, {}).guess(tokens, 1, 1) * len(encoded.batch)
    return more if size <= _BESIDE else []


def _items_of_forward(
    keeping: Keeping,
    recording: Recording,
    empty: Callable[[], Activations],
    encoded: Encoded,
    memory: int | str | None,
) -> int:
    """Count the items that a single forward takes at once."""
    lens, whole = keeping.lens, keeping.whole()
    series_per_item = -(-len(encoded.batch) // encoded.n_items)
    # a packed sequence shows every variate's tokens
    tokens = sum(len(spans) for spans in encoded.spans.values()) * (1 if encoded.packed else series_per_item)
    graph = torch.is_grad_enabled() and any(weight.requires_grad for weight in lens.parameters())
    layers = sum(stack.n_layers for stack in lens.wiring.stacks) if graph else 1
    plan = Run(
        f"a forward of {len(encoded.batch)} series",
        encoded.n_items,
        encoded.n_items,
        generous_run(lens, tokens, 1, series_per_item) * layers,
        keeping.guess(tokens, 1, 1),
        lambda: _one_item(lens, encoded.part(*cut(encoded.batch, 1)[0])),
        _uncut(whole) or ("run it under torch.no_grad(), to run in parts" if graph else ""),
        2 if keeping.gradients else 1,
        per_item=series_per_item,
    )
    return items_at_once(keeping, plan, memory, lambda: recording(empty()))


def _one_item(lens: LensBase, item: Encoded) -> Tensor:
    with lens.running(len(item.rows)):
        return lens.adapter.run(item.inputs)


def _uncut(whole: list[str]) -> str:
    """Explain how a batch that must stay whole could run in parts; "" if it may be cut."""
    if not whole:
        return ""
    return f"mark what treats each row by itself with tsfm_lens.hooks.by_row (at {whole[0]}), to run in parts"


def _together(records: list[Activations], empty: Callable[[], Activations], outer: int = 1) -> Activations:
    if len(records) == 1:
        return records[0]
    acts = empty()
    joined_activations(records, acts, outer=outer)
    return acts


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
    if rollout and getattr(lens.adapter, "passes", 1) > 1:
        raise InputError(
            "this model was compiled with force_flip_invariance=True, under which every forecast runs on x and on -x; "
            "compile it with force_flip_invariance=False to record one run"
        )
