"""Ranks of every weight matrix of a model: weights alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.hooks.wiring import Attention, Stack, Writer
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.labels import describe
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
    """Compute singular values and ranks of the matrices of every attention and every MLP.

    All singular values are computed in float64 from the stored weights. Rounding to the precision of the checkpoint
    moves each of them by about ``rounding_floor`` times the largest. Smaller ones cannot be told from zero, and a rank
    at a smaller ε counts rounding errors. ``told`` is false for such ranks, and an ε at which all ranks are such is
    refused. Keys and values that several query heads share stand once in W_K and W_V.

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
        the whole matrix), ``rows`` and ``columns`` (it acts from the right, so W_Q has d_model rows), and ``full``, the
        largest possible rank. ``singular_value`` (matrix, mode), descending, NaN beyond the last; ``epsilon_rank``
        (epsilon, matrix), ``rank_share``, the same over the largest possible, and ``told``; ``stable_rank``,
        ``effective_rank``, ``participation_ratio`` and ``rounding_floor`` (matrix), NaN for a matrix of zeros;
        ``decade_count`` (matrix, decade), the relative singular values up to each power of ten and above the next.

    Source:
        Flow of ranks, equation 1 and figures 4, 5, 6, 9 and 10 (S0-ERANK, S0-FOR, S0-HIST).

    Raises:
        UnknownNameError: no such stack or part.
        InputError: an ε outside (0, 1) or below what the weights can tell; a matrix with values that are not finite;
            the model has none of the parts.

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
    _refuse_rounding(levels, np.array(floors), precision)
    data = ranks_of(spectra, floors, levels, "matrix").assign(
        decade_count=(("matrix", "decade"), np.stack([decade_histogram(spectrum, decades) for spectrum in spectra]))
    )
    data = data.assign_coords(decade=[10.0**-place for place in range(decades)], **_coordinates(matrices))
    title, source = "Ranks of the weights", "Flow of ranks, equation 1 (S0-ERANK)"
    data.attrs = describe(lens, "weight_ranks", title, source, precision=_name(precision), per_head=int(per_head))
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

    @property
    def full(self) -> int:
        """Largest possible rank."""
        return min(self.weight.shape)


def weight_matrices(
    lens: Lens, *, stack: str | None = None, parts: Iterable[str] = PARTS, per_head: bool = False
) -> Iterator[Matrix]:
    """Yield the matrices of all attentions and MLPs, in order of writing, each followed by those of its heads.

    Args:
        lens, stack, parts, per_head: see :func:`weight_ranks`.

    Raises:
        UnknownNameError: no such stack or part.
    """
    names = list(parts)
    for part in names:
        if part not in PARTS:
            raise unknown_name("part", part, PARTS)
    columns = lens.wiring.stacks
    for column in columns if stack is None else [stack_named(lens.wiring, stack, columns[0])]:
        for layer in range(column.n_layers):
            for row in column.rows(layer):
                for part, weight in _weights_of(lens, column, layer, row):
                    if part in names:
                        yield from _whole_and_heads((column.name, layer, row.kind), part, weight, per_head)


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


def _whole_and_heads(place: tuple[str, int, str], part: str, weight: Tensor, per_head: bool) -> Iterator[Matrix]:
    weight = weight.detach()
    if weight.ndim == 2:
        yield Matrix(*place, part, weight)
        return
    # heads stand side by side where they are read, one below the other where they write
    yield Matrix(*place, part, weight.flatten(0, 1) if part == "W_O" else weight.transpose(0, 1).flatten(1))
    if per_head:
        for head, head_weight in enumerate(weight):
            yield Matrix(*place, part, head_weight, str(head))


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
    """Compute the ranks of matrices from their singular values, each descending.

    Returns:
        ``singular_value`` (dim, mode), NaN beyond the last; ``epsilon_rank``, ``rank_share`` and ``told`` (epsilon,
        dim); ``stable_rank``, ``effective_rank``, ``participation_ratio`` and ``rounding_floor`` (dim).
    """
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
    """Bound how far errors of the entries move singular values, over the largest; NaN for a matrix of zeros.

    Args:
        values: singular values, descending.
        longest: the largest norm of a row plus the largest norm of a column.
        error: standard deviation of the error of an entry, relative to the entry.
        size: the longer side, for the rounding of the decomposition itself.

    Source:
        Weyl 1912, for singular values under errors of a spectral norm; Bandeira and van Handel 2016, for that norm
        where the errors are independent.
    """
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


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def checked_levels(epsilon: float | Iterable[float]) -> list[float]:
    """Check values of ε, and return them, the largest first, each once.

    Raises:
        InputError: there is none, or one is no number above 0 and below 1.
    """
    levels = list(epsilon) if isinstance(epsilon, Iterable) else [epsilon]
    for level in levels:
        if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < level < 1:
            raise InputError(f"epsilon is {level!r}, expected above 0 and below 1, such as 0.01")
    if not levels:
        raise InputError("epsilon is empty, expected at least one number above 0 and below 1")
    return sorted({float(level) for level in levels}, reverse=True)


def _refuse_rounding(levels: Sequence[float], floor: np.ndarray, precision: torch.dtype) -> None:
    """Refuse an ε that no matrix can tell from rounding."""
    finite = floor[np.isfinite(floor)]
    if len(finite) and min(levels) < finite.min():
        raise InputError(
            f"epsilon {min(levels):g} is below what these weights can tell: they are stored in "
            f"{_name(precision)}, whose rounding moves relative singular values by {finite.min():.1g}; "
            "choose a larger one"
        )


def _coordinates(matrices: Sequence[Matrix]) -> dict[str, Any]:
    names = ("stack", "layer", "layer_kind", "part", "head", "rows", "columns", "full")
    rows = [(one.stack, str(one.layer), one.kind, one.part, one.head, *one.weight.shape, one.full) for one in matrices]
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {"matrix": list(map(str, matrices))} | {name: ("matrix", list(column)) for name, column in columns}
