"""Rank of each matrix by depth, threshold or share, and the size of a model with such ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.ranks import epsilon_rank

__all__ = [
    "BlockShape",
    "Ratio",
    "guideline",
    "rank_schedule",
    "ranks_by_epsilon",
    "ratio_of",
]

# slack for rounding in shares of whole numbers
_SLACK = 1e-9
R_MIN = 16
"""The smallest rank of the guideline if the rank of embedded series is unknown."""


class BlockShape(NamedTuple):
    """Shape of one matrix that is truncated: blocks with ranks of their own, 1 or one a head, each (rows, columns)."""

    blocks: int
    rows: int
    columns: int

    @property
    def full(self) -> int:
        """The largest rank of a block."""
        return min(self.rows, self.columns)

    @property
    def numbers(self) -> int:
        """Number of entries of the matrix."""
        return self.blocks * self.rows * self.columns

    def factors(self, rank: int) -> int:
        """Count the entries of two factors of this rank a block."""
        return self.blocks * rank * (self.rows + self.columns)

    def stored(self, rank: int) -> int:
        """Count the stored entries: those of the factors if they are fewer, else those of the matrix."""
        return min(self.factors(rank), self.numbers)


class Ratio(NamedTuple):
    """Share that is kept: of ranks (as in the paper's tables), of entries in factors, of stored entries."""

    ranks: float
    factors: float
    stored: float


def rank_schedule(
    first: float, exponent: float, layers: int, d_head: int, *, start: int = 0
) -> np.ndarray:
    """Compute the ranks of the heads by layer, ⌈first · (1 + i)^exponent⌉, at most ``d_head``, (layer,).

    Args:
        first: rank of a layer numbered 0.
        exponent: 0 or above.
        layers: how many.
        d_head: size of a head, its full rank.
        start: number of the first layer; the paper does not say if 0 or 1, and neither gives all of its size ratios.

    Source:
        Flow of ranks, section 5 (S0-SCHED).

    Example:
        >>> compress.rank_schedule(3, 0.27, 12, 64).tolist()
        [3, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6]
    """
    if not (
        first >= 1
        and exponent >= 0
        and math.isfinite(first)
        and math.isfinite(exponent)
    ):
        raise InputError(
            f"a schedule from rank {first} with exponent {exponent}; expected at least 1, and at least 0"
        )
    if layers < 1 or d_head < 1 or start < 0:
        raise InputError(
            f"{layers} layers of heads of size {d_head}, counted from {start}; expected 1, 1 and 0 or more"
        )
    ranks = first * (1.0 + start + np.arange(layers)) ** exponent
    return np.minimum(np.ceil(ranks - _SLACK), d_head).astype(int)


def guideline(
    layers: int,
    d_model: int,
    *,
    r_min: float = R_MIN,
    r_max: float | None = None,
    exponent: float = 0.5,
) -> np.ndarray:
    """Compute ranks of whole matrices by layer, ⌈r_min + (r_max - r_min) · (l / (layers - 1))^exponent⌉, (layer,).

    Args:
        layers: how many.
        d_model: width of the model, the full rank.
        r_min: median numerical rank of embedded series.
        r_max: half of ``d_model`` if None.
        exponent: below 1 ranks rise early.

    Source:
        Flow of ranks, appendix K (S0-GUIDE), with its r_1, r_D and α read as its r_min, r_max and γ.

    Example:
        >>> compress.guideline(4, 64).tolist()
        [16, 26, 30, 32]
    """
    highest = d_model / 2 if r_max is None else r_max
    if layers < 1 or not exponent > 0:
        raise InputError(
            f"{layers} layers and exponent {exponent}; expected at least 1, and above 0"
        )
    if not 1 <= r_min <= highest <= d_model:
        raise InputError(
            f"ranks from {r_min} to {highest:g}; expected 1 <= r_min <= r_max <= d_model = {d_model}"
        )
    depth = np.linspace(0.0, 1.0, layers) if layers > 1 else np.zeros(1)
    return np.ceil(r_min + (highest - r_min) * depth**exponent - _SLACK).astype(int)


def ranks_by_epsilon(
    singular_values: Mapping[str, np.ndarray], epsilon: float
) -> dict[str, int]:
    """Compute the numerical rank of every matrix, at least 1, by name.

    Args:
        singular_values: of each matrix (j,), or of its blocks (block, j), of which the largest rank counts.
        epsilon: above 0 and below 1; the error of a truncated matrix is at most this share of its spectral norm.

    Source:
        Flow of ranks, equation 1 and section 5 (S0-ERANK, S0-TSVD).

    Example:
        >>> compress.ranks_by_epsilon({"q": np.array([1.0, 0.3, 0.01])}, 0.1)
        {'q': 2}
    """
    return {
        name: max(1, int(epsilon_rank(values, epsilon).max()))
        for name, values in singular_values.items()
    }


def ranks_by_share(
    forms: Mapping[str, BlockShape],
    share: float,
    *,
    of: Literal["rank", "parameters"] = "rank",
) -> dict[str, int]:
    """Choose ranks by one share, above 0 and at most 1, of every matrix's rank or of its entries, by name."""
    if not 0 < share <= 1:
        raise InputError(f"a share of {share} of the {of}; expected above 0, at most 1")
    if of == "rank":
        return {name: max(1, round(share * form.full)) for name, form in forms.items()}
    if of != "parameters":
        raise InputError(f"a share of {of!r}; expected 'rank' or 'parameters'")
    if share == 1:
        return {name: form.full for name, form in forms.items()}
    ranks = {
        name: int(share * form.numbers / form.factors(1) + _SLACK)
        for name, form in forms.items()
    }
    short = [name for name, rank in ranks.items() if rank < 1]
    if short:
        form = forms[short[0]]
        raise InputError(
            f"no rank meets a budget of {share:g} of the parameters: {short[0]} ({form.rows} x {form.columns}"
            f"{f', {form.blocks} heads' if form.blocks > 1 else ''}) takes {form.factors(1) / form.numbers:.3g} of its "
            "own at rank 1; give that share or more"
        )
    return {name: min(rank, forms[name].full) for name, rank in ranks.items()}


def ratio_of(
    forms: Mapping[str, BlockShape] | Sequence[BlockShape],
    ranks: Mapping[str, int] | Sequence[int],
) -> Ratio:
    """Compute the share that some ranks keep, over all matrices, by name or in one order.

    Source:
        Flow of ranks, tables 2 and 4; the paper does not define its "ratio" (E0-4), so all readings are given.

    Example:
        >>> compress.ratio_of([compress.BlockShape(1, 64, 64)], [16])
        Ratio(ranks=0.25, factors=0.5, stored=0.5)
    """
    shapes: dict[Any, BlockShape] = (
        dict(forms) if isinstance(forms, Mapping) else dict(enumerate(forms))
    )
    rank_of: dict[Any, int] = (
        dict(ranks) if isinstance(ranks, Mapping) else dict(enumerate(ranks))
    )
    if not shapes or set(shapes) != set(rank_of):
        raise InputError(
            f"{len(rank_of)} ranks for {len(shapes)} matrices; expected one each, and at least one"
        )
    for name, form in shapes.items():
        if not 1 <= rank_of[name] <= form.full:
            raise InputError(
                f"rank {rank_of[name]} of {name}; expected from 1 to {form.full}"
            )
    pairs = [(form, int(rank_of[name])) for name, form in shapes.items()]
    entries = sum(form.numbers for form, _ in pairs)
    return Ratio(
        sum(form.blocks * rank for form, rank in pairs)
        / sum(form.blocks * form.full for form, _ in pairs),
        sum(form.factors(rank) for form, rank in pairs) / entries,
        sum(form.stored(rank) for form, rank in pairs) / entries,
    )
