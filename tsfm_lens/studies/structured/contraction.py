"""Family of structured matrices that contains all the others: multi-level block tensor contractions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured.matrices import StructuredMatrix, cut, joined

__all__ = ["MultiLevelBlockTensorContraction"]


class MultiLevelBlockTensorContraction(StructuredMatrix):
    """Σ_l α_l P_L,l (⊕_{k'} L_{l,k'}) P_R,l (⊕_k R_{l,k}ᵀ): the family that contains all the others (S2-MLBTC).

    The permutations belong to a level each, since sizes differ by level, though equation 8 gives them no index.

    Args:
        left: by level (p', out / p', r').
        right: by level (p, in / p, r), with p r = p' r'.
        alphas: by level; all 1 if None.
        left_permutations: by level (out,); none if None.
        right_permutations: by level (p r,); none if None.

    Raises:
        InputError: shapes do not fit, or an index is no permutation.

    Source:
        Structured attention, definition 3.1, equation 8.
    """

    alphas: Tensor

    def __init__(
        self,
        left: Sequence[Tensor],
        right: Sequence[Tensor],
        alphas: Sequence[float] | None = None,
        left_permutations: Sequence[Tensor] | None = None,
        right_permutations: Sequence[Tensor] | None = None,
    ) -> None:
        if not left or len(left) != len(right):
            raise InputError(f"{len(left)} left and {len(right)} right factors; give one of each for every level")
        super().__init__(left[0].shape[0] * left[0].shape[1], right[0].shape[0] * right[0].shape[1])
        self.left = nn.ParameterList(nn.Parameter(part.detach().clone()) for part in left)
        self.right = nn.ParameterList(nn.Parameter(part.detach().clone()) for part in right)
        for level, (outer, inner) in enumerate(zip(left, right, strict=True)):
            sizes = (outer.shape[0] * outer.shape[1], inner.shape[0] * inner.shape[1])
            if sizes != (self.out_features, self.in_features):
                raise InputError(f"level {level + 1} is {sizes}, expected {(self.out_features, self.in_features)}")
            if outer.shape[0] * outer.shape[2] != inner.shape[0] * inner.shape[2]:
                raise InputError(
                    f"level {level + 1} has p' r' = {outer.shape[0]} · {outer.shape[2]} and p r = {inner.shape[0]} · "
                    f"{inner.shape[2]}; both must be one number"
                )
        self.register_buffer("alphas", torch.as_tensor([1.0] * len(left) if alphas is None else alphas).to(left[0]))
        inner_sizes = [part.shape[0] * part.shape[2] for part in right]
        self.outer_order = _permutations(left_permutations, [self.out_features] * len(left))
        self.inner_order = _permutations(right_permutations, inner_sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        flat = x.reshape(-1, self.in_features)
        total = flat.new_zeros(len(flat), self.out_features)
        levels = zip(self.alphas, self.left, self.right, self.outer_order, self.inner_order, strict=True)
        for alpha, left, right, outer, inner in levels:
            narrow = joined(cut(flat, len(right)) @ right)[:, inner]
            total = total + alpha * joined(torch.bmm(cut(narrow, len(left)), left.transpose(1, 2)))[:, outer]
        return total.reshape(*x.shape[:-1], self.out_features)

    def dense(self) -> Tensor:
        """Compute the matrix, (out, in), by blocks and permutation matrices."""
        total = self.left[0].new_zeros(self.out_features, self.in_features)
        levels = zip(self.alphas, self.left, self.right, self.outer_order, self.inner_order, strict=True)
        for alpha, left, right, outer, inner in levels:
            p_left, p_right = (torch.eye(len(order)).to(total)[order] for order in (outer, inner))
            narrow = torch.block_diag(*right.transpose(1, 2))
            total = total + alpha * p_left @ torch.block_diag(*left) @ p_right @ narrow
        return total

    @property
    def n_parameters(self) -> int:
        """Σ_l (out r'_l + in r_l); the fixed α and permutations do not count."""
        levels = zip(self.left, self.right, strict=True)
        return sum(self.out_features * x.shape[2] + self.in_features * y.shape[2] for x, y in levels)

    @property
    def generic_rank(self) -> int:
        """min(out, in, Σ p_l r_l), bounded by the inner widths alone."""
        inner = sum(part.shape[0] * part.shape[2] for part in self.right)
        return min(self.out_features, self.in_features, inner)


def _permutations(orders: Sequence[Tensor] | None, sizes: Sequence[int]) -> list[Tensor]:
    if orders is None:
        return [torch.arange(size) for size in sizes]
    if len(orders) != len(sizes):
        raise InputError(f"{len(orders)} permutations for {len(sizes)} levels; give one for every level")
    for order, size in zip(orders, sizes, strict=True):
        if not torch.equal(torch.sort(order).values, torch.arange(size)):
            raise InputError(f"{order.tolist()} is no permutation of 0 … {size - 1}")
    return [order.clone() for order in orders]
