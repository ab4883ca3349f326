"""Ranks of models: queries, embedded noise by patch size, and vocabularies.

Each function is a registered probe that compares several models or a model with random
embeddings. Read :func:`ranks_by_model` first. Probes of one model are in
:mod:`tsfm_lens.probes`, the figures in
:mod:`tsfm_lens.studies.rank_theory.figures_models`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio
from tsfm_lens.data import as_series
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.stream_ranks import (
    get_vocabulary,
)
from tsfm_lens.probes.weights import checked_levels, weight_ranks

__all__ = ["ranks_by_model", "vocabulary_plane"]

_HEAD = ("kind", "title", "source")


def list_parameters(ds: xr.Dataset) -> str:
    """List the parameters of a result: its attributes but kind, title and source."""
    metadata = {key: value for key, value in ds.attrs.items() if key not in _HEAD}
    return ", ".join(f"{key} {value}" for key, value in metadata.items())


@probe(
    "lenses",
    title="Ranks of queries, model by model",
    theme="Weights alone",
    summary=(
        "average ranks of the queries of several models, by width and by number of "
        "heads"
    ),
    description=(
        "The average ε-rank of all W_Q of a model against its width, and against the "
        "number of its heads, beside that of single heads."
    ),
    source="Flow of ranks, figures 4 and 9",
    paper=(
        "S0-F4",
        "S0-F9",
    ),
    subject=list_parameters,
    cost="weights",
)
def ranks_by_model(
    lenses: Iterable[Lens], *, epsilon: float | Iterable[float] = (0.1, 0.01)
) -> xr.Dataset:
    """Compute the average ε-rank of W_Q and of its heads by model (S0-F4, S0-F9).

    Averages are over all W_Q of a model.

    Returns:
        Dataset of kind "ranks_by_model" over ``model``, with coordinates ``width`` (d),
        ``heads`` of the first stack, ``architecture``, and ``reads`` ("series" or
        "text"). ``rank`` and ``head_rank`` (epsilon, model) are means over all
        matrices, and over all heads of all matrices; ``…_low`` and ``…_high`` are the
        smallest and the largest. They are NaN where rounding hides a rank.

    Raises:
        InputError: two models have one name, or as in :func:`weight_ranks`.

    Example:
        >>> found = rank_theory.ranks_by_model([lens], epsilon=0.1)
        >>> bool((found["head_rank"] <= found["rank"]).all())
        True
    """
    levels = checked_levels(epsilon)
    parts: dict[str, xr.Dataset] = {}
    for lens in lenses:
        if lens.model_id in parts:
            raise InputError(
                f"two models are called {lens.model_id!r}, expected names that tell"
                " them apart"
            )
        result = weight_ranks(lens, epsilon=levels, parts=["W_Q"], per_head=True)
        ranks = np.where(
            result["told"].values, result["epsilon_rank"].values.astype(float), np.nan
        )
        of_head = result["head"].values.astype(str) != ""
        columns = {}
        for name, chosen in (("rank", ~of_head), ("head_rank", of_head)):
            # (epsilon,), NaN where one of the ranks is
            columns[name] = ("epsilon", ranks[:, chosen].mean(1))
            columns[f"{name}_low"] = ("epsilon", ranks[:, chosen].min(1))
            columns[f"{name}_high"] = ("epsilon", ranks[:, chosen].max(1))
        stack = lens.wiring.stacks[0]
        coords = {
            "epsilon": levels,
            "model": lens.model_id,
            "width": stack.d_model,
            "heads": stack.n_heads,
            "architecture": lens.wiring.architecture,
            "reads": "text" if lens.takes_ids else "series",
        }
        attrs = lens.describe(
            "ranks_by_model",
            "Ranks of queries, model by model",
            "Flow of ranks, figures 4 and 9 (S0-F4, S0-F9)",
        )
        parts[lens.model_id] = xr.Dataset(columns, coords)
    # coordinates that are the same in all models are of each model, too
    data = xr.concat(list(parts.values()), "model", coords="all")
    data = data.transpose("epsilon", "model")
    return data.assign_attrs({**attrs, "model": ", ".join(parts)})


@probe(
    "lens",
    title="Vocabulary on two directions",
    theme="Weights alone",
    summary="where the tokens of a vocabulary lie along its two leading directions",
    description=(
        "Each dot is the embedding of a token, along the two directions in which "
        "the vocabulary is largest. Bins of a value that were embedded by that "
        "value lie along a curve; tokens of text form a cloud."
    ),
    source="Flow of ranks, figure 2 b and c",
    paper=("S0-F2",),
    needs="vocabulary",
    subject=list_parameters,
    cost="weights",
)
def vocabulary_plane(lens: Lens) -> xr.Dataset:
    """Project the embeddings of all tokens on their two leading directions (S0-F2).

    The directions are the leading singular vectors of the vocabulary.

    Of a quantised model the tokens are its bins of the value, without special ones; of
    a language model all rows.

    Returns:
        Dataset of kind "vocabulary_plane" over ``token`` (ids). ``coordinate`` is
        (token, direction); ``value`` (token) is that of the bin in scales of the
        series, NaN for text; ``share`` (direction) is the share of the sum of squares;
        ``neighbour_ratio`` is the median distance of tokens with neighbouring ids over
        that of random pairs.

    Raises:
        InputError: the model has no vocabulary.

    Example:
        >>> rank_theory.vocabulary_plane(lens)["coordinate"].dims
        ('token', 'direction')
    """
    table = get_vocabulary(lens)
    if table is None:
        raise InputError(
            f"{lens.model_id} embeds patches, not tokens of a vocabulary; Chronos and"
            " T5 have one"
        )
    first = 0 if lens.takes_ids else lens.first_value_token
    rows = table[first:].double().numpy(force=True)
    # the table has far more rows than columns, so this is cheaper than its SVD
    values, vectors = np.linalg.eigh(rows.T @ rows)
    leading = vectors[:, :-3:-1]
    sizes = np.maximum(values[::-1], 0)
    # signs of singular vectors are arbitrary; here the largest entry is positive
    leading = leading * np.sign(leading[np.abs(leading).argmax(0), [0, 1]])
    plane = rows @ leading
    of_bins = np.full(len(plane), np.nan)
    if not lens.takes_ids:
        # series whose mean absolute value is 1, which is the scale
        encoded = lens.encode(as_series(np.tile([1.0, -1.0], 8)))
        of_bins = lens.bin_values(encoded)[0].double().numpy()
    shuffled = plane[np.random.default_rng(0).permutation(len(plane))]
    near, far = (
        np.median(np.linalg.norm(np.diff(points, axis=0), axis=1))
        for points in (plane, shuffled)
    )
    data = xr.Dataset(
        {
            "coordinate": (("token", "direction"), plane),
            "value": ("token", of_bins),
            "share": ("direction", sizes[:2] / sizes.sum()),
            "neighbour_ratio": ((), ratio(near, far)),
        },
        coords={"token": np.arange(first, first + len(plane)), "direction": [1, 2]},
    )
    return data.assign_attrs(
        lens.describe(
            "vocabulary_plane",
            "Vocabulary on two directions",
            "Flow of ranks, figure 2 b and c (S0-F2)",
            d_model=rows.shape[1],
        )
    )
