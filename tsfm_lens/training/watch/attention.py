"""Measures of attention patterns: entropy, nuclear norm, diagonal mass and rank.

:func:`attention_measures` measures arrays, :func:`attention_norms` a model input by
input; :func:`compute_patterns` takes the patterns from a lens. A watch records means of
the same measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.attention import row_entropy

__all__ = [
    "ATTENTION_MEASURES",
    "attention_measures",
    "attention_norms",
    "compute_patterns",
]

EPSILON = 0.01
ATTENTION_MEASURES = (
    "entropy",
    "nuclear_norm",
    "diagonal_mass",
    "numerical_rank",
    "stable_rank",
)
"""What is measured of a pattern."""
SIZES = ("n_queries", "n_keys")
Patterns = Callable[[], Mapping[str, Tensor]]
"""Gives the attention of fixed inputs by layer, each (…, head, query, key)."""
_SOURCE = "SAMformer, figures 3, 6 and 7 (S1-AENT, S1-NUC, S1-DIAG)"


def attention_measures(
    pattern: Tensor | np.ndarray, *, epsilon: float = EPSILON
) -> dict[str, np.ndarray]:
    """Compute entropy, nuclear norm, diagonal mass and ranks of attention patterns.

    Args:
        pattern: (…, query, key), rows from 0 on.
        epsilon: a singular value counts for the numerical rank if it is above this
            share of the largest.

    Returns:
        Each (…), in float64. ``entropy`` in nats, the mean over queries.
        ``nuclear_norm``, the sum of singular values. ``diagonal_mass``, the mean of
        A_ii, NaN where queries are not as many as keys. ``numerical_rank`` is that of
        :func:`tsfm_lens.core.ranks.epsilon_rank`, ``stable_rank`` ‖A‖_F² / ‖A‖₂².

    Raises:
        InputError: attention is empty, holds an entry below 0 or NaN, or ``epsilon`` is
            not between 0 and 1.

    Source:
        SAMformer, sections 2.3 and 3.2 (S1-AENT, S1-NUC, S1-DIAG); entropy: Zhai et al.
        2023, arXiv:2303.06296.

    Example:
        >>> found = training.attention_measures(np.eye(4))
        >>> {name: float(found[name]) for name in ("nuclear_norm", "stable_rank")}
        {'nuclear_norm': 4.0, 'stable_rank': 4.0}
    """
    if isinstance(pattern, Tensor):
        values = pattern.detach().cpu().double().numpy()
    else:
        values = np.asarray(pattern, float)
    if values.ndim < 2 or not values.size:
        raise InputError(
            f"attention of shape {values.shape}; expected (…, query, key) with at least"
            " one of each"
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(
            "attention holds an entry below 0 or none; expected the weights after the"
            " softmax"
        )
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon is {epsilon}, expected above 0 and below 1")
    singular = np.linalg.svd(values, compute_uv=False)
    largest = singular[..., :1]
    # a pattern of zeros has no largest value to divide by
    share = np.divide(singular, largest, out=np.zeros_like(singular), where=largest > 0)
    square = values.shape[-1] == values.shape[-2]
    if square:
        diagonal = np.diagonal(values, axis1=-2, axis2=-1).mean(-1)
    else:
        diagonal = np.full(values.shape[:-2], np.nan)
    return {
        # what rounding leaves of a row with one key is no entropy
        "entropy": np.maximum(row_entropy(values).mean(-1), 0.0),
        "nuclear_norm": singular.sum(-1),
        "diagonal_mass": diagonal,
        "numerical_rank": (share > epsilon).sum(-1).astype(float),
        "stable_rank": np.square(share).sum(-1),
    }


def compute_patterns(lens: Lens, series: Any) -> dict[str, Tensor]:
    """Return the attention of every head on some series, in one forward pass.

    Args:
        lens: the model.
        series: anything that :func:`tsfm_lens.data.as_series` takes.

    Returns:
        Attention (row, head, query, key), by layer.

    Example:
        >>> sorted(training.compute_patterns(lens, run.batch))[0]
        'decoder.0.cross_attn'
    """
    with torch.no_grad():
        _, cache = lens.run_with_cache(
            lens.encode(series), names_filter="**.hook_pattern"
        )
    points = {name: name.removesuffix(".hook_pattern") for name in cache}
    return {
        point.replace("_blocks.", ".").removeprefix("blocks."): cache[name]
        for name, point in points.items()
    }


def checked(patterns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Check attention by layer, and return it as (row, head, query, key)."""
    if not isinstance(patterns, Mapping) or not patterns:
        raise InputError(
            "patterns gives no attention; expected (…, head, query, key) by the name of"
            " a layer"
        )
    for name, pattern in patterns.items():
        if not isinstance(pattern, Tensor) or pattern.ndim < 3:
            if isinstance(pattern, Tensor):
                got = f"shape {tuple(pattern.shape)}"
            else:
                got = type(pattern).__name__
            raise InputError(
                f"attention {name!r} has {got}; expected a tensor (…, head, query, key)"
            )
    return {
        str(name): pattern.detach().reshape(-1, *pattern.shape[-3:])
        for name, pattern in patterns.items()
    }


def attention_norms(
    patterns: Mapping[str, Tensor] | Patterns,
    *,
    name: str = "",
    epsilon: float = EPSILON,
) -> xr.Dataset:
    """Measure attention for every input by itself.

    A watch keeps the mean of these values.

    Args:
        patterns: (…, head, query, key) by layer, such as :func:`compute_patterns`
            gives.
        name: of the model.
        epsilon: singular values above this share of the largest count for the numerical
            rank.

    Returns:
        Dataset of kind "attention_norms": each of :func:`attention_measures` over
        (layer, head, input), with ``n_queries`` and ``n_keys`` of each layer; NaN where
        a layer has fewer heads or inputs.

    Example:
        >>> found = training.attention_norms(training.compute_patterns(lens, run.batch))
        >>> dict(found["nuclear_norm"].sizes)
        {'layer': 9, 'head': 4, 'input': 1}
    """
    by_layer = checked(patterns() if callable(patterns) else patterns)
    measures = {
        layer: attention_measures(pattern, epsilon=epsilon)
        for layer, pattern in by_layer.items()
    }
    rows = [
        {
            layer: (
                count_positions(pattern)
                | {
                    measure: values[index].tolist()
                    for measure, values in measures[layer].items()
                }
            )
            for layer, pattern in by_layer.items()
            if index < len(pattern)
        }
        for index in range(max(map(len, by_layer.values())))
    ]
    data = by_head("input", rows).transpose("layer", "head", "input")
    attrs = {
        "kind": "attention_norms",
        "title": "Attention input by input",
        "source": _SOURCE,
        "model": name,
    }
    return data.assign_attrs(attrs, epsilon=epsilon)


def count_positions(pattern: Tensor) -> dict[str, Any]:
    """Return numbers of queries and keys."""
    return dict(zip(SIZES, pattern.shape[-2:], strict=True))


def by_head(axis: str, rows: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Arrange entries by layer over (axis, layer, head).

    None, and what is not there, become NaN.

    Returns:
        The dataset, empty without rows.
    """
    layers = {name: layer for row in rows for name, layer in row.items()}
    if not layers:
        return xr.Dataset()
    measures = dict.fromkeys(
        name for layer in layers.values() for name in layer if name not in SIZES
    )
    heads = max(len(layer[name]) for layer in layers.values() for name in measures)
    data = xr.Dataset(coords={"layer": list(layers), "head": range(heads)})
    for name in measures:
        values = np.full((len(rows), len(layers), heads), np.nan)
        for i, row in enumerate(rows):
            for j, layer in enumerate(layers):
                numbers = row.get(layer, {}).get(name, [])
                # dtype float makes NaN of None, which stands in the record for what is
                # not finite
                values[i, j, : len(numbers)] = np.array(numbers, dtype=float)
        data[name] = (
            (axis, "layer", "head"),
            values,
            {"units": "nats"} if name == "entropy" else {},
        )
    return data.assign_coords(
        {size: ("layer", [layer[size] for layer in layers.values()]) for size in SIZES}
    )
