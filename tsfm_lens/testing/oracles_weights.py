"""Oracles of the weights that the wiring names: they must give the activations.

Read :func:`weights`, which rebuilds every branch from stream to stream by
:class:`_Rebuilt`. Matrices do not show which half of a gated MLP goes through the
activation function; :func:`activation` checks that. Nothing here changes a weight;
ablation by weights is in :mod:`tsfm_lens.testing.oracles`.
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
    """Check that norms, matrices, gains and biases give the recorded activations.

    They must turn each stream into the inputs, outputs and writes of its branches.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    activations = case.acts
    for stack in lens.wiring.stacks:
        input_layers = {
            f"{stack.block(branch.layer)}.{projection.module}"
            for branch in branches(stack)
            for projection in _inputs(branch)
        }
        with recorded_calls(lens.adapter.model, input_layers) as calls:
            lens.forward(case.encoded)
        for branch in branches(stack):
            yield from _Rebuilt(lens, activations, branch, calls).deviations()
        if stack.ln_final:
            norm = lens.adapter.model.get_submodule(stack.ln_final)
            # forward and not a call, which would also run torch's hooks
            rebuilt = norm.forward(activations[last_stream(stack)])
            normalized = activations[last_stream(stack, normalized=True)]
            yield f"ln_final of stack {stack.name!r}", relative(rebuilt, normalized)


def _inputs(branch: Row) -> list[Projection]:
    """List the input layers of a branch."""
    writer = branch.row
    if isinstance(writer, Attention):
        return [*writer.inputs.values()]
    if isinstance(writer, Mlp):
        return [projection for projection in (writer.i, writer.gate) if projection]
    return []


class _Rebuilt:
    """One branch of one layer, rebuilt from the weights that the wiring names."""

    def __init__(
        self,
        lens: Lens,
        activations: Activations,
        branch: Row,
        calls: dict[str, list[NativeCall]],
    ) -> None:
        self.lens = lens
        self.activations = activations
        self.branch = branch
        self.calls = calls
        # arguments by which ``lens.weights`` finds the branch
        self.location = (branch.layer, branch.row.kind, branch.stack.name)
        norm = _norm(lens, branch, branch.row.norm)
        self.branch_input = norm(activations[branch.stream])

    def deviations(self) -> Deviations:
        """Yield deviations of input layers' inputs and outputs, and of the write."""
        writer = self.branch.row
        if isinstance(writer, Attention):
            yield from self._attention(writer)
        elif isinstance(writer, Mlp):
            yield from self._mlp(writer)

    def _attention(self, attention: Attention) -> Deviations:
        """Yield the deviations of an attention."""
        at = self.branch.at
        keys = self.branch_input
        # keys of another stack come from its last norm, and not from this branch's
        if attention.keys_from:
            source = self.lens.wiring.stack(attention.keys_from)
            keys = self.activations[last_stream(source, normalized=True)]
        x_layout = attention.x_layout or attention.stream_layout
        for letter, projection in attention.inputs.items():
            if letter in "kv":
                x = keys
            else:
                x = self.branch_input
            call = self._call(projection)
            holds_matrix = projection.weight == "weight"
            # nn.MultiheadAttention holds all matrices itself, and is called with query,
            # key and value
            argument = 0 if holds_matrix else "qkv".index(letter)
            inputs = self._by_position(call.given(argument), x_layout)
            yield f"{at}: what {letter} reads (norm, reads)", relative(x, inputs)
            layer, kind, stack = self.location
            # (head, d_model, d_head), as TransformerLens has it
            weight, bias = self.lens.weights.projection(layer, kind, letter, stack)
            rebuilt = torch.einsum("bpd,hdc->bphc", x, weight) + bias
            if holds_matrix:
                output = self._by_position(call.gave(), x_layout)
                outputs = self._part(output, projection, head=len(weight))
            else:
                outputs = self.activations[f"{at}.hook_{letter}"]
            yield f"{at}: W_{letter.upper()}", relative(rebuilt, outputs)
        heads = self.lens.weights.heads(*self.location)
        z = self.activations[f"{at}.hook_z"]
        out = torch.einsum("bphc,hcd->bpd", z, heads.W_O) + heads.b_O
        yield f"{at}: W_O", self._write(out)

    def _mlp(self, writer: Mlp) -> Deviations:
        """Yield the deviations of an MLP."""
        at = self.branch.at
        mlp = self.lens.weights.mlp(*self.location)
        # input and hidden layer differ in the axis of features alone
        layout = writer.pre.layout.replace("d_mlp", "d_model")
        x = self.branch_input
        pre = self.activations[f"{at}.hook_pre"]
        inputs = self._by_position(self._call(writer.i).given(), layout)
        yield f"{at}: what i reads (norm, reads)", relative(x, inputs)
        activated = _halves(pre, self.branch)[writer.i.part]
        yield f"{at}: W_in (i, pre)", relative(x @ mlp.W_in + mlp.b_in, activated)
        if writer.gate is not None:
            output = self._by_position(self._call(writer.gate).gave(), layout)
            outputs = self._part(output, writer.gate)
            yield f"{at}: W_gate", relative(_gate(self.lens, self.branch, x), outputs)
        post = self.activations[f"{at}.hook_post"]
        yield f"{at}: W_out (o, post)", self._write(post @ mlp.W_out + mlp.b_out)

    def _write(self, out: Tensor) -> float:
        """Compute the deviation of a branch's output from its write.

        The output is scaled as the stream receives it.

        Returns:
            The relative deviation.
        """
        norm = _norm(self.lens, self.branch, self.branch.row.post_norm)
        write = norm(out) * self.lens.weights.scale(*self.location)
        return relative(write, self.activations[f"{self.branch.at}.hook_out"])

    def _call(self, projection: Projection) -> NativeCall:
        """Return the last call of an input layer; WiringError if it was not called."""
        path = f"{self.branch.stack.block(self.branch.layer)}.{projection.module}"
        if not self.calls[path]:
            raise WiringError(
                f"{path} was never called, so it is not an input layer of"
                f" {self.branch.at}"
            )
        return self.calls[path][-1]

    def _by_position(self, native: Tensor, layout: str) -> Tensor:
        """Return a native tensor as (batch, pos, features)."""
        sizes = {**self.lens.registry.state.sizes, "head": self.branch.stack.n_heads}
        return to_vocabulary(fold_leading(native, layout), layout, RESIDUAL, sizes)

    def _part(self, output: Tensor, projection: Projection, **sizes: int) -> Tensor:
        """Return a projection's part of the output of its layer (batch, pos, rows).

        It is (batch, pos, head, d_head) if ``sizes`` has the number of heads, and
        (batch, pos, d_mlp) otherwise.
        """
        axes = "d_mlp"
        if sizes:
            axes = "head d_head"
        if projection.parts == 1:
            return rearrange(
                output, f"batch pos {projection.layout} -> batch pos {axes}", **sizes
            )
        return rearrange(
            output,
            f"batch pos {projection.layout} -> part batch pos {axes}",
            part=projection.parts,
            **sizes,
        )[projection.part]


def _norm(lens: Lens, branch: Row, path: str) -> Callable[[Tensor], Tensor]:
    """Return the forward of a branch's norm; the identity where there is none."""
    if not path:
        return lambda stream: stream
    block = branch.stack.block(branch.layer)
    forward: Callable[[Tensor], Tensor] = lens.adapter.model.get_submodule(
        f"{block}.{path}"
    ).forward
    return forward


def _is_fused(pre: Tensor, branch: Row) -> bool:
    """Return whether ``hook_pre`` holds both halves of a gated MLP."""
    assert isinstance(branch.row, Mlp)
    return branch.row.i.parts > 1 and pre.shape[-1] != branch.stack.d_mlp


def _halves(pre: Tensor, branch: Row) -> Tensor:
    """Return ``hook_pre`` as (part, batch, pos, d_mlp).

    Both parts are the same where ``hook_pre`` holds one of them alone.
    """
    mlp: Any = branch.row
    # repeated, so that callers can index by the part that the wiring names in any case
    if not _is_fused(pre, branch):
        return pre.expand(mlp.i.parts, *pre.shape)
    return rearrange(
        pre, f"batch pos {mlp.i.layout} -> part batch pos d_mlp", part=mlp.i.parts
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
    """Check that a shift of the units of ``pre`` by one shifts those of ``post``.

    The values of a gate are not shifted.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    activations = case.acts
    mlps = [
        branch
        for stack in lens.wiring.stacks
        for branch in branches(stack)
        if isinstance(branch.row, Mlp)
    ]
    if not mlps:
        return
    hooks = []
    for branch in mlps:
        pre = f"{branch.at}.hook_pre"
        write = f"{branch.at}.hook_out"
        shifted_pre = _shift_units(activations[pre], branch)
        hooks.append((pre, _replace_output(shifted_pre)))
        # later layers must read the same stream as before
        hooks.append((write, _replace_output(activations[write])))
    with lens.hooks(hooks):
        _, shifted_activations = lens.run_with_cache(
            case.encoded, names_filter=[f"{branch.at}.hook_post" for branch in mlps]
        )
    for branch in mlps:
        name = f"{branch.at}.hook_post"
        norm = _norm(lens, branch, branch.row.norm)
        gate = _gate(lens, branch, norm(activations[branch.stream]))
        # post = act(pre) · gate, so that post / gate is what must shift; both sides are
        # multiplied by both gates, since a gate near 0 is no denominator
        shifted = shifted_activations[name] * gate.roll(1, dims=-1)
        expected = activations[name].roll(1, dims=-1) * gate
        yield f"{branch.at}: gate, pre, post", relative(shifted, expected)


def _replace_output(value: Tensor) -> Callable[..., Tensor]:
    """Return a hook that puts a given value in place."""
    return lambda _now, hook: value


def _shift_units(pre: Tensor, branch: Row) -> Tensor:
    """Move every unit's value of ``hook_pre`` to the next unit.

    Of a fused layer, only the half that is activated is moved.

    Returns:
        The moved values, of the same shape.
    """
    mlp: Any = branch.row
    if not _is_fused(pre, branch):
        return pre.roll(1, dims=-1)
    halves = _halves(pre, branch).clone()
    halves[mlp.i.part] = halves[mlp.i.part].roll(1, dims=-1)
    return rearrange(halves, f"part batch pos d_mlp -> batch pos {mlp.i.layout}")


def _gate(lens: Lens, branch: Row, x: Tensor) -> Tensor:
    """Compute an MLP's gate from its input (batch, pos, d_model); 1 if it has none."""
    mlp: Any = lens.weights.mlp(branch.layer, branch.row.kind, branch.stack.name)
    if mlp.W_gate is None:
        return torch.ones(branch.stack.d_mlp, device=x.device)
    return x @ mlp.W_gate + mlp.b_gate
