"""Rank of each matrix by threshold or share, and the size of such a model.

:func:`ranks_by_epsilon` and :func:`ranks_by_share` choose ranks from shapes and spectra
alone, :func:`compute_ratio` says how much they keep. No model is needed; ranks by their
effect on forecasts are in :mod:`.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.ranks import epsilon_rank

__all__ = [
    "BlockShape",
    "Ratio",
    "ranks_by_epsilon",
    "compute_ratio",
]

# slack for rounding in shares of whole numbers
_SLACK = 1e-9


class BlockShape(NamedTuple):
    """Shape of one matrix that is truncated: blocks of (rows, columns).

    Each block has a rank of its own; there is one block, or one per head.
    """

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
        """Count the entries of two factors of this rank a block.

        Args:
            rank: of each block.

        Returns:
            The number of entries.
        """
        return self.blocks * rank * (self.rows + self.columns)

    def stored(self, rank: int) -> int:
        """Count the entries that are stored.

        They are those of the factors if these are fewer, else those of the matrix.

        Args:
            rank: of each block.

        Returns:
            The number of entries.
        """
        return min(self.factors(rank), self.numbers)


class Ratio(NamedTuple):
    """Share that is kept, in three readings.

    ``ranks`` is of ranks, as in the paper's tables, ``factors`` of entries in factors,
    ``stored`` of stored entries.
    """

    ranks: float
    factors: float
    stored: float


def ranks_by_epsilon(
    singular_values: Mapping[str, np.ndarray], epsilon: float
) -> dict[str, int]:
    """Compute the numerical rank of every matrix.

    Args:
        singular_values: of each matrix (j,), or of its blocks (block, j), of which the
            largest rank counts.
        epsilon: above 0 and below 1; the error of a truncated matrix is at most this
            share of its spectral norm.

    Returns:
        Ranks by name, at least 1.

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
    """Choose ranks by name, by one share of every matrix.

    The share, above 0 and at most 1, is of its rank or of its entries.

    Returns:
        Ranks by name, at least 1.
    """
    if not 0 < share <= 1:
        raise InputError(f"a share of {share} of the {of}; expected above 0, at most 1")
    if of == "rank":
        return {name: max(1, round(share * form.full)) for name, form in forms.items()}
    if of != "parameters":
        raise InputError(f"a share of {of!r}; expected 'rank' or 'parameters'")
    # two factors of full rank would have more entries than the matrix, so the rank by
    # entries would not be the full one
    if share == 1:
        return {name: form.full for name, form in forms.items()}
    ranks = {
        name: int(share * form.numbers / form.factors(1) + _SLACK)
        for name, form in forms.items()
    }
    short = [name for name, rank in ranks.items() if rank < 1]
    if short:
        form = forms[short[0]]
        heads = f", {form.blocks} heads" if form.blocks > 1 else ""
        raise InputError(
            f"no rank meets a budget of {share:g} of the parameters: {short[0]}"
            f" ({form.rows} x {form.columns}{heads}) takes"
            f" {form.factors(1) / form.numbers:.3g} of its own at rank 1; give that"
            " share or more"
        )
    # for a flat matrix the rank by entries may exceed the full one
    return {name: min(rank, forms[name].full) for name, rank in ranks.items()}


def compute_ratio(
    forms: Mapping[str, BlockShape] | Sequence[BlockShape],
    ranks: Mapping[str, int] | Sequence[int],
) -> Ratio:
    """Compute the share that some ranks keep over all matrices.

    Args:
        forms: shapes of the matrices, by name or in order.
        ranks: a rank for each, by name or in the same order.

    Returns:
        The share of ranks, of entries in factors, and of stored entries, from 0 to 1.

    Raises:
        InputError: there are not as many ranks as shapes, or one is out of range.

    Source:
        Flow of ranks, tables 2 and 4; the paper does not define its "ratio" (E0-4), so
        all readings are given.

    Example:
        >>> compress.compute_ratio([compress.BlockShape(1, 64, 64)], [16])
        Ratio(ranks=0.25, factors=0.5, stored=0.5)
    """
    shapes: dict[Any, BlockShape] = (
        dict(forms) if isinstance(forms, Mapping) else dict(enumerate(forms))
    )
    by_name: dict[Any, int] = (
        dict(ranks) if isinstance(ranks, Mapping) else dict(enumerate(ranks))
    )
    if not shapes or set(shapes) != set(by_name):
        raise InputError(
            f"{len(by_name)} ranks for {len(shapes)} matrices; expected one each, and"
            " at least one"
        )
    for name, form in shapes.items():
        if not 1 <= by_name[name] <= form.full:
            raise InputError(
                f"rank {by_name[name]} of {name}; expected from 1 to {form.full}"
            )
    pairs = [(form, int(by_name[name])) for name, form in shapes.items()]
    entries = sum(form.numbers for form, _ in pairs)
    return Ratio(
        sum(form.blocks * rank for form, rank in pairs)
        / sum(form.blocks * form.full for form, _ in pairs),
        sum(form.factors(rank) for form, rank in pairs) / entries,
        sum(form.stored(rank) for form, rank in pairs) / entries,
    )
