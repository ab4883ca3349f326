"""Common parts of the experiments: matrices of given singular values, slopes with intervals, and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.stats import bootstrap_interval
from tsfm_lens.studies.rank_theory.attention import orthonormal

PAPER = "Understanding Transformers for Time Series: Rank Structure, Flow-of-ranks, and Compressibility"


def labelled(
    data: Mapping[str, tuple[Any, ...]], coords: Mapping[str, Any], kind: str, title: str, where: str, **attrs: Any
) -> xr.Dataset:
    """Make a dataset with its kind, title, source, seed and sizes."""
    head = {"kind": f"theory_{kind}", "title": title, "source": f"{PAPER}, {where}"}
    return xr.Dataset(dict(data), coords=dict(coords), attrs={**head, **attrs})


def of_spectrum(singular_values: np.ndarray, n_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Draw random directions with given singular values, (d, L).

    Raises:
        InputError: fewer tokens than singular values.
    """
    width = len(singular_values)
    if n_tokens < width:
        raise InputError(f"{n_tokens} tokens cannot have {width} singular values; give {width} or more")
    left = orthonormal(width, width, rng)
    return np.asarray((left * singular_values) @ orthonormal(n_tokens, width, rng).T)


def children(seed: int, count: int) -> list[int]:
    """Return seeds of so many draws, of which the first are the same whatever the count."""
    if count < 1:
        raise InputError(f"draws is {count}, expected 1 or more")
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(count)]


def slope_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the slope of the least-squares line of log y over log x, along the last axis, (…)."""
    across, up = np.log(x), np.log(y)
    centred = across - across.mean()
    return np.asarray((centred * (up - up.mean(-1, keepdims=True))).sum(-1) / (centred**2).sum())


def slope_of_rms(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float, float]:
    """Compute the slope of the root mean square over draws, with its 95 % interval over them.

    Args:
        x: (n,).
        y: (draw, n).
        seed: of the bootstrap.
    """
    low, high = bootstrap_interval(y, lambda sample: slope_of(x, np.sqrt((sample**2).mean(axis=1))), seed=seed)
    return float(slope_of(x, np.sqrt((y**2).mean(axis=0)))), low, high


def divisors(width: int, heads: Sequence[int]) -> list[int]:
    """Return numbers of heads; refuse those that do not divide the width.

    Raises:
        InputError: there is none, or one does not.
    """
    wrong = [count for count in heads if count < 1 or width % count]
    if wrong or not len(heads):
        raise InputError(f"heads are {list(heads)}, expected divisors of the width {width}")
    return list(heads)
