"""Residual stream as the sum of its writes, and its decompositions.

:class:`Decomposed` has TransformerLens's methods for any wired model; read it first.
:class:`Before` collects the writes before one layer, and :func:`branch_sums` checks
that they add up. What a write does to the forecast is not here but in
:mod:`tsfm_lens.probes.attribution`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformer_lens.utilities import Slice

from tsfm_lens.core.errors import (
    HookError,
    InputError,
    LensError,
    UnknownNameError,
    WiringError,
    unknown_name,
)
from tsfm_lens.core.foreign_words import answers_arguments
from tsfm_lens.hooks.hook_checks import check_additive
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.native import autocast_dtype, list_modules, rms_scale, without_gain
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.weights import Weights
from tsfm_lens.hooks.wiring import Attention, Branch, Mlp, Stack, Wiring, Writer

# largest share of a sum's size that counts as rounding; without it, half precision
# would excuse a deviation of any size
_MAX_ROUNDING = 0.1
_ROWS = dict.fromkeys(
    ("batch_slice", "has_batch_dim"),
    "take rows of the stack and of the activations: run.select(ids) runs some series",
)

StreamPoint = tuple[int, str] | Literal["embed"]
"""(layer, kind of branch), or the embedding."""


Recorded = Mapping[Any, Tensor]
"""Recorded activations by the names of their hook points."""


def carry_factors(
    model: Any, stack: Stack, until: tuple[int, int] | None = None
) -> dict[StreamPoint, float]:
    """Return the factor with which each write reaches the end of a stack.

    The end is the last ``hook_resid_post``, or with ``until``, which is (layer, number
    of branches), the stream after that many branches of that layer.
    """
    factors: dict[StreamPoint, float] = {}
    writers = _writers(stack, *(until or (stack.n_layers, 0)))
    # the product of the gains of all later branches, so the loop starts at the end
    later = 1.0
    for layer, writer in reversed(writers):
        factors[layer, writer.kind] = later
        later *= _stream_gain(model, stack, layer, writer)
    return factors | {"embed": later}


def _writers(stack: Stack, layer: int, branches: int) -> list[tuple[int, Writer]]:
    """Return each branch before a layer as (layer, row of the wiring), in order.

    The first ``branches`` of the layer itself are included.
    """
    writers = [
        (index, writer) for index in range(layer) for writer in stack.rows(index)
    ]
    # without branches, the layer may be the stack's end, which has no rows
    if branches:
        writers += [(layer, writer) for writer in stack.rows(layer)[:branches]]
    return writers


def _stream_gain(model: nn.Module, stack: Stack, layer: int, writer: Writer) -> float:
    """Return the factor on the stream where a branch adds its write to it."""
    if writer.mix is None:
        return 1.0
    return writer.mix(model.get_submodule(stack.block(layer)))[1]


def relative_rounding(
    model: nn.Module, wiring: Wiring, recorded: Iterable[Tensor] = ()
) -> float:
    """Estimate the relative rounding error of a forward pass.

    Each block rounds about 100 times, and n roundings add up to the square root of n.

    Their precision is the coarsest of the weights, of ``torch.autocast`` where it is
    on, and of the ``recorded`` activations, which an earlier autocast may have made.

    Returns:
        The error as a share of the values, without unit.
    """
    blocks = sum(stack.n_layers for stack in wiring.stacks)
    float32 = torch.finfo(torch.float32).eps
    weights = [
        parameter
        # not model.parameters(), whose walk takes ten times as long
        for module in list_modules(model)
        for parameter in module._parameters.values()
        if parameter is not None
    ]
    dtypes = {
        tensor.dtype for tensor in (*weights, *recorded) if tensor.is_floating_point()
    }
    autocast = None
    if weights:
        autocast = autocast_dtype(weights[0].device)
    if autocast is not None:
        dtypes.add(autocast)
    epsilon = max((torch.finfo(dtype).eps for dtype in dtypes), default=float32)
    relative = math.sqrt(100 * blocks) * epsilon
    # a library that computes in a coarser format inside moves its output by about one
    # last digit of that format
    if wiring.precision == torch.float32:
        return relative
    return max(relative, torch.finfo(wiring.precision).eps)


def excess(
    total: Tensor, size: Tensor, stream: Tensor, rounding: float
) -> tuple[float, float] | None:
    """Return the largest deviation of a sum from a stream, and its bound by rounding.

    None if no row deviates by more. Tensors are (row, …, d_model); ``size`` is the sum
    of the absolute summands.
    """
    # inf − inf is NaN, so that equal entries must be no gap from the start
    same = (total == stream) | (total.isnan() & stream.isnan())
    gap = _by_row((total - stream).abs().masked_fill(same, 0.0)).amax(1)
    # an infinite entry would allow its row any deviation
    largest = _by_row(size.nan_to_num(0.0, 0.0, 0.0)).amax(1)
    bound = min(rounding, _MAX_ROUNDING) * largest
    # NaN, which compares false, is wrong as well
    wrong = ~(gap <= bound)
    if not bool(wrong.any()):
        return None
    # gaps are 0 or more, so −1 is below every row that deviates
    row = int(gap.nan_to_num(math.inf).masked_fill(~wrong, -1.0).argmax())
    return float(gap[row]), float(bound[row])


def _by_row(tensor: Tensor) -> Tensor:
    """Flatten to (row, value); a tensor of at most two axes is a single row."""
    if tensor.ndim > 2:
        return tensor.flatten(1)
    return tensor.reshape(1, -1)


def branch_sums(
    model: nn.Module, wiring: Wiring, stack: Stack, acts: Recorded
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, value and expected sum of whatever the wiring says is a sum.

    A stream before a block is the one after the previous block, an attention's write
    its heads and bias, and a stream after a branch the stream before it and the write.
    """
    weights = Weights(model, wiring)
    if not stack.sums:
        return
    for layer in range(stack.n_layers):
        block = f"{stack.prefix}.{layer}"
        writers = stack.rows(layer)
        if layer > 0:
            previous = acts[f"{stack.prefix}.{layer - 1}.hook_resid_post"]
            yield f"{block}.hook_resid_pre", acts[f"{block}.hook_resid_pre"], previous
        # the stream after a branch is what the next one reads
        points_after = (*RESIDUAL_NAMES[1 : len(writers)], "hook_resid_post")
        for before, writer, after in zip(
            RESIDUAL_NAMES, writers, points_after, strict=False
        ):
            write = acts[f"{block}.{writer.kind}.hook_out"]
            if isinstance(writer, Attention):
                heads = acts[f"{block}.{writer.kind}.hook_result"].sum(dim=-2)
                branch = (layer, writer.kind, stack.name)
                bias = weights.b_O(*branch) * weights.scale(*branch)
                if writer.post_norm and bias.any():
                    # what enters the norm is no hook point
                    z = acts[f"{block}.{writer.kind}.hook_z"]
                    matrix = weights.heads(*branch).W_O
                    raw = torch.einsum("...hd,hdm->...m", z, matrix.to(z))
                    norm = f"{stack.block(layer)}.{writer.post_norm}"
                    raw = raw + weights.b_O(*branch).to(z)
                    bias = bias * rms_scale(model.get_submodule(norm), raw)
                yield f"{block}.{writer.kind}: heads", write, heads + bias
            gain = _stream_gain(model, stack, layer, writer)
            yield (
                f"{block}.{after}",
                acts[f"{block}.{after}"],
                acts[f"{block}.{before}"] * gain + write,
            )


def first_deviation(
    model: nn.Module, wiring: Wiring, stack: Stack, acts: Recorded
) -> str:
    """Name the first item of :func:`branch_sums` that deviates by more than rounding.

    Returns:
        The name; "" if none deviates, as where only many small deviations together
        exceed rounding.
    """
    rounding = relative_rounding(model, wiring)
    for name, actual, expected in branch_sums(model, wiring, stack, acts):
        size = actual.abs() + expected.abs()
        if excess(expected, size, actual, rounding) is not None:
            return name
    return ""


def no_sum(
    wiring: Wiring,
    where: str,
    apart: tuple[float, float],
    first: str = "",
    points: Sequence[str] = (),
) -> LensError:
    """Compose the error for a stream that is not the sum of its declared writes.

    ``apart`` is what :func:`excess` returns, ``first`` what :func:`first_deviation`
    does, and ``points`` are the hook points with hooks.

    Returns:
        The error to raise.
    """
    message = (
        f"the writes of the wiring {wiring.architecture!r} do not sum to the residual"
        f" stream {where}: they are off by {apart[0]:.3g}, and rounding allows"
        f" {apart[1]:.1g}"
        + (f"; the first place to differ is {first}" if first else "")
    )
    if points:
        return InputError(
            f"{message}. Hooks are set at {', '.join(points)}; an edit of the stream"
            " itself is no write, and one of an attention's whole output is no head's."
            " Decompose a run without, or edit hook_z or an MLP's hook_out"
        )
    return WiringError(
        f"{message}. A norm after the sum (post-norm) leaves no sum of writes to"
        " decompose, and neither does a hook that edits the stream itself; else a row"
        " is missing there, or its write, post_norm, mix or o is not the model's,"
        " which testing.check_wiring tells"
    )


def cut_positions(part: Slice, tensor: Tensor, axis: int, name: str) -> Tensor:
    """Return some positions of an activation.

    Raises:
        InputError: it does not have them.
    """
    try:
        result: Tensor = part.apply(tensor, dim=axis)
    except IndexError:
        length = tensor.shape[axis]
        raise InputError(
            f"{name}: pos_slice {np.ravel(part.slice).tolist()} is out of range for"
            f" length {length}; expected 0 to {length - 1}, or -1 to {-length} from the"
            " end"
        ) from None
    return result


class Before:
    """Writes to a stack's stream before one layer, or before its MLP.

    ``source`` has the model that the activations ``acts`` come from. The layer after
    the last, -1 and None stand for the end of the stack.
    """

    def __init__(
        self,
        acts: Recorded,
        source: HookRegistry,
        stack: str | None,
        layer: int | None,
        mlp_input: bool = False,
        pos_slice: Any = None,
    ) -> None:
        self._acts = acts
        self._model = source.model
        self._wiring = source.wiring
        self._positions = pos_slice
        self._weights = Weights(source.model, source.wiring)
        self.stack = source.wiring.stack(stack)
        check_additive(source.wiring, self.stack)
        self.layer = self.stack.n_layers if layer is None or layer == -1 else layer
        if (
            not isinstance(self.layer, int)
            or not 0 <= self.layer <= self.stack.n_layers
        ):
            raise InputError(
                f"layer {layer!r}; expected 0 to {self.stack.n_layers}, or -1 or None"
                " for the stack's end"
            )
        self.at_the_end = self.layer == self.stack.n_layers
        kinds: list[type[Writer]] = []
        if not self.at_the_end:
            kinds = [type(writer) for writer in self.stack.rows(self.layer)]
        if mlp_input and Mlp not in kinds:
            raise InputError(
                f"mlp_input=True at layer {self.layer}, which has no MLP; expected a"
                " layer with one"
            )
        self.branches = kinds.index(Mlp) if mlp_input else 0
        self._end = f"{self.stack.prefix}.{self.stack.n_layers - 1}.hook_resid_post"
        # every branch whose write is in the stream here, as (layer, row of the wiring)
        self.writers = _writers(self.stack, self.layer, self.branches)
        self._carry = carry_factors(
            source.model, self.stack, (self.layer, self.branches)
        )

    def streams(self, *, incl_mid: bool) -> dict[str, str]:
        """Map labels to the stream's hook points at every layer up to this one."""
        points: dict[str, str] = {}
        for layer in range(self.layer + 1):
            block = f"{self.stack.prefix}.{layer}"
            # the stream has one point before each branch of a layer
            if layer < self.layer:
                count = len(self.stack.rows(layer)) if incl_mid else 1
            elif self.at_the_end:
                count = 0
            else:
                count = self.branches + 1
            points |= {
                f"{layer}_{name.removeprefix('hook_resid_')}": f"{block}.{name}"
                for name in RESIDUAL_NAMES[:count]
            }
        if self.at_the_end:
            points["final_post"] = self._end
        return points

    def cut(self, name: str) -> Tensor:
        """Return one activation at the requested positions."""
        return self._select_positions(self._acts[name])

    def stream(self) -> Tensor:
        """Return the stream there, (…, pos, d_model)."""
        if self.at_the_end:
            return self.cut(self._end)
        return self.cut(
            f"{self.stack.prefix}.{self.layer}.{RESIDUAL_NAMES[self.branches]}"
        )

    def embed(self) -> Tensor:
        """Return the stream's first value as it arrives here, (…, pos, d_model)."""
        name = f"{self.stack.name}.hook_embed".lstrip(".")
        return self.cut(name) * self._carry["embed"]

    def branch(self, layer: int, writer: Writer) -> Tensor:
        """Return the write of one branch as it arrives here, (…, pos, d_model)."""
        write = self.cut(f"{self._at(layer, writer)}.hook_out")
        return write * self._carry[layer, writer.kind]

    def heads(self) -> tuple[list[str], Tensor]:
        """Return the labels of all heads, and each head's write as it arrives here.

        The writes are (head, …, pos, d_model).
        """
        labels = []
        # without any attention, the result has the right shape and no heads
        writes = [self.embed()[None][:0]]
        for layer, writer in self.writers:
            if isinstance(writer, Attention):
                kind = ""
                if sum(1 for _ in self.stack.attentions(layer)) > 1:
                    kind = f".{writer.kind}."
                labels += [
                    f"L{layer}{kind}H{head}" for head in range(self.stack.n_heads)
                ]
                # (…, pos, head, d_model); axes count from the end, since rollouts have
                # "step" in front and one position drops "pos"
                results = self._select_positions(self._results(layer, writer), -3)
                writes.append(results.movedim(-2, 0) * self._carry[layer, writer.kind])
        return labels, torch.cat(writes)

    def neurons(self, layer: int, writer: Mlp) -> Tensor:
        """Return the write of each neuron of one MLP as it arrives here.

        It is (neuron, …, pos, d_model).
        """
        post = self.cut(f"{self._at(layer, writer)}.hook_post")
        weights = self._weights.mlp(layer, writer.kind, self.stack.name)
        gain = self._gain(layer, writer)
        if not isinstance(gain, float):
            # (…, pos, 1, d_model) against (…, pos, neuron, d_model)
            gain = self._select_positions(gain).unsqueeze(-2)
        writes = post[..., None] * weights.W_out.to(post) * gain
        return writes.movedim(-2, 0) * self._carry[layer, writer.kind]

    def bias(self, *, of_mlps: bool) -> Tensor:
        """Sum the output biases as they arrive here, (…, pos, d_model).

        They are those of attentions, and with ``of_mlps`` those of MLPs. The writes of
        all other branches include theirs.

        Returns:
            The sum of the biases, (…, pos, d_model).
        """
        total = torch.zeros_like(self.embed())
        for layer, writer in self.writers:
            if isinstance(writer, Branch) or (isinstance(writer, Mlp) and not of_mlps):
                continue
            bias = self._out(layer, writer)[1]
            # without a bias no gain is needed, which reads hook_z or hook_post
            if bool(bias.any()):
                gain = self._gain(layer, writer)
                if not isinstance(gain, float):
                    gain = self._select_positions(gain)
                total = total + bias.to(total) * gain * self._carry[layer, writer.kind]
        return total

    def scaled(self, parts: Tensor) -> Tensor:
        """Divide parts of the stream by its scale in the norm that reads it.

        Where no norm reads it, the parts are returned unchanged.

        Returns:
            The parts, of the same shape.
        """
        norm = self._norm()
        if norm is None:
            return parts
        return without_gain(norm, parts, self.stream())

    @torch.no_grad()
    def normed(self, parts: Tensor) -> Tensor:
        """Pass each part through the norm that reads the stream.

        Each part is normalised by its own scale.

        Returns:
            The normalised parts, of the same shape.
        """
        norm = self._norm()
        if norm is None:
            return parts
        # a call of the module itself would run its hooks
        return torch.stack([norm.forward(part) for part in parts])

    def _norm(self) -> Any:
        """Return the norm that reads the stream here; None if there is none."""
        path = self.stack.ln_final
        if not self.at_the_end:
            writer = self.stack.rows(self.layer)[self.branches]
            path = ""
            if writer.norm:
                path = f"{self.stack.block(self.layer)}.{writer.norm}"
        if path:
            return self._model.get_submodule(path)
        return None

    def _at(self, layer: int, writer: Writer) -> str:
        """Return the prefix of a branch's hook points."""
        return f"{self.stack.prefix}.{layer}.{writer.kind}"

    def _select_positions(self, tensor: Tensor, axis: int = -2) -> Tensor:
        """Return the requested positions; one index drops the axis."""
        if isinstance(self._positions, Slice):
            chosen = self._positions
        else:
            chosen = Slice(self._positions)
        return cut_positions(chosen, tensor, axis, f"stack {self.stack.name!r}")

    def _results(self, layer: int, writer: Attention) -> Tensor:
        """Return each head's write, computed from z where it was not recorded."""
        name = f"{self._at(layer, writer)}.hook_result"
        if name in self._acts:
            return self._acts[name]
        z = self._acts[f"{self._at(layer, writer)}.hook_z"]
        matrix = self._out(layer, writer)[0]
        gain = self._gain(layer, writer)
        results = torch.einsum("...hd,hdm->...hm", z, matrix.to(z))
        if not isinstance(gain, float):
            gain = gain.unsqueeze(-2)
        return results * gain

    def _out(self, layer: int, writer: Attention | Mlp) -> tuple[Tensor, Tensor]:
        """Return a branch's output matrix and its bias (d_model,).

        The matrix is (head, d_head, d_model), or (neuron, d_model) for an MLP.
        """
        if isinstance(writer, Mlp):
            mlp = self._weights.mlp(layer, writer.kind, self.stack.name)
            return mlp.W_out, mlp.b_out
        heads = self._weights.heads(layer, writer.kind, self.stack.name)
        return heads.W_O, heads.b_O

    @torch.no_grad()
    def _gain(self, layer: int, writer: Attention | Mlp) -> float | Tensor:
        """Return the factor between an output matrix and the stream.

        It includes the frozen scale of a norm after the branch.
        """
        factor = float(self._weights.scale(layer, writer.kind, self.stack.name))
        if not writer.post_norm:
            return factor
        matrix, bias = self._out(layer, writer)
        point = "hook_z"
        axes = "...hd,hdm->...m"
        if isinstance(writer, Mlp):
            point = "hook_post"
            axes = "...n,nm->...m"
        # what enters a norm behind a branch has no hook point, so that it is computed
        # anew
        inputs = self._acts[f"{self._at(layer, writer)}.{point}"]
        raw = torch.einsum(axes, inputs, matrix.to(inputs)) + bias.to(inputs)
        norm = f"{self.stack.block(layer)}.{writer.post_norm}"
        return rms_scale(self._model.get_submodule(norm), raw) * factor

    @torch.no_grad()
    def check_additive_stream(self) -> None:
        """Refuse a stream that is not the sum of the writes before it.

        Nothing is checked where a write was not recorded.
        """
        try:
            stream = self.stream()
            total = self.embed()
            writes = [self.branch(layer, writer) for layer, writer in self.writers]
        except UnknownNameError:
            # a cache of some hook points is decomposed unchecked, as in TransformerLens
            return
        size = total.abs()
        for write in writes:
            total = total + write
            # writes may cancel, and their sum has the rounding of what went into it
            size = size + write.abs()
        rounding = relative_rounding(self._model, self._wiring, (*writes, stream))
        deviation = excess(total, size, stream, rounding)
        if deviation is not None:
            if self.at_the_end:
                where = "at its end"
            else:
                where = f"in layer {self.layer}"
            raise no_sum(
                self._wiring, f"of stack {self.stack.name!r} {where}", deviation
            )


Labelled = Tensor | tuple[Tensor, list[str]]
"""Tensor (component, batch, pos, d_model), with its labels if asked for.

In rollouts the axis "step" follows the first.
"""


class Decomposed(Mapping[Any, Tensor]):
    """Decomposition of a residual stream, with TransformerLens's methods.

    They are those of its ``ActivationCache``.

    Arguments, order and labels are those of TransformerLens. In models with an encoder
    and a decoder, ``stack`` names a stack; the default is the output stack. If a block
    has several attentions, labels have the kind ("0_cross_attn_out",
    "L0.cross_attn.H3"). If blocks rescale the stream, a write is given as it arrives at
    the end.

    Arguments that methods share: ``layer`` from 0 to the number of layers, the end of
    the stack if None or -1; ``mlp_input``, up to the input of that layer's MLP;
    ``pos_slice``, an index, (start, stop) or list of positions; ``apply_ln``, divide by
    the scale of the norm that reads there; ``return_labels``, also the labels. All
    raise InputError if there is no such layer or it has no MLP, and UnknownNameError if
    an activation was not recorded. They raise WiringError if recorded writes do not sum
    to the stream, as under a hook that edits the stream itself.
    """

    source: HookRegistry | None

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Any = None,
        mlp_input: bool = False,
        return_labels: bool = False,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack the residual stream at every layer up to the input of one.

        Labels are "0_pre", …, "final_post".

        Args:
            layer: layer whose input is the last entry, from 0 to the number of layers;
                the end of the stack if None or -1.
            incl_mid: also the stream after each branch of a block but its last.
            apply_ln: divide each by the scale of that layer's norm on its own stream;
                at the end of the stack, pass each through the last norm, as the output
                head does (the logit lens).
            pos_slice: positions to keep: an index, (start, stop) or a list; all if
                None.
            mlp_input: count up to what the layer's MLP reads, not its first branch.
            return_labels: return the labels, too.
            stack: name of the stack; the output stack if None.

        Returns:
            Streams (layer, …, pos, d_model), and with ``return_labels`` the list of
            labels.

        Example:
            >>> _, cache = lens.run_with_cache(run.encoded)
            >>> _, labels = cache.accumulated_resid(return_labels=True)
            >>> labels
            ['0_pre', '1_pre', '2_pre', 'final_post']
        """
        before = self._before(stack, layer, mlp_input, pos_slice)
        points = before.streams(incl_mid=incl_mid)
        parts = torch.stack([before.cut(point) for point in points.values()])
        if apply_ln:
            # as in TransformerLens, only at the end each stream has a scale of its own
            if before.at_the_end:
                parts = before.normed(parts)
            else:
                parts = before.scaled(parts)
        if return_labels:
            return (parts, list(points))
        return parts

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: Literal["all", "mlp", "attn"] = "all",
        apply_ln: bool = False,
        pos_slice: Any = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack the write of each branch to the stream that a layer reads.

        All of them sum to that stream.

        Args:
            layer: layer that reads the stream, from 0 to the number of layers; the end
                of the stack if None or -1.
            mlp_input: take the stream that the layer's MLP reads, not its first branch.
            mode: "all", "mlp" or "attn", the branches whose writes are returned.
            apply_ln: divide each write by the scale of the norm that reads the stream.
            pos_slice: positions to keep: an index, (start, stop) or a list; all if
                None.
            incl_embeds: also the stream's first value.
            return_labels: return the labels, too: "embed", "0_attn_out", "0_mlp_out",
                ….
            stack: name of the stack; the output stack if None.

        Returns:
            Writes (component, …, pos, d_model), and with ``return_labels`` the list of
            labels.

        Raises:
            UnknownNameError: no such mode, stack or layer.

        Example:
            >>> _, cache = lens.run_with_cache(run.encoded)
            >>> writes, labels = cache.decompose_resid(layer=1, return_labels=True)
            >>> labels
            ['embed', '0_self_attn_out', '0_cross_attn_out', '0_mlp_out']
        """
        if mode not in ("all", "mlp", "attn"):
            raise unknown_name("mode", mode, ("all", "mlp", "attn"))
        before = self._before(
            stack, layer, mlp_input, pos_slice, check_sum=mode == "all"
        )
        kind: type[Writer] = Mlp if mode == "mlp" else Attention
        labels = ["embed"]
        writes = [before.embed()]
        for index, writer in before.writers:
            if mode == "all" or isinstance(writer, kind):
                labels.append(f"{index}_{writer.kind}_out")
                writes.append(before.branch(index, writer))
        parts = torch.stack(writes)
        if not incl_embeds:
            labels = labels[1:]
            parts = parts[1:]
        if apply_ln:
            parts = before.scaled(parts)
        if return_labels:
            return (parts, labels)
        return parts

    def stack_head_results(
        self,
        layer: int | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: Any = None,
        apply_ln: bool = False,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack each head's write to the stream before a layer.

        It is ``hook_result``, or else computed from ``hook_z`` and W_O.

        Args:
            layer: layer before which heads count, from 0 to the number of layers; all
                layers if None or -1.
            return_labels: return the labels, too: "L0H0", "L0H1", ….
            incl_remainder: also the rest of the stream: its first value, the MLPs and
                the biases.
            pos_slice: positions to keep: an index, (start, stop) or a list; all if
                None.
            apply_ln: divide each write by the scale of the norm that reads the stream.
            stack: name of the stack; the output stack if None.

        Returns:
            Writes (head, …, pos, d_model), and with ``return_labels`` the list of
            labels.

        Example:
            >>> _, cache = lens.run_with_cache(run.encoded)
            >>> _, labels = cache.stack_head_results(return_labels=True)
            >>> labels[0], len(labels)
            ('L0.self_attn.H0', 24)
        """
        before = self._before(stack, layer, False, pos_slice)
        labels, heads = before.heads()
        if incl_remainder:
            labels.append("remainder")
            # a difference, so that the parts sum to the stream whatever else wrote to
            # it
            heads = torch.cat([heads, (before.stream() - heads.sum(0))[None]])
        if apply_ln:
            heads = before.scaled(heads)
        if return_labels:
            return (heads, labels)
        return heads

    def get_full_resid_decomposition(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        expand_neurons: bool = True,
        apply_ln: bool = False,
        pos_slice: Any = None,
        return_labels: bool = False,
        project_output_onto: Tensor | None = None,
        *,
        stack: str | None = None,
    ) -> Labelled:
        """Stack the writes of heads, neurons, embedding and biases.

        They sum to the stream that a layer reads.

        Args:
            layer: layer that reads the stream, from 0 to the number of layers; the end
                of the stack if None or -1.
            mlp_input: take the stream that the layer's MLP reads, not its first branch.
            expand_neurons: every neuron by itself; else every MLP.
            apply_ln: divide each write by the scale of the norm that reads the stream.
            pos_slice: positions to keep: an index, (start, stop) or a list; all if
                None.
            return_labels: return the labels, too: "L0H0", …, "L0N0", … or "0_mlp_out",
                …, "embed", "bias".
            project_output_onto: (d_model,) or (d_model, any) to multiply every write
                with, which spares memory.
            stack: name of the stack; the output stack if None.

        Returns:
            Writes (component, …, pos, d_model), or their products with
            ``project_output_onto``, and with ``return_labels`` the list of labels.

        Example:
            >>> _, cache = lens.run_with_cache(run.encoded)
            >>> _, labels = cache.get_full_resid_decomposition(
            ...     expand_neurons=False, return_labels=True
            ... )
            >>> labels[-2:]
            ['embed', 'bias']
        """
        before = self._before(stack, layer, mlp_input, pos_slice, check_sum=True)

        # applied part by part, as the neurons of all layers may not fit into memory
        # before they are projected
        def project(part: Tensor) -> Tensor:
            if apply_ln:
                part = before.scaled(part)
            if project_output_onto is None:
                return part
            return part @ project_output_onto.to(part)

        labels, heads = before.heads()
        parts = [project(heads)]
        for index, writer in before.writers:
            if isinstance(writer, Attention):
                continue
            if isinstance(writer, Mlp) and expand_neurons:
                writes = before.neurons(index, writer)
                labels += [f"L{index}N{neuron}" for neuron in range(len(writes))]
            else:
                writes = before.branch(index, writer)[None]
                labels.append(f"{index}_{writer.kind}_out")
            parts.append(project(writes))
        # the write of a branch or of a whole MLP has its bias; heads and neurons do not
        parts += [
            project(before.embed()[None]),
            project(before.bias(of_mlps=expand_neurons)[None]),
        ]
        labels += ["embed", "bias"]
        decomposition = torch.cat(parts)
        if return_labels:
            return (decomposition, labels)
        return decomposition

    @answers_arguments("apply_ln_to_stack", _ROWS)
    def apply_ln_to_stack(
        self,
        residual_stack: Tensor,
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: Any = None,
        *,
        recompute_ln: bool = False,
        stack: str | None = None,
    ) -> Tensor:
        """Scale parts of a stream as the norm of a layer does.

        The scale is that of the full stream.

        As in TransformerLens the norm's gain is left out: ``lens.weights.heads(layer,
        fold_norm=True)`` has it, and ``lens.weights.W_U`` has neither it nor the head's
        factor. Parts of a token model's stream are read out as logits by
        ``lens.readout(parts, encoded, like=stream)``; ``probes.attribution(run)``
        splits any forecast.

        Args:
            residual_stack: parts of the stream, (component, …, d_model).
            layer: layer whose norm is meant, from 0 to the number of layers; the end
                of the stack if None or -1.
            mlp_input: take the norm that the layer's MLP reads, not that of its first
                branch.
            pos_slice: positions that the parts have: an index, (start, stop) or a list;
                all if None.
            recompute_ln: at the end of the stack, pass each part through the last norm
                by itself.
            stack: name of the stack; the output stack if None.

        Returns:
            The scaled parts, of the shape of ``residual_stack``.

        Raises:
            WiringError: the norm is neither a LayerNorm nor a root-mean-square one.
            InputError: the last axis of the parts is not d_model.

        Example:
            >>> _, cache = lens.run_with_cache(run.encoded)
            >>> writes = cache.decompose_resid()
            >>> cache.apply_ln_to_stack(writes).shape == writes.shape
            True
        """
        before = self._before(stack, layer, mlp_input, pos_slice)
        if residual_stack.shape[-1] != before.stack.d_model:
            raise InputError(
                f"the stack has shape {tuple(residual_stack.shape)}, expected a last"
                f" axis of {before.stack.d_model}"
            )
        if recompute_ln and before.at_the_end:
            return before.normed(residual_stack)
        return before.scaled(residual_stack)

    def stack_activation(
        self,
        activation_name: str,
        layer: int | None = -1,
        sublayer_type: str | None = None,
        *,
        stack: str | None = None,
    ) -> Tensor:
        """Stack one activation of every layer before a layer.

        Args:
            activation_name: short name, such as "pattern" or "resid_pre".
            layer: layer before which layers count, from 0 to the number of layers; all
                layers if None or -1.
            sublayer_type: kind of attention or branch, such as "cross_attn"; needed
                where a block has several that fit.
            stack: name of the stack; the output stack if None.

        Returns:
            The activations, (layer, …).

        Example:
            >>> _, cache = lens.run_with_cache(run.encoded)
            >>> cache.stack_activation("pattern", sublayer_type="cross_attn").shape[0]
            3
        """
        before = self._before(stack, layer, False, None)
        name = before.stack.name
        return torch.stack(
            [
                self[activation_name, index, name, sublayer_type]
                for index in range(before.layer)
            ]
        )

    def _before(
        self,
        stack: str | None,
        layer: int | None,
        mlp_input: bool,
        pos_slice: Any,
        *,
        check_sum: bool = False,
    ) -> Before:
        """Return the writes before a layer.

        With ``check_sum``, they must sum to the stream there.
        """
        if self.source is None:
            raise HookError(
                "these activations do not know their model, whose weights and norms"
                " this needs; take those that lens.run_with_cache or run.record gave"
            )
        before = Before(self, self.source, stack, layer, mlp_input, pos_slice)
        if check_sum:
            before.check_additive_stream()
        return before
