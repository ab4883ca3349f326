"""Spectra, ranks and angles of weight matrices, full and per head.

:func:`head_spectra` is of each head's products W_Q W_Kᵀ and W_V W_O,
:func:`weight_ranks` of every matrix, :func:`row_angles` of the directions that heads
read or write. :func:`weight_matrices` yields the matrices. Only weights are used; ranks
of activations are in ``stream_ranks``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.ranks import (
    angles,
    decade_histogram,
    effective_rank,
    epsilon_rank,
    participation_ratio,
)
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import CONFIDENCE, ratio
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack, Writer
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.sites import first_stack

__all__ = ["head_spectra", "row_angles", "stable_rank", "weight_ranks"]

PRODUCTS = ("QK", "OV")


@probe(
    "lens",
    title="Spectra of the heads",
    theme="Weights alone",
    summary="stable rank and singular spectra of W_Q W_Kᵀ and W_V W_O",
    description=(
        "The singular values of each head's two weight products. Query–key is what "
        "a head matches, value–output what it moves. A head with few large values "
        "acts along few directions."
    ),
    source="tsfm-lens paper, definition 5.1 (S3-SRANK)",
    needs="heads",
    cost="weights",
)
def head_spectra(
    lens: Lens,
    *,
    kind: str | None = None,
    stack: str | None = None,
    products: Iterable[str] = PRODUCTS,
    fold_norm: bool = False,
) -> xr.Dataset:
    """Compute singular values of W_Q W_Kᵀ and W_V W_O of every head.

    They come from a d_head × d_head core of each product.

    Args:
        lens: the model.
        kind: kind of attention; the stack's last kind if None.
        stack: the stack of the attention; the output stack if None.
        products: "QK", "OV" or both.
        fold_norm: fold the gain of the norm before the branch into the matrices.

    Returns:
        Dataset of kind "head_spectra":

        - ``singular_value`` (product, layer, head, mode): descending.
        - ``stable_rank`` (product, layer, head): squared Frobenius over squared
          spectral norm, NaN for zero weights.
        - ``order`` (product, layer, head): place of a head in its layer by ascending
          stable rank.

    Source:
        tsfm-lens paper, definition 5.1 (S3-SRANK); factors of 1/sqrt(d_head) change no
        stable rank.

    Raises:
        UnknownNameError: no such stack, kind of attention or product.

    Example:
        >>> probes.head_spectra(lens)["stable_rank"].dims
        ('product', 'layer', 'head')
    """
    column = lens.wiring.stack(stack)
    attention, layers = column.find_layers(kind)
    names = list(products)
    for product in names:
        if product not in PRODUCTS:
            raise unknown_name("product", product, PRODUCTS)
    if not names:
        raise InputError("products is empty; choose QK, OV or both")
    # (product, layer, head, mode); queries may have more features than values, and what
    # a product has fewer of stays 0
    scores = [column.attention(attention, layer).d_score for layer in layers]
    modes = max(column.d_head, *scores)
    values = np.zeros((len(names), len(layers), column.n_heads, modes))
    for layer_index, layer in enumerate(layers):
        weights = lens.weights.heads(layer, attention, column.name, fold_norm=fold_norm)
        factors = {
            # (head, d_model, d_head) and (head, d_head, d_model), never multiplied out
            "QK": (weights.W_Q, weights.W_K.mT),
            "OV": (weights.W_V, weights.W_O),
        }
        for index, product in enumerate(names):
            found = core_singular_values(*factors[product]).cpu()
            values[index, layer_index, :, : found.shape[-1]] = found
    ranks = stable_rank(values)
    data = xr.Dataset(
        {
            "singular_value": (("product", "layer", "head", "mode"), values),
            "stable_rank": (("product", "layer", "head"), ranks),
            # sorting the order of a sort gives ranks
            "order": (
                ("product", "layer", "head"),
                ranks.argsort(axis=-1).argsort(axis=-1),
            ),
        },
        coords={
            "product": names,
            "layer": list(layers),
            "head": range(column.n_heads),
        },
    )
    return data.assign_attrs(
        title=f"Spectra of {attention}",
        stack=column.name,
        attention=attention,
        fold_norm=int(fold_norm),
    )


def stable_rank(singular_values: np.ndarray) -> np.ndarray:
    """Compute stable ranks ‖A‖_F² / ‖A‖₂² from singular values.

    Args:
        singular_values: (…, mode), descending.

    Returns:
        (…), without a unit; NaN for zero matrices.

    Example:
        >>> float(probes.stable_rank(np.array([1.0, 1.0, 1.0])))
        3.0
    """
    values = np.asarray(singular_values, dtype=float)
    # relative to the largest, so that tiny and huge weights neither underflow nor
    # overflow
    result: np.ndarray = np.square(ratio(values, values[..., :1])).sum(axis=-1)
    return result


def core_singular_values(left: Tensor, right: Tensor) -> Tensor:
    """Compute the singular values of ``left @ right``, descending, in float64."""
    # float32 would tell no singular value below some 1e-7 of the largest
    a = left.detach().double()
    b = right.detach().double().mT
    # the orthogonal factors change no singular value, so d_head × d_head is enough
    core = torch.linalg.qr(a, mode="r").R @ torch.linalg.qr(b, mode="r").R.mT
    result: Tensor = torch.linalg.svdvals(core)
    return result


def core_svd(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition of ``left @ right``, in float64.

    The product itself is never made.
    """
    a = left.detach().double()
    b = right.detach().double().mT
    (q_a, r_a), (q_b, r_b) = torch.linalg.qr(a), torch.linalg.qr(b)
    u, s, vt = torch.linalg.svd(r_a @ r_b.mT)
    # a bᵀ = q_a (r_a r_bᵀ) q_bᵀ, and both q have orthonormal columns
    return q_a @ u, s, vt @ q_b.mT


PARTS = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out")
EPSILON = (0.5, 0.2, 0.1, 0.01, 0.001)
DECADES = 5
# the coarsest first
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32)


@probe(
    "lens",
    title="Ranks of the weights",
    theme="Weights alone",
    summary=(
        "how many directions every weight matrix uses: ε-rank, stable and effective "
        "rank, spectra by decade"
    ),
    description=(
        "The ε-rank of a matrix counts its singular values above ε times the "
        "largest. Truncation there changes the matrix by at most ε of its norm. It "
        "is exact for the weights as stored."
    ),
    source="Flow of ranks, equation 1 (S0-ERANK)",
    paper=(
        "S0-ERANK",
        "S0-HIST",
        "S0-F10",
        "S0-F4C",
    ),
    cost="weights",
)
def weight_ranks(
    lens: Lens,
    *,
    epsilon: float | Iterable[float] = EPSILON,
    per_head: bool = False,
    stack: str | None = None,
    parts: Collection[str] = PARTS,
) -> xr.Dataset:
    """Compute singular values and ranks of the matrices of attentions and MLPs.

    They are in float64. Rounding to the checkpoint's precision moves singular values by
    about ``rounding_floor`` times the largest. At a smaller ε a rank is not certain,
    and ``told`` is false.

    Args:
        lens: the model.
        epsilon: one or several; a singular value counts if it is above ε times the
            largest.
        per_head: also the part of every head, as a matrix of its own.
        stack: one stack; all if None.
        parts: names of matrices; a model need not have all.

    Returns:
        Dataset of kind "weight_ranks" over ``matrix`` ("decoder.3.cross_attn.W_Q", of
        one head "decoder.3.cross_attn.5.W_Q"):

        - ``singular_value`` (matrix, mode): descending, NaN beyond the last.
        - ``epsilon_rank`` (epsilon, matrix): number of those above ε times the largest.
        - ``rank_share`` (epsilon, matrix): this over the largest possible rank.
        - ``told`` (epsilon, matrix): whether the rank is certain in spite of rounding.
        - ``stable_rank``, ``effective_rank``, ``participation_ratio``,
          ``rounding_floor`` (matrix): NaN for a matrix of zeros.
        - ``decade_count`` (matrix, decade): number of relative singular values up to
          each power of ten and above the next.

        Coordinates are ``stack``, ``layer``, ``layer_kind``, ``part``, ``head`` ("" for
        the full matrix), ``rows`` and ``columns`` (it acts from the right), and
        ``full``, the largest possible rank.

    Source:
        Flow of ranks, equation 1 and figures 4, 5, 6, 9 and 10 (S0-ERANK, S0-FOR,
        S0-HIST).

    Raises:
        UnknownNameError: no such stack or part.
        InputError: an ε outside (0, 1) or below the weights' precision; values that are
            not finite; no part.

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
    measured = [_measure(matrix, precision) for matrix in matrices]
    spectra, floors = zip(*measured, strict=True)
    name = str(precision).removeprefix("torch.")
    # an ε below the floor of every matrix tells nothing of any; one that is below the
    # floors of some matrices is marked in ``told``
    finite = [floor for floor in floors if np.isfinite(floor)]
    if finite and min(levels) < min(finite):
        raise InputError(
            f"epsilon {min(levels):g} is below what these weights can tell: they are"
            f" stored in {name}, whose rounding moves relative singular values by"
            f" {min(finite):.1g}; choose a larger one"
        )
    counts = [decade_histogram(spectrum, DECADES) for spectrum in spectra]
    data = compute_ranks(spectra, floors, levels, "matrix").assign(
        decade_count=(("matrix", "decade"), np.stack(counts))
    )
    data = data.assign_coords(
        matrix=list(map(str, matrices)),
        decade=[10.0**-power for power in range(DECADES)],
    )
    data = data.assign_coords(
        stack=("matrix", [matrix.stack for matrix in matrices]),
        layer=("matrix", [matrix.layer for matrix in matrices]),
        layer_kind=("matrix", [matrix.kind for matrix in matrices]),
        part=("matrix", [matrix.part for matrix in matrices]),
        head=("matrix", [matrix.head for matrix in matrices]),
        rows=("matrix", [matrix.weight.shape[0] for matrix in matrices]),
        columns=("matrix", [matrix.weight.shape[1] for matrix in matrices]),
        full=("matrix", [min(matrix.weight.shape) for matrix in matrices]),
    )
    return data.assign_attrs(precision=name, per_head=int(per_head))


@dataclass(frozen=True, eq=False)
class Matrix:
    """Weight matrix: where it is in the model, and its values (rows, columns).

    It acts from the right, ``x @ weight``.
    """

    stack: str
    layer: int
    kind: str
    part: str
    weight: Tensor
    head: str = ""

    def __str__(self) -> str:
        names = (self.stack, str(self.layer), self.kind, self.head, self.part)
        return ".".join(name for name in names if name)


def weight_matrices(
    lens: Lens,
    *,
    stack: str | None = None,
    parts: Iterable[str] = PARTS,
    per_head: bool = False,
) -> Iterator[Matrix]:
    """Yield the matrices of all attentions and MLPs, in order of writing.

    Each is followed by those of its heads, if these are asked for.
    """
    names = list(parts)
    for part in names:
        if part not in PARTS:
            raise unknown_name("part", part, PARTS)
    wiring = lens.wiring
    for column in wiring.stacks if stack is None else [wiring.stack(stack)]:
        for layer in range(column.n_layers):
            for writer in column.rows(layer):
                for part, weight in _list_weights(lens, column, layer, writer):
                    site = (column.name, layer, writer.kind, part)
                    if part not in names:
                        continue
                    if weight.ndim == 2:
                        yield Matrix(*site, weight.detach())
                        continue
                    # heads are columns of what reads the stream, rows of what writes
                    if part == "W_O":
                        full = weight.flatten(0, 1)
                    else:
                        full = weight.transpose(0, 1).flatten(1)
                    yield Matrix(*site, full.detach())
                    if not per_head:
                        continue
                    for head, head_weight in enumerate(weight.detach()):
                        yield Matrix(*site, head_weight, str(head))


def _list_weights(
    lens: Lens, column: Stack, layer: int, writer: Writer
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of one writer.

    Those of an attention are (head, rows, columns), of an MLP (rows, columns).
    """
    if isinstance(writer, Attention):
        for letter in "qkv":
            yield (
                f"W_{letter.upper()}",
                lens.weights.projection(layer, writer.kind, letter, column.name)[0],
            )
        yield "W_O", head_output_weights(lens.model, column, layer, writer.kind)
    if not isinstance(writer, Mlp):
        return
    mlp = lens.weights.mlp(layer, writer.kind, column.name)
    yield "W_in", mlp.W_in
    if mlp.W_gate is not None:
        yield "W_gate", mlp.W_gate
    yield "W_out", mlp.W_out


def _measure(matrix: Matrix, precision: torch.dtype) -> tuple[np.ndarray, float]:
    """Return singular values, and how far rounding of the entries moves them.

    The latter is relative to the largest.
    """
    weight = matrix.weight.cpu().double()
    if not torch.isfinite(weight).all():
        raise InputError(
            f"{matrix} holds values that are not finite, so it has no singular values;"
            " fix the weights"
        )
    values = torch.linalg.svdvals(weight).numpy()
    # by Weyl's inequality no singular value moves by more than the norm of the errors;
    # a matrix of independent errors has about the norm of its longest row and its
    # longest column together
    longest = float(weight.norm(dim=0).max() + weight.norm(dim=1).max())
    # an entry is off by at most half a unit in the last place, evenly spread
    error = torch.finfo(precision).eps / 2 / 3**0.5
    return values, rounding_floor(values, longest, error, max(weight.shape))


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stack rows of unequal length, (row, column), with NaN beyond the end of each."""
    width = max(map(len, rows))
    return np.stack(
        [np.pad(row, (0, width - len(row)), constant_values=np.nan) for row in rows]
    )


def compute_ranks(
    spectra: Sequence[np.ndarray],
    floors: Sequence[float],
    levels: Sequence[float],
    dim: str,
) -> xr.Dataset:
    """Compute the ranks of matrices from their singular values, each descending."""
    full = np.array([len(values) for values in spectra])
    ranks = np.stack([epsilon_rank(values, levels) for values in spectra], axis=1)
    axes = ("epsilon", dim)
    measures = {
        "stable_rank": stable_rank,
        "effective_rank": effective_rank,
        "participation_ratio": participation_ratio,
    }
    return xr.Dataset(
        {
            "singular_value": ((dim, "mode"), padded(spectra)),
            "epsilon_rank": (axes, ranks),
            "rank_share": (axes, ranks / full),
            # negated, so that the NaN floor of a zero matrix counts as told: its rank
            # of 0 is certain
            "told": (axes, ~(np.array(levels)[:, None] < np.array(floors))),
            **{
                name: (dim, [float(measure(values)) for values in spectra])
                for name, measure in measures.items()
            },
            "rounding_floor": (dim, np.array(floors)),
        },
        coords={"epsilon": levels},
    )


def rounding_floor(
    values: np.ndarray, longest: float, error: float, size: int
) -> float:
    """Return how far errors of the entries move singular values, at most.

    The bound is relative to the largest, and NaN for a matrix of zeros.
    """
    if not values[0] > 0:
        return float("nan")
    return error * longest / float(values[0]) + size * float(np.finfo(float).eps)


def stored_precision(lens: Lens) -> torch.dtype:
    """Return the coarsest precision that holds all weights exactly.

    It is that of the checkpoint.
    """
    # vectors are left out: no rank depends on the precision of norms and biases
    matrices = [
        weight.detach()
        for weight in lens.parameters()
        if weight.ndim > 1 and weight.is_floating_point()
    ]
    for dtype in _PRECISIONS:
        # a round trip, since a checkpoint in half precision may have been opened in
        # float32
        if all(
            torch.equal(weight.to(dtype).to(weight.dtype), weight)
            for weight in matrices
        ):
            return dtype
    return torch.float64


def checked_levels(epsilon: float | Iterable[float]) -> list[float]:
    """Check values of ε, and return them without repetition, the largest first."""
    if isinstance(epsilon, Iterable):
        levels = list(epsilon)
    else:
        levels = [epsilon]
    for level in levels:
        # bool is a kind of int
        if (
            isinstance(level, bool)
            or not isinstance(level, int | float | np.number)
            or not 0 < level < 1
        ):
            raise InputError(
                f"epsilon is {level!r}, expected above 0 and below 1, such as 0.01"
            )
    if not levels:
        raise InputError(
            "epsilon is empty, expected at least one number above 0 and below 1"
        )
    return sorted({float(level) for level in levels}, reverse=True)


@probe(
    "lens",
    title="Angles of queries",
    theme="Weights alone",
    summary=(
        "angles between the rows of W_Q, and whether those of a head lie closer "
        "together"
    ),
    description=(
        "Each row of W_Q is a direction in the stream that one dimension of a head "
        "reads. If the rows of a head lie close together, the head reads few "
        "directions, and the map has dark blocks on its diagonal."
    ),
    source="Flow of ranks, equation 2 with arccos (S0-ANG)",
    paper=(
        "S0-ANG",
        "S0-F9",
    ),
    needs="heads",
    cost="weights",
)
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
    """Compute angles between the directions of the stream that heads read, or write.

    The statistic of a layer is the difference of angles between heads and within a
    head. A layer is significant if it exceeds 95 % of the largest such differences,
    over layers, with rows shuffled among the heads.

    Args:
        lens: the model.
        part: "W_Q", "W_K", "W_V" or "W_O".
        kind: kind of attention; the stack's first kind if None.
        stack: the stack of the attention; the first one, which reads the series, if
            None.
        rows: largest number of rows with single angles, evenly over the heads; means
            are over all rows.
        permutations: number of shuffles.
        seed: of the shuffles.

    Returns:
        Dataset of kind "row_angles", in degrees. Heads that share keys and values are
        one.

        - ``angle`` (layer, row, other_row): NaN with rows of zeros. Coordinates
          ``row_head`` and ``row_dimension`` place the rows.
        - ``block_angle`` (layer, head, other_head): mean over pairs of different rows.
        - ``within``, ``between`` (layer): means over pairs within a head, and between
          heads.
        - ``closer`` (layer): between less within, with ``closer_floor`` and
          ``closer_significant``.

        ``attrs["random_angle"]`` is the angle of random lines.

    Source:
        Flow of ranks, equation 2 with the arccos of appendix H, figures 9 and 12
        (S0-ANG); Westfall and Young 1993.

    Raises:
        UnknownNameError: no such part, stack or kind of attention.
        InputError: fewer than 2 rows or 19 permutations, or no attention.

    Example:
        >>> probes.row_angles(lens)["block_angle"].dims
        ('layer', 'head', 'other_head')
    """
    if part not in PARTS[:4]:
        raise unknown_name("part", part, PARTS[:4])
    # fewer shuffles have no order statistic at 95 %: with 19 it is the largest
    if rows < 2 or permutations < 19:
        raise InputError(
            f"rows {rows} and permutations {permutations}, expected at least 2 and 19"
        )
    column = first_stack(lens, stack)
    attention, layers = column.find_layers(
        kind or next(iter(column.attention_kinds()), None)
    )
    # keys and values may be shared by several heads
    n_heads = column.attention(attention, layers[0]).count_heads(
        {"W_K": "k", "W_V": "v"}.get(part, "q"), column.n_heads
    )
    layers_rows = [
        _Rows.from_matrix(matrix, n_heads)
        for matrix in weight_matrices(lens, stack=column.name, parts=[part])
        if matrix.kind == attention
    ]
    heads = layers_rows[0].heads
    # rows of every head, evenly spaced
    size = len(heads) // n_heads
    per_head = min(max(rows // n_heads, 1), size)
    offsets = np.unique(np.linspace(0, size - 1, per_head).round().astype(int))
    sample = (np.arange(n_heads)[:, None] * size + offsets).ravel()
    means = np.array(
        [layer.average_angles(layer.heads[layer.nonzero]) for layer in layers_rows]
    )
    closer = means[:, 1] - means[:, 0]
    floors, significant = _shuffle_floors(layers_rows, closer, permutations, seed)
    data = xr.Dataset(
        {
            "angle": (
                ("layer", "row", "other_row"),
                np.stack([layer.angle[sample][:, sample] for layer in layers_rows]),
            ),
            "block_angle": (
                ("layer", "head", "other_head"),
                np.stack([layer.blocks() for layer in layers_rows]),
            ),
            "within": ("layer", means[:, 0]),
            "between": ("layer", means[:, 1]),
            "closer": ("layer", closer),
            "closer_floor": ("layer", floors),
            "closer_significant": ("layer", significant),
        },
        coords={
            "layer": list(layers),
            "head": range(n_heads),
            "other_head": range(n_heads),
            "row_head": ("row", heads[sample]),
            "row_dimension": ("row", sample % size),
        },
    )
    for name in ("angle", "block_angle", "within", "between", "closer", "closer_floor"):
        data[name].attrs["units"] = "degrees"
    return data.assign_attrs(
        title=f"Angles of the rows of {part}",
        random_angle=random_angle(column.d_model),
        stack=column.name,
        part=part,
        attention=attention,
        permutations=permutations,
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one layer's matrix, and the angles (row, row) between them in degrees.

    ``heads`` (row,) are their heads, ``nonzero`` the rows that are not zero.
    """

    angle: np.ndarray
    heads: np.ndarray
    nonzero: np.ndarray

    @classmethod
    def from_matrix(cls, matrix: Matrix, n_heads: int) -> _Rows:
        """Compute the angles between the rows of a matrix of so many heads."""
        weight = matrix.weight.cpu().double().numpy()
        # the stream is the side that all heads share; the paper's matrices act from the
        # left, so its rows are columns here
        lines = weight
        if matrix.part == "W_O":
            lines = weight.T
        if not np.isfinite(lines).all():
            raise InputError(
                f"{matrix} holds values that are not finite, so its rows have no"
                " angles; fix the weights"
            )
        angle = np.degrees(angles(lines))
        count = lines.shape[1]
        heads = np.repeat(np.arange(n_heads), count // n_heads)
        return cls(angle, heads, np.flatnonzero(np.linalg.norm(lines, axis=0)))

    def _sums(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of angles over pairs of different nonzero rows, and their number.

        Both are (label, label).
        """
        groups = (labels[:, None] == np.arange(self.heads.max() + 1)).astype(float)
        # np.ix_ copies, so that the diagonal of the stored angles stays as it is
        angle = self.angle[np.ix_(self.nonzero, self.nonzero)]
        np.fill_diagonal(angle, 0.0)
        sizes = groups.sum(0)
        return groups.T @ angle @ groups, np.outer(sizes, sizes) - np.diag(sizes)

    def blocks(self) -> np.ndarray:
        """Average angles over pairs of different rows, (head, head)."""
        sums, counts = self._sums(self.heads[self.nonzero])
        return ratio(sums, counts)

    def average_angles(self, labels: np.ndarray) -> tuple[float, float]:
        """Return mean angles over pairs of one label, and over pairs of two labels.

        An average over no pairs is NaN.
        """
        sums, counts = self._sums(labels)
        # a pair counts in both orders, in the sums as in the counts
        same = np.array([np.trace(sums), np.trace(counts)])
        different = np.array([sums.sum(), counts.sum()]) - same
        return float(ratio(*same)), float(ratio(*different))

    def shuffle(self, permutations: int, rng: np.random.Generator) -> np.ndarray:
        """Return between less within for shuffled rows, (permutation,).

        Rows are shuffled among the heads.
        """
        labels = self.heads[self.nonzero]
        pairs = [
            self.average_angles(rng.permutation(labels)) for _ in range(permutations)
        ]
        return np.array([between - within for within, between in pairs])


def _shuffle_floors(
    layers: list[_Rows], closer: np.ndarray, permutations: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what shuffling reaches in each layer, and which layers exceed it.

    Both are (layer,); the threshold holds over all layers at once.
    """
    rng = np.random.default_rng(seed)
    chance = np.stack([layer.shuffle(permutations, rng) for layer in layers])
    # in units of each layer's spread, so that no layer sets the scale of all
    mean = chance.mean(1)
    spread = chance.std(1)
    usable = np.isfinite(spread) & (spread > 0)
    if not usable.any():
        return np.full(len(layers), np.nan), np.zeros(len(layers), dtype=bool)
    # for each shuffle the largest over layers, whose quantile holds for all layers at
    # once
    largest = ((chance[usable] - mean[usable, None]) / spread[usable, None]).max(0)
    # counted with the measured rows, which are one more order
    index = int(np.ceil(CONFIDENCE * (permutations + 1))) - 1
    floors = mean + np.sort(largest)[index] * spread
    return floors, usable & (closer > floors)


def random_angle(dimensions: int) -> float:
    """Return the mean angle in degrees of two random lines.

    The density of the angle is sin(θ)^(d − 2) from 0 to 90 degrees.
    """
    if dimensions < 2:
        return 0.0
    # midpoints, so that nothing is evaluated at the ends
    theta = (np.arange(20000) + 0.5) * (np.pi / 2 / 20000)
    density = np.sin(theta) ** (dimensions - 2)
    return float(np.degrees(np.average(theta, weights=density)))
