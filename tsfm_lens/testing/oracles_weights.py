"""Oracles of the weights: rebuilt from the table, they give the model's own
activations, stream to stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.core.errors import WiringError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.names import RESIDUAL
from tsfm_lens.hooks.native import fold_leading, to_vocabulary
from tsfm_lens.hooks.replay import NativeCall, recorded_calls
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import (
    TWO_BLOCKS,
    Case,
    Deviations,
    Row,
    branches,
    last_stream,
    oracle,
    relative,
)


@oracle(
    11,
    "weights",
    TWO_BLOCKS,
    "the row and field named; module and gain of a projection, `norm`, `reads`, `pre`,"
    " `post`, `ln_final`",
    "no attention, no MLP, no last norm",
)
def weights(case: Case) -> Deviations:
    """Check that norms, matrices, gains and biases turn each stream into the recorded
    inputs, outputs and writes.
    """
    lens = case.lens
    activations = case.acts
    for stack in lens.wiring.stacks:
        layers = {
            f"{stack.block(item.layer)}.{part.module}"
            for item in branches(stack)
            for part in _inputs(item)
        }
        with recorded_calls(lens.adapter.model, layers) as calls:
            lens.forward(case.encoded)
        for branch in branches(stack):
            yield from _Rebuilt(lens, activations, branch, calls).deviations()
        if stack.ln_final:
            rebuilt = lens.adapter.model.get_submodule(stack.ln_final).forward(
                activations[last_stream(stack)]
            )
            normalized = activations[last_stream(stack, normalized=True)]
            yield f"ln_final of stack {stack.name!r}", relative(rebuilt, normalized)


def _inputs(branch: Row) -> list[Projection]:
    """List the input layers of a branch."""
    row = branch.row
    if isinstance(row, Attention):
        return [*row.inputs.values()]
    if isinstance(row, Mlp):
        return [part for part in (row.i, row.gate) if part]
    return []


class _Rebuilt:
    """One branch of one layer, rebuilt from the table."""

    def __init__(
        self,
        lens: Lens,
        acts: Activations,
        branch: Row,
        calls: dict[str, list[NativeCall]],
    ) -> None:
        self.lens = lens
        self.acts = acts
        self.branch = branch
        self.calls = calls
        self.place = (branch.layer, branch.row.kind, branch.stack.name)
        self.branch_input = _norm(self.lens, branch, branch.row.norm)(
            self.acts[branch.stream]
        )

    def deviations(self) -> Deviations:
        """Yield deviations of the inputs of the input layers, of their outputs, and of
        the write.
        """
        row = self.branch.row
        if isinstance(row, Attention):
            yield from self._attention(row)
        elif isinstance(row, Mlp):
            yield from self._mlp(row)

    def _attention(self, row: Attention) -> Deviations:
        at = self.branch.at
        keys = self.branch_input
        if row.keys_from:
            keys = self.acts[
                last_stream(self.lens.wiring.stack(row.keys_from), normalized=True)
            ]
        x_layout = row.x_layout or row.stream_layout
        for letter, part in row.inputs.items():
            if letter in "kv":
                x = keys
            else:
                x = self.branch_input
            call = self._call(part)
            holds_matrix = part.weight == "weight"
            # the attention itself holds the matrix, and takes query, key and value
            inputs = self._vocabulary(
                call.given(0 if holds_matrix else "qkv".index(letter)), x_layout
            )
            yield f"{at}: what {letter} reads (norm, reads)", relative(x, inputs)
            layer, kind, stack = self.place
            weight, bias = self.lens.weights.projection(layer, kind, letter, stack)
            rebuilt = torch.einsum("bpd,hdc->bphc", x, weight) + bias
            if holds_matrix:
                outputs = self._part(
                    self._vocabulary(call.gave(), x_layout), part, head=len(weight)
                )
            else:
                outputs = self.acts[f"{at}.hook_{letter}"]
            yield f"{at}: W_{letter.upper()}", relative(rebuilt, outputs)
        heads = self.lens.weights.heads(*self.place)
        out = (
            torch.einsum("bphc,hcd->bpd", self.acts[f"{at}.hook_z"], heads.W_O)
            + heads.b_O
        )
        yield f"{at}: W_O", self._write(out)

    def _mlp(self, row: Mlp) -> Deviations:
        at = self.branch.at
        mlp = self.lens.weights.mlp(*self.place)
        layout = row.pre.layout.replace("d_mlp", "d_model")
        x = self.branch_input
        pre = self.acts[f"{at}.hook_pre"]
        yield (
            f"{at}: what i reads (norm, reads)",
            relative(x, self._vocabulary(self._call(row.i).given(), layout)),
        )
        yield (
            f"{at}: W_in (i, pre)",
            relative(x @ mlp.W_in + mlp.b_in, _halves(pre, self.branch)[row.i.part]),
        )
        if row.gate is not None:
            outputs = self._part(
                self._vocabulary(self._call(row.gate).gave(), layout), row.gate
            )
            yield f"{at}: W_gate", relative(_gate(self.lens, self.branch, x), outputs)
        yield (
            f"{at}: W_out (o, post)",
            self._write(self.acts[f"{at}.hook_post"] @ mlp.W_out + mlp.b_out),
        )

    def _write(self, out: Tensor) -> float:
        """Compute the deviation of a branch's output, scaled as the stream receives it,
        from its write.
        """
        write = _norm(self.lens, self.branch, self.branch.row.post_norm)(
            out
        ) * self.lens.weights.scale(*self.place)
        return relative(write, self.acts[f"{self.branch.at}.hook_out"])

    def _call(self, part: Projection) -> NativeCall:
        path = f"{self.branch.stack.block(self.branch.layer)}.{part.module}"
        if not self.calls[path]:
            raise WiringError(
                f"{path} was never called, so it is not an input layer of"
                f" {self.branch.at}"
            )
        return self.calls[path][-1]

    def _vocabulary(self, native: Tensor, layout: str) -> Tensor:
        sizes = {**self.lens.registry.state.sizes, "head": self.branch.stack.n_heads}
        return to_vocabulary(fold_leading(native, layout), layout, RESIDUAL, sizes)

    def _part(self, wide: Tensor, part: Projection, **sizes: int) -> Tensor:
        """Split a layer's output (batch, pos, rows) into heads, or hidden units, of one
        part of it.
        """
        axes = "d_mlp"
        if sizes:
            axes = "head d_head"
        if part.parts == 1:
            return rearrange(
                wide, f"batch pos {part.layout} -> batch pos {axes}", **sizes
            )
        return rearrange(
            wide,
            f"batch pos {part.layout} -> part batch pos {axes}",
            part=part.parts,
            **sizes,
        )[part.part]


def _norm(lens: Lens, branch: Row, path: str) -> Callable[[Tensor], Tensor]:
    block = branch.stack.block(branch.layer)
    return (
        lens.adapter.model.get_submodule(f"{block}.{path}").forward
        if path
        else lambda stream: stream
    )


def _is_fused(pre: Tensor, branch: Row) -> bool:
    assert isinstance(branch.row, Mlp)
    return branch.row.i.parts > 1 and pre.shape[-1] != branch.stack.d_mlp


def _halves(pre: Tensor, branch: Row) -> Tensor:
    """Return ``hook_pre`` as (part, batch, pos, d_mlp), of one part but for a fused
    gated layer.
    """
    row: Any = branch.row
    if not _is_fused(pre, branch):
        return pre.expand(row.i.parts, *pre.shape)
    return rearrange(
        pre, f"batch pos {row.i.layout} -> part batch pos d_mlp", part=row.i.parts
    )


@oracle(
    12,
    "activation function",
    TWO_BLOCKS,
    "`gate` (forgotten, or taken for `i`), `pre`, `post`; an activation function that"
    " mixes hidden units",
    "no MLP",
)
def activation(case: Case) -> Deviations:
    """Check that a shift of the units of ``pre`` by one shifts those of ``post``, but
    for the gate, which stays.
    """
    lens = case.lens
    activations = case.acts
    mlps = [
        item
        for stack in lens.wiring.stacks
        for item in branches(stack)
        if isinstance(item.row, Mlp)
    ]
    if not mlps:
        return
    hooks = []
    for branch in mlps:
        hooks.append(
            (
                f"{branch.at}.hook_pre",
                _replace_output(
                    _shift_units(activations[f"{branch.at}.hook_pre"], branch)
                ),
            )
        )
        # later layers must read the same stream as before
        hooks.append(
            (
                f"{branch.at}.hook_out",
                _replace_output(activations[f"{branch.at}.hook_out"]),
            )
        )
    with lens.hooks(hooks):
        _, new_acts = lens.run_with_cache(
            case.encoded, names_filter=[f"{branch.at}.hook_post" for branch in mlps]
        )
    for branch in mlps:
        name = f"{branch.at}.hook_post"
        gate = _gate(
            lens,
            branch,
            _norm(lens, branch, branch.row.norm)(activations[branch.stream]),
        )
        shifted = new_acts[name] * gate.roll(1, dims=-1)
        expected = activations[name].roll(1, dims=-1) * gate
        yield f"{branch.at}: gate, pre, post", relative(shifted, expected)


def _replace_output(value: Tensor) -> Callable[..., Tensor]:
    return lambda _now, hook: value


def _shift_units(pre: Tensor, branch: Row) -> Tensor:
    """Move every unit's value of ``hook_pre`` to the next unit; of a fused layer the
    half that is activated.
    """
    row: Any = branch.row
    if not _is_fused(pre, branch):
        return pre.roll(1, dims=-1)
    halves = _halves(pre, branch).clone()
    halves[row.i.part] = halves[row.i.part].roll(1, dims=-1)
    return rearrange(halves, f"part batch pos d_mlp -> batch pos {row.i.layout}")


def _gate(lens: Lens, branch: Row, x: Tensor) -> Tensor:
    """Compute the gate of the input of an MLP; 1 without one."""
    mlp: Any = lens.weights.mlp(branch.layer, branch.row.kind, branch.stack.name)
    if mlp.W_gate is None:
        return torch.ones(branch.stack.d_mlp, device=x.device)
    return x @ mlp.W_gate + mlp.b_gate
