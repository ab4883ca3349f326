"""Weights of every head and MLP, read through the wiring's layouts.

One view for every architecture: fused or separate projections, any order of heads in their rows, gains
that a layer puts on its weights. Matrices follow TransformerLens: they act from the right, ``x @ W``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einops import rearrange
from torch import Tensor, nn
from transformer_lens import FactoredMatrix

from tsfm_lens.errors import InputError, WiringError, unknown_name
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack, Wiring, Writer


@dataclass(frozen=True)
class HeadWeights:
    """Weights of the heads of one attention.

    Rotary embeddings, norms of queries and keys, and scales of the dot product act between the
    projections and are not part of the matrices.

    Where several query heads share a key and value head, its matrices are repeated, one for each of them, as
    TransformerLens repeats them, so that every head has its circuits; ``hook_k`` and ``hook_v`` have the shared
    heads once.

    Attributes:
        W_Q, W_K, W_V: (head, d_model, d_head).
        W_O: (head, d_head, d_model).
        b_Q, b_K, b_V: (head, d_head); zero where the model has no bias.
        b_O: (d_model,).
        scale: factor with which a block that rescales its stream (Toto 2) adds ``z @ W_O + b_O`` to it; 1 elsewhere.
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
        """W_Q · W_Kᵀ, (head, d_model, d_model): the match of a query token with a key token (Elhage et al., 2021)."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    @property
    def W_OV(self) -> FactoredMatrix:
        """W_V · W_O, (head, d_model, d_model): a head's write for a token that it attends to (Elhage et al., 2021)."""
        return FactoredMatrix(self.W_V, self.W_O)


@dataclass(frozen=True)
class MlpWeights:
    """Weights of one MLP.

    Attributes:
        W_in: (d_model, d_mlp); of a gated MLP the part that goes through the activation function.
        W_gate: (d_model, d_mlp) of a gated MLP, else None.
        W_out: (d_mlp, d_model).
        b_in, b_gate, b_out: biases, zero where the model has none (b_gate None without a gate).
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
    """Read-only view of a native model's weights; nothing is copied that torch can show as a view.

    Args:
        model: the native module.
        wiring: its table.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self._model = model
        self._wiring = wiring

    def heads(
        self, layer: int, kind: str | None = None, stack: str | None = None, *, fold_norm: bool = False
    ) -> HeadWeights:
        """Return the weights of the heads of one attention.

        Args:
            layer: index from 0.
            kind: "attn", "self_attn", "cross_attn", …; the layer's first attention if None.
            stack: its stack; the one that is read out if None.
            fold_norm: multiply the gain of the norm before the branch into W_Q, W_K and W_V (and its bias
                into their biases), so that they act on the stream divided by its root mean square. Keys and
                values of a cross-attention read the other stack's last norm.

        Raises:
            UnknownNameError: no such layer, stack or attention.
        """
        column = self._stack(stack)
        row = self._row(column, layer, kind, Attention)
        assert isinstance(row, Attention)
        q, k, v = (self.projection(layer, row.kind, letter, column.name, every_head=True) for letter in ("q", "k", "v"))
        if fold_norm:
            norm = self._norm(f"{column.block(layer)}.{row.norm}") if row.norm else None
            other = self._norm(self._wiring.stack(row.keys_from).ln_final) if row.keys_from else norm
            q, k, v = _fold(q, norm), _fold(k, other), _fold(v, other)
        out = head_output_weights(self._model, column, layer, row.kind)
        bias, scale = self.b_O(layer, row.kind, column.name), self._scale(column, layer, row)
        return HeadWeights(q[0], k[0], v[0], out, q[1], k[1], v[1], bias, scale)

    def b_O(self, layer: int, kind: str, stack: str | None = None) -> Tensor:
        """Return the bias of an attention's output projection, (d_model,); zero where it has none."""
        column = self._stack(stack)
        row = self._row(column, layer, kind, Attention)
        assert isinstance(row, Attention)
        _, bias = parameters(self._model, f"{column.block(layer)}.{row.o.module}", row.o)
        return _times_gain(bias, row.o.gain)

    def scale(self, layer: int, kind: str, stack: str | None = None) -> float:
        """Return the factor with which a block adds a branch's output to the stream; 1 but in Toto 2."""
        column = self._stack(stack)
        return self._scale(column, layer, column.writer(kind, layer))

    def _scale(self, column: Stack, layer: int, row: Writer) -> float:
        return 1.0 if row.mix is None else row.mix(self._model.get_submodule(column.block(layer)))[0]

    def mlp(self, layer: int, kind: str = "mlp", stack: str | None = None, *, fold_norm: bool = False) -> MlpWeights:
        """Return the weights of one MLP; arguments and errors as in :meth:`heads`."""
        column = self._stack(stack)
        row = self._row(column, layer, kind, Mlp)
        assert isinstance(row, Mlp)
        norm = self._norm(f"{column.block(layer)}.{row.norm}") if fold_norm and row.norm else None
        up = _fold(self._input(column, layer, row.i), norm)
        gate = None if row.gate is None else _fold(self._input(column, layer, row.gate), norm)
        out, bias = parameters(self._model, f"{column.block(layer)}.{row.o}")
        return MlpWeights(
            up[0],
            None if gate is None else gate[0],
            _times_gain(out, row.o_gain).T,
            up[1],
            None if gate is None else gate[1],
            _times_gain(bias, row.o_gain),
            self._scale(column, layer, row),
        )

    @property
    def W_E(self) -> Tensor:
        """Embedding matrix (d_in, d_model), where the embedding is one matrix; else see :meth:`embedding`."""
        module = self._model.get_submodule(self._wiring.embed)
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise self._no_single_matrix("embedding", self._wiring.embed)
        return weight if isinstance(module, nn.Embedding) else weight.T

    @property
    def W_U(self) -> Tensor:
        """Unembedding matrix (d_model, d_out), where the unembedding is one matrix; else see :meth:`unembedding`.

        Factors between the last norm and the matrix are not part of it: T5 and Chronos multiply the stream by
        d_model**-0.5.
        """
        weight = getattr(self._model.get_submodule(self._wiring.unembed.module), "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            raise self._no_single_matrix("unembedding", self._wiring.unembed.module)
        return weight.T

    def embedding(self) -> dict[str, Tensor]:
        """Return every parameter of the embedding module, by name."""
        return dict(self._model.get_submodule(self._wiring.embed).named_parameters())

    def unembedding(self) -> dict[str, Tensor]:
        """Return every parameter of the head, by name."""
        return dict(self._model.get_submodule(self._wiring.unembed.module).named_parameters())

    def _no_single_matrix(self, what: str, path: str) -> InputError:
        parts = ", ".join(name for name, _ in self._model.get_submodule(path).named_parameters())
        return InputError(
            f"the {what} of {self._wiring.architecture!r} is not one matrix but {path!r} with {parts}; "
            f"lens.weights.{what}() gives them all"
        )

    def _stack(self, name: str | None) -> Stack:
        if name is None:
            return self._wiring.output_stack
        try:
            return self._wiring.stack(name)
        except KeyError as error:
            raise unknown_name("stack", name, [stack.name for stack in self._wiring.stacks]) from error

    def _row(self, column: Stack, layer: int, kind: str | None, sort: type) -> Attention | Mlp:
        if not isinstance(layer, int) or not 0 <= layer < column.n_layers:
            raise unknown_name("layer", str(layer), [str(index) for index in range(column.n_layers)])
        rows = [row for row in column.rows(layer) if isinstance(row, sort)]
        for row in rows:
            if kind is None or row.kind == kind:
                return row
        raise unknown_name("branch", str(kind), [row.kind for row in rows])

    def projection(
        self, layer: int, kind: str, letter: str, stack: str | None = None, *, every_head: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the matrix (head, d_model, d_head) and bias (head, d_head) of one input projection.

        Args:
            layer, kind, stack: as in :meth:`heads`.
            letter: "q", "k" or "v".
            every_head: repeat keys and values that several query heads share.
        """
        column = self._stack(stack)
        row = self._row(column, layer, kind, Attention)
        assert isinstance(row, Attention)
        part = {"q": row.q, "k": row.k, "v": row.v}[letter]
        n_heads = row.heads_of(letter, column.n_heads)
        weight, bias = parameters(self._model, f"{column.block(layer)}.{part.module}", part)
        sizes = {"head": n_heads, **({"part": part.parts} if part.parts > 1 else {})}
        axes = "part head" if part.parts > 1 else "head"
        weight = rearrange(weight, f"{part.layout} d_model -> {axes} d_model d_head", **sizes)
        bias = rearrange(bias, f"{part.layout} -> {axes} d_head", **sizes)
        if part.parts > 1:
            weight, bias = weight[part.part], bias[part.part]
        if every_head and n_heads != column.n_heads:
            weight, bias = (x.repeat_interleave(column.n_heads // n_heads, dim=0) for x in (weight, bias))
        return _times_gain(weight, part.gain), _times_gain(bias, part.gain)

    def _input(self, column: Stack, layer: int, part: Projection) -> tuple[Tensor, Tensor]:
        weight, bias = parameters(self._model, f"{column.block(layer)}.{part.module}", part)
        if part.parts > 1:
            weight = rearrange(weight, f"{part.layout} d_model -> part d_mlp d_model", part=part.parts)[part.part]
            bias = rearrange(bias, f"{part.layout} -> part d_mlp", part=part.parts)[part.part]
        return _times_gain(weight, part.gain).T, _times_gain(bias, part.gain)

    def _norm(self, path: str) -> tuple[Tensor | None, Tensor | None]:
        norm = self._model.get_submodule(path)
        gain = getattr(norm, "weight", None)
        return (getattr(norm, "scale", None) if gain is None else gain), getattr(norm, "bias", None)


def _fold(matrix: tuple[Tensor, Tensor], norm: tuple[Tensor | None, Tensor | None] | None) -> tuple[Tensor, Tensor]:
    weight, bias = matrix
    if norm is None:
        return matrix
    gain, shift = norm
    if shift is not None:
        bias = bias + shift @ weight
    return (weight if gain is None else weight * gain[:, None]), bias


def for_every_head(shared: Tensor, n_heads: int) -> Tensor:
    """Repeat keys or values (…, head, d_head) where several of ``n_heads`` query heads share one."""
    return shared.repeat_interleave(n_heads // shared.shape[-2], dim=-2) if shared.shape[-2] != n_heads else shared


def _times_gain(weight: Tensor, gain: float) -> Tensor:
    return weight if gain == 1.0 else weight * gain


def parameters(model: nn.Module, path: str, part: Projection | None = None) -> tuple[Tensor, Tensor]:
    """Return weight (out, in) and bias (out,) of a layer; a bias of zeros where it has none.

    Args:
        model: the native module.
        path: of the layer.
        part: the row that names its parameters; "weight" and "bias" if None.

    Raises:
        WiringError: there is no such matrix, or the bias has another length.
    """
    # a row may name the block itself by an empty path
    module: Any = model.get_submodule(path.rstrip("."))
    name, other = ("weight", "bias") if part is None else (part.weight, part.bias)
    weight, bias = getattr(module, name, None), getattr(module, other, None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        matrices = ", ".join(key for key, value in module.named_parameters() if value.ndim == 2) or "none"
        raise WiringError(
            f"module {path!r} ({type(module).__name__}) has no weight matrix {name!r}; matrices in it: {matrices}"
        )
    if bias is not None and len(bias) != len(weight):
        raise WiringError(f"{path}.{other} has {len(bias)} entries, expected the {len(weight)} rows of {name!r}")
    return weight, weight.new_zeros(len(weight)) if bias is None else bias


def head_output_weights(model: nn.Module, stack: Stack, layer: int, kind: str) -> Tensor:
    """Return W_O of every head, (head, d_head, d_model), so that ``z @ W_O`` is the head's write."""
    try:
        part = stack.attention(kind, layer).o
    except KeyError as error:
        raise WiringError(f"{kind!r} is no attention writer; it has no heads") from error
    weight, _ = parameters(model, f"{stack.block(layer)}.{part.module}", part)
    heads = rearrange(weight, f"d_model {part.layout} -> head d_head d_model", head=stack.n_heads)
    return _times_gain(heads, part.gain)
