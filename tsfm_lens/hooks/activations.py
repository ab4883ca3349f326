"""Captured activations: a mapping by hook name, with labelled views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import HookError, unknown_name
from tsfm_lens.hooks.names import Point, select
from tsfm_lens.hooks.spans import TokenSpans


@dataclass(frozen=True)
class Call:
    """One recorded pass through a hook point.

    Attributes:
        step: forecast steps that had been read out when it ran.
        offset: position of the first token (above 0 when earlier ones sit in a key-value cache).
        value: the activation, detached.
    """

    step: int
    offset: int
    value: Tensor


@dataclass
class Activations(Mapping[str, Tensor]):
    """What hook points saw during a run.

    ``acts[name]`` is one tensor. After a single forward it has the axes of the vocabulary; after a
    rollout it has a leading axis ``step``, one entry per pass. ``name + "_grad"`` holds the gradient
    where gradients were recorded.

    Attributes:
        points: what each name means.
        rollout: whether the run was a rollout, so that tensors have the axis ``step``.
        ids: the ids of the series in the batch.
        spans: by stack, the time steps that each token of a single forward covers.
        sample_major: whether rows are sample paths of all series, not series with their sample paths.
        spans_at: of a rollout, the same by (stack, step, position of the first token, number of tokens, tokens of
            the first pass).
        attrs: provenance of the run.
    """

    points: Mapping[str, Point]
    rollout: bool = False
    ids: tuple[str, ...] = ()
    spans: Mapping[str, TokenSpans] = field(default_factory=dict)
    sample_major: bool = False
    spans_at: Callable[[str, int, int, int, int], TokenSpans] | None = None
    attrs: dict[str, object] = field(default_factory=dict)
    recorded: dict[str, list[Call]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)

    def __len__(self) -> int:
        return len(self.recorded)

    def __contains__(self, name: object) -> bool:
        # a mapping would look for the nearest names first
        return name in self.recorded

    def __repr__(self) -> str:
        kind = "rollout" if self.rollout else "forward"
        return f"Activations({len(self)} hook points of one {kind}, {len(self.ids)} series)"

    def __getitem__(self, name: str) -> Tensor:
        calls = self.calls(name)
        if not self.rollout and len(calls) == 1:
            return calls[0].value
        shapes = {tuple(call.value.shape) for call in calls}
        if len(shapes) == 1:
            stacked = torch.stack([call.value for call in calls])
        else:
            stacked = torch.stack(_pad_keys(name, self._point(name), [call.value for call in calls]))
        return stacked

    @property
    def nbytes(self) -> int:
        """Bytes of all activations."""
        return sum(call.value.nbytes for calls in self.recorded.values() for call in calls)

    def calls(self, name: str) -> list[Call]:
        """Every recorded pass through one hook point, in order.

        Raises:
            UnknownNameError: nothing was recorded under this name; the message has the nearest names.
        """
        if name not in self.recorded:
            raise unknown_name("recorded activation", name, self.recorded, hint="Was it in the names filter?")
        return self.recorded[name]

    def select(self, pattern: str) -> dict[str, Tensor]:
        """All recorded activations whose name matches a glob, by name."""
        return {name: self[name] for name in select(self.recorded, pattern, what="recorded activation")}

    def _point(self, name: str) -> Point:
        return self.points[name.removesuffix("_grad")]

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the axes of ``acts[name]``."""
        reduced = len(self._point(name).axes) != self.calls(name)[0].value.ndim
        axes = self._point(name).axes
        if reduced:
            axes = tuple(f"axis_{i}" for i in range(self.calls(name)[0].value.ndim))
        return ("step", *axes) if self.rollout or len(self.calls(name)) > 1 else axes

    def to_xarray(self, name: str) -> xr.DataArray:
        """One activation as a labelled array.

        Coordinates: ``series`` along batch (with ``sample`` where a series has several rows), ``step``,
        and for token axes the first time step that each token covers, relative to the forecast start.
        """
        tensor, axes = self[name].detach().cpu().float(), self.axes(name)
        array = xr.DataArray(tensor.numpy(), dims=axes, name=name)
        if "step" in axes:
            array = array.assign_coords(step=[call.step for call in self.calls(name)])
        between_series = self._point(name).over == "variate" and "query" in axes
        if "batch" in axes and self.ids and not between_series:
            rows = array.sizes["batch"] // len(self.ids)
            places = [(series, row) for series in self.ids for row in range(rows)]
            if self.sample_major:
                places = [(series, row) for row in range(rows) for series in self.ids]
            array = array.assign_coords(
                series=("batch", [series for series, _ in places]), sample=("batch", [row for _, row in places])
            )
        for axis in ("pos", "query", "key"):
            array = self._label_tokens(array, name, axis)
        array.attrs = {"hook": name, **{key: str(value) for key, value in self.attrs.items()}}
        return array

    def token_spans(self, name: str, call: int = 0, axis: str = "pos") -> TokenSpans | None:
        """What the tokens of one recorded pass cover, counted from the forecast start; None where unknown.

        Args:
            name: of the hook point.
            call: index of the pass.
            axis: "pos", "query" or "key".

        Raises:
            UnknownNameError: nothing was recorded under this name.
        """
        point, recorded = self._point(name), self.calls(name)[call]
        if axis not in point.axes or point.over == "variate" or recorded.value.ndim != len(point.axes):
            return None
        crosses = axis == "key" and point.kind == "cross_attn"
        stack = next(iter(self.spans), "encoder") if crosses else point.stack
        length = recorded.value.shape[point.axes.index(axis)]
        if not self.rollout:
            spans = self.spans.get(stack)
        elif self.spans_at is None:
            spans = None
        else:
            # keys reach back to the first position in the cache
            offset = 0 if axis == "key" else recorded.offset
            first = self.calls(name)[0].value.shape[point.axes.index("query" if axis == "key" else axis)]
            spans = self.spans_at(stack, recorded.step, offset, length, first)
        return spans if spans is not None and len(spans) == length else None

    def _label_tokens(self, array: xr.DataArray, name: str, axis: str) -> xr.DataArray:
        if axis not in array.dims:
            return array
        passes = [self.token_spans(name, call, axis) for call in range(len(self.calls(name)))]
        known = [spans for spans in passes if spans is not None and len(spans) == array.sizes[axis]]
        if len(known) < len(passes):
            return array
        by_step = "step" in array.dims
        for part in ("start", "stop", "special"):
            rows = [list(getattr(spans, part)) for spans in known]
            array = array.assign_coords({f"{axis}_{part}": (("step", axis), rows) if by_step else (axis, rows[0])})
        return array


def _pad_keys(name: str, point: Point, values: list[Tensor]) -> list[Tensor]:
    """Bring patterns and scores of a growing cache to one length: keys not there yet got no attention."""
    fill = {"pattern": 0.0, "scores": float("-inf")}.get(point.how)
    if fill is None or any(v.shape[:-1] != values[0].shape[:-1] for v in values):
        shapes = sorted({tuple(value.shape) for value in values})
        raise HookError(
            f"{name} changed its shape during the rollout ({shapes[0]} … {shapes[-1]}), so its passes do not "
            "stack. Take them one by one with acts.calls(name), or record with a reducer."
        )
    width = max(value.shape[-1] for value in values)
    return [torch.nn.functional.pad(value, (0, width - value.shape[-1]), value=fill) for value in values]
