"""Residual stream as the sum of its writes, from recorded activations and weights; refused where it is not that sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from transformer_lens.utilities import Slice

from tsfm_lens.errors import InputError, LensError, UnknownNameError, WiringError
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.native import rms_scale, without_gain
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.weights import Weights
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack, Wiring, Writer

# half precision may not make a deviation of any size pass for rounding
_MOST = 0.1

Place = tuple[int, str] | Literal["embed"]
"""(layer, kind of branch), or the embedding."""


class Recorded(Protocol):
    """Recorded activations by the names of their hook points."""

    def __getitem__(self, name: str) -> Tensor: ...

    def __contains__(self, name: object) -> bool: ...


def carry_factors(model: Any, stack: Stack, until: tuple[int, int] | None = None) -> dict[Place, float]:
    """Return the factor with which each write reaches the stack's last ``hook_resid_post``, or an earlier place."""
    factors: dict[Place, float] = {}
    later = 1.0
    for index, row in reversed(_writers(stack, *(until or (stack.n_layers, 0)))):
        factors[index, row.kind] = later
        later *= _stream_gain(model, stack, index, row)
    return factors | {"embed": later}


def _writers(stack: Stack, layer: int, branches: int) -> list[tuple[int, Writer]]:
    """Return layer and row of the branches before a layer, and of its own first few, in order."""
    rows = [(index, row) for index in range(layer) for row in stack.rows(index)]
    return rows + [(layer, row) for row in (stack.rows(layer)[:branches] if branches else ())]


def _stream_gain(model: nn.Module, stack: Stack, layer: int, row: Writer) -> float:
    """Return the factor on the stream that a branch adds its write to."""
    return 1.0 if row.mix is None else row.mix(model.get_submodule(stack.block(layer)))[1]


def relative_rounding(model: nn.Module, wiring: Wiring) -> float:
    """Estimate the relative rounding error of a forward's numbers: the square root of 100 roundings per block."""
    blocks = sum(stack.n_layers for stack in wiring.stacks)
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    float32 = torch.finfo(torch.float32).eps
    return math.sqrt(100 * blocks) * max((torch.finfo(kind).eps for kind in kinds), default=float32)


def excess(total: Tensor, size: Tensor, stream: Tensor, rounding: float) -> tuple[float, float] | None:
    """Return the largest deviation of a sum from a stream, and the rounding there; None where no row exceeds it."""
    same = (total == stream) | (total.isnan() & stream.isnan())
    gap = _by_row((total - stream).abs().masked_fill(same, 0.0)).amax(1)
    bound = min(rounding, _MOST) * _by_row(size.nan_to_num(0.0, 0.0, 0.0)).amax(1)
    wrong = ~(gap <= bound)
    if not bool(wrong.any()):
        return None
    row = int(gap.nan_to_num(math.inf).masked_fill(~wrong, -1.0).argmax())
    return float(gap[row]), float(bound[row])


def _by_row(tensor: Tensor) -> Tensor:
    """Flatten all axes but the row's; all of them where that one is gone."""
    return tensor.flatten(1) if tensor.ndim > 2 else tensor.reshape(1, -1)


def branch_sums(model: nn.Module, wiring: Wiring, stack: Stack, acts: Recorded) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield place, value and the sum that it should equal: of every branch's write, and of the stream after it."""
    weights = Weights(model, wiring)
    for layer in range(stack.n_layers):
        at, rows = f"{stack.prefix}.{layer}", stack.rows(layer)
        if layer > 0:
            before = acts[f"{stack.prefix}.{layer - 1}.hook_resid_post"]
            yield f"{at}.hook_resid_pre", acts[f"{at}.hook_resid_pre"], before
        after = (*RESIDUAL_NAMES[1 : len(rows)], "hook_resid_post")
        for name, row, next_name in zip(RESIDUAL_NAMES, rows, after, strict=False):
            write = acts[f"{at}.{row.kind}.hook_out"]
            if isinstance(row, Attention):
                heads = acts[f"{at}.{row.kind}.hook_result"].sum(dim=-2)
                place = (layer, row.kind, stack.name)
                bias = 0.0 if row.post_norm else weights.b_O(*place) * weights.scale(*place)
                yield f"{at}.{row.kind}: heads", write, heads + bias
            gain = _stream_gain(model, stack, layer, row)
            yield f"{at}.{next_name}", acts[f"{at}.{next_name}"], acts[f"{at}.{name}"] * gain + write


def first_deviation(model: nn.Module, wiring: Wiring, stack: Stack, acts: Recorded) -> str:
    """Name the first place of :func:`branch_sums` that deviates by more than rounding, "" if none does by itself."""
    rounding = relative_rounding(model, wiring)
    for name, actual, target in branch_sums(model, wiring, stack, acts):
        if excess(target, actual.abs() + target.abs(), actual, rounding) is not None:
            return name
    return ""


def no_sum(
    wiring: Wiring, where: str, apart: tuple[float, float], first: str = "", points: Sequence[str] = ()
) -> LensError:
    """Compose the error for a stream that is not the sum of the writes that a wiring declares."""
    message = (
        f"the writes of the wiring {wiring.architecture!r} do not sum to the residual stream {where}: they are off by "
        f"{apart[0]:.3g}, and rounding allows {apart[1]:.1g}"
        + (f"; the first place to differ is {first}" if first else "")
    )
    if points:
        return InputError(
            f"{message}. Hooks are set at {', '.join(points)}; an edit of the stream itself is no write, and one of an "
            "attention's whole output is no head's. Decompose a run without, or edit hook_z or an MLP's hook_out"
        )
    return WiringError(
        f"{message}. A norm after the sum (post-norm) leaves no sum of writes to decompose, and neither does a hook "
        "that edits the stream itself; else a row is missing there, or its write, post_norm, mix or o is not the "
        "model's, which testing.check_wiring tells"
    )


class Before:
    """Writes to a stack's stream before one place."""

    def __init__(
        self,
        acts: Recorded,
        source: HookRegistry,
        stack: str | None,
        layer: int | None,
        mlp_input: bool = False,
        pos_slice: Any = None,
    ) -> None:
        self._acts, self._model, self._wiring, self._positions = acts, source.model, source.wiring, pos_slice
        self._weights = Weights(source.model, source.wiring)
        self.stack = source.wiring.stack(stack)
        self.layer = self.stack.n_layers if layer is None or layer == -1 else layer
        if not isinstance(self.layer, int) or not 0 <= self.layer <= self.stack.n_layers:
            raise InputError(f"layer {layer!r}; expected 0 to {self.stack.n_layers}, or -1 or None for the stack's end")
        self.at_the_end = self.layer == self.stack.n_layers
        kinds = [] if self.at_the_end else [type(row) for row in self.stack.rows(self.layer)]
        if mlp_input and Mlp not in kinds:
            raise InputError(f"mlp_input=True at layer {self.layer}, which has no MLP; expected a layer with one")
        self.branches = kinds.index(Mlp) if mlp_input else 0
        self._end = f"{self.stack.prefix}.{self.stack.n_layers - 1}.hook_resid_post"
        self._carry = carry_factors(source.model, self.stack, (self.layer, self.branches))

    def writers(self) -> list[tuple[int, Writer]]:
        """Return layer and row of every branch that has written there, in order."""
        return _writers(self.stack, self.layer, self.branches)

    def streams(self, *, incl_mid: bool) -> dict[str, str]:
        """Return the hook points of the stream at every layer up to the place, by label."""
        names: dict[str, str] = {}
        for layer in range(self.layer + 1):
            at, count = f"{self.stack.prefix}.{layer}", len(self.stack.rows(layer)) if incl_mid else 1
            if layer == self.layer:
                count = 0 if self.at_the_end else self.branches + 1
            names |= {f"{layer}_{name.removeprefix('hook_resid_')}": f"{at}.{name}" for name in RESIDUAL_NAMES[:count]}
        return names | ({"final_post": self._end} if self.at_the_end else {})

    def cut(self, name: str) -> Tensor:
        """Return one activation at the requested positions."""
        return self._cut(self._acts[name])

    def stream(self) -> Tensor:
        """Return the stream there, (…, pos, d_model)."""
        if self.at_the_end:
            return self.cut(self._end)
        return self.cut(f"{self.stack.prefix}.{self.layer}.{RESIDUAL_NAMES[self.branches]}")

    def embed(self) -> Tensor:
        """Return the stream's first value as it arrives, (…, pos, d_model)."""
        return self.cut(f"{self.stack.name}.hook_embed".lstrip(".")) * self._carry["embed"]

    def branch(self, layer: int, row: Writer) -> Tensor:
        """Return the write of one branch, as it arrives, (…, pos, d_model)."""
        return self.cut(f"{self._at(layer, row)}.hook_out") * self._carry[layer, row.kind]

    def heads(self) -> tuple[list[str], Tensor]:
        """Return the labels of all heads, and each head's write as it arrives, (head, …, pos, d_model)."""
        labels, writes = [], [self.embed()[None][:0]]
        for layer, row in self.writers():
            if isinstance(row, Attention):
                several = sum(1 for _ in self.stack.attentions(layer)) > 1
                labels += [f"L{layer}{f'.{row.kind}.' if several else ''}H{head}" for head in range(self.stack.n_heads)]
                results = self._cut(self._results(layer, row), -3)
                writes.append(results.movedim(-2, 0) * self._carry[layer, row.kind])
        return labels, torch.cat(writes)

    def neurons(self, layer: int, row: Mlp) -> Tensor:
        """Return the write of each neuron of one MLP, as it arrives, (neuron, …, pos, d_model)."""
        post = self.cut(f"{self._at(layer, row)}.hook_post")
        weights = self._weights.mlp(layer, row.kind, self.stack.name)
        gain = self._gain(layer, row)
        gain = gain if isinstance(gain, float) else self._cut(gain).unsqueeze(-2)
        writes = post[..., None] * weights.W_out.detach().to(post) * gain
        return writes.movedim(-2, 0) * self._carry[layer, row.kind]

    def bias(self, *, of_mlps: bool) -> Tensor:
        """Sum the output biases as they arrive, (…, pos, d_model)."""
        total = torch.zeros_like(self.embed())
        for layer, row in self.writers():
            if isinstance(row, Mlp) and not of_mlps:
                continue
            bias = self._out(layer, row)[1]
            if bool(bias.any()):
                gain = self._gain(layer, row)
                gain = gain if isinstance(gain, float) else self._cut(gain)
                total = total + bias.to(total) * gain * self._carry[layer, row.kind]
        return total

    def scaled(self, parts: Tensor) -> Tensor:
        """Divide parts of the stream by its scale in the norm that reads it; unchanged where there is none."""
        norm = self._norm()
        return parts if norm is None else without_gain(norm, parts, self.stream())

    @torch.no_grad()
    def normed(self, parts: Tensor) -> Tensor:
        """Pass each part through the norm that reads the stream, with a scale of its own."""
        norm = self._norm()
        # forward itself, not the module: hooks must not see this
        return parts if norm is None else torch.stack([norm.forward(part) for part in parts])

    def _norm(self) -> Any:
        path = self.stack.ln_final
        if not self.at_the_end:
            row = self.stack.rows(self.layer)[self.branches]
            path = f"{self.stack.block(self.layer)}.{row.norm}" if row.norm else ""
        return self._model.get_submodule(path) if path else None

    def _at(self, layer: int, row: Writer) -> str:
        return f"{self.stack.prefix}.{layer}.{row.kind}"

    def _cut(self, tensor: Tensor, axis: int = -2) -> Tensor:
        part: Tensor = Slice(self._positions).apply(tensor, dim=axis)
        return part

    def _results(self, layer: int, row: Attention) -> Tensor:
        name = f"{self._at(layer, row)}.hook_result"
        if name in self._acts:
            return self._acts[name]
        z, (matrix, _) = self._acts[f"{self._at(layer, row)}.hook_z"], self._out(layer, row)
        gain = self._gain(layer, row)
        results = torch.einsum("...hd,hdm->...hm", z, matrix.to(z))
        return results * (gain if isinstance(gain, float) else gain.unsqueeze(-2))

    def _out(self, layer: int, row: Writer) -> tuple[Tensor, Tensor]:
        """Return a branch's output matrix, of all heads or of the neurons, and its bias."""
        if isinstance(row, Mlp):
            mlp = self._weights.mlp(layer, row.kind, self.stack.name)
            return mlp.W_out.detach(), mlp.b_out.detach()
        heads = self._weights.heads(layer, row.kind, self.stack.name)
        return heads.W_O.detach(), heads.b_O.detach()

    @torch.no_grad()
    def _gain(self, layer: int, row: Writer) -> float | Tensor:
        """Return the factor between an output matrix and the stream, with the frozen scale of a norm."""
        factor = float(self._weights.scale(layer, row.kind, self.stack.name))
        if not row.post_norm:
            return factor
        matrix, bias = self._out(layer, row)
        inputs = self._acts[f"{self._at(layer, row)}.{'hook_post' if isinstance(row, Mlp) else 'hook_z'}"]
        axes = "...n,nm->...m" if isinstance(row, Mlp) else "...hd,hdm->...m"
        raw = torch.einsum(axes, inputs, matrix.to(inputs)) + bias.to(inputs)
        return rms_scale(self._model.get_submodule(f"{self.stack.block(layer)}.{row.post_norm}"), raw) * factor

    @torch.no_grad()
    def refuse_other_stream(self) -> None:
        """Refuse a place whose stream is not the sum of the writes before it; nothing where one was not recorded."""
        try:
            stream, total = self.stream(), self.embed()
            writes = [self.branch(layer, row) for layer, row in self.writers()]
        except UnknownNameError:
            return
        size = total.abs()
        for write in writes:
            total, size = total + write, size + write.abs()
        apart = excess(total, size, stream, relative_rounding(self._model, self._wiring))
        if apart is not None:
            at = "at its end" if self.at_the_end else f"in layer {self.layer}"
            raise no_sum(self._wiring, f"of stack {self.stack.name!r} {at}", apart)
