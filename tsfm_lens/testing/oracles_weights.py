"""Oracles of the weights: rebuilt from the table, they give the model's own activations, stream to stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.names import RESIDUAL
from tsfm_lens.hooks.native import fold_leading, to_vocabulary
from tsfm_lens.hooks.replay import NativeCall, recorded_calls
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack, Writer
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import STREAMS, TWO_BLOCKS, Case, OracleResult, _worst, relative


def weights(case: Case) -> OracleResult:
    """Check oracle 11: the table's norms, matrices, gains and biases turn each stream into the recorded activations.

    The stream through ``norm`` is the layers' input, and that times the matrix their output. The heads (the hidden
    layer) times the output matrix, through ``post_norm`` or ``mix``, are the write. The last stream through
    ``ln_final`` is ``hook_normalized``.
    """
    lens = case.lens
    _, acts = case.captured
    deviations: dict[str, float] = {}
    with torch.no_grad():
        for stack in lens.wiring.stacks:
            places = [(layer, *place) for layer in range(stack.n_layers) for place in enumerate(stack.rows(layer))]
            layers = {path for layer, _, row in places for path in _layers(stack, layer, row)}
            with recorded_calls(lens.adapter.model, layers) as calls:
                lens.forward(case.encoded)
            for layer, index, row in places:
                stream = acts[f"{stack.prefix}.{layer}.{STREAMS[index]}"]
                work = _Branch(lens, stack, layer, row, acts, calls, stream)
                deviations |= work.attention(row) if isinstance(row, Attention) else work.mlp(row)
            if stack.ln_final:
                last = acts[f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"]
                dot = f"{stack.name}." if stack.name else ""
                rebuilt = lens.adapter.model.get_submodule(stack.ln_final).forward(last)
                deviations[f"ln_final of stack {stack.name!r}"] = relative(
                    rebuilt, acts[f"{dot}ln_final.hook_normalized"]
                )
    return _worst("11 weights", TWO_BLOCKS, deviations)


def _layers(stack: Stack, layer: int, row: Writer) -> list[str]:
    """Return paths of the input layers of one branch."""
    parts = (row.q, row.k, row.v) if isinstance(row, Attention) else (row.i, *([row.gate] if row.gate else []))
    return [f"{stack.block(layer)}.{part.module}" for part in parts]


class _Branch:
    """One branch of one layer, rebuilt from the table."""

    def __init__(
        self,
        lens: Lens,
        stack: Stack,
        layer: int,
        row: Writer,
        acts: Activations,
        calls: dict[str, list[NativeCall]],
        stream: Tensor,
    ) -> None:
        self.lens, self.stack, self.layer, self.acts, self.calls = lens, stack, layer, acts, calls
        self.at, self.block = f"{stack.prefix}.{layer}.{row.kind}", stack.block(layer)
        self.branch_input = self._norm(row.norm, stream)

    def attention(self, row: Attention) -> dict[str, float]:
        """Compute deviations of the inputs of q, k and v, of their outputs, and of the write."""
        deviations = {}
        keys = self.branch_input if not row.keys_from else _last(self.lens, row.keys_from, self.acts)
        x_layout = row.x_layout or row.stream_layout
        for letter, part, x in (("q", row.q, self.branch_input), ("k", row.k, keys), ("v", row.v, keys)):
            call = self._call(part)
            holds_matrix = part.weight == "weight"
            # the attention itself holds the matrix, and takes query, key and value
            inputs = call.given(0 if holds_matrix else "qkv".index(letter))
            deviations[f"{self.at}: what {letter} reads (norm, reads)"] = relative(
                x, self._vocabulary(inputs, x_layout)
            )
            weight, bias = self.lens.weights.projection(self.layer, row.kind, letter, self.stack.name)
            rebuilt = torch.einsum("bpd,hdc->bphc", x, weight) + bias
            if holds_matrix:
                outputs = self._part(self._vocabulary(call.gave(), x_layout), part, head=len(weight))
            else:
                outputs = self.acts[f"{self.at}.hook_{letter}"]
            deviations[f"{self.at}: W_{letter.upper()}"] = relative(rebuilt, outputs)
        heads = self.lens.weights.heads(self.layer, row.kind, self.stack.name)
        out = torch.einsum("bphc,hcd->bpd", self.acts[f"{self.at}.hook_z"], heads.W_O) + heads.b_O
        deviations[f"{self.at}: W_O"] = relative(self._to_stream(row, out), self.acts[f"{self.at}.hook_out"])
        return deviations

    def mlp(self, row: Mlp) -> dict[str, float]:
        """Compute deviations of the inputs of the input matrices, of their outputs, and of the write."""
        mlp: Any = self.lens.weights.mlp(self.layer, row.kind, self.stack.name)
        layout = row.pre.layout.replace("d_mlp", "d_model")
        deviations = {}
        x, pre = self.branch_input, self.acts[f"{self.at}.hook_pre"]
        inputs = self._call(row.i).given()
        deviations[f"{self.at}: what i reads (norm, reads)"] = relative(x, self._vocabulary(inputs, layout))
        deviations[f"{self.at}: W_in (i, pre)"] = relative(
            x @ mlp.W_in + mlp.b_in, _own_half(pre, row, self.stack.d_mlp)
        )
        if row.gate is not None:
            outputs = self._part(self._vocabulary(self._call(row.gate).gave(), layout), row.gate)
            deviations[f"{self.at}: W_gate"] = relative(x @ mlp.W_gate + mlp.b_gate, outputs)
        out = self.acts[f"{self.at}.hook_post"] @ mlp.W_out + mlp.b_out
        deviations[f"{self.at}: W_out (o, post)"] = relative(
            self._to_stream(row, out), self.acts[f"{self.at}.hook_out"]
        )
        return deviations

    def _norm(self, path: str, stream: Tensor) -> Tensor:
        return self.lens.adapter.model.get_submodule(f"{self.block}.{path}").forward(stream) if path else stream

    def _to_stream(self, row: Writer, out: Tensor) -> Tensor:
        """Scale a branch's output as the stream receives it."""
        return self._norm(row.post_norm, out) * self.lens.weights.scale(self.layer, row.kind, self.stack.name)

    def _call(self, part: Projection) -> NativeCall:
        calls = self.calls[f"{self.block}.{part.module}"]
        if not calls:
            raise WiringError(f"{self.block}.{part.module} was never called, so it is no input layer of {self.at}")
        return calls[-1]

    def _vocabulary(self, native: Tensor, layout: str) -> Tensor:
        sizes = {**self.lens.registry.state.sizes, "head": self.stack.n_heads}
        return to_vocabulary(fold_leading(native, layout), layout, RESIDUAL, sizes)

    def _part(self, wide: Tensor, part: Projection, **sizes: int) -> Tensor:
        """Split a layer's output (batch, pos, rows) into heads, or hidden units, of one part of it."""
        axes = "head d_head" if sizes else "d_mlp"
        if part.parts == 1:
            return rearrange(wide, f"batch pos {part.layout} -> batch pos {axes}", **sizes)
        side = f"batch pos {part.layout} -> part batch pos {axes}"
        return rearrange(wide, side, part=part.parts, **sizes)[part.part]


def _last(lens: Lens, name: str, acts: Activations) -> Tensor:
    """Return the output of another stack."""
    stack = lens.wiring.stack(name)
    if stack.ln_final:
        return acts[f"{name}.ln_final.hook_normalized" if name else "ln_final.hook_normalized"]
    return acts[f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"]


def _own_half(pre: Tensor, row: Mlp, d_mlp: int) -> Tensor:
    """Select the half of ``hook_pre`` that the activation function takes, in a fused gated layer."""
    if row.i.parts == 1 or pre.shape[-1] == d_mlp:
        return pre
    return rearrange(pre, f"batch pos {row.i.layout} -> part batch pos d_mlp", part=row.i.parts)[row.i.part]


def activation(case: Case) -> OracleResult:
    """Check oracle 12: one function of every hidden unit alone leads from ``pre`` to ``post``, times the gate.

    The function need not be known: if the units of ``pre`` move on by one, so do those of ``post``, but for the
    gate, which stays. Holds for every elementwise activation, and for a model without MLPs.
    """
    lens = case.lens
    _, acts = case.captured
    with torch.no_grad():
        hooks: list[tuple[str, Callable[..., Tensor]]] = []
        places = []
        for stack in lens.wiring.stacks:
            for layer in range(stack.n_layers):
                for index, row in enumerate(stack.rows(layer)):
                    if isinstance(row, Mlp):
                        at = f"{stack.prefix}.{layer}.{row.kind}"
                        hooks.append(
                            (f"{at}.hook_pre", _replace_with(_shift_units(acts[f"{at}.hook_pre"], row, stack.d_mlp)))
                        )
                        # later layers must read the same stream as before
                        hooks.append((f"{at}.hook_out", _replace_with(acts[f"{at}.hook_out"])))
                        places.append((stack, layer, row, at, f"{stack.prefix}.{layer}.{STREAMS[index]}"))
        if not places:
            return OracleResult("12 activation function", 0.0, TWO_BLOCKS, "no MLP")
        names = [f"{at}.hook_post" for _, _, _, at, _ in places]
        with lens.hooks(hooks):
            _, new_acts = lens.run_with_cache(case.encoded, names_filter=names)
        deviations = {}
        for stack, layer, row, at, stream in places:
            gate = _gate(lens, stack, layer, row, acts[stream])
            post = acts[f"{at}.hook_post"]
            deviations[f"{at}: gate, pre, post"] = relative(
                new_acts[f"{at}.hook_post"] * gate.roll(1, dims=-1), post.roll(1, dims=-1) * gate
            )
    return _worst("12 activation function", TWO_BLOCKS, deviations)


def _replace_with(value: Tensor) -> Callable[..., Tensor]:
    return lambda _now, hook: value


def _shift_units(pre: Tensor, row: Mlp, d_mlp: int) -> Tensor:
    """Move every unit's value of ``hook_pre`` to the next unit; of a fused layer the half that is activated."""
    if row.i.parts == 1 or pre.shape[-1] == d_mlp:
        return pre.roll(1, dims=-1)
    halves = rearrange(pre, f"batch pos {row.i.layout} -> part batch pos d_mlp", part=row.i.parts).clone()
    halves[row.i.part] = halves[row.i.part].roll(1, dims=-1)
    return rearrange(halves, f"part batch pos d_mlp -> batch pos {row.i.layout}")


def _gate(lens: Lens, stack: Stack, layer: int, row: Mlp, stream: Tensor) -> Tensor:
    mlp: Any = lens.weights.mlp(layer, row.kind, stack.name)
    if mlp.W_gate is None:
        return torch.ones(stack.d_mlp, device=stream.device)
    norm = lens.adapter.model.get_submodule(f"{stack.block(layer)}.{row.norm}").forward if row.norm else torch.clone
    return norm(stream) @ mlp.W_gate + mlp.b_gate
