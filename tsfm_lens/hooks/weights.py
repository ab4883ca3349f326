"""Weights of every head and MLP, read through the wiring's layouts.

Read :class:`Weights`. Matrices act from the right, ``x @ W``, as in TransformerLens.
They are views of the native parameters where torch allows; nothing is changed or folded
unless ``fold_norm`` asks for it.
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
        """W_Q · W_Kᵀ, (head, d_model, d_model).

        It matches a query token with a key token (Elhage et al., 2021).
        """
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    @property
    def W_OV(self) -> FactoredMatrix:
        """W_V · W_O, (head, d_model, d_model).

        It is a head's write for a token that it attends to (Elhage et al., 2021).
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
        scale: factor with which a block that rescales its stream adds the write to it;
            1 elsewhere.
    """

    W_in: Tensor
    W_gate: Tensor | None
    W_out: Tensor
    b_in: Tensor
    b_gate: Tensor | None
    b_out: Tensor
    scale: float = 1.0


class Weights:
    """Read-only view of a native model's weights, without gradients.

    What torch can show as a view is not copied.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self._model = model
        self._wiring = wiring

    def __repr__(self) -> str:
        numbers = sum(weight.numel() for weight in self._model.parameters())
        return f"Weights({self._wiring.summary}; {numbers:,} parameters)"

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
                W_V and their biases, which then act on the normalised stream. If keys
                and values come from another stack, W_K and W_V get that stack's last
                norm.

        Raises:
            UnknownNameError: no such layer, stack or attention.
        """
        chosen = self._wiring.stack(stack)
        attention = chosen.attention(kind, layer)
        q, k, v = (
            self.projection(layer, attention.kind, letter, chosen.name, every_head=True)
            for letter in ("q", "k", "v")
        )
        if fold_norm:
            if attention.norm:
                norm = self._norm(f"{chosen.block(layer)}.{attention.norm}")
            else:
                norm = (None, None)
            key_norm = norm
            # the keys and values of cross-attention come from the other stack's output,
            # behind its last norm
            if attention.keys_from:
                key_norm = self._norm(self._wiring.stack(attention.keys_from).ln_final)
            q = _fold(q, norm)
            k = _fold(k, key_norm)
            v = _fold(v, key_norm)
        out = head_output_weights(self._model, chosen, layer, attention.kind)
        bias = self.b_O(layer, attention.kind, chosen.name)
        scale = self.scale(layer, attention.kind, chosen.name)
        return HeadWeights(
            W_Q=q[0],
            W_K=k[0],
            W_V=v[0],
            W_O=out.detach(),
            b_Q=q[1],
            b_K=k[1],
            b_V=v[1],
            b_O=bias,
            scale=scale,
        )

    def b_O(self, layer: int, kind: str, stack: str | None = None) -> Tensor:
        """Return the bias of an attention's output projection, (d_model,).

        It is zero where the projection has none.
        """
        chosen = self._wiring.stack(stack)
        attention = chosen.attention(kind, layer)
        _, bias = self._parameters(
            f"{chosen.block(layer)}.{attention.o.module}", attention.o
        )
        return _times_gain(bias, attention.o.gain)

    def scale(self, layer: int, kind: str, stack: str | None = None) -> float:
        """Return the factor with which a block adds a branch's output to the stream.

        It is 1 except in Toto 2.
        """
        chosen = self._wiring.stack(stack)
        mix = chosen.writer(kind, layer).mix
        if mix is None:
            return 1.0
        return mix(self._model.get_submodule(chosen.block(layer)))[0]

    def mlp(
        self,
        layer: int,
        kind: str = "mlp",
        stack: str | None = None,
        *,
        fold_norm: bool = False,
    ) -> MlpWeights:
        """Return the weights of one MLP; arguments and errors as in :meth:`heads`."""
        chosen = self._wiring.stack(stack)
        writer = chosen.mlp(kind, layer)
        block = chosen.block(layer)
        norm: tuple[Tensor | None, Tensor | None] = (None, None)
        if fold_norm and writer.norm:
            norm = self._norm(f"{block}.{writer.norm}")
        up = _fold(self._input(block, writer.i), norm)
        gate: tuple[Tensor | None, Tensor | None] = (None, None)
        if writer.gate is not None:
            gate = _fold(self._input(block, writer.gate), norm)
        out, bias = (
            _times_gain(part, writer.o_gain)
            for part in self._parameters(f"{block}.{writer.o}")
        )
        return MlpWeights(
            W_in=up[0],
            W_gate=gate[0],
            # a linear layer holds (out, in)
            W_out=out.T,
            b_in=up[1],
            b_gate=gate[1],
            b_out=bias,
            scale=self.scale(layer, writer.kind, chosen.name),
        )

    @property
    def W_E(self) -> Tensor:
        """Embedding matrix (d_in, d_model), if the embedding is one matrix.

        Otherwise see :meth:`embedding`.
        """
        weight = self._single_matrix("embedding", self._wiring.embed)
        # a lookup table has its inputs as rows, a linear layer its outputs
        if isinstance(self._model.get_submodule(self._wiring.embed), nn.Embedding):
            return weight
        return weight.T

    @property
    def W_U(self) -> Tensor:
        """Unembedding matrix (d_model, d_out), if the unembedding is one matrix.

        Otherwise see :meth:`unembedding`.

        Neither the gain of the norm before it is folded in, nor a factor of the head
        (d_model ** -0.5 in T5); ``lens.readout(writes, encoded, like=stream)`` applies
        both.
        """
        return self._single_matrix("unembedding", self._wiring.unembed.module).T

    def embedding(self) -> dict[str, Tensor]:
        """Return every parameter of the embedding module, by name."""
        return self._all(self._wiring.embed)

    def unembedding(self) -> dict[str, Tensor]:
        """Return every parameter of the head, by name."""
        return self._all(self._wiring.unembed.module)

    def _all(self, path: str) -> dict[str, Tensor]:
        """Return every parameter of a module, by name."""
        return {
            name: parameter.detach()
            for name, parameter in self._model.get_submodule(path).named_parameters()
        }

    def _parameters(
        self, path: str, projection: Projection | None = None
    ) -> tuple[Tensor, ...]:
        """Return what :func:`parameters` returns of a layer, without gradients."""
        return tuple(
            parameter.detach()
            for parameter in parameters(self._model, path, projection)
        )

    def _single_matrix(self, what: str, path: str) -> Tensor:
        """Return the matrix of a module that has one; InputError for any other."""
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
        """Return matrix and bias of "q", "k" or "v", as in :meth:`heads`.

        They are (head, d_model, d_head) and (head, d_head).
        """
        chosen = self._wiring.stack(stack)
        attention = chosen.attention(kind, layer)
        projection: Projection = getattr(attention, letter)
        n_heads = attention.count_heads(letter, chosen.n_heads)
        weight, bias = self._part(
            chosen.block(layer),
            projection,
            weight_axes="head d_model d_head",
            bias_axes="head d_head",
            head=n_heads,
        )
        if every_head and n_heads != chosen.n_heads:
            copies = chosen.n_heads // n_heads
            # query head h reads key head h // copies, so copies of one lie side by side
            weight = weight.repeat_interleave(copies, dim=0)
            bias = bias.repeat_interleave(copies, dim=0)
        return weight, bias

    def _input(self, block: str, projection: Projection) -> tuple[Tensor, Tensor]:
        """Return an input matrix of an MLP, (d_model, d_mlp), and its bias."""
        weight, bias = self._part(
            block, projection, weight_axes="d_mlp d_model", bias_axes="d_mlp"
        )
        return weight.T, bias

    def _part(
        self,
        block: str,
        projection: Projection,
        *,
        weight_axes: str,
        bias_axes: str,
        **sizes: int,
    ) -> tuple[Tensor, Tensor]:
        """Return weight and bias of one part of a projection, in given einops axes.

        ``sizes`` are the lengths of axes that the projection's layout folds together.
        """
        weight, bias = self._parameters(f"{block}.{projection.module}", projection)
        if projection.parts > 1:
            sizes["part"] = projection.parts
            weight_axes = f"part {weight_axes}"
            bias_axes = f"part {bias_axes}"
        # without sizes, as for an MLP's own matrix, the rows are in order already
        if sizes:
            weight = rearrange(
                weight, f"{projection.layout} d_model -> {weight_axes}", **sizes
            )
            bias = rearrange(bias, f"{projection.layout} -> {bias_axes}", **sizes)
        if projection.parts > 1:
            weight = weight[projection.part]
            bias = bias[projection.part]
        return _times_gain(weight, projection.gain), _times_gain(bias, projection.gain)

    def _norm(self, path: str) -> tuple[Tensor | None, Tensor | None]:
        """Return gain and bias of a norm; None for what it does not have."""
        norm = self._model.get_submodule(path)
        # "scale" is the gain under its name in some libraries
        held = [getattr(norm, name, None) for name in ("weight", "scale", "bias")]
        gain, scale, bias = (
            None if parameter is None else parameter.detach() for parameter in held
        )
        return scale if gain is None else gain, bias


def _fold(
    matrix: tuple[Tensor, Tensor], norm: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Fold gain and bias of a norm into the matrix and bias behind it."""
    weight, bias = matrix
    gain, shift = norm
    # the norm adds its shift after the gain, so the shift meets the unscaled matrix
    if shift is not None:
        bias = bias + shift @ weight
    if gain is not None:
        weight = weight * gain[:, None]
    return weight, bias


def for_every_head(shared: Tensor, n_heads: int) -> Tensor:
    """Repeat keys or values where several query heads share one.

    They are (…, head, d_head); ``n_heads`` is the number of query heads.

    Returns:
        Keys or values with one entry for each query head.
    """
    if shared.shape[-2] != n_heads:
        return shared.repeat_interleave(n_heads // shared.shape[-2], dim=-2)
    return shared


def _times_gain(weight: Tensor, gain: float) -> Tensor:
    """Multiply a weight by a gain; return the weight itself for a gain of 1."""
    if gain == 1.0:
        # the view itself, as a product would copy every matrix
        return weight
    return weight * gain


def parameters(
    model: nn.Module, path: str, part: Projection | None = None
) -> tuple[Tensor, Tensor]:
    """Return weight (out, in) and bias (out,) of a layer.

    The bias is zeros where the layer has none.
    """
    # a projection may lie in the block itself, with an empty path of its own: "block."
    module: Any = model.get_submodule(path.rstrip("."))
    weight_name, bias_name = "weight", "bias"
    if part is not None:
        weight_name, bias_name = part.weight, part.bias
    weight = getattr(module, weight_name, None)
    bias = getattr(module, bias_name, None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        matrices = [
            name for name, parameter in module.named_parameters() if parameter.ndim == 2
        ]
        raise WiringError(
            f"module {path!r} ({type(module).__name__}) has no weight matrix"
            f" {weight_name!r}; matrices in it: {', '.join(matrices) or 'none'}"
        )
    if bias is not None and len(bias) != len(weight):
        raise WiringError(
            f"{path}.{bias_name} has {len(bias)} entries, expected the"
            f" {len(weight)} rows of {weight_name!r}"
        )
    if bias is None:
        bias = weight.new_zeros(len(weight))
    return weight, bias


def head_output_weights(
    model: nn.Module, stack: Stack, layer: int, kind: str
) -> Tensor:
    """Return W_O of every head, (head, d_head, d_model).

    ``z @ W_O`` is the head's write.
    """
    projection = stack.attention(kind, layer).o
    weight, _ = parameters(
        model, f"{stack.block(layer)}.{projection.module}", projection
    )
    heads = rearrange(
        weight,
        f"d_model {projection.layout} -> head d_head d_model",
        head=stack.n_heads,
    )
    return _times_gain(heads, projection.gain)
