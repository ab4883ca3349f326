"""Ranks of every weight matrix of a model: weights alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.hooks.wiring import Attention, Stack, Writer
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.given import describe
from tsfm_lens.probes.places import stack_named
from tsfm_lens.probes.spectra import stable_rank
from tsfm_lens.ranks import decade_histogram, effective_rank, epsilon_rank, participation_ratio
from tsfm_lens.registry import probe

__all__ = ["weight_ranks"]

PARTS = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out")
EPSILON = (0.5, 0.2, 0.1, 0.01, 0.001)
DECADES = 5
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32)


@probe("weight_ranks", "lens")
def weight_ranks(
    lens: Lens,
    *,
    epsilon: float | Iterable[float] = EPSILON,
    per_head: bool = False,
    stack: str | None = None,
    parts: Iterable[str] = PARTS,
    decades: int = DECADES,
) -> xr.Dataset:
    """Compute singular values and ranks of the matrices of every attention and every MLP, in float64.

    Rounding to the checkpoint's precision moves them by about ``rounding_floor`` times the largest; ``told`` is false
    for ranks at a smaller ε.

    Args:
        lens: the model.
        epsilon: one or several; a singular value counts if it is above ε times the largest.
        per_head: the part of every head too, as matrices of their own.
        stack: one stack; all if None.
        parts: names of matrices; the model may lack some.
        decades: number of decades of the histogram.

    Returns:
        Dataset of kind "weight_ranks" over ``matrix`` ("decoder.3.cross_attn.W_Q", of one head
        "decoder.3.cross_attn.5.W_Q"), with coordinates ``stack``, ``layer``, ``layer_kind``, ``part``, ``head`` ("" for
        the whole matrix), ``rows`` and ``columns`` (it acts from the right), and ``full``, the largest possible rank.
        ``singular_value`` (matrix, mode), descending, NaN beyond the last; ``epsilon_rank`` (epsilon, matrix),
        ``rank_share``, the same over the largest possible, and ``told``; ``stable_rank``, ``effective_rank``,
        ``participation_ratio`` and ``rounding_floor`` (matrix), NaN for a matrix of zeros; ``decade_count`` (matrix,
        decade), the relative singular values up to each power of ten and above the next.

    Source:
        Flow of ranks, equation 1 and figures 4, 5, 6, 9 and 10 (S0-ERANK, S0-FOR, S0-HIST).

    Raises:
        UnknownNameError: no such stack or part.
        InputError: an ε outside (0, 1) or below what the weights can tell; values that are not finite; no part.

    Example:
        >>> data = probes.weight_ranks(lens, epsilon=0.01)
        >>> bool((data["epsilon_rank"] <= data["full"]).all())
        True
    """
    levels = checked_levels(epsilon)
    matrices = list(weight_matrices(lens, stack=stack, parts=parts, per_head=per_head))
    if not matrices:
        raise InputError(f"{lens.model_id} has none of {', '.join(parts)}")
    precision = stored_precision(lens)
    spectra, floors = zip(*(_measure(one, precision) for one in matrices), strict=True)
    name, finite = str(precision).removeprefix("torch."), [floor for floor in floors if np.isfinite(floor)]
    if finite and min(levels) < min(finite):
        raise InputError(
            f"epsilon {min(levels):g} is below what these weights can tell: they are stored in {name}, whose rounding "
            f"moves relative singular values by {min(finite):.1g}; choose a larger one"
        )
    data = ranks_of(spectra, floors, levels, "matrix").assign(
        decade_count=(("matrix", "decade"), np.stack([decade_histogram(spectrum, decades) for spectrum in spectra]))
    )
    names = ("stack", "layer", "layer_kind", "part", "head", "rows", "columns", "full")
    rows = [(m.stack, str(m.layer), m.kind, m.part, m.head, *m.weight.shape, min(m.weight.shape)) for m in matrices]
    columns = {each: ("matrix", list(column)) for each, column in zip(names, zip(*rows, strict=True), strict=True)}
    data = data.assign_coords(matrix=list(map(str, matrices)), decade=[10.0**-n for n in range(decades)])
    data = data.assign_coords(columns)
    title, source = "Ranks of the weights", "Flow of ranks, equation 1 (S0-ERANK)"
    data.attrs = describe(lens, "weight_ranks", title, source, precision=name, per_head=int(per_head))
    return data


@dataclass(frozen=True, eq=False)
class Matrix:
    """Weight matrix: where it stands, and its values (rows, columns), which act from the right."""

    stack: str
    layer: int
    kind: str
    part: str
    weight: Tensor
    head: str = ""

    def __str__(self) -> str:
        places = (self.stack, str(self.layer), self.kind, self.head, self.part)
        return ".".join(place for place in places if place)


def weight_matrices(
    lens: Lens, *, stack: str | None = None, parts: Iterable[str] = PARTS, per_head: bool = False
) -> Iterator[Matrix]:
    """Yield the matrices of all attentions and MLPs, in order of writing, each followed by those of its heads."""
    names = list(parts)
    for part in names:
        if part not in PARTS:
            raise unknown_name("part", part, PARTS)
    columns = lens.wiring.stacks
    for column in columns if stack is None else [stack_named(lens.wiring, stack, columns[0])]:
        for layer in range(column.n_layers):
            for row in column.rows(layer):
                for part, weight in _weights_of(lens, column, layer, row):
                    place = (column.name, layer, row.kind, part)
                    if part not in names:
                        continue
                    if weight.ndim == 2:
                        yield Matrix(*place, weight.detach())
                        continue
                    # heads stand side by side where they are read, one below the other where they write
                    whole = weight.flatten(0, 1) if part == "W_O" else weight.transpose(0, 1).flatten(1)
                    yield Matrix(*place, whole.detach())
                    for head, head_weight in enumerate(weight.detach() if per_head else ()):
                        yield Matrix(*place, head_weight, str(head))


def _weights_of(lens: Lens, column: Stack, layer: int, row: Writer) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of one writer: of an attention (head, rows, columns), of an MLP (rows, columns)."""
    if isinstance(row, Attention):
        for letter in "qkv":
            yield f"W_{letter.upper()}", lens.weights.projection(layer, row.kind, letter, column.name)[0]
        yield "W_O", head_output_weights(lens.model, column, layer, row.kind)
        return
    mlp = lens.weights.mlp(layer, row.kind, column.name)
    yield "W_in", mlp.W_in
    if mlp.W_gate is not None:
        yield "W_gate", mlp.W_gate
    yield "W_out", mlp.W_out


def _measure(matrix: Matrix, precision: torch.dtype) -> tuple[np.ndarray, float]:
    """Compute singular values, and how far the rounding of the entries moves them, over the largest."""
    weight = matrix.weight.cpu().double()
    if not torch.isfinite(weight).all():
        raise InputError(f"{matrix} holds values that are not finite, so it has no singular values; mend the weights")
    values = torch.linalg.svdvals(weight).numpy()
    longest = float(weight.norm(dim=0).max() + weight.norm(dim=1).max())
    # an entry is off by at most half a unit in the last place, evenly spread
    error = torch.finfo(precision).eps / 2 / 3**0.5
    return values, rounding_floor(values, longest, error, max(weight.shape))


def ranks_of(spectra: Sequence[np.ndarray], floors: Sequence[float], levels: Sequence[float], dim: str) -> xr.Dataset:
    """Compute the ranks of matrices from their singular values, each descending."""
    full = np.array([len(values) for values in spectra])
    padded = [np.pad(values, (0, full.max() - len(values)), constant_values=np.nan) for values in spectra]
    ranks, axes = np.stack([epsilon_rank(values, levels) for values in spectra], axis=1), ("epsilon", dim)
    measures = {
        "stable_rank": stable_rank,
        "effective_rank": effective_rank,
        "participation_ratio": participation_ratio,
    }
    return xr.Dataset(
        {
            "singular_value": ((dim, "mode"), np.stack(padded)),
            "epsilon_rank": (axes, ranks),
            "rank_share": (axes, ranks / full),
            "told": (axes, ~(np.array(levels)[:, None] < np.array(floors))),
            **{name: (dim, [float(measure(values)) for values in spectra]) for name, measure in measures.items()},
            "rounding_floor": (dim, np.array(floors)),
        },
        coords={"epsilon": levels},
    )


def rounding_floor(values: np.ndarray, longest: float, error: float, size: int) -> float:
    """Bound how far errors of the entries move singular values, over the largest; NaN for a matrix of zeros."""
    if not values[0] > 0:
        return float("nan")
    return error * longest / float(values[0]) + size * float(np.finfo(float).eps)


def stored_precision(lens: Lens) -> torch.dtype:
    """Return the coarsest precision that holds all weights exactly: that of the checkpoint."""
    matrices = [weight.detach() for weight in lens.parameters() if weight.ndim > 1 and weight.is_floating_point()]
    for dtype in _PRECISIONS:
        if all(torch.equal(weight.to(dtype).to(weight.dtype), weight) for weight in matrices):
            return dtype
    return torch.float64


def checked_levels(epsilon: float | Iterable[float]) -> list[float]:
    """Check values of ε, and return them, the largest first, each once."""
    levels = list(epsilon) if isinstance(epsilon, Iterable) else [epsilon]
    for level in levels:
        if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < level < 1:
            raise InputError(f"epsilon is {level!r}, expected above 0 and below 1, such as 0.01")
    if not levels:
        raise InputError("epsilon is empty, expected at least one number above 0 and below 1")
    return sorted({float(level) for level in levels}, reverse=True)


class StreamedSpectrum:
    """Triangular factor of a QR factorisation of a tall matrix whose rows come in parts (Demmel et al. 2012)."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._factor = torch.zeros(0, width, dtype=torch.float64)
        self._longest = 0.0
        self._eps = torch.finfo(torch.float64).eps
        self.rows = 0

    def add(self, rows: Tensor) -> None:
        """Add a part of the rows, (n, width), of any precision."""
        if not len(rows):
            return
        if not torch.isfinite(rows).all():
            raise InputError("the model holds values that are not finite, so its tokens have no singular values")
        self._eps = max(self._eps, torch.finfo(rows.dtype).eps)
        part = rows.cpu().double()
        self.rows += len(part)
        self._longest = max(self._longest, float(part.norm(dim=1).max()))
        self._factor = torch.linalg.qr(torch.cat([self._factor, part]), mode="r").R

    def singular_values(self) -> np.ndarray:
        """Compute all of them, descending: as many as the shorter side of the matrix is long."""
        return torch.linalg.svdvals(self._factor).numpy()

    def singular_values_through(self, map_of_rows: Tensor) -> np.ndarray:
        """Compute those of the matrix times another one, (width, any), descending."""
        return torch.linalg.svdvals(self._factor @ map_of_rows.detach().cpu().double()).numpy()

    def rounding_floor(self, values: np.ndarray, blocks: int) -> float:
        """Bound how far the rounding of a forward moves singular values, over the largest."""
        longest = self._longest + float(self._factor.norm(dim=0).max())
        error = self._eps / 2 / math.sqrt(3) * math.sqrt(1 + 100 * blocks)
        return rounding_floor(values, longest, error, max(self.rows, self._factor.shape[1]))


def ranks_of_rows(
    spectra: Sequence[StreamedSpectrum], levels: Sequence[float], dim: str, blocks: Sequence[int]
) -> xr.Dataset:
    """Compute the ranks of matrices that came in parts, each from a stream after so many blocks."""
    values = [each.singular_values() for each in spectra]
    floors = [each.rounding_floor(own, count) for each, own, count in zip(spectra, values, blocks, strict=True)]
    return ranks_of(values, floors, levels, dim)
