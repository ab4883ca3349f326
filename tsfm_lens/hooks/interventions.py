"""Interventions: small value objects with a target, an edit, and the rows concerned.

Read :class:`Intervention`, the interface, and :class:`Zero`, the simplest one. An
intervention says how the value at a hook point changes; :mod:`tsfm_lens.hooks.edit`
finds the hook points and applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tsfm_lens.core.errors import HookError, InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.native import widest_float
from tsfm_lens.hooks.scopes import RunState

Target = str | Component
Rows = int | slice | Sequence[int] | Sequence[bool] | Tensor | None
Change = Callable[[Tensor, RunState], Tensor]
"""Function of the selected rows of an activation and the state of the run.

It returns the new value of the rows, in the same shape.
"""


class Intervention(Protocol):
    """Interface of every intervention.

    Write a frozen dataclass with these members to add your own.

    Attributes:
        target: hook point (or glob), or component, that is changed.
        rows: series of the batch that are changed; None for all.
        positions: token positions that are changed; None for all.
    """

    @property
    def target(self) -> Target:
        """The component or hook point that is changed."""

    @property
    def rows(self) -> Rows:
        """The series of the batch that are changed; all if None."""

    @property
    def positions(self) -> Rows:
        """The token positions that are changed; all if None."""

    def change(self, point: Point) -> Change:
        """Return the function that computes new values at a hook point.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of the activation of the chosen rows and of the state of the run;
            it returns new values of the same shape.
        """


@dataclass(frozen=True, eq=False)
class Zero:
    """Intervention that sets an activation, or a component's write, to zero."""

    target: Target
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return a function that gives zeros.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of an activation and the state of the run; zeros of the same shape.
        """
        return lambda value, _state: torch.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Mean:
    """Intervention that replaces an activation by its mean over a reference set.

    Attributes:
        reference: activations recorded on the reference series; must hold the hook
            points concerned.
        per: "position" keeps one mean per token position, "pooled" averages over
            positions too.
    """

    target: Target
    reference: Activations
    per: str = "position"
    rows: Rows = None
    positions: Rows = None

    def __post_init__(self) -> None:
        _check_activations(self.reference)
        if self.per not in ("position", "pooled"):
            raise InputError(
                f"Mean: per={self.per!r} is not known, choose 'position' or 'pooled'"
            )

    def change(self, point: Point) -> Change:
        """Return a function that gives the mean, broadcast over rows.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of an activation and the state of the run; means of the same shape.

        Raises:
            HookError: the function, when it runs, finds positions that the reference
                does not cover.
        """
        # here, so that the means are computed once for a block, not at every pass
        means, counts = _position_means(self.reference, point)
        if self.per == "pooled":
            # weighted by the number of rows at each position, this is the mean over all
            # tokens
            weights = counts / counts.sum()
            pooled = torch.tensordot(weights.to(means), means, dims=1)
            return lambda value, _state: pooled.to(value).expand_as(value)

        def at_positions(value: Tensor, state: RunState) -> Tensor:
            first = state.offset.get(point.stack, 0)
            stop = first + value.shape[1]
            # a position that the reference never reached has the mean 0, which would be
            # a zero ablation
            if stop > len(means) or not bool(counts[first:stop].all()):
                raise HookError(
                    f"{point.name}: the reference set covers {int((counts > 0).sum())}"
                    f" positions, the run is at {first}..{stop - 1}. Record a longer"
                    " reference or use per='pooled'."
                )
            return means[first:stop].to(value).expand_as(value)

        return at_positions


@dataclass(frozen=True, eq=False)
class Resample:
    """Intervention that replaces an activation by that of another series.

    The other series is drawn from a reference set. The draw depends on the seed alone:
    a series is replaced by the same one at all hook points, steps and sample paths.
    """

    target: Target
    reference: Activations
    seed: int = 0
    rows: Rows = None
    positions: Rows = None

    def __post_init__(self) -> None:
        _check_activations(self.reference)

    def change(self, point: Point) -> Change:
        """Return a function that gives rows of the reference set.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of an activation and the state of the run; rows drawn from the
            reference.
        """

        def resample(value: Tensor, state: RunState) -> Tensor:
            source = _source_rows(self.reference, point, value, state)
            index = _drawn_rows(
                self.reference, len(source), len(value), state, self.rows, self.seed
            )
            return source[index.to(source.device)].to(value)

        return resample


@dataclass(frozen=True, eq=False)
class Noise:
    """Intervention that adds Gaussian noise.

    Its standard deviation is ``scale`` times the token's root mean square.
    """

    target: Target
    scale: float = 1.0
    seed: int = 0
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return a function that adds noise, drawn by seed, hook point and step.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of an activation and the state of the run; the activation with
            noise.
        """
        # hash() would differ from process to process; the factor makes the number of a
        # name depend on the order of its letters
        salt = sum((index + 1) * ord(letter) for index, letter in enumerate(point.name))

        def add_noise(value: Tensor, state: RunState) -> Tensor:
            seed = ((self.seed * 1_000_003 + salt) * 10_007 + state.step) % 2**63
            # drawn on the CPU, so that all devices add the same noise
            generator = torch.Generator().manual_seed(seed)
            draw = torch.randn(value.shape, generator=generator).to(value)
            # for each token by itself, since a mean over tokens would include padding
            axes = tuple(range(2, value.ndim))
            rms = value.pow(2).mean(dim=axes, keepdim=True).sqrt()
            return value + self.scale * rms * draw

        return add_noise


@dataclass(frozen=True, eq=False)
class PatchFrom:
    """Intervention that replaces an activation by the same one of another run.

    Attributes:
        source: activations of that run. If it has a single row, all rows get that; if
            it has one for each series, all sample paths of a series get it.
    """

    target: Target
    source: Activations
    rows: Rows = None
    positions: Rows = None

    def __post_init__(self) -> None:
        _check_activations(self.source)

    def change(self, point: Point) -> Change:
        """Return a function that gives the value stored at that step and position.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of an activation and the state of the run; the value of the source
            there.

        Raises:
            HookError: the function, when it runs, finds another number of rows than the
                source has, and not a multiple of it.
        """

        def patch(value: Tensor, state: RunState) -> Tensor:
            source = match_rows(self.source, point, value, state)
            if len(value) % len(source):
                raise HookError(
                    f"{point.name}: the source run has {len(source)} rows, which do not"
                    f" fit the {len(value)} rows of this run. Use rows=… to choose as"
                    " many, or record the source with as many series."
                )
            return _copied(source, len(value) // len(source), state).to(value)

        return patch


@dataclass(frozen=True, eq=False)
class Steer:
    """Intervention that adds a vector.

    Attributes:
        vector: (d_model,) for a layer or branch, (d_head,) at ``hook_z``, or any shape
            that broadcasts to (pos, …).
        scale: factor on the vector.
    """

    target: Target
    vector: Tensor
    scale: float = 1.0
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return a function that adds the vector.

        Args:
            point: hook point at which the function is called.

        Returns:
            Function of an activation and the state of the run; the activation plus the
            vector.

        Raises:
            HookError: the function, when it runs, finds an activation that the vector
                does not fit.
        """

        def steer(value: Tensor, _state: RunState) -> Tensor:
            try:
                return value + self.scale * self.vector.to(value)
            except RuntimeError as error:
                raise HookError(
                    f"{point.name}: a vector of shape {tuple(self.vector.shape)} does"
                    f" not fit an activation of shape {tuple(value.shape)}"
                    f" ({' '.join(point.axes)})"
                ) from error

        return steer


@dataclass(frozen=True, eq=False)
class EditPattern:
    """Intervention that changes an attention pattern after the softmax.

    Attributes:
        target: an attention branch or head.
        edit: takes (batch, head, query, key) and returns the same shape; rows need not
            sum to 1 after it.
    """

    target: Target
    edit: Callable[[Tensor], Tensor]
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return the user's function, applied to a copy.

        Args:
            point: hook point at which the function is called, the pattern of an
                attention.

        Returns:
            Function of a pattern (batch, head, query, key) and the state of the run;
            what ``edit`` makes of a copy of the pattern.
        """
        # the function may write in place, and autograd or another hook may still need
        # the values
        return lambda value, _state: self.edit(value.clone())


def _check_activations(source: Any) -> None:
    """Refuse what holds no activations, such as the run that they come from."""
    if not isinstance(source, Activations):
        raise InputError(
            f"a {type(source).__name__} holds no activations; expected Activations, as"
            " run.record([names]) gives"
        )


def _position_means(reference: Activations, point: Point) -> tuple[Tensor, Tensor]:
    """Compute means (pos, …) over all rows of a reference run.

    Returns:
        The means, and the number of rows that entered each, (pos,).
    """
    if len(point.axes) < 2 or point.axes[1] != "pos":
        raise HookError(
            f"{point.name} has axes {' '.join(point.axes)}; a mean needs batch pos …"
        )
    calls = reference.calls(point.name)
    length = max(call.offset + call.value.shape[1] for call in calls)
    first = calls[0].value
    # in double precision, as the rounding of a long sum would show in the mean
    wide: dict[str, Any] = {
        "dtype": widest_float(first.device),
        "device": first.device,
    }
    total = torch.zeros(length, *first.shape[2:], **wide)
    counts = torch.zeros(length, **wide)
    for call in calls:
        # a pass of a cached rollout holds its new positions only
        positions = slice(call.offset, call.offset + call.value.shape[1])
        total[positions] += call.value.sum(dim=0, dtype=total.dtype)
        counts[positions] += len(call.value)
    means = total / counts.clamp(min=1).reshape(-1, *[1] * (total.ndim - 1))
    return means.to(first.dtype), counts


def _source_rows(
    source: Activations, point: Point, value: Tensor, state: RunState
) -> Tensor:
    """Return the stored activation, (source rows, …), for the current pass.

    It is that of the current step and token positions of the run.
    """
    offset = state.offset.get(point.stack, 0)
    calls = source.calls(point.name)
    for call in calls:
        if (
            call.step == state.step
            and call.offset == offset
            and call.value.shape[1:] == value.shape[1:]
        ):
            return call.value
    # a single forward over a known path holds all positions of a cached rollout
    if not source.rollout and len(calls) == 1 and point.axes[1] == "pos":
        stored = calls[0].value
        part = stored[:, offset : offset + value.shape[1]]
        if part.shape[1:] == value.shape[1:]:
            return part
    raise HookError(
        f"{point.name}: the source run has no activation of shape (…,"
        f" {', '.join(map(str, value.shape[1:]))}) at step {state.step}, position"
        f" {offset}; it has {len(calls)} of shape {tuple(calls[0].value.shape)}. Both"
        " runs need the same context length and horizon: record the source at the"
        " horizon of this run (lens.ablate has the argument horizon for its"
        " reference)."
    )


def match_rows(
    source: Activations, point: Point, value: Tensor, state: RunState
) -> Tensor:
    """Return the rows of another run for the current step and positions.

    If a part of a batch runs, these are the rows of that part.
    """
    rows = _source_rows(source, point, value, state)
    if state.whole is None or len(rows) == 1:
        return rows
    # one row for several of the batch
    if len(rows) < state.whole and state.whole % len(rows) == 0:
        rows = _copied(rows, state.whole // len(rows), state)
    # the caller refuses rows that do not fit
    if len(rows) % state.whole:
        return rows
    return state.own(rows)


def _copied(rows: Tensor, copies: int, state: RunState) -> Tensor:
    """Return ``copies`` of each row, in the order of this run's sample paths."""
    if state.sample_major:
        return rows.repeat(copies, *[1] * (rows.ndim - 1))
    return rows.repeat_interleave(copies, dim=0)


def _drawn_rows(
    reference: Activations,
    n_source: int,
    n_rows: int,
    state: RunState,
    rows: Rows,
    seed: int,
) -> Tensor:
    """Draw the rows of a reference run that replace rows of this one.

    Returns:
        Indices below ``n_source``, (n_rows,). The rows of one series are replaced by
        rows of one reference series; ``rows`` selects series of the batch.
    """
    n_series = state.n_series or n_rows
    series = torch.arange(n_series)
    if rows is not None:
        chosen = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        series = series[chosen].reshape(-1)
    # where variants run side by side, each draws as it would alone
    series = series % (state.block_rows or n_series)
    n_reference = len(reference.ids) or n_source
    # in a pattern between variates a row is a token, not a series; each draws by itself
    if n_rows % len(series) or n_source % n_reference:
        series = torch.arange(n_rows)
        n_reference = n_source
    generator = torch.Generator().manual_seed(seed)
    # drawn for all series, so that a choice of them gets the same draws
    n_draws = max(n_rows, state.block_rows or n_series)
    draws = torch.randint(n_reference, (n_draws,), generator=generator)[series]
    paths = n_rows // len(series)
    source_paths = n_source // n_reference
    # the paths of a series take the paths of its reference series in turn
    path = torch.arange(paths) % source_paths
    if state.sample_major:
        return (path[:, None] * n_reference + draws[None]).reshape(-1)
    return (draws[:, None] * source_paths + path[None]).reshape(-1)
