"""Nulls of a causal claim: changes of the same size along directions of no meaning.

A direction is compared with draws from the covariance of the activations, since
isotropic draws mostly miss what a model reads. :func:`draw_changes` makes them with the
norm of the tested change, and :func:`with_nulls` adds what they do to a result. No
model is used here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy.special import stdtrit

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.stats import CONFIDENCE, FEWEST, LEVEL, SMALLEST

__all__ = [
    "DRAWS",
    "centre",
    "check_draws",
    "claimed",
    "covariance",
    "draw_changes",
    "draw_directions",
    "match_norms",
    "prediction_bound",
    "share_of_like_norm",
    "with_nulls",
]

DRAWS = 8
"""Draws beside a claim, unless asked for otherwise."""


def check_draws(nulls: int, rollout: bool = False) -> None:
    """Refuse what is no number of draws, and draws of a rollout.

    Raises:
        InputError: it is not a whole number from 0, or not 0 in a rollout.
    """
    # True is an int
    if not isinstance(nulls, int | np.integer) or isinstance(nulls, bool) or nulls < 0:
        raise InputError(f"nulls is {nulls!r}, expected a number of draws, such as 8")
    if nulls and rollout:
        raise InputError(
            f"nulls={nulls} draws are of single forwards, this is a rollout; leave"
            " nulls out, or take lens.run(..., rollout=False)"
        )


def centre(rows: np.ndarray) -> np.ndarray:
    """Subtract the mean of activations (row, …).

    Returns:
        The centred activations, 0 where rounding alone is left: draws of activations
        that are all alike would else have the directions of rounding errors.
    """
    centred = rows - rows.mean(axis=0)
    rounding = np.finfo(np.float32).eps * np.abs(rows).max(initial=0.0)
    return np.asarray(np.where(np.abs(centred) > rounding, centred, 0.0))


def covariance(rows: np.ndarray) -> np.ndarray:
    """Estimate a covariance from few rows, by shrinking to a multiple of the identity.

    Args:
        rows: centred activations (row, width).

    Returns:
        The estimate, (width, width); it has an inverse unless all rows are zero.

    Source:
        Ledoit and Wolf 2004, A well-conditioned estimator for large-dimensional
        covariance matrices.
    """
    count, width = rows.shape
    sample = rows.T @ rows / count
    mean = np.trace(sample) / width
    target = mean * np.eye(width)
    distance = np.square(sample - target).sum() / width
    # mean squared distance of one row's outer product from the sample covariance
    squares = np.square(np.square(rows).sum(1)).mean() - np.square(sample).sum()
    if distance > 0:
        shrinkage = min(squares / (count * width * distance), 1.0)
    else:
        shrinkage = 0.0
    return np.asarray(shrinkage * target + (1 - shrinkage) * sample)


def draw_directions(
    rows: np.ndarray, count: int, rank: int = 1, seed: int = 0
) -> np.ndarray:
    """Draw directions as the activations vary.

    Each is a normal draw with the covariance of the rows; several of one null are made
    orthonormal.

    Args:
        rows: centred activations (row, width).
        count: number of nulls.
        rank: directions in each.
        seed: of the random numbers.

    Returns:
        Orthonormal directions, (null, rank, width).

    Raises:
        InputError: the rows vary in too few directions for draws that differ.
    """
    rng = np.random.default_rng(seed)
    # a normal mixture of the rows has exactly their covariance; draws beyond those
    # asked for say in how many directions the rows vary
    needed = rank + 1
    draws = rng.standard_normal((count + needed, rank, len(rows))) @ rows
    if count and np.linalg.matrix_rank(draws[count:, 0]) < needed:
        raise InputError(
            f"the activations vary in fewer than {needed} directions, so random"
            " directions of theirs would all be the same; take more series or tokens,"
            " or nulls=0"
        )
    draws = draws[:count]
    # columns of q are orthonormal; their signs are not those of the draws
    bases, lengths = np.linalg.qr(draws.swapaxes(-1, -2))
    signs = np.copysign(1.0, np.diagonal(lengths, axis1=-2, axis2=-1))
    return np.asarray(bases.swapaxes(-1, -2) * signs[..., None])


def match_norms(changes: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Give changes (…, width) the norms of others, entry by entry.

    Returns:
        The changes; one of norm 0 has no direction, and stays.
    """
    norms = np.linalg.norm(changes, axis=-1, keepdims=True)
    factors = np.linalg.norm(like, axis=-1, keepdims=True) / np.where(norms, norms, 1.0)
    return np.asarray(changes * factors)


def draw_changes(
    rows: np.ndarray, count: int, like: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Draw changes beside others (…, width): of their norm, at right angles to each.

    A component that writes most of what varies would else be compared with itself.

    Args:
        rows: centred activations (row, width), whose covariance the draws have.
        count: number of nulls.
        like: the changes that are tested.
        seed: of the random numbers.

    Returns:
        The changes, (null, …, width); one direction a null.
    """
    directions = draw_directions(rows, count, seed=seed)
    drawn = directions.reshape(count, *[1] * (like.ndim - 1), -1)
    squares = np.square(like).sum(-1, keepdims=True)
    along = (drawn * like).sum(-1, keepdims=True) / np.where(squares, squares, 1.0)
    return match_norms(drawn - along * like, like)


def prediction_bound(values: np.ndarray, confidence: float = CONFIDENCE) -> np.ndarray:
    """Bound the next draw from above, by draws along the first axis.

    Returns:
        Upper end of the one-sided t prediction interval, (…); infinite with fewer than
        3 draws.

    Source:
        Hahn and Meeker 1991, Statistical Intervals, section 4.7.
    """
    count = len(values)
    if count < FEWEST:
        return np.full(values.shape[1:], np.inf)
    reach = stdtrit(count - 1, confidence) * np.sqrt(1 + 1 / count)
    return np.asarray(values.mean(0) + reach * values.std(0, ddof=1))


def with_nulls(
    data: xr.Dataset, name: str, effects: xr.DataArray, **options: Any
) -> xr.Dataset:
    """Add what nulls do to an effect that has estimates.

    Args:
        data: result with the estimates of ``name``.
        name: of the effect.
        effects: of the nulls, (null, …, series), the other dimensions as the effect's.
        options: ``floor``, ``signed`` and ``scale`` that the effect was estimated with;
            see :func:`.estimates.add_estimates`.

    Returns:
        The result with ``NAME_nulls`` (null, …), the size of each null, computed as the
        effect's own; ``NAME_null_share`` (…), the share of nulls that are as large, in
        the same direction; and ``NAME_exceeds_nulls`` (…), true of effects that are
        larger than every null, and than the next draw of any member would be in 95 %
        of cases. Members without nulls have a share of NaN.
    """
    count = effects.sizes["null"]
    # equal series are found by these
    kept = {key: data[key] for key in ("context", "truth") if key in data}
    beside = xr.Dataset(kept, data.coords).assign({name: effects.variable})
    # the same statistic as the effect's, over the same series
    sizes = add_estimates(beside, name, **options)[f"{name}_size"]
    sizes = sizes.transpose("null", ...)
    own = data[f"{name}_size"]
    # an effect without a sign is more, the larger it is
    directed, magnitude = sizes.values, own.values
    if options.get("signed"):
        # of an effect below zero, nulls that are as far below zero do it, too; one
        # that leads the other way does nothing of it, however far it leads
        sign = np.where(own.values < 0, -1.0, 1.0)
        directed = np.maximum(directed * sign, 0.0)
        magnitude = np.abs(magnitude)
    known = np.isfinite(sizes.values).all(0) & np.isfinite(own.values) & (count > 0)
    share = (directed >= magnitude).sum(0) / max(count, 1)
    # one bound for all members: each alone would be exceeded by chance in 5 %
    confidence = 1 - LEVEL / max(int(known.sum()), 1)
    if options.get("signed"):
        bound = prediction_bound(directed, confidence)
    else:
        # sizes without a sign are skewed; those of no interest are alike
        logs = np.log(np.maximum(directed, SMALLEST))
        bound = np.exp(prediction_bound(logs, confidence))
    highest = np.fmax(directed.max(0, initial=-np.inf), bound)
    dims = own.dims
    return data.assign(
        {
            f"{name}_nulls": (("null", *dims), sizes.values),
            f"{name}_null_share": (dims, np.where(known, share, np.nan)),
            f"{name}_exceeds_nulls": (dims, known & (magnitude > highest)),
        }
    )


def claimed(data: xr.Dataset, name: str) -> xr.DataArray:
    """Mark effects that are claimed: beyond their draws, and significant.

    Where the result has untrained twins, a claimed effect is beyond these, too. That of
    a component needs them, as many parts of untrained models are beyond their draws.
    The tests may since have been corrected with others, so this is read last.

    Returns:
        True of effects that are claimed, over the members.
    """
    result = data[f"{name}_exceeds_nulls"] & data[f"{name}_significant"]
    if f"{name}_learned" in data:
        result = result & data[f"{name}_learned"]
    return result


def share_of_like_norm(
    sizes: np.ndarray, norms: np.ndarray, groups: np.ndarray, count: int = DRAWS
) -> np.ndarray:
    """Return the share of members of like norm that have as large an effect.

    Args:
        sizes: of the effect, (member,).
        norms: of what each member writes, (member,).
        groups: members are compared with others of their group, (member,).
        count: of those with the nearest norm, at most.

    Returns:
        The share (member,); NaN of a member without a size, or without another of the
        group that has one.
    """
    shares = np.full(len(sizes), np.nan)
    known = np.isfinite(sizes)
    for at in np.flatnonzero(known):
        others = np.flatnonzero((groups == groups[at]) & known)
        others = others[others != at]
        nearest = others[np.argsort(np.abs(norms[others] - norms[at]), kind="stable")]
        if len(others):
            shares[at] = (sizes[nearest[:count]] >= sizes[at]).mean()
    return shares
