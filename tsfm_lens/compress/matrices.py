"""The matrices of a model that can be cut off, by its wiring, and a model with factors in their places."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from tsfm_lens.compress.factors import Factors, cut_off, product
from tsfm_lens.compress.layers import Compressed, LowRank, replace_layer
from tsfm_lens.compress.schedule import Form
from tsfm_lens.errors import InputError, WiringError, unknown_name
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack
from tsfm_lens.models.lens import Lens

__all__ = ["Matrix", "factorised", "matrices"]

# of what a layer gives to what its matrix gives, in single precision
_SAME = 1e-4


@dataclass(frozen=True)
class Matrix:
    """One matrix of a model.

    Attributes:
        name: as in "encoder_blocks.0.self_attn.q", with the letters of all parts of a fused one ("…attn.qkv").
        path: of the layer that holds it, in the native model.
        stack, layer, kind: where it stands.
        shape: (out, in).
        heads: blocks in its rows or columns, one after the other; 1 for an MLP's, or where heads take turns.
        of: whether they are "rows" or "columns".
        gain: factor that the layer puts on what it gives.
    """

    name: str
    path: str
    stack: str
    layer: int
    kind: str
    shape: tuple[int, int]
    heads: int
    of: str
    gain: float

    def form(self, *, by_head: bool = False) -> Form:
        """Return the form that is cut off: the whole, or each head by itself.

        Raises:
            InputError: its heads are no blocks.
        """
        rows, columns = self.shape
        if not by_head or not self.is_attention:
            return Form(1, rows, columns)
        if self.heads == 1:
            raise InputError(
                f"the heads of {self.name} ({self.path}) take turns in its {self.of}, so that none can be cut off by "
                "itself; cut off whole matrices"
            )
        if self.of == "rows":
            return Form(self.heads, rows // self.heads, columns)
        return Form(self.heads, rows, columns // self.heads)

    @property
    def is_attention(self) -> bool:
        """Membership of an attention, not of an MLP."""
        return set(self.name.rpartition(".")[2]) <= set("qkvo")


def matrices(lens: Lens, *, mlps: bool = False, attention: bool = True) -> dict[str, Matrix]:
    """List every matrix that can be cut off, by name, in order of the forward.

    Args:
        lens: the model.
        mlps: those of the MLPs, too.
        attention: those of the attentions.

    Raises:
        WiringError: a matrix is no layer of its own (``nn.MultiheadAttention`` holds it), two places share one, or a
            layer computes something else than its matrix times what enters.
        InputError: neither attentions nor MLPs are asked for, or there is none of what is; a matrix is not finite.

    Example:
        >>> list(compress.matrices(lens))[:4]
        ['encoder_blocks.0.self_attn.q', 'encoder_blocks.0.self_attn.k', 'encoder_blocks.0.self_attn.v', \
'encoder_blocks.0.self_attn.o']
    """
    by_name: dict[str, Matrix] = {}
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for row in stack.rows(layer):
                if isinstance(row, Attention) and attention:
                    by_name |= {matrix.name: matrix for matrix in _of_attention(lens, stack, layer, row)}
                elif isinstance(row, Mlp) and mlps:
                    by_name |= {matrix.name: matrix for matrix in _of_mlp(lens, stack, layer, row)}
    if not by_name:
        raise InputError(f"{lens.model_id} has no matrix of the kind asked for; ask for attentions, MLPs, or both")
    owners: dict[int, str] = {}
    for matrix in by_name.values():
        layer_of = lens.adapter.model.get_submodule(matrix.path)
        _refuse_other_layer(layer_of, matrix)
        if isinstance(layer_of, Compressed):
            continue
        other = owners.setdefault(id(layer_of.weight), matrix.name)
        if other != matrix.name:
            raise WiringError(f"{other} and {matrix.name} are one and the same matrix; it cannot be cut off twice")
    return by_name


def _of_attention(lens: Lens, stack: Stack, layer: int, row: Attention) -> Iterator[Matrix]:
    parts: dict[str, list[tuple[str, Projection]]] = {}
    for letter in "qkvo":
        part: Projection = getattr(row, letter)
        parts.setdefault(part.module, []).append((letter, part))
    for module, shares in parts.items():
        letters = "".join(letter for letter, _ in shares)
        letter, part = shares[0]
        heads = stack.n_heads if letter == "o" else row.heads_of(letter, stack.n_heads)
        blocks = _blocks(part.layout, heads, part.parts)
        yield _matrix(
            lens, stack, layer, row.kind, letters, module, part, blocks, "columns" if letter == "o" else "rows"
        )


def _of_mlp(lens: Lens, stack: Stack, layer: int, row: Mlp) -> Iterator[Matrix]:
    places: dict[str, tuple[str, Projection]] = {row.i.module: ("in", row.i)}
    if row.gate is not None and row.gate.module not in places:
        places[row.gate.module] = ("gate", row.gate)
    places[row.o] = ("out", Projection(row.o, gain=row.o_gain))
    for module, (word, part) in places.items():
        yield _matrix(lens, stack, layer, row.kind, word, module, part, 1, "rows")


def _matrix(
    lens: Lens, stack: Stack, layer: int, kind: str, word: str, module: str, part: Projection, heads: int, of: str
) -> Matrix:
    path = f"{stack.block(layer)}.{module}"
    name = f"{stack.prefix}.{layer}.{kind}.{word}"
    if part.weight != "weight":
        holder = type(lens.adapter.model.get_submodule(path)).__name__
        raise WiringError(
            f"{name} is {part.weight!r} of {path} ({holder}), which is no layer of its own; factors cannot stand in "
            "its place"
        )
    weight, _ = parameters(lens.adapter.model, path, part)
    rows, columns = weight.shape
    return Matrix(name, path, stack.name, layer, kind, (rows, columns), heads, of, part.gain)


def _blocks(layout: str, heads: int, parts: int) -> int:
    """Count the heads, of all parts, that stand as blocks one after the other; 1 where they take turns."""
    axes = re.findall(r"\w+", layout)
    return heads * parts if axes[-1] == "d_head" else 1


def _refuse_other_layer(layer: Any, matrix: Matrix) -> None:
    """Refuse a layer that does not compute gain · (x Wᵀ + bias)."""
    if isinstance(layer, Compressed):
        return
    others = {name for name, _ in layer.named_parameters()} - {"weight", "bias"}
    weight, bias = layer.weight.detach(), getattr(layer, "bias", None)
    if not bool(torch.isfinite(weight).all()):
        bad = int((~torch.isfinite(weight)).sum())
        raise InputError(f"{matrix.name} ({matrix.path}) has {bad} entries that are not finite; it cannot be cut off")
    x = torch.linspace(-1.0, 1.0, 2 * matrix.shape[1], device=weight.device).reshape(2, -1).to(weight.dtype)
    with torch.no_grad():
        target = matrix.gain * linear(x, weight, bias)
        try:
            output = layer.forward(x)
        except Exception as error:
            raise WiringError(
                f"{matrix.path} ({type(layer).__name__}) takes no rows of {matrix.shape[1]}: {error}"
            ) from error
    off = float((output - target).abs().max()) if output.shape == target.shape else float("inf")
    if others or not off <= _SAME * max(1.0, float(target.abs().max())) * (1 if weight.dtype == torch.float32 else 100):
        raise WiringError(
            f"{matrix.path} ({type(layer).__name__}) does not give {matrix.gain:g} times what enters times its weight, "
            "with its bias, and nothing else; factors in its place would compute something else"
        )


def factorised(
    lens: Lens,
    ranks: Mapping[str, int],
    *,
    moments: Mapping[str, Tensor] | None = None,
    felt: Mapping[str, Tensor] | None = None,
    by_head: bool = False,
    name: str | None = None,
) -> Lens:
    """Copy a model and cut off its matrices; the model itself stays as it is.

    A matrix whose two factors would have more entries than itself is cut off and held whole; one that keeps its full
    rank is left as it is, bit for bit.

    Args:
        lens: the model.
        ranks: by name of the matrix (see :func:`matrices`); those that are not named are left whole.
        moments: by name, the second moment of what enters (see :func:`second_moments`); plain truncation if None.
        felt: by name, what the forecast feels of errors (see :func:`felt_moments`); all alike if None.
        by_head: ranks are those of each head, and every head of an attention is cut off by itself.
        name: of the copy.

    Raises:
        UnknownNameError: no such matrix.
        InputError: a rank is out of range, a matrix has been cut off before, or a moment is missing; a weight or a
            moment is not finite.

    Example:
        >>> smaller = compress.factorised(lens, {"decoder_blocks.0.cross_attn.q": 2})
        >>> smaller.forecast(run.batch, 4, num_samples=2).median.shape
        (1, 4)
    """
    by_name = matrices(lens)
    if not set(ranks) <= set(by_name):
        by_name = matrices(lens, mlps=True)
    factors: dict[str, Factors | None] = {}
    for key, rank in ranks.items():
        if key not in by_name:
            raise unknown_name("matrix", key, by_name)
        if any(each is not None and key not in each for each in (moments, felt)):
            raise InputError(f"there is no second moment for {key}; take those of all matrices of the ranks")
        inner, outer = (None if each is None else each[key] for each in (moments, felt))
        factors[key] = _factors_of(lens, by_name[key], rank, inner, outer, by_head)
    twin = copy.deepcopy(lens)
    put_factors(twin, {by_name[key].path: (pair, by_name[key].gain) for key, pair in factors.items() if pair})
    return Lens(twin.adapter, name or f"{lens.model_id} (cut off)", lens.revision)


def _factors_of(
    lens: Lens, matrix: Matrix, rank: int, moment: Tensor | None, gradient_moment: Tensor | None, by_head: bool
) -> Factors | None:
    """Compute the factors of a matrix; None if it keeps its full rank."""
    layer = lens.adapter.model.get_submodule(matrix.path)
    if isinstance(layer, Compressed):
        raise InputError(f"{matrix.name} has been cut off before ({layer}); begin with the whole model")
    form = matrix.form(by_head=by_head)
    if not (isinstance(rank, int) and 1 <= rank <= form.full):
        raise InputError(f"rank {rank!r} of {matrix.name}; expected a whole number from 1 to {form.full}")
    if rank == form.full:
        return None
    weight, _ = parameters(lens.adapter.model, matrix.path)
    return cut_off(weight, rank, moment=moment, felt=gradient_moment, heads=form.blocks, of=matrix.of)


def put_factors(lens: Lens, factors: Mapping[str, tuple[Factors, float]]) -> None:
    """Put factors, with the gain of their layers, in the place of layers, by path; in the model itself."""
    for path, (pair, gain) in factors.items():
        layer = lens.adapter.model.get_submodule(path)
        rows, columns = pair.shape
        if pair.numbers < rows * columns:
            replace_layer(lens.adapter.model, path, LowRank(pair, layer.bias, gain))
        else:
            with torch.no_grad():
                layer.weight.copy_(product(Factors(*(part.double() for part in pair))))
