"""Directions that the queries of several models use, by width and by number of heads: weights alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.labels import describe
from tsfm_lens.probes.weight_ranks import checked_levels, weight_ranks

__all__ = ["ranks_by_model"]


def ranks_by_model(lenses: Iterable[Lens], *, epsilon: float | Iterable[float] = (0.1, 0.01)) -> xr.Dataset:
    """Compute the average ε-rank of all W_Q of each model, and of the parts of single heads.

    Args:
        lenses: the models, taken one after the other: a generator that opens them holds one at a time.
        epsilon: one or several.

    Returns:
        Dataset of kind "ranks_by_model" over ``model``, with coordinates ``width`` (d), ``heads`` of the first stack,
        ``architecture``, and ``reads`` ("series" or "text"). ``rank`` and ``head_rank`` (epsilon, model): means over
        all matrices, and over all heads of all; ``rank_low``, ``rank_high``, ``head_rank_low``, ``head_rank_high``: the
        smallest and the largest of them. NaN where rounding of the weights hides one.

    Source:
        Flow of ranks, figures 4 a, b and 9 left and middle (S0-F4, S0-F9).

    Raises:
        InputError: there is no model, two have one name, or as in :func:`weight_ranks`.

    Example:
        >>> found = rank_theory.ranks_by_model([lens], epsilon=0.1)
        >>> bool((found["head_rank"] <= found["rank"]).all())
        True
    """
    levels = checked_levels(epsilon)
    rows: dict[str, dict[str, np.ndarray]] = {}
    facts: list[tuple[int, int, str, str]] = []
    last: Lens | None = None
    for lens in lenses:
        if lens.model_id in rows:
            raise InputError(f"two models are called {lens.model_id!r}, expected names that tell them apart")
        result = weight_ranks(lens, epsilon=levels, parts=["W_Q"], per_head=True)
        ranks = np.where(result["told"].values, result["epsilon_rank"].values.astype(float), np.nan)
        of_head = result["head"].values.astype(str) != ""
        rows[lens.model_id] = {**_summary("rank", ranks[:, ~of_head]), **_summary("head_rank", ranks[:, of_head])}
        stack = lens.wiring.stacks[0]
        facts.append((stack.d_model, stack.n_heads, lens.wiring.architecture, "text" if lens.takes_ids else "series"))
        last = lens
    if last is None:
        raise InputError("there is no model, expected one or more")
    widths, heads, families, reads = zip(*facts, strict=True)
    names = list(next(iter(rows.values())))
    data = xr.Dataset(
        {name: (("epsilon", "model"), np.stack([row[name] for row in rows.values()], axis=1)) for name in names},
        coords={
            "epsilon": levels,
            "model": list(rows),
            "width": ("model", list(widths)),
            "heads": ("model", list(heads)),
            "architecture": ("model", list(families)),
            "reads": ("model", list(reads)),
        },
    )
    title, source = "Ranks of queries, model by model", "Flow of ranks, figures 4 and 9 (S0-F4, S0-F9)"
    data.attrs = {**describe(last, "ranks_by_model", title, source), "model": ", ".join(rows)}
    return data


def _summary(name: str, ranks: np.ndarray) -> dict[str, np.ndarray]:
    """Summarise (epsilon, matrix) by mean and ends, (epsilon,) each; NaN where one is not finite."""
    return {name: ranks.mean(1), f"{name}_low": ranks.min(1), f"{name}_high": ranks.max(1)}
