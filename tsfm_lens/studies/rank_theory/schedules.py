"""Ranks of the matrices of a model by depth.

Both functions return one rank per layer: :func:`rank_schedule` for heads,
:func:`guideline` for whole matrices. Nothing is truncated here.
"""

from __future__ import annotations

import math

import numpy as np

from tsfm_lens.core.errors import InputError

__all__ = ["guideline", "rank_schedule"]

# slack for rounding in shares of whole numbers
_SLACK = 1e-9
R_MIN = 16
"""The smallest rank of the guideline if the rank of embedded series is unknown."""


def rank_schedule(
    first: float, exponent: float, layers: int, d_head: int, *, start: int = 0
) -> np.ndarray:
    """Compute the ranks of the heads by layer, (layer,).

    They are ⌈first · (1 + i)^exponent⌉, at most ``d_head``.

    Args:
        first: rank of a layer numbered 0, at least 1.
        exponent: power by which ranks grow, 0 or above.
        layers: number of layers.
        d_head: size of a head, its full rank.
        start: number of the first layer; the paper does not say if 0 or 1, and neither
            gives all of its size ratios.

    Source:
        Flow of ranks, section 5 (S0-SCHED).

    Example:
        >>> rank_theory.rank_schedule(3, 0.27, 12, 64).tolist()
        [3, 4, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6]
    """
    if not (1 <= first < math.inf and 0 <= exponent < math.inf):
        raise InputError(
            f"a schedule from rank {first} with exponent {exponent}; expected at least"
            " 1, and at least 0"
        )
    if layers < 1 or d_head < 1 or start < 0:
        raise InputError(
            f"{layers} layers of heads of size {d_head}, counted from {start}; expected"
            " 1, 1 and 0 or more"
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
    """Compute ranks of full matrices by layer, (layer,).

    They are ⌈r_min + (r_max - r_min) · (l / (layers - 1))^exponent⌉.

    Args:
        layers: number of layers.
        d_model: width of the model, the full rank.
        r_min: smallest rank, the median numerical rank of embedded series.
        r_max: largest rank; half of ``d_model`` if None.
        exponent: power by which ranks rise; below 1 they rise early.

    Source:
        Flow of ranks, appendix K (S0-GUIDE), with its r_1, r_D and α read as its r_min,
        r_max and γ.

    Example:
        >>> rank_theory.guideline(4, 64).tolist()
        [16, 26, 30, 32]
    """
    highest = d_model / 2 if r_max is None else r_max
    if layers < 1 or not exponent > 0:
        raise InputError(
            f"{layers} layers and exponent {exponent}; expected at least 1, and above 0"
        )
    if not 1 <= r_min <= highest <= d_model:
        raise InputError(
            f"ranks from {r_min} to {highest:g}; expected 1 <= r_min <= r_max <="
            f" d_model = {d_model}"
        )
    depth = np.linspace(0.0, 1.0, layers)
    return np.ceil(r_min + (highest - r_min) * depth**exponent - _SLACK).astype(int)
