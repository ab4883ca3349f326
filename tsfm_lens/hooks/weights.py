"""Weights of every head and MLP, read through the wiring's layouts; matrices act from
the right, ``x @ W``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einops import rearrange
from torch import Tensor, nn
from transformer_lens import FactoredMatrix

from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.hooks.wiring import Projection, Stack, Wiring


@dataclass(frozen=True)
class HeadWeights:
    """Weights of the heads of one attention.

    Rotary embeddings, norms of queries and keys, and scales of the dot product are not
    part of the matrices. If query heads share a key and value head, its matrices are
    repeated for each of them, as in TransformerLens.

    Attributes:
        W_Q, W_K, W_V: (head, d_model, d_head).
        W_O: (head, d_head, d_model).
        b_Q, b_K, b_V: (head, d_head); zero where the model has no bias.
        b_O: (d_model,).
        scale: factor with which a block that rescales its stream (Toto 2) adds ``z @
            W_O + b_O`` to it; 1 elsewhere.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    b_Q: Tensor
    b_K: Tensor
    b_V: Tensor
    b_O: Tensor
    scale: float = 1.0

    @property
    def W_QK(self) -> FactoredMatrix:
        """W_Q · W_Kᵀ, (head, d_model, d_model): the match of a query token with a key
        token (Elhage et al., 2021).
        """
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    @property
    def W_OV(self) -> FactoredMatrix:
        """W_V · W_O, (head, d_model, d_model): a head's write for a token that it
        attends to (Elhage et al., 2021).
        """
        return FactoredMatrix(self.W_V, self.W_O)


@dataclass(frozen=True)
class MlpWeights:
    """Weights of one MLP.

    Attributes:
        W_in: (d_model, d_mlp); of a gated MLP the part that goes through the activation
            function.
        W_gate: (d_model, d_mlp) of a gated MLP, else None.
        W_out: (d_mlp, d_model).
        b_in, b_gate, b_out: biases, zero where the model has none (b_gate None without
            a gate).
        scale: as in :class:`HeadWeights`.
    """

    W_in: Tensor
    W_gate: Tensor | None
    W_out: Tensor
    b_in: Tensor
    b_gate: Tensor | None
    b_out: Tensor
    scale: float = 1.0


class Weights:
    """Read-only view of a native model's weights, without gradients; what torch can
    show as a view is not copied.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self._model = model
        self._wiring = wiring

    def heads(
        self,
        layer: int,
        kind: str | None = None,
        stack: str | None = None,
        *,
        fold_norm: bool = False,
    ) -> HeadWeights:
        """Return the weights of the heads of one attention.

        Args:
            layer: index from 0.
            kind: "attn", "self_attn", "cross_attn", …; the layer's first attention if
                None.
            stack: its stack; the output stack if None.
            fold_norm: fold gain and bias of the norm before the branch into W_Q, W_K,
                W_V and their biases, which then act on the normalised stream. For keys
                from another stack, it is that stack's last norm.

        Raises:
            UnknownNameError: no such layer, stack or attention.
        """
        column = self._wiring.stack(stack)
        row = column.attention(kind, layer)
        q, k, v = (
            self.projection(layer, row.kind, letter, column.name, every_head=True)
            for letter in ("q", "k", "v")
        )
        if fold_norm:
            if row.norm:
                norm = self._norm(f"{column.block(layer)}.{row.norm}")
            else:
                norm = (None, None)
            other = norm
            if row.keys_from:
                other = self._norm(self._wiring.stack(row.keys_from).ln_final)
            q = _fold(q, norm)
            k = _fold(k, other)
            v = _fold(v, other)
        out = head_output_weights(self._model, column, layer, row.kind)
        bias = self.b_O(layer, row.kind, column.name)
        scale = self.scale(layer, row.kind, column.name)
        return HeadWeights(
            q[0], k[0], v[0], out.detach(), q[1], k[1], v[1], bias, scale
        )

    def b_O(self, layer: int, kind: str, stack: str | None = None) -> Tensor:
        """Return the bias of an attention's output projection, (d_model,); zero where
        it has none.
        """
        column = self._wiring.stack(stack)
        row = column.attention(kind, layer)
        _, bias = self._parameters(f"{column.block(layer)}.{row.o.module}", row.o)
        return _times_gain(bias, row.o.gain)

    def scale(self, layer: int, kind: str, stack: str | None = None) -> float:
        """Return the factor with which a block adds a branch's output to the stream; 1
        except in Toto 2.
        """
        column = self._wiring.stack(stack)
        mix = column.writer(kind, layer).mix
        if mix is None:
            return 1.0
        return mix(self._model.get_submodule(column.block(layer)))[0]

    def mlp(
        self,
        layer: int,
        kind: str = "mlp",
        stack: str | None = None,
        *,
        fold_norm: bool = False,
    ) -> MlpWeights:
        """Return the weights of one MLP; arguments and errors as in :meth:`heads`."""
        column = self._wiring.stack(stack)
        row = column.mlp(kind, layer)
        block = column.block(layer)
        norm = (
            self._norm(f"{block}.{row.norm}")
            if fold_norm and row.norm
            else (None, None)
        )
        up = _fold(self._input(block, row.i), norm)
        gate = (
            (None, None)
            if row.gate is None
            else _fold(self._input(block, row.gate), norm)
        )
        out, bias = (
            _times_gain(part, row.o_gain)
            for part in self._parameters(f"{block}.{row.o}")
        )
        return MlpWeights(
            up[0],
            gate[0],
            out.T,
            up[1],
            gate[1],
            bias,
            self.scale(layer, row.kind, column.name),
        )

    @property
    def W_E(self) -> Tensor:
        """Embedding matrix (d_in, d_model), if the embedding is one matrix; else see
        :meth:`embedding`.
        """
        weight = self._single_matrix("embedding", self._wiring.embed)
        return (
            weight
            if isinstance(self._model.get_submodule(self._wiring.embed), nn.Embedding)
            else weight.T
        )

    @property
    def W_U(self) -> Tensor:
        """Unembedding matrix (d_model, d_out), where it is one; else see
        :meth:`unembedding`.

        It has neither the gain of the norm before it nor the head's factor (T5: d_model
        ** -0.5); ``lens.readout(writes, encoded, like=stream)`` has both.
        """
        return self._single_matrix("unembedding", self._wiring.unembed.module).T

    def embedding(self) -> dict[str, Tensor]:
        """Return every parameter of the embedding module, by name."""
        return self._all(self._wiring.embed)

    def unembedding(self) -> dict[str, Tensor]:
        """Return every parameter of the head, by name."""
        return self._all(self._wiring.unembed.module)

    def _all(self, path: str) -> dict[str, Tensor]:
        return {
            name: item.detach()
            for name, item in self._model.get_submodule(path).named_parameters()
        }

    def _parameters(
        self, path: str, part: Projection | None = None
    ) -> tuple[Tensor, ...]:
        return tuple(
            parameter.detach() for parameter in parameters(self._model, path, part)
        )

    def _single_matrix(self, what: str, path: str) -> Tensor:
        module = self._model.get_submodule(path)
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2:
            return weight.detach()
        raise InputError(
            f"the {what} of {self._wiring.architecture!r} is not one matrix but"
            f" {path!r} with"
            f" {', '.join(name for name, _ in module.named_parameters())};"
            f" lens.weights.{what}() gives them all"
        )

    def projection(
        self,
        layer: int,
        kind: str,
        letter: str,
        stack: str | None = None,
        *,
        every_head: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the matrix (head, d_model, d_head) and bias (head, d_head) of "q", "k"
        or "v", as in :meth:`heads`.
        """
        column = self._wiring.stack(stack)
        row = column.attention(kind, layer)
        part: Projection = getattr(row, letter)
        n_heads = row.count_heads(letter, column.n_heads)
        weight, bias = self._part(
            column.block(layer),
            part,
            "head d_model d_head",
            "head d_head",
            head=n_heads,
        )
        if every_head and n_heads != column.n_heads:
            weight, bias = (
                x.repeat_interleave(column.n_heads // n_heads, dim=0)
                for x in (weight, bias)
            )
        return weight, bias

    def _input(self, block: str, part: Projection) -> tuple[Tensor, Tensor]:
        weight, bias = self._part(block, part, "d_mlp d_model", "d_mlp")
        return weight.T, bias

    def _part(
        self, block: str, part: Projection, *axes: str, **sizes: int
    ) -> tuple[Tensor, Tensor]:
        """Return weight and bias of one part of a projection, each in the axes that are
        asked for.
        """
        weight, bias = self._parameters(f"{block}.{part.module}", part)
        if part.parts > 1:
            sizes["part"] = part.parts
            axes = tuple(f"part {side}" for side in axes)
        # an MLP's single part is in order
        if sizes:
            weight = rearrange(weight, f"{part.layout} d_model -> {axes[0]}", **sizes)
            bias = rearrange(bias, f"{part.layout} -> {axes[1]}", **sizes)
        if part.parts > 1:
            weight = weight[part.part]
            bias = bias[part.part]
        return _times_gain(weight, part.gain), _times_gain(bias, part.gain)

    def _norm(self, path: str) -> tuple[Tensor | None, Tensor | None]:
        norm = self._model.get_submodule(path)
        own = [getattr(norm, name, None) for name in ("weight", "scale", "bias")]
        gain, scale, bias = (None if item is None else item.detach() for item in own)
        return scale if gain is None else gain, bias


def _fold(
    matrix: tuple[Tensor, Tensor], norm: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor]:
    (weight, bias), (gain, shift) = matrix, norm
    if shift is not None:
        bias = bias + shift @ weight
    return (weight if gain is None else weight * gain[:, None]), bias


def for_every_head(shared: Tensor, n_heads: int) -> Tensor:
    """Repeat keys or values (…, head, d_head) where several of ``n_heads`` query heads
    share one.
    """
    if shared.shape[-2] != n_heads:
        return shared.repeat_interleave(n_heads // shared.shape[-2], dim=-2)
    return shared


def _times_gain(weight: Tensor, gain: float) -> Tensor:
    if gain == 1.0:
        return weight
    return weight * gain


def parameters(
    model: nn.Module, path: str, part: Projection | None = None
) -> tuple[Tensor, Tensor]:
    """Return weight (out, in) and bias (out,) of a layer; a bias of zeros where it has
    none.
    """
    # a row may name the block itself by an empty path
    module: Any = model.get_submodule(path.rstrip("."))
    name, other = ("weight", "bias") if part is None else (part.weight, part.bias)
    weight = getattr(module, name, None)
    bias = getattr(module, other, None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        matrices = (
            ", ".join(
                key for key, value in module.named_parameters() if value.ndim == 2
            )
            or "none"
        )
        raise WiringError(
            f"module {path!r} ({type(module).__name__}) has no weight matrix {name!r};"
            f" matrices in it: {matrices}"
        )
    if bias is not None and len(bias) != len(weight):
        raise WiringError(
            f"{path}.{other} has {len(bias)} entries, expected the {len(weight)} rows"
            f" of {name!r}"
        )
    return weight, weight.new_zeros(len(weight)) if bias is None else bias


def head_output_weights(
    model: nn.Module, stack: Stack, layer: int, kind: str
) -> Tensor:
    """Return W_O of every head, (head, d_head, d_model), so that ``z @ W_O`` is the
    head's write.
    """
    part = stack.attention(kind, layer).o
    weight, _ = parameters(model, f"{stack.block(layer)}.{part.module}", part)
    heads = rearrange(
        weight, f"d_model {part.layout} -> head d_head d_model", head=stack.n_heads
    )
    return _times_gain(heads, part.gain)
