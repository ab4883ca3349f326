"""Matrices as products of two factors, and linear layers that store less.

:func:`truncate` finds the :class:`Factors` of a rank; :class:`LowRankLinear` computes
with factors and :class:`PartialLinear` with the rows or columns that are left. Which
matrices a model has is in :mod:`.matrices`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._pytree import tree_map

from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.hooks.replay import shadowed

__all__ = [
    "Compressed",
    "Factors",
    "LowRankLinear",
    "PartialLinear",
    "product",
    "truncate",
]

# eigenvalues of a second moment below this share of the largest are rounding: it is a
# sum of float32 products
_MIN_EIGENVALUE = 1e-12
# what is added to the second moment of gradients, in shares of its mean eigenvalue
_DAMPING = 1e-3


class Factors(NamedTuple):
    """Two factors of a matrix (out, in), ``W = up @ down``.

    They are ``down`` (rank, in) and ``up`` (out, rank). With heads in the rows of W,
    ``up`` is (head, out / heads, rank) and ``down`` (heads · rank, in); with heads in
    its columns, ``down`` is (head, rank, in / heads) and ``up`` (out, heads · rank).
    """

    down: Tensor
    up: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (out, in) of the product."""
        rows = self.up.shape[0] * (self.up.shape[1] if self.up.ndim == 3 else 1)
        columns = self.down.shape[-1] * (
            self.down.shape[0] if self.down.ndim == 3 else 1
        )
        return rows, columns

    @property
    def rank(self) -> int:
        """Rank of the matrix, or of each head."""
        if self.down.ndim == 3:
            return self.down.shape[1]
        return self.up.shape[-1]

    @property
    def numbers(self) -> int:
        """Number of entries of both factors."""
        return self.down.numel() + self.up.numel()


def product(factors: Factors) -> Tensor:
    """Multiply two factors to their matrix (out, in).

    Args:
        factors: of a matrix, or of each of its heads.

    Returns:
        The matrix, (out, in).

    Example:
        >>> factors = compress.Factors(torch.ones(1, 3), torch.ones(2, 1))
        >>> compress.product(factors).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    down, up = factors
    # heads in the rows: for each head (out / heads, rank) times (rank, in)
    if up.ndim == 3:
        return torch.bmm(up, down.reshape(len(up), -1, down.shape[-1])).reshape(
            -1, down.shape[-1]
        )
    if down.ndim == 3:
        # (head, out, rank) times (head, rank, in / heads) = (head, out, in / heads)
        wide = torch.bmm(up.reshape(len(up), len(down), -1).transpose(0, 1), down)
        # heads become neighbours in the columns: (out, head, in / heads) before the
        # reshape
        return wide.transpose(0, 1).reshape(len(up), -1)
    return up @ down


def truncate(
    weight: Tensor,
    rank: int,
    *,
    moment: Tensor | None = None,
    sensitivity: Tensor | None = None,
    heads: int = 1,
    of: str = "rows",
) -> Factors:
    """Compute the factors of a rank whose product is nearest to a matrix.

    They are computed in double precision.

    W̃ is the product. What it minimises depends on the moments that are given:

    - Without any, the Frobenius norm of W - W̃.
    - With the second moment C = S Sᵀ of the inputs x, the mean of ‖(W - W̃) x‖². Then
      W̃ = U Uᵀ W, with U the leading left singular vectors of W S.
    - With the second moment G = R R of the gradient by the output, the mean of dᵀ G d
      for d = (W - W̃) x. Then W̃ = R⁻¹ U Uᵀ R W, with U those of R W S; S is the
      identity if C is not given. A small share of its mean eigenvalue is first added to
      the diagonal of G.

    Args:
        weight: the matrix W, (out, in).
        rank: rank of the matrix, or of each head.
        moment: C, (in, in), symmetric and positive semidefinite.
        sensitivity: G, (out, out), symmetric and positive semidefinite.
        heads: number of equal blocks that the matrix is cut into, each of which is
            truncated by itself.
        of: whether the blocks are "rows" or "columns" of the matrix.

    Returns:
        The factors, in double precision.

    Raises:
        InputError: the matrix or the moment is not finite or of another shape, or the
            rank is out of range.

    Source:
        Eckart and Young 1936; Flow of ranks, section 5 (S0-TSVD), and its equations 19
        and 20 (S0-LR).

    Example:
        >>> w = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> compress.product(compress.truncate(w, 2)).diagonal().tolist()
        [3.0, 2.0, 0.0]
        >>> rarely = torch.diag(torch.tensor([1.0, 0.1, 1.0]))
        >>> compress.product(compress.truncate(w, 2, moment=rarely)).diagonal().tolist()
        [3.0, 0.0, 1.0]
    """
    if weight.ndim != 2 or not bool(torch.isfinite(weight).all()):
        raise InputError(
            f"a weight of shape {tuple(weight.shape)}, expected a finite matrix"
            " (out, in)"
        )
    side = {"rows": 0, "columns": 1}.get(of)
    if side is None or heads < 1 or weight.shape[side] % heads:
        raise InputError(
            f"{heads} heads as {of!r} of a matrix {tuple(weight.shape)}; expected equal"
            " rows or columns"
        )
    if heads > 1:
        full_rank = min(weight.shape[side] // heads, weight.shape[1 - side])
    else:
        full_rank = min(weight.shape)
    if not 1 <= rank <= full_rank:
        raise InputError(
            f"rank {rank} of a matrix {tuple(weight.shape)} of {heads} blocks; expected"
            f" 1 to {full_rank}"
        )
    exact = weight.detach().double()
    # moments are kept on the CPU
    if moment is None:
        root = None
    else:
        root = _root(moment.to(exact), exact.shape[1])
    if sensitivity is not None:
        sensitivity = _check_moment(sensitivity.to(exact), exact.shape[0])
    size = exact.shape[side] // heads
    downs = []
    ups = []
    for head, block in enumerate(exact.chunk(heads, dim=side)):
        span = slice(head * size, (head + 1) * size)
        block_root = root
        block_sensitivity = sensitivity
        if side == 1 and root is not None:
            # a block of columns sees only its own inputs: rows of S, whose product S Sᵀ
            # is that block of C
            block_root = root[span]
        if side == 0 and sensitivity is not None:
            # a block of rows has only its own outputs; the entries of G between outputs
            # of two heads are left out
            block_sensitivity = sensitivity[span, span]
        down, up = _project(block, block_root, rank, block_sensitivity)
        downs.append(down.to(weight.dtype))
        ups.append(up.to(weight.dtype))
    if heads == 1:
        return Factors(downs[0].contiguous(), ups[0].contiguous())
    if side == 0:
        return Factors(torch.cat(downs), torch.stack(ups))
    return Factors(torch.stack(downs), torch.cat(ups, 1))


def _root(moment: Tensor, size: int) -> Tensor:
    """Compute S with C = S Sᵀ, (in, rank of C)."""
    # an eigendecomposition and no Cholesky factor, which a semidefinite moment does not
    # have
    values, vectors = torch.linalg.eigh(_check_moment(moment, size))
    if not values[-1] > 0:
        raise InputError(
            "a second moment of zero: nothing but zeros entered the matrix, so no rank"
            " is better than 1"
        )
    is_present = values > _MIN_EIGENVALUE * values[-1]
    return vectors[:, is_present] * values[is_present].sqrt()


def _check_moment(moment: Tensor, size: int) -> Tensor:
    if moment.shape != (size, size) or not bool(torch.isfinite(moment).all()):
        raise InputError(
            f"a second moment of shape {tuple(moment.shape)}, expected a finite"
            f" ({size}, {size})"
        )
    return moment


def _project(
    matrix: Tensor, root: Tensor | None, rank: int, sensitivity: Tensor | None
) -> Factors:
    """Project a matrix onto the directions in which its outputs are largest.

    Inputs have the second moment ``root @ root.T``, or the identity.

    Returns:
        The factors.
    """
    if sensitivity is not None:
        values, vectors = torch.linalg.eigh(sensitivity)
        if not values[-1] > 0:
            # the gradient is 0, as for a query with a single key: no error in these
            # outputs has an effect, so none is weighted
            return _project(matrix, root, rank, None)
        # rounding leaves eigenvalues a little below 0, which have no root
        values = values.clamp(min=0.0)
        roots = (values + _DAMPING * values.mean()).sqrt()
        # R W is truncated, and R⁻¹ multiplied to its factor from the left, which undoes
        # R; R is symmetric, V diag(√λ) Vᵀ
        scaled = _project((vectors * roots) @ vectors.T @ matrix, root, rank, None)
        return Factors(scaled.down, (vectors / roots) @ vectors.T @ scaled.up)
    # only the left vectors are needed: W̃ = U Uᵀ W holds for any moment of the inputs,
    # and needs no inverse of S
    u, _, _ = torch.linalg.svd(
        matrix if root is None else matrix @ root, full_matrices=False
    )
    if u.shape[1] < rank:
        # the inputs span fewer directions than the rank allows; further ones are the
        # leading directions of what the first leave of the matrix
        rest, _, _ = torch.linalg.svd(matrix - u @ (u.T @ matrix), full_matrices=False)
        u = torch.cat([u, rest[:, : rank - u.shape[1]]], dim=1)
        # both parts are orthogonal to each other up to rounding only
        u, _ = torch.linalg.qr(u)
    up = u[:, :rank]
    return Factors(up.T @ matrix, up)


def relative_error(
    weight: Tensor, other: Tensor, moment: Tensor | None = None
) -> float:
    """Compute the mean of ‖(W - W̃) x‖² over that of ‖W x‖², W being (out, in).

    Inputs x have a second moment (in, in), or the identity.

    Returns:
        The error without unit, 0 or more.
    """
    exact = weight.detach().double()
    difference = weight.detach().double() - other.detach().double()
    # tr(D C Dᵀ) is the sum over entries of (D C) · D, without the product of (out, out)
    weighted_difference, weighted = (
        w if moment is None else w @ moment.to(w) for w in (difference, exact)
    )
    return float((weighted_difference * difference).sum() / (weighted * exact).sum())


class _LazyMatrix(Tensor):
    """A matrix that is computed when an operation needs it.

    Libraries ask for type and device of a weight at every pass, without its values.
    """

    make: Callable[[], Tensor]
    # without this mark, transformers would initialise the weight as one that the files
    # lack
    _is_hf_initialized = True

    @staticmethod
    def __new__(
        cls, make: Callable[[], Tensor], shape: tuple[int, int], like: Tensor
    ) -> _LazyMatrix:
        matrix = Tensor._make_wrapper_subclass(
            cls, shape, dtype=like.dtype, device=like.device
        )
        matrix.make = make
        return matrix

    def __repr__(self) -> str:  # type: ignore[override]
        return f"a matrix {tuple(self.shape)} that is not held as such"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make the matrix, then call the function on it.

        Returns:
            What the function returns.

        Raises:
            WiringError: the function writes into the matrix, which would be lost.
        """
        if func._schema.is_mutable:
            raise WiringError(
                f"{func} on the weight of a compressed layer: it is made of the"
                " parameters that the layer holds, which can be written into;"
                " as_matrix() puts another matrix in its place"
            )
        # by tree_map, since a matrix may stand in a list, as in torch.cat
        args, kwargs = tree_map(
            lambda x: x.make() if isinstance(x, cls) else x, (args, kwargs or {})
        )
        return func(*args, **kwargs)


class Compressed(nn.Module):
    """A linear layer (out, in) that stores parts instead of its matrix.

    ``weight`` still reads as the matrix.
    """

    bias: nn.Parameter | None

    def __init__(
        self, shape: tuple[int, int], bias: Tensor | None, gain: float, **parts: Tensor
    ) -> None:
        super().__init__()
        for name, part in parts.items():
            # detached, since a parameter must be a leaf; the values are shared with the
            # caller, not copied
            self.register_parameter(name, nn.Parameter(part.detach()))
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        self.gain = float(gain)
        self.out_features, self.in_features = shape

    def as_matrix(self, matrix: Tensor) -> AbstractContextManager[None]:
        """Compute with another matrix (out, in) while the block runs.

        Args:
            matrix: what the layer multiplies with, (out, in).

        Returns:
            A block in which the layer computes with the matrix.
        """

        def forward(x: Tensor) -> Tensor:
            return linear(x, matrix, self.bias) * self.gain

        return shadowed([(self, lambda _forward: forward)])

    @property
    def entries(self) -> int:
        """Number of entries stored instead of the matrix."""
        return sum(
            part.numel() for name, part in self.named_parameters() if name != "bias"
        )


class LowRankLinear(Compressed):
    """A linear layer that holds its matrix as two :class:`Factors`.

    It maps ``x`` to ``gain · (up (down x) + bias)``.
    """

    down: nn.Parameter
    up: nn.Parameter

    def __init__(
        self, factors: Factors, bias: Tensor | None = None, gain: float = 1.0
    ) -> None:
        super().__init__(factors.shape, bias, gain, down=factors.down, up=factors.up)

    @property
    def factors(self) -> Factors:
        """Both factors, as they are held."""
        return Factors(self.down, self.up)

    @property
    def weight(self) -> Tensor:
        """Matrix (out, in), multiplied on access; read-only."""
        # detached, so that reading the weight builds no graph; training goes through
        # the factors in forward()
        factors = Factors(self.down.detach(), self.up.detach())
        return _LazyMatrix(lambda: product(factors), factors.shape, factors.up)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to outputs.

        Args:
            x: inputs, (…, in).

        Returns:
            Outputs, (…, out).
        """
        if self.down.ndim == 3:
            narrow = _by_head(x, self.down)
        else:
            narrow = linear(x, self.down)
        if self.up.ndim == 3:
            out = _by_head(narrow, self.up)
            if self.bias is not None:
                out = out + self.bias
        else:
            out = linear(narrow, self.up, self.bias)
        if self.gain == 1.0:
            return out
        return out * self.gain

    def extra_repr(self) -> str:
        """Describe the sizes.

        Returns:
            Text that torch shows in the brackets of the layer.
        """
        return (
            f"{self.in_features} -> {self.factors.rank} -> {self.out_features},"
            f" bias={self.bias is not None}"
        )


class PartialLinear(Compressed):
    """A linear layer that stores some rows or some columns of its matrix.

    They stand at ascending indices; the others are zero.
    """

    rest: nn.Parameter
    indices: Tensor

    def __init__(
        self,
        rest: Tensor,
        indices: Tensor,
        size: int,
        of: Literal["rows", "columns"],
        bias: Tensor | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__(
            (size, rest.shape[1]) if of == "rows" else (rest.shape[0], size),
            bias,
            gain,
            rest=rest,
        )
        # stored as runs in compression.json, not with the weights
        self.register_buffer("indices", indices.clone(), persistent=False)
        self.of = of

    @property
    def weight(self) -> Tensor:
        """Matrix (out, in) with zeros for the removed rows or columns; read-only."""
        shape = (self.out_features, self.in_features)
        axis = 0 if self.of == "rows" else 1
        rest = self.rest.detach()
        indices = self.indices
        return _LazyMatrix(
            lambda: rest.new_zeros(shape).index_copy(axis, indices, rest), shape, rest
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to outputs.

        Args:
            x: inputs, (…, in).

        Returns:
            Outputs, (…, out).
        """
        if self.of == "columns":
            out = linear(x.index_select(-1, self.indices), self.rest, self.bias)
        else:
            rows = linear(x, self.rest)
            out = rows.new_zeros(*rows.shape[:-1], self.out_features).index_copy(
                -1, self.indices, rows
            )
            if self.bias is not None:
                out = out + self.bias
        if self.gain == 1.0:
            return out
        return out * self.gain

    def extra_repr(self) -> str:
        """Describe the sizes.

        Returns:
            Text that torch shows in the brackets of the layer.
        """
        if self.of == "rows":
            full = self.out_features
        else:
            full = self.in_features
        return (
            f"{self.in_features} -> {self.out_features}, {len(self.indices)} of {full}"
            f" {self.of}"
        )


def _by_head(x: Tensor, matrices: Tensor) -> Tensor:
    """Multiply (…, head · in) by a matrix of each head, to (…, head · out).

    ``matrices`` are (head, out, in).

    Returns:
        The products, (…, head · out).
    """
    # (head, position, in): bmm multiplies along the leading axis
    by_head = x.reshape(-1, len(matrices), matrices.shape[-1]).transpose(0, 1)
    out = torch.bmm(by_head, matrices.transpose(1, 2)).transpose(0, 1)
    return out.reshape(*x.shape[:-1], -1)


def replace_layer(
    model: nn.Module, path: str, layer: nn.Module, device: torch.device | None = None
) -> None:
    """Replace a layer by another, with the old one's mode and type.

    It also takes the old one's device, unless a device is given.
    """
    parent, _, last = path.rpartition(".")
    owner = model.get_submodule(parent)
    old = owner.get_submodule(last)
    weight: Any = old.weight
    layer = layer.to(device=device or weight.device, dtype=weight.dtype)
    setattr(owner, last, layer.train(old.training))
