"""Spectra of embedded noise by patch size: of models, and of random residual MLPs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.run import Run
from tsfm_lens.probes.embedding_ranks import embedding_ranks, signal_families
from tsfm_lens.probes.weight_ranks import EPSILON, checked_levels
from tsfm_lens.ranks import epsilon_rank
from tsfm_lens.studies.rank_theory.embeddings import ResidualMlpEmbedding

__all__ = ["spectra_by_patch"]

PATCHES = (1, 4, 16, 64)
NOISE = "white noise"


def spectra_by_patch(
    run: Run | Sequence[Run],
    *,
    patches: Sequence[int] = PATCHES,
    epsilon: float | Iterable[float] = EPSILON,
    seed: int = 0,
) -> xr.Dataset:
    """Compute singular values of white noise as models embed it, and as random residual MLPs of several patch sizes do.

    Args:
        run: of a model, or one of each of several.
        patches: steps of a patch of the random embeddings, which are as wide as the first model; none if empty.
        epsilon: one or several, of the ranks.
        seed: of the noise and of the random embeddings.

    Returns:
        Dataset of kind "spectra_by_patch" over ``embedding`` (names of models, "random, patch 4", …), with coordinates
        ``patch`` (the longest token, in steps), ``width`` (d) and ``origin`` ("model" or "random"): ``singular_value``
        (embedding, mode), descending, NaN beyond the last, ``rounding_floor`` (embedding), relative, 0 of random ones;
        ``epsilon_rank`` (epsilon, embedding), and ``full`` (embedding), the largest possible.

    Source:
        Flow of ranks, figure 3 a, theorem 2 (S0-F3).

    Raises:
        InputError: an ε outside (0, 1), a patch below 1 step, or a model that reads text.

    Example:
        >>> found = rank_theory.spectra_by_patch(run, patches=[2], epsilon=0.01)
        >>> found["patch"].values.tolist()[1:]
        [2]
    """
    levels = checked_levels(epsilon)
    runs = [run] if isinstance(run, Run) else list(run)
    if not runs or min(patches, default=1) < 1:
        raise InputError(f"{len(runs)} runs and patches {list(patches)}, expected one run or more and 1 step or more")
    entries: list[tuple[str, int, int, str, np.ndarray, float]] = []
    for each in runs:
        lens = each.lens
        if lens.takes_ids:
            raise InputError(f"{lens.model_id} reads text, which has no patches; give a model of series")
        noise = {NOISE: signal_families(each, seed=seed)[NOISE]}
        one = embedding_ranks(each, signals=noise, epsilon=levels, seed=seed).sel(family=NOISE)
        values = one["singular_value"].values
        floor = float(one["rounding_floor"])
        width = int(one.attrs.get("d_model", lens.wiring.stacks[0].d_model))
        entries.append((lens.model_id, longest_token(each), width, "model", values[np.isfinite(values)], floor))
    width = entries[0][2]
    for patch in patches:
        columns = np.random.default_rng(seed).normal(size=(patch, 2 * width))
        tokens = ResidualMlpEmbedding.random(width, patch, seed=seed).embed(columns)
        values = np.linalg.svd(tokens, compute_uv=False)
        entries.append((f"random, patch {patch}", patch, width, "random", values, 0.0))
    names, sizes, widths, origins, spectra, floors = zip(*entries, strict=True)
    modes = max(map(len, spectra))
    data = xr.Dataset(
        {
            "singular_value": (
                ("embedding", "mode"),
                np.stack([np.pad(own, (0, modes - len(own)), constant_values=np.nan) for own in spectra]),
            ),
            "epsilon_rank": (
                ("epsilon", "embedding"),
                np.stack([epsilon_rank(own, levels) for own in spectra], axis=1),
            ),
            "full": ("embedding", [len(own) for own in spectra]),
            "rounding_floor": ("embedding", list(floors)),
        },
        coords={
            "embedding": list(names),
            "patch": ("embedding", list(sizes)),
            "width": ("embedding", list(widths)),
            "origin": ("embedding", list(origins)),
            "epsilon": levels,
        },
    )
    title, source = "Spectra by patch size", "Flow of ranks, figure 3 a (S0-F3)"
    data.attrs = runs[0].describe("spectra_by_patch", title, source, signal_seed=seed)
    data.attrs["model"] = ", ".join(str(each.lens.model_id) for each in runs)
    return data


def longest_token(run: Run) -> int:
    """Return the steps that the longest token of the first stack covers."""
    spans = run.encoded.spans[run.lens.wiring.stacks[0].name]
    return max(stop - start for start, stop in zip(spans.start, spans.stop, strict=True))
