"""Overlap of induction heads and sharp heads, and how it depends on the thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.probes.attention import SHARP_BELOW
from tsfm_lens.probes.given import of_kind
from tsfm_lens.probes.induction import COPY_FROM, PREFIX_FROM
from tsfm_lens.registry import probe

__all__ = ["induction_overlap"]

COPY_GRID = tuple(np.round(np.arange(0.0, 4.01, 0.25), 2))
ENTROPY_GRID = tuple(np.round(np.arange(0.05, 1.01, 0.05), 2))
PREFIX_GRID = tuple(np.round(np.arange(0.0, 1.01, 0.05), 2))

SCORES = ("prefix_matching", "copy_score", "normalised")
_KEEP: tuple[str, ...] = ("model", "revision", "architecture", "versions", "motif", "repeats", "n_sequences")
_KEEP += ("offset", "decoding", "test", "below_noise")


@probe("induction_overlap", ("induction", "head_entropy"))
def induction_overlap(
    induction: xr.Dataset,
    entropy: xr.Dataset | None = None,
    *,
    prefix_from: float = PREFIX_FROM,
    copy_from: float = COPY_FROM,
    sharp_below: float = SHARP_BELOW,
    copy_grid: Sequence[float] = COPY_GRID,
    entropy_grid: Sequence[float] = ENTROPY_GRID,
    prefix_grid: Sequence[float] = PREFIX_GRID,
) -> xr.Dataset:
    """Count the heads that are induction heads, sharp heads, both or neither; then sweep the thresholds.

    A head is an induction head if both its scores reach their thresholds, and sharp if its entropy, min-max scaled
    over all heads, is below its threshold.

    Args:
        induction: of kind "induction", from :func:`tsfm_lens.probes.induction.induction_scores`.
        entropy: of kind "head_entropy", of the same heads; None takes the entropies along the repeated tokens from
            ``induction``. The paper's text describes the latter, its figure 5 the former.
        prefix_from, copy_from, sharp_below: the thresholds of the table.
        copy_grid, entropy_grid, prefix_grid: the thresholds of the sweeps, ascending.

    Returns:
        Dataset of kind "induction_overlap". Over (layer, head): the scores ``prefix_matching``, ``copy_score`` and
        ``normalised`` (entropy), ``induction``, ``sharp``, and the induction result's statistics of the first two. The
        table: ``count`` and ``proportion`` (induction_state, sharp_state), their totals ``proportion_induction``
        (induction_state) and ``proportion_sharp`` (sharp_state), ``p_sharp_given_induction``,
        ``p_induction_given_sharp``. The sweeps, at a fixed ``prefix_from``: ``sweep_sharp_given_induction`` and
        ``sweep_induction_given_sharp`` (copy_threshold, entropy_threshold), with their denominators
        ``sweep_induction_count`` (copy_threshold) and ``sweep_sharp_count`` (entropy_threshold); and
        ``sweep_proportion_induction`` (copy_threshold, prefix_threshold). ``correlation`` (score, other_score) is
        Pearson's over heads. A share of no heads is undefined, and NaN: its count is then 0. So is the correlation with
        a score that is the same for every head.

    Source:
        tsfm-lens paper, appendix G, table 5 and figure 23 (S3-OVER, S3-F23).

    Raises:
        InputError: a Dataset is of another kind, the two are of different models, heads or attentions, or a grid
            does not ascend.

    Example:
        >>> data = probes.induction_overlap(probes.induction_scores(lens, motif=8, n_sequences=8))
        >>> int(data["count"].sum()) == data["induction"].size
        True
    """
    of_kind(induction, "induction", "induction_overlap", "induction_scores")
    normalised = _normalise(induction) if entropy is None else _align(induction, entropy)
    grids = {"copy_threshold": copy_grid, "entropy_threshold": entropy_grid, "prefix_threshold": prefix_grid}
    axes = {name: _check_grid(name, values) for name, values in grids.items()}
    prefix, copy = induction["prefix_matching"], induction["copy_score"]
    data = xr.Dataset({"prefix_matching": prefix, "copy_score": copy, "normalised": normalised}, coords=axes)
    for name in SCORES[:2]:
        parts = [each for each in induction.data_vars if str(each).startswith(f"{name}_")]
        data = data.assign({part: induction[part] for part in parts})
    data["induction"] = (prefix >= prefix_from) & (copy >= copy_from)
    data["sharp"] = normalised < sharp_below
    data = _table(data)
    data = _sweeps(data, prefix_from)
    data["correlation"] = (("score", "other_score"), _correlations([data[name].values for name in SCORES]))
    data = data.assign_coords(score=list(SCORES), other_score=list(SCORES))
    data.attrs = {
        "kind": "induction_overlap",
        "title": "Overlap of induction heads and sharp heads",
        "source": "tsfm-lens paper, appendix G (S3-OVER, S3-F23)",
        **{key: induction.attrs[key] for key in _KEEP if key in induction.attrs},
        "entropy_along": "repeated tokens" if entropy is None else "forecasts",
        "prefix_from": prefix_from,
        "copy_from": copy_from,
        "sharp_below": sharp_below,
        "undefined": "NaN is a share of no heads, or a correlation with a constant",
    }
    return data


def _table(data: xr.Dataset) -> xr.Dataset:
    """Add counts, proportions and both conditional ones."""
    is_induction, is_sharp = data["induction"].values, data["sharp"].values
    count = np.array([[int((a & b).sum()) for b in (is_sharp, ~is_sharp)] for a in (is_induction, ~is_induction)])
    data = data.assign_coords(induction_state=["induction", "other"], sharp_state=["sharp", "other"])
    share = count / is_sharp.size
    data["count"] = (("induction_state", "sharp_state"), count)
    data["proportion"] = (("induction_state", "sharp_state"), share)
    data["proportion_induction"] = (("induction_state",), share.sum(axis=1))
    data["proportion_sharp"] = (("sharp_state",), share.sum(axis=0))
    data["p_sharp_given_induction"] = ((), float(_shares(count[0, 0], count[0].sum())))
    data["p_induction_given_sharp"] = ((), float(_shares(count[0, 0], count[:, 0].sum())))
    return data


def _sweeps(data: xr.Dataset, prefix_from: float) -> xr.Dataset:
    """Add the same shares at every threshold of the grids."""
    copies = data["copy_score"] >= data["copy_threshold"]
    induction = copies & (data["prefix_matching"] >= prefix_from)
    sharp = data["normalised"] < data["entropy_threshold"]
    heads = ["layer", "head"]
    both = (induction & sharp).sum(heads).transpose("copy_threshold", "entropy_threshold").values
    n_induction, n_sharp = induction.sum(heads).values, sharp.sum(heads).values
    at = ("copy_threshold", "entropy_threshold")
    data["sweep_sharp_given_induction"] = (at, _shares(both, n_induction[:, None]))
    data["sweep_induction_given_sharp"] = (at, _shares(both, n_sharp[None]))
    data["sweep_induction_count"] = (("copy_threshold",), n_induction)
    data["sweep_sharp_count"] = (("entropy_threshold",), n_sharp)
    above = copies & (data["prefix_matching"] >= data["prefix_threshold"])
    data["sweep_proportion_induction"] = above.mean(heads).transpose("copy_threshold", "prefix_threshold")
    return data


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _correlations(scores: list[np.ndarray]) -> np.ndarray:
    flat = np.stack([score.ravel() - score.mean() for score in scores])
    length = np.linalg.norm(flat, axis=1)
    return _shares(flat @ flat.T, np.outer(length, length))


def _normalise(data: xr.Dataset) -> xr.DataArray:
    """Scale entropy to 0 … 1 over all heads, as ``head_entropy`` does."""
    if "entropy" not in data:
        raise InputError("this induction result holds no entropies; give a head_entropy result beside it")
    low, high = float(data["entropy"].min()), float(data["entropy"].max())
    return ((data["entropy"] - low) / ((high - low) or 1.0)).drop_attrs()


def _align(induction: xr.Dataset, entropy: xr.Dataset) -> xr.DataArray:
    """Return the normalised entropies, if they are of the heads that were tested for induction."""
    of_kind(entropy, "head_entropy", "induction_overlap")
    for key in ("model", "attention"):
        ours, theirs = induction.attrs.get(key), entropy.attrs.get(key)
        if None not in (ours, theirs) and ours != theirs:
            raise InputError(f"the induction scores are of the {key} {ours!r}, the entropies of {theirs!r}")
    for dim in ("layer", "head"):
        ours, theirs = list(map(str, induction[dim].values)), list(map(str, entropy[dim].values))
        if ours != theirs:
            raise InputError(f"the induction scores have the {dim}s {ours}, the entropies {theirs}")
    values = entropy["normalised"].transpose("layer", "head").values
    return xr.DataArray(values, dims=("layer", "head"), coords={dim: induction[dim] for dim in ("layer", "head")})


def _check_grid(name: str, values: Sequence[float]) -> list[float]:
    grid = [float(value) for value in values]
    if not grid or any(not a < b for a, b in pairwise(grid)):
        raise InputError(f"the grid of {name} is {grid}, expected ascending numbers")
    return grid
