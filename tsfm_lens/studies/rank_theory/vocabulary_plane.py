"""Tokens of a vocabulary along its two leading directions: weights alone."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.embedding_ranks import vocabulary_of
from tsfm_lens.probes.labels import describe

__all__ = ["vocabulary_plane"]


def vocabulary_plane(lens: Lens) -> xr.Dataset:
    """Project the embedding of every token on the two leading singular vectors of the vocabulary.

    Of a quantised model the tokens are its bins of the value, without special ones; of a language model all rows.

    Args:
        lens: a model that looks its tokens up.

    Returns:
        Dataset of kind "vocabulary_plane" over ``token`` (ids): ``coordinate`` (token, direction), the projections on
        directions 1 and 2, each turned so that its largest entry is positive; ``value`` (token), what the bin stands
        for where the series' scale is 1, NaN of text; ``share`` (direction), of the sum of squares of the vocabulary;
        ``neighbour_ratio``: the median distance of two tokens with neighbouring ids over that of two others, both along
        the two directions, near 0 for a line through the values and near 1 where ids say nothing.

    Source:
        Flow of ranks, figure 2 b and c (S0-F2).

    Raises:
        InputError: the model has no vocabulary, or its embedding is not finite.

    Example:
        >>> rank_theory.vocabulary_plane(lens)["coordinate"].dims
        ('token', 'direction')
    """
    table = vocabulary_of(lens)
    if table is None:
        raise InputError(f"{lens.model_id} embeds patches, not tokens of a vocabulary; Chronos and T5 have one")
    first = 0 if lens.takes_ids else lens.first_value_token
    rows = table.detach().cpu().double()[first:]
    if not torch.isfinite(rows).all():
        raise InputError(f"the embedding of {lens.model_id} holds values that are not finite; mend the weights")
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    leading, sizes = vectors.flip(1)[:, :2].numpy(), values.flip(0).clamp_min(0).numpy()
    leading = leading * np.sign(leading[np.abs(leading).argmax(0), [0, 1]])
    plane = rows.numpy() @ leading
    of_bins = np.full(len(plane), np.nan)
    if not lens.takes_ids:
        # series whose mean absolute value is 1, which is the scale
        of_bins = lens.bin_values(lens.encode(as_series(np.tile([1.0, -1.0], 8))))[0].double().numpy()
    data = xr.Dataset(
        {
            "coordinate": (("token", "direction"), plane),
            "value": ("token", of_bins),
            "share": ("direction", sizes[:2] / sizes.sum()),
            "neighbour_ratio": ((), _neighbours(plane)),
        },
        coords={"token": np.arange(first, first + len(plane)), "direction": [1, 2]},
    )
    title, source = "Vocabulary on two directions", "Flow of ranks, figure 2 b and c (S0-F2)"
    data.attrs = describe(lens, "vocabulary_plane", title, source, d_model=rows.shape[1])
    return data


def _neighbours(plane: np.ndarray) -> float:
    """Compute the median distance of neighbours over that of tokens in a shuffled order."""
    other = np.random.default_rng(0).permutation(len(plane))
    near = np.linalg.norm(np.diff(plane, axis=0), axis=1)
    far = np.linalg.norm(np.diff(plane[other], axis=0), axis=1)
    return float(np.median(near) / np.median(far)) if np.median(far) > 0 else float("nan")
