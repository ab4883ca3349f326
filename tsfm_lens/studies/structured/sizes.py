"""Sizes of structured matrices: their divisors, and the nearest choice where a size does not divide."""

from __future__ import annotations

from collections.abc import Sequence

from tsfm_lens.errors import InputError

__all__ = ["balanced_factors", "level_blocks"]


def level_blocks(levels: int) -> tuple[int, ...]:
    """Return the numbers of blocks of nested levels, 1, 2, 4, … (p_l = 2^(l-1)).

    Raises:
        InputError: there is no level.

    Example:
        >>> structured.level_blocks(4)
        (1, 2, 4, 8)
    """
    if levels < 1:
        raise InputError(f"{levels} levels; a form with levels has at least 1")
    return tuple(2**level for level in range(levels))


def balanced_factors(width: int) -> tuple[int, int]:
    """Return two factors of a width, the first at most the second, as near to its square root as can be.

    Raises:
        InputError: the width is below 1, or a prime above 3, of which no two factors save anything; names the nearest
            width that can be split.

    Example:
        >>> structured.balanced_factors(64), structured.balanced_factors(24)
        ((8, 8), (4, 6))
    """
    whole(width, "width")
    low = next(factor for factor in range(int(width**0.5), 0, -1) if width % factor == 0)
    if low == 1 and width > 3:
        raise InputError(
            f"a width of {width} is a prime and has no two factors for a block tensor train; the nearest that has is "
            f"{width + 1}"
        )
    return low, width // low


def whole(value: int, what: str) -> int:
    """Return a count; refuse any but a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{what} is {value!r}, expected a whole number of at least 1")
    return value


def refuse_remainder(size: int, blocks: int, what: str) -> int:
    """Return the length of a block, where so many equal blocks fill ``size``.

    Raises:
        InputError: they do not; names the nearest number of blocks and the nearest size that fit.
    """
    whole(blocks, "number of blocks")
    if size % blocks:
        divisors = [count for count in range(1, size + 1) if size % count == 0]
        near = min(divisors, key=lambda count: (abs(count - blocks), count))
        nearest = max(round(size / blocks), 1) * blocks
        raise InputError(
            f"{what} of {size} is not divided by {blocks} blocks; the nearest choices are {near} blocks, or {nearest}"
        )
    return size // blocks


def refuse_rank(rank: int, width: int, what: str) -> int:
    """Return a rank; refuse a negative one or one above the width.

    Raises:
        InputError: names the nearest rank that there is.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise InputError(f"{what} is {rank!r}, expected a whole number from 0 on")
    if rank > width:
        raise InputError(f"{what} is {rank}, more than the width of {width}; the nearest valid rank is {width}")
    return rank


def refuse_ranks(ranks: Sequence[int], width: int) -> tuple[int, ...]:
    """Return ranks of levels: at least one level, none negative, none above the width, and not all of them 0."""
    valid = tuple(refuse_rank(rank, width, f"the rank of level {level}") for level, rank in enumerate(ranks, 1))
    if not any(valid):
        raise InputError(f"ranks {list(ranks)} leave nothing; give at least one level a rank of 1 or more")
    return valid
