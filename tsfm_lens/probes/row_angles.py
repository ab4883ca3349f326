"""Angles between the rows of an attention matrix, and whether those of a head lie closer together: weights alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.given import describe
from tsfm_lens.probes.places import stack_named
from tsfm_lens.probes.weight_ranks import Matrix, weight_matrices
from tsfm_lens.ranks import angles
from tsfm_lens.registry import probe
from tsfm_lens.stats import CONFIDENCE

__all__ = ["row_angles"]

PARTS = ("W_Q", "W_K", "W_V", "W_O")


@probe("row_angles", "lens")
def row_angles(
    lens: Lens,
    *,
    part: str = "W_Q",
    kind: str | None = None,
    stack: str | None = None,
    rows: int = 96,
    permutations: int = 199,
    seed: int = 0,
) -> xr.Dataset:
    """Compute angles between the directions of the stream that the heads of a layer read, or write.

    A layer stands out if the difference of angles between heads and within a head exceeds 95 % of the largest
    differences, over layers, of rows shuffled among the heads.

    Args:
        lens: the model.
        part: "W_Q", "W_K", "W_V" or "W_O".
        kind: kind of attention; the stack's first kind if None.
        stack: the stack of the attention; the first one, which reads the series, if None.
        rows: most rows with single angles, evenly over the heads; means are over all rows.
        permutations: number of shuffles.
        seed: of the shuffles.

    Returns:
        Dataset of kind "row_angles", in degrees: ``angle`` (layer, row, other_row), with coordinates ``row_head`` and
        ``row_dimension``, NaN with rows of zeros; ``block_angle`` (layer, head, other_head), ``within`` and ``between``
        (layer), means over pairs of different rows; ``closer`` (layer), between less within, with ``closer_floor`` and
        ``closer_stands_out``. Heads that share keys and values are one. ``attrs["random_angle"]`` is that of random
        lines.

    Source:
        Flow of ranks, equation 2 with the arccos of appendix H, figures 9 and 12 (S0-ANG); Westfall and Young 1993.

    Raises:
        UnknownNameError: no such part, stack or kind of attention.
        InputError: fewer than 2 rows or 19 permutations, or no attention.

    Example:
        >>> probes.row_angles(lens)["block_angle"].dims
        ('layer', 'head', 'other_head')
    """
    if part not in PARTS:
        raise unknown_name("part", part, PARTS)
    if rows < 2 or permutations < 19:
        raise InputError(f"rows {rows} and permutations {permutations}, expected at least 2 and 19")
    column = stack_named(lens.wiring, stack, lens.wiring.stacks[0])
    attention, layers = column.layers_with(kind or next(iter(column.attention_kinds()), None))
    matrices = [one for one in weight_matrices(lens, stack=column.name, parts=[part]) if one.kind == attention]
    n_heads = column.attention(attention, layers[0]).heads_of({"W_K": "k", "W_V": "v"}.get(part, "q"), column.n_heads)
    layers_rows = [_Rows.of(one, n_heads) for one in matrices]
    heads = layers_rows[0].heads
    # rows of every head, evenly spaced
    size = len(heads) // n_heads
    own = np.unique(np.linspace(0, size - 1, min(max(rows // n_heads, 1), size)).round().astype(int))
    sample = (np.arange(n_heads)[:, None] * size + own).ravel()
    means = np.array([one.within_and_between(one.heads[one.nonzero]) for one in layers_rows])
    closer = means[:, 1] - means[:, 0]
    floors, stands = _shuffle_floors(layers_rows, closer, permutations, seed)
    data = xr.Dataset(
        {
            "angle": (("layer", "row", "other_row"), np.stack([one.angle[sample][:, sample] for one in layers_rows])),
            "block_angle": (("layer", "head", "other_head"), np.stack([one.blocks(n_heads) for one in layers_rows])),
            "within": ("layer", means[:, 0]),
            "between": ("layer", means[:, 1]),
            "closer": ("layer", closer),
            "closer_floor": ("layer", floors),
            "closer_stands_out": ("layer", stands),
        },
        coords={
            "layer": list(map(str, layers)),
            "head": range(n_heads),
            "other_head": range(n_heads),
            "row_head": ("row", heads[sample]),
            "row_dimension": ("row", sample % size),
        },
    )
    for name in ("angle", "block_angle", "within", "between", "closer", "closer_floor"):
        data[name].attrs["units"] = "degrees"
    title, source = f"Angles of the rows of {part}", "Flow of ranks, equation 2 with arccos (S0-ANG)"
    facts: dict[str, object] = {"random_angle": random_angle(column.d_model), "stack": column.name, "part": part}
    facts |= {"attention": attention, "permutations": permutations, "seed": seed}
    data.attrs = describe(lens, "row_angles", title, source, **facts)
    return data


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one layer's matrix: angles (row, row) in degrees, their heads (row,), and those that are not zero."""

    angle: np.ndarray
    heads: np.ndarray
    nonzero: np.ndarray

    @classmethod
    def of(cls, matrix: Matrix, n_heads: int) -> _Rows:
        weight = matrix.weight.cpu().double().numpy()
        # the stream is the side that all heads share
        lines = weight.T if matrix.part == "W_O" else weight
        if not np.isfinite(lines).all():
            raise InputError(f"{matrix} holds values that are not finite, so its rows have no angles; mend the weights")
        angle = np.degrees(angles(lines))
        count = lines.shape[1]
        heads = np.repeat(np.arange(n_heads), count // n_heads)
        return cls(angle, heads, np.flatnonzero(np.linalg.norm(lines, axis=0)))

    def _sums(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum angles over pairs of different nonzero rows, and count the pairs, (label, label)."""
        groups = (labels[:, None] == np.arange(self.heads.max() + 1)).astype(float)
        among = self.angle[np.ix_(self.nonzero, self.nonzero)]
        np.fill_diagonal(among, 0.0)
        sizes = groups.sum(0)
        return groups.T @ among @ groups, np.outer(sizes, sizes) - np.diag(sizes)

    def blocks(self, n_heads: int) -> np.ndarray:
        """Average angles over pairs of different rows, (head, head)."""
        sums, counts = self._sums(self.heads[self.nonzero])
        return np.divide(sums, counts, out=np.full((n_heads, n_heads), np.nan), where=counts > 0)

    def within_and_between(self, labels: np.ndarray) -> tuple[float, float]:
        """Average angles over pairs with the same label and with different ones, NaN where there are none."""
        sums, counts = self._sums(labels)
        own, own_count = np.trace(sums), np.trace(counts)
        other, other_count = sums.sum() - own, counts.sum() - own_count
        return own / own_count if own_count else np.nan, other / other_count if other_count else np.nan

    def shuffle(self, permutations: int, rng: np.random.Generator) -> np.ndarray:
        """Compute between less within for rows shuffled among the heads, (permutation,)."""
        labels = self.heads[self.nonzero]
        pairs = [self.within_and_between(rng.permutation(labels)) for _ in range(permutations)]
        return np.array([between - within for within, between in pairs])


def _shuffle_floors(
    layers: list[_Rows], closer: np.ndarray, permutations: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what shuffling reaches in each layer, and which layers exceed it, (layer,); over all layers at once."""
    rng = np.random.default_rng(seed)
    chance = np.stack([one.shuffle(permutations, rng) for one in layers])
    # in units of each layer's own spread, so that no layer sets the scale of all
    middle, spread = chance.mean(1), chance.std(1)
    usable = np.isfinite(spread) & (spread > 0)
    if not usable.any():
        return np.full(len(layers), np.nan), np.zeros(len(layers), dtype=bool)
    largest = ((chance[usable] - middle[usable, None]) / spread[usable, None]).max(0)
    # the measured rows are one of the shuffles
    reach = np.sort(largest)[int(np.ceil(CONFIDENCE * (permutations + 1))) - 1]
    floors = middle + reach * spread
    return floors, usable & (closer > floors)


def random_angle(dimensions: int) -> float:
    """Compute the mean angle in degrees of two random lines: density sin(θ)^(d − 2) from 0 to 90 degrees."""
    # midpoints, so that nothing is evaluated at the ends
    theta = (np.arange(20000) + 0.5) * (np.pi / 2 / 20000)
    weight = np.sin(theta) ** (dimensions - 2) if dimensions > 1 else np.zeros_like(theta)
    return float(np.degrees((theta * weight).sum() / weight.sum())) if dimensions > 1 else 0.0
