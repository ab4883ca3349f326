"""Writes to a residual stream before one place in it, from recorded activations and weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformer_lens.utilities import Slice

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.hook_table import HookTable
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.native import rms_scale, without_gain
from tsfm_lens.hooks.stream import Place, Recorded, carry_factors
from tsfm_lens.hooks.weights import Weights
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack, Writer


class Before:
    """Writes to a stack's stream before one place.

    Args:
        acts: recorded activations.
        source: hook points, model and table.
        stack: name of the stack; the one that is read out if None.
        layer: the place is its input, from 0 to the number of layers; None and -1 are the stack's end.
        mlp_input: the place is what the layer's MLP reads, not what its first branch does.
        pos_slice: an index, (start, stop) or list of positions; all if None.

    Raises:
        InputError: no such layer, or that layer has no MLP.
        UnknownNameError: no such stack.
    """

    def __init__(
        self,
        acts: Recorded,
        source: HookTable,
        stack: str | None,
        layer: int | None,
        mlp_input: bool = False,
        pos_slice: Any = None,
    ) -> None:
        names = [column.name for column in source.wiring.stacks]
        if stack is not None and stack not in names:
            raise unknown_name("stack", stack, names)
        self._acts, self._model, self._positions = acts, source.model, pos_slice
        self._weights = Weights(source.model, source.wiring)
        self.stack: Stack = source.wiring.output_stack if stack is None else source.wiring.stack(stack)
        self.layer = _layer(self.stack, layer)
        self.at_the_end = self.layer == self.stack.n_layers
        self.branches = _before_the_mlp(self.stack, self.layer) if mlp_input else 0
        self._carry: Mapping[Place, float] = carry_factors(source.model, self.stack, (self.layer, self.branches))

    def writers(self) -> Iterator[tuple[int, Writer]]:
        """Yield layer and row of every branch that has written there, in order."""
        for layer in range(self.layer):
            yield from ((layer, row) for row in self.stack.rows(layer))
        if self.branches:
            yield from ((self.layer, row) for row in self.stack.rows(self.layer)[: self.branches])

    def cut(self, name: str) -> Tensor:
        """Return one activation at the requested positions."""
        return self._cut(self._acts[name])

    def stream(self) -> Tensor:
        """Return the stream there, (…, pos, d_model)."""
        if self.at_the_end:
            return self.cut(f"{self.stack.prefix}.{self.layer - 1}.hook_resid_post")
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


def _layer(stack: Stack, layer: int | None) -> int:
    position = stack.n_layers if layer is None or layer == -1 else layer
    if not isinstance(position, int) or not 0 <= position <= stack.n_layers:
        raise InputError(f"layer {layer!r}; expected 0 to {stack.n_layers}, or -1 or None for the stack's end")
    return position


def _before_the_mlp(stack: Stack, layer: int) -> int:
    kinds = [] if layer == stack.n_layers else [type(row) for row in stack.rows(layer)]
    if Mlp not in kinds:
        raise InputError(f"mlp_input=True at layer {layer}, which has no MLP; expected a layer with one")
    return kinds.index(Mlp)
