"""Cost of scoring with structured matrices, in multiply-adds and key-cache entries.

A multiply-add counts as one, as in all tables of the paper. Costs of scores are of one
head and one sequence: T tokens of width D, ranks r_l of levels with p_l = 2^(l-1)
blocks. Nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tsfm_lens.studies.structured.matrices import (
    balance_factors,
    check_divisible,
    check_ranks,
    level_blocks,
    level_features,
    whole,
)

__all__ = [
    "bilinear_level_operations",
    "bilinear_train_operations",
    "key_cache_entries",
    "level_attention_operations",
]


def bilinear_level_operations(
    tokens: int, width: int, ranks: Sequence[int]
) -> dict[str, Fraction]:
    """Count the multiply-adds of bilinear multi-level scores (S2-T2).

    The orders of contraction are a to e of table 2: "a" forms the whole matrix, "b"
    every level's matrix, "c" queries and keys of each level, "d" keys of full width for
    each level, "e" their sum. An addition without a product counts one half.

    Example:
        >>> costs = structured.bilinear_level_operations(16, 8, (2, 1))
        >>> {order: int(cost) for order, cost in costs.items()}
        {'a': 3248, 'b': 5792, 'c': 1792, 'd': 4864, 'e': 2816}
    """
    ranks = check_ranks(ranks, width)
    check_divisible(width, level_blocks(len(ranks))[-1], "a width")
    squares = tokens**2 * width
    projections = 2 * tokens * width * sum(ranks)
    products = width**2 * share_ranks(ranks)
    # Σ 1 / p_l
    shares = share_ranks([1] * len(ranks))
    return {
        "a": squares + tokens * width**2 + products + width**2 * (shares - 1) / 2,
        "b": len(ranks) * squares + products + tokens * width**2 * shares,
        "c": Fraction(projections + tokens**2 * sum(level_features(ranks))),
        "d": Fraction(len(ranks) * squares + projections),
        "e": Fraction(squares + projections),
    }


def share_ranks(ranks: Sequence[int]) -> Fraction:
    """Compute Σ r_l / p_l."""
    blocks = level_blocks(len(ranks))
    return sum(map(Fraction, ranks, blocks), Fraction())


def bilinear_train_operations(tokens: int, width: int, rank: int = 1) -> dict[str, int]:
    """Count the multiply-adds of bilinear block-tensor-train scores (S2-T3).

    They are of rank s, by order of contraction: "both" forms queries and keys of size b
    c s, "keys" keys of full width and no queries.

    Example:
        >>> structured.bilinear_train_operations(tokens=4, width=16, rank=2)
        {'both': 1536, 'keys': 1280}
    """
    c, b = balance_factors(width)
    projections = tokens * width * rank * (b + c)
    return {
        "both": tokens**2 * b * c * rank + projections,
        "keys": tokens**2 * width + projections,
    }


def level_attention_operations(tokens: int, ranks: Sequence[int]) -> Fraction:
    """Compute the multiply-adds of multi-level scores, T² Σ r_l / 2^(l-1) (S2-FL).

    Example:
        >>> float(structured.level_attention_operations(256, [8] * 8) / (256**2 * 64))
        0.2490234375
    """
    whole(tokens, "tokens")
    check_divisible(tokens, level_blocks(len(ranks))[-1], "a number of tokens")
    return tokens**2 * share_ranks(ranks)


def key_cache_entries(tokens: int, ranks: Sequence[int]) -> int:
    """Count the numbers of keys that the last of T tokens needs (S2-KV).

    They are T Σ r_l / 2^(l-1).

    Raises:
        InputError: the finest level does not divide the tokens.

    Example:
        >>> 1024 * 64 / structured.key_cache_entries(1024, [48, 16])
        1.1428571428571428
    """
    return int(level_attention_operations(tokens, ranks) / tokens)
