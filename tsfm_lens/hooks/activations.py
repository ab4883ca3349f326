"""Captured activations: a mapping by hook name, with labelled views.

Read :class:`Activations`; :class:`TokenSpans` says which time steps each token covers.
Nothing is recorded here: :mod:`tsfm_lens.hooks.recorder` fills the mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import HookError, InputError, unknown_name
from tsfm_lens.core.foreign_words import MEMBERS
from tsfm_lens.hooks.names import Point, nearest
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.residual import Decomposed
from tsfm_lens.hooks.tl_names import CACHE, Key, find_point, full_name


@dataclass(frozen=True)
class TokenSpans:
    """Time steps ``[start, stop)`` of every token of one stack.

    Steps are counted from the forecast start: its first step is 0.

    Encoder tokens cover the steps of their input; decoder tokens cover the steps that
    are forecast from them.

    Attributes:
        start, stop: one entry per token; equal for special tokens that cover no step.
        special: "" for a token of the series, else its kind: "EOS", "REG", "IDLE" for a
            query that is not read, "KNOWN" for one that shows the future of covariates
            and is not read.
        variate: the variate of each token, if the variates of an item share one
            sequence; else ().
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    special: tuple[str, ...]
    variate: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        covered = ""
        if self.start:
            covered = f", steps {min(self.start)} to {max(self.stop)}"
        special = sum(map(bool, self.special))
        return f"TokenSpans({len(self)}, {special} special{covered})"

    @classmethod
    def patches(
        cls,
        first: int,
        n: int,
        width: int,
        special_after: tuple[str, ...] = (),
        *,
        stride: int | None = None,
    ) -> TokenSpans:
        """Make ``n`` tokens of ``width`` steps each, then special tokens.

        Args:
            first: step at which the first token starts, counted from the start of the
                forecast.
            n: number of tokens.
            width: steps that a token covers.
            special_after: kinds of the special tokens that follow, which cover no
                steps.
            stride: steps between the starts of two tokens; ``width`` if None.

        Returns:
            The spans of ``n`` tokens and the special ones, in order.
        """
        step = stride or width
        end = first
        if n:
            end = first + step * (n - 1) + width
        # special tokens cover no step: they start and stop at the end
        edges = (end,) * len(special_after)
        start = range(first, first + step * n, step)
        stop = range(first + width, first + width + step * n, step)
        return cls((*start, *edges), (*stop, *edges), ("",) * n + special_after)

    def __add__(self, other: TokenSpans) -> TokenSpans:
        """Return the tokens of both, one after the other."""
        variate = self.variate + other.variate
        return TokenSpans(
            self.start + other.start,
            self.stop + other.stop,
            self.special + other.special,
            variate,
        )

    def shifted(self, steps: int) -> TokenSpans:
        """Return the same tokens, counted from another forecast start.

        Args:
            steps: how many steps earlier the other start lies.

        Returns:
            The spans, each edge larger by ``steps``.
        """
        start = tuple(edge + steps for edge in self.start)
        stop = tuple(edge + steps for edge in self.stop)
        return TokenSpans(start, stop, self.special, self.variate)


@dataclass(frozen=True)
class Call:
    """One recorded pass through a hook point."""

    step: int
    offset: int
    value: Tensor


@dataclass
class Activations(Decomposed):
    """Values of hook points during a run, by name.

    Names are those of hook points or of TransformerLens: ``acts["pattern", 0]``,
    ``acts["resid_post", -1, "decoder"]`` if a model has two stacks, ``acts["pattern",
    0, "cross_attn"]`` if a block has two attentions. Components work, too:
    ``acts["decoder.2.mlp"]`` is its write, ``acts["decoder.2.cross_attn.3"]`` one
    head's z. After a rollout a tensor has a leading axis ``step``, one entry per pass;
    ``name + "_grad"`` holds a gradient.

    Attributes:
        points: the hook point of each name.
        rollout: whether the run was a rollout, so that tensors have the axis ``step``.
        ids: the ids of the series in the batch.
        spans: by stack, the time steps that each token of a single forward covers.
        sample_major: whether rows are sample paths of all series, not series with their
            sample paths.
        spans_at: in a rollout, these by (stack, step, first position, number of tokens,
            tokens of the first pass).
        attrs: provenance of the run.
        source: hook points and weights of the model that ran; None if unknown.
        has_batch_dim: whether an axis "batch" of length 1 is shown.
        reduced: names of the axes of reduced activations.
        remark: a note on the run.
    """

    points: Mapping[str, Point]
    rollout: bool = False
    ids: tuple[str, ...] = ()
    spans: Mapping[str, TokenSpans] = field(default_factory=dict)
    sample_major: bool = False
    spans_at: Callable[[str, int, int, int, int], TokenSpans] | None = None
    attrs: dict[str, object] = field(default_factory=dict)
    recorded: dict[str, list[Call]] = field(default_factory=dict)
    source: HookRegistry | None = field(default=None, repr=False)
    has_batch_dim: bool = True
    reduced: dict[str, tuple[str, ...]] = field(default_factory=dict)
    remark: str = ""

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)

    def __len__(self) -> int:
        return len(self.recorded)

    def __contains__(self, name: object) -> bool:
        # a mapping would look for the nearest names first
        return name in self.recorded

    def __repr__(self) -> str:
        kind = "rollout" if self.rollout else "forward"
        return (
            f"Activations({len(self)} hook points of one {kind}, {len(self.ids)}"
            f" series{self.remark})"
        )

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.recorded)

    def __getattr__(self, name: str) -> Any:
        # asked only for what activations lack: what TransformerLens's cache has under
        # this name, and what to call here
        hint = CACHE.get(name) or MEMBERS.get(name, "")
        alternative = f": {hint}" if hint else ""
        raise AttributeError(f"activations have no {name!r}{alternative}")

    def __getitem__(self, name: Key) -> Tensor:
        # a component such as "decoder.2.cross_attn.3" is one head of its hook_z
        head = ""
        if isinstance(name, str) and name not in self.recorded:
            head = find_point(name)[1]
        if head.isdigit():
            heads = self[find_point(str(name))[0]]
            if int(head) >= heads.shape[-2]:
                raise unknown_name("head", head, map(str, range(heads.shape[-2])))
            return heads[..., int(head), :]
        exact = self._name(name)
        values = [call.value for call in self.recorded[exact]]
        # keys of a cached rollout become more from pass to pass
        if len({tuple(value.shape) for value in values}) > 1:
            values = _pad_keys(exact, self._point(exact), values)
        value = torch.stack(values) if self.rollout or len(values) > 1 else values[0]
        batch = self._batch_axis(exact)
        return value if self.has_batch_dim or batch is None else value.squeeze(batch)

    def _name(self, key: Key) -> str:
        """Return the recorded name that a key refers to."""
        if isinstance(key, str) and key in self.recorded:
            return key
        suffix = "_grad" if isinstance(key, str) and key.endswith("_grad") else ""
        plain = key.removesuffix("_grad") if isinstance(key, str) else key
        if isinstance(plain, str):
            plain = find_point(plain)[0] or plain
        if isinstance(plain, str) and plain in self.points:
            name: str | None = plain
        else:
            name = full_name(self.points, plain)
        requested = key if name is None else name + suffix
        if isinstance(requested, str) and requested in self.recorded:
            return requested
        hint = "Was it in the names filter?"
        if (name or "").endswith("hook_result"):
            hint = (
                "Without a names filter hook_result is left out;"
                " names_filter='**.hook_result' records it."
            )
        raise unknown_name(
            "recorded activation",
            requested,
            nearest(self.recorded, requested),
            hint=hint,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all activations."""
        return sum(
            call.value.nbytes for calls in self.recorded.values() for call in calls
        )

    def calls(self, name: Key) -> list[Call]:
        """Return every recorded pass through one hook point, in order.

        Args:
            name: name of a hook point, or a key that stands for one.

        Returns:
            A record for each pass, the first pass first.

        Raises:
            UnknownNameError: nothing of this name was recorded.

        Example:
            >>> name = "decoder_blocks.0.hook_resid_pre"
            >>> len(run.record([name]).calls(name))
            1
        """
        return self.recorded[self._name(name)]

    def remove_batch_dim(self) -> Activations:
        """Show activations of a single row without their axis "batch".

        Returns:
            These activations themselves, whose arrays come without "batch" from now on.

        Raises:
            InputError: there are several rows.
        """
        names = [name for name in self.recorded if self._batch_axis(name) is not None]
        rows = {
            self.recorded[name][0].value.shape[self._call_axes(name).index("batch")]
            for name in names
        }
        if rows - {1}:
            raise InputError(
                f"the activations have {max(rows)} rows, expected 1 to leave the axis"
                " out; run one series alone, with one sample path"
            )
        self.has_batch_dim = False
        return self

    def to(self, device: torch.device | str) -> Activations:
        """Move all activations to a device, in place.

        TransformerLens's cache does so, too.

        Args:
            device: where the activations go.

        Returns:
            These activations themselves.
        """
        for calls in self.recorded.values():
            calls[:] = [replace(call, value=call.value.to(device)) for call in calls]
        return self

    def _point(self, name: str) -> Point:
        """Return the hook point of an activation, or of its gradient."""
        return self.points[name.removesuffix("_grad")]

    def axes(self, name: Key) -> tuple[str, ...]:
        """Return the names of the axes of ``acts[name]``.

        Args:
            name: name of a hook point, or a key that stands for one.

        Returns:
            The names in order, "axis_0", … for axes that a reducer made.

        Example:
            >>> name = "decoder_blocks.0.hook_resid_pre"
            >>> run.record([name]).axes(name)
            ('batch', 'pos', 'd_model')
        """
        exact = self._name(name)
        axes = self._axes(exact)
        batch = self._batch_axis(exact)
        if self.has_batch_dim or batch is None:
            return axes
        return (*axes[:batch], *axes[batch + 1 :])

    def _axes(self, name: str) -> tuple[str, ...]:
        """Return the axes of one hook point's passes, stacked."""
        axes = self._call_axes(name)
        if self.rollout or len(self.recorded[name]) > 1:
            return ("step", *axes)
        return axes

    def _call_axes(self, name: str) -> tuple[str, ...]:
        """Return the axes of one recorded pass."""
        axes = self.reduced.get(name, self._point(name).axes)
        value = self.recorded[name][0].value
        if len(axes) == value.ndim:
            return axes
        # a reducer made axes of its own
        return tuple(f"axis_{index}" for index in range(value.ndim))

    def _batch_axis(self, name: str) -> int | None:
        """Return the axis of the batch's rows.

        None where a reducer removed the rows, or where another axis of an attention
        between series counts them.
        """
        axes = self._axes(name)
        if "batch" in axes and not self._point(name).row_axis:
            return axes.index("batch")
        return None

    def to_xarray(self, name: Key) -> xr.DataArray:
        """Return one activation as a labelled array.

        Rows of the batch are ``series``, and ``sample`` where each has several paths.
        Both have coordinates, and so have ``step``, the passes of a rollout, ``head``,
        and tokens, whose coordinates are the steps that they cover.

        Args:
            name: name of a hook point, or a key that stands for one.

        Returns:
            The activation, with the axes that :meth:`axes` names.

        Example:
            >>> name = "decoder_blocks.0.hook_resid_pre"
            >>> run.record([name]).to_xarray(name).dims
            ('series', 'pos', 'd_model')
        """
        name = self._name(name)
        # numpy has no bfloat16
        values = self[name].detach().cpu().float()
        dims = list(self.axes(name))
        # of such a pattern, rows are tokens, and queries are series
        between_series = self._point(name).over == "variate" and "query" in dims
        coords: dict[str, Any] = {}
        if "batch" in dims and self.ids and not between_series:
            row = dims.index("batch")
            n_samples = values.shape[row] // len(self.ids)
            coords["series"] = list(self.ids)
            coords["sample"] = range(n_samples)
            of_rows = (
                ["sample", "series"] if self.sample_major else ["series", "sample"]
            )
            # the outer axis first, as rows lie in the batch
            values = values.unflatten(row, [len(coords[dim]) for dim in of_rows])
            dims[row : row + 1] = of_rows
        if "step" in dims:
            coords["step"] = [call.step for call in self.recorded[name]]
        if "head" in dims:
            coords["head"] = range(values.shape[dims.index("head")])
        array = xr.DataArray(values.numpy(), coords, dims, name)
        if array.sizes.get("sample") == 1:
            array = array.squeeze("sample", drop=True)
        elif self.sample_major and "sample" in dims:
            # "sample" behind "series" for every model, however its rows lie
            order = [dim for dim in dims if dim != "sample"]
            order.insert(order.index("series") + 1, "sample")
            array = array.transpose(*order)
        for axis in ("pos", "query", "key"):
            array = self._label_tokens(array, name, axis)
        array.attrs = {
            "hook": name,
            **{key: str(value) for key, value in self.attrs.items()},
        }
        return array

    def token_spans(
        self, name: Key, call: int = 0, axis: str = "pos"
    ) -> TokenSpans | None:
        """Return the steps that tokens of a pass cover.

        Args:
            name: name of a hook point, or a key that stands for one.
            call: number of the pass, from 0.
            axis: "pos", "query" or "key".

        Returns:
            The steps of each token, or None where they are unknown.

        Example:
            >>> name = "decoder_blocks.0.hook_resid_pre"
            >>> run.record([name]).token_spans(name).start[:2]
            (0, 1)
        """
        name = self._name(name)
        point = self._point(name)
        recorded = self.recorded[name][call]
        axes = self._call_axes(name)
        row_axis = axis
        if axis == "key":
            row_axis = "query"
        if axis not in axes or row_axis not in axes or point.over == "variate":
            return None
        crosses = axis == "key" and point.kind == "cross_attn"
        if crosses:
            # keys of a cross-attention are tokens of the first stack, the encoder
            stack = next(iter(self.spans), "encoder")
        else:
            stack = point.stack
        length = recorded.value.shape[axes.index(axis)]
        if self.rollout:
            spans = None
        else:
            spans = self.spans.get(stack)
        if self.rollout and self.spans_at is not None:
            # keys reach back to the first position in the cache
            if axis == "key":
                offset = 0
            else:
                offset = recorded.offset
            first = self.recorded[name][0].value.shape[axes.index(row_axis)]
            spans = self.spans_at(stack, recorded.step, offset, length, first)
        # a reducer may have kept some of the tokens, and nothing says which
        if spans is not None and len(spans) == length:
            return spans
        return None

    def _label_tokens(self, array: xr.DataArray, name: str, axis: str) -> xr.DataArray:
        """Add the steps of each token along an axis, if all passes have them."""
        call_spans = [
            self.token_spans(name, call, axis) for call in range(len(self.calls(name)))
        ]
        fitting = [
            spans
            for spans in call_spans
            if spans is not None and len(spans) == array.sizes[axis]
        ]
        if axis not in array.dims or len(fitting) < len(call_spans):
            return array
        by_step = "step" in array.dims
        for part in ("start", "stop", "special"):
            rows = [list(getattr(spans, part)) for spans in fitting]
            coordinate: tuple[Any, Any] = (axis, rows[0])
            if by_step:
                coordinate = (("step", axis), rows)
            array = array.assign_coords({f"{axis}_{part}": coordinate})
        return array


def _pad_keys(name: str, point: Point, values: list[Tensor]) -> list[Tensor]:
    """Pad patterns and scores of a growing cache to one number of keys.

    Keys that were not cached yet get no attention.

    Returns:
        The tensors of all passes, (…, key) each, with as many keys as the longest.

    Raises:
        HookError: another axis than that of the keys changed.
    """
    fill = {"pattern": 0.0, "scores": float("-inf")}.get(point.how)
    # zero attention, and scores that the softmax turns into it; for other activations
    # no number would mean "not there yet"
    if fill is None or any(
        value.shape[:-1] != values[0].shape[:-1] for value in values
    ):
        shapes = sorted({tuple(value.shape) for value in values})
        raise HookError(
            f"{name} changed its shape during the rollout ({shapes[0]} … {shapes[-1]}),"
            " so its passes do not stack. Take them one by one with acts.calls(name),"
            " or record with a reducer."
        )
    width = max(value.shape[-1] for value in values)
    return [
        torch.nn.functional.pad(value, (0, width - value.shape[-1]), value=fill)
        for value in values
    ]
