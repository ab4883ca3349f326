"""Distance of structured matrices to the scoring forms of heads, in the basis of the stream and in others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy.special import stdtr, stdtrit

from tsfm_lens.core.registry import probe
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.given import describe
from tsfm_lens.probes.weights import checked_levels, stable_rank
from tsfm_lens.ranks import epsilon_rank
from tsfm_lens.stats import CONFIDENCE, FEWEST, LEVEL, holm
from tsfm_lens.studies.rank_theory.compression import orthonormal
from tsfm_lens.studies.rank_theory.structure import (
    StructureSizes,
    block_diagonal_error,
    block_share,
    fit_levels,
    low_rank_error,
    structure_sizes,
    tensor_train_error,
)

__all__ = ["scoring_structure"]

STRUCTURES = ("low rank", "block diagonal", "multi-level", "block tensor train")
NULLS = ("rotated", "shuffled", "gaussian")

Progress = Callable[[int, int], None]
Factors = tuple[np.ndarray, np.ndarray]


@probe(
    "lens",
    title="Structure of the scoring forms",
    theme="Weights alone",
    summary=(
        "how near low-rank, block-diagonal, multi-level and block-tensor-train "
        "matrices of one size come to W_Q W_Kᵀ of every head, against rotated and "
        "shuffled streams and random weights"
    ),
    description=(
        "A head scores tokens by the form W_Q W_Kᵀ, of which structured matrices "
        "with fewer numbers are an approximation. All but low rank depend on the "
        "basis of the stream and on the order of its features: nearer than rotated "
        "bases means a privileged basis, nearer than shuffled features means blocks "
        "in the order in which they stand. What acts between the projections, as "
        "rotary embeddings, is not part of the form."
    ),
    source="Structured attention, section 3 and table 1",
    cost="search",
)
def scoring_structure(
    lens: Lens,
    *,
    budget: float | Iterable[float] = 0.5,
    epsilon: float | Iterable[float] = 0.01,
    levels: int = 4,
    sweeps: int = 4,
    draws: int = 9,
    fold_norm: bool = False,
    stack: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the distance of matrices of four structures and one size to W_Q W_Kᵀ of every head.

    Each structure gets as many parameters as a low-rank matrix of rank ρ, or the nearest number below; all but
    multi-level matrices are the best approximations. Nulls are a random rotation of the stream ("rotated"), a random
    order of its features ("shuffled"), and random normal W_Q and W_K.

    Args:
        budget, epsilon: ρ over d_head, above 0 and up to 1, one or several; of the ε-ranks.
        levels, sweeps: the most levels, with 1, 2, 4, … blocks, and of the multi-level fit; nulls have as many.
        draws, seed: of each null.
        fold_norm: with the gain of the norm before the branch in the matrices, which then act on normed streams.
        stack, progress: one stack, all if None; called with (done, of) after each attention.

    Returns:
        Dataset of kind "scoring_structure" over ``component``, the heads, with coordinates ``stack``, ``kind``,
        ``layer_index`` and ``head``: ``stable_rank``, ``epsilon_rank`` (epsilon, component), 0 for a head of zeros;
        ``error`` (budget, structure, component), relative to the form in the Frobenius norm, NaN for a head of zeros;
        ``null_error`` (null, budget, structure, component, draw); ``block_share`` (level, component), of the squared
        form in the diagonal blocks, and ``null_block_share`` (null, level, component), NaN where blocks do not divide;
        ``numbers`` of parameters and ``shape`` in words (budget, structure, component); ``gain`` (null, budget,
        structure, component), the mean null error less the own one, judged by the interval of a further draw.

    Source:
        Structured attention, section 3 (S2-LR, S2-LRBD, S2-MLR, S2-BTT); prediction intervals after Fisher 1935.

    Raises:
        UnknownNameError: no such stack.
        InputError: no attention, a budget outside (0, 1], fewer than 3 draws, a sweep or level below 1, weights that
            are not finite, or an ε as in :func:`weight_ranks`.

    Example:
        >>> structured.scoring_structure(lens, draws=3, sweeps=1)["error"].dims
        ('budget', 'structure', 'component')
    """
    shares, cuts = (
        _check_settings(budget, draws, levels, sweeps),
        checked_levels(epsilon),
    )
    stacks = {each.name: each for each in lens.wiring.stacks}
    if stack is not None and stack not in stacks:
        raise unknown_name("stack", stack, list(stacks))
    fit = _Fit(tuple(shares), levels, sweeps)
    rng = np.random.default_rng(seed)
    turns = [
        _Turns(rng, {each.name: each.d_model for each in stacks.values()})
        for _ in range(draws)
    ]
    forms = list(_forms(lens, stack, fold_norm=fold_norm))
    if not forms:
        raise InputError(f"{lens.model_id} has no attention there, so no scoring form")
    measures, normal = [], {}
    for place, form in enumerate(forms):
        if form.shape not in normal:
            # errors (draw, budget, structure) and shares (draw, level) of random normal factors
            factors = [
                rng.standard_normal((draws, side, form.shape[2]))
                for side in form.shape[:2]
            ]
            normal[form.shape] = fit.errors(form, *factors), fit.shares(*factors)
        measures.append(fit.of(form, turns, normal[form.shape]))
        if progress is not None:
            progress(place + 1, len(forms))
    data = _dataset(forms, measures, fit, cuts)
    title, source = (
        "Structure of the heads' scoring forms",
        "Structured attention, section 3 (S2-MLR, S2-BTT)",
    )
    facts = {
        "fold_norm": int(fold_norm),
        "levels": levels,
        "sweeps": sweeps,
        "draws": draws,
        "seed": seed,
    }
    data.attrs = describe(lens, "scoring_structure", title, source, **facts)
    # rounding of the decompositions can make so much of no difference
    floor = (
        np.sqrt(float((data["numbers"].max() / 2).item()))
        * 100
        * float(np.finfo(float).eps)
    )
    return _with_gain(data, floor)


def _with_gain(data: xr.Dataset, floor: float) -> xr.Dataset:
    """Compare each form's own error with the draws of a null as one draw more: Student's t, Holm over all forms."""
    gains = (data["null_error"] - data["error"]).transpose(..., "draw")
    draws, middle = gains.sizes["draw"], gains.mean("draw")
    error = gains.std("draw", ddof=1) * np.sqrt(1 + 1 / draws)
    reach = float(stdtrit(draws - 1, 0.5 + CONFIDENCE / 2)) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(
            error > 0, (middle - floor) / error, np.sign(middle - floor) * np.inf
        )
    p = holm(stdtr(draws - 1, -t).ravel()).reshape(t.shape)
    parts = {
        "size": middle,
        "low": middle - reach,
        "high": middle + reach,
        "significant": middle.copy(data=p <= LEVEL),
    }
    data = data.assign({f"gain_{name}": each for name, each in parts.items()})
    return data.assign(
        gain=middle, gain_acts=(gains > floor).sum("draw"), gain_floor=((), floor)
    )


@dataclass(frozen=True, eq=False)
class _HeadForms:
    """Heads of one attention: left (head, d_model, d_head) and right (head, d_keys, d_head) of W_Q W_Kᵀ."""

    stack: str
    keys_from: str
    layer: int
    kind: str
    left: np.ndarray
    right: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and d_head."""
        return self.left.shape[-2], self.right.shape[-2], self.left.shape[-1]


def _forms(lens: Lens, stack: str | None, *, fold_norm: bool) -> Iterator[_HeadForms]:
    """Yield the forms of all attentions in order of writing; InputError for weights that are not finite."""
    for column in lens.wiring.stacks:
        if stack not in (None, column.name):
            continue
        for kind in column.attention_kinds():
            for layer in column.layers_with(kind)[1]:
                heads = lens.weights.heads(
                    layer, kind, column.name, fold_norm=fold_norm
                )
                left, right = (
                    each.detach().cpu().double().numpy()
                    for each in (heads.W_Q, heads.W_K)
                )
                if not (np.isfinite(left).all() and np.isfinite(right).all()):
                    where = f"{column.name}.{layer}.{kind}"
                    raise InputError(
                        f"W_Q or W_K of {where} holds values that are not finite; mend the weights"
                    )
                keys_from = column.attention(kind, layer).keys_from or column.name
                yield _HeadForms(column.name, keys_from, layer, kind, left, right)


class _Turns:
    """One random rotation and one random order of the features of every stream, by its name."""

    def __init__(self, rng: np.random.Generator, widths: dict[str, int]) -> None:
        self.rotations = {
            name: orthonormal(width, width, rng) for name, width in widths.items()
        }
        self.orders = {name: rng.permutation(width) for name, width in widths.items()}

    def rotated(self, form: _HeadForms) -> Factors:
        return self.rotations[form.stack] @ form.left, self.rotations[
            form.keys_from
        ] @ form.right

    def shuffled(self, form: _HeadForms) -> Factors:
        return form.left[:, self.orders[form.stack]], form.right[
            :, self.orders[form.keys_from]
        ]


@dataclass(frozen=True)
class _Fit:
    """Settings of the fit to every form: budgets (shares of d_head), levels and sweeps."""

    budgets: tuple[float, ...]
    levels: int
    sweeps: int

    def sizes(self, form: _HeadForms) -> list[StructureSizes]:
        """Return the sizes of the structures by budget."""
        rows, columns, rank = form.shape
        ranks = [
            min(max(round(share * rank), 1), min(form.shape)) for share in self.budgets
        ]
        return [structure_sizes(rows, columns, each, self.levels) for each in ranks]

    def errors(
        self, form: _HeadForms, left: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        """Compute errors (head, budget, structure)."""
        errors = [
            (
                low_rank_error(left, right, size.rank),
                block_diagonal_error(left, right, size.blocks, size.block_rank),
                fit_levels(left, right, size.level_ranks, self.sweeps)[1],
                tensor_train_error(left, right, size.cuts, size.slice_rank),
            )
            for size in self.sizes(form)
        ]
        return np.moveaxis(np.array(errors), -1, 0)

    def shares(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Compute shares (head, level), NaN where the blocks do not divide both sides."""
        none, rows, columns = (
            np.full(len(left), np.nan),
            left.shape[-2],
            right.shape[-2],
        )
        counts = (2**level for level in range(self.levels))
        shares = [
            block_share(left, right, count)
            if rows % count == columns % count == 0
            else none
            for count in counts
        ]
        return np.stack(shares, -1)

    def of(
        self, form: _HeadForms, turns: Sequence[_Turns], normal: Factors
    ) -> dict[str, np.ndarray]:
        """Measure the heads of one attention; the head comes first in every shape."""
        heads = len(form.left)
        errors, shares = [], []
        for pairs in (
            [turn.rotated(form) for turn in turns],
            [turn.shuffled(form) for turn in turns],
        ):
            errors.append(np.stack([self.errors(form, *pair) for pair in pairs], -1))
            shares.append(np.mean([self.shares(*pair) for pair in pairs], axis=0))
        errors.append(
            np.broadcast_to(
                np.moveaxis(normal[0], 0, -1), (heads, *errors[0].shape[1:])
            )
        )
        shares.append(np.broadcast_to(normal[1].mean(0), (heads, self.levels)))
        core, other = (
            np.linalg.qr(form.left, mode="r"),
            np.linalg.qr(form.right, mode="r"),
        )
        return {
            "values": np.linalg.svd(
                core @ np.swapaxes(other, -1, -2), compute_uv=False
            ),
            "error": self.errors(form, form.left, form.right),
            "null_error": np.stack(errors, 1),
            "share": self.shares(form.left, form.right),
            "null_share": np.stack(shares, 1),
        }


def _dataset(
    forms: Sequence[_HeadForms],
    measures: Sequence[dict[str, np.ndarray]],
    fit: _Fit,
    epsilon: Sequence[float],
) -> xr.Dataset:
    """Assemble the measures as a dataset."""
    heads = [
        (form, head, sizes)
        for form in forms
        for sizes in [fit.sizes(form)]
        for head in range(len(form.left))
    ]

    def concatenate(name: str) -> np.ndarray:
        """Concatenate a measure over forms, heads last, but for draws."""
        return np.moveaxis(np.concatenate([each[name] for each in measures]), 0, -1)

    values = [each["values"] for each in measures]
    sides = np.array([form.shape[0] + form.shape[1] for form, _, _ in heads])
    numbers = (
        np.array([[size.ranks for size in sizes] for _, _, sizes in heads]).transpose(
            1, 2, 0
        )
        * sides
    )
    words = np.array(
        [[size.words for size in sizes] for _, _, sizes in heads]
    ).transpose(1, 2, 0)
    where = ("budget", "structure", "component")
    return xr.Dataset(
        {
            "stable_rank": (
                "component",
                np.concatenate([stable_rank(each) for each in values]),
            ),
            "epsilon_rank": (
                ("epsilon", "component"),
                np.concatenate(
                    [epsilon_rank(each, epsilon) for each in values], axis=-1
                ),
            ),
            "error": (where, concatenate("error")),
            "null_error": (
                ("null", *where, "draw"),
                np.swapaxes(concatenate("null_error"), -1, -2),
            ),
            "block_share": (("level", "component"), concatenate("share")),
            "null_block_share": (
                ("null", "level", "component"),
                concatenate("null_share"),
            ),
            "numbers": (where, numbers),
            "shape": (where, words),
        },
        coords={
            "component": [
                str(Component(form.stack, form.layer, form.kind, head))
                for form, head, _ in heads
            ],
            **{
                name: ("component", [getattr(form, attribute) for form, _, _ in heads])
                for name, attribute in (
                    ("stack", "stack"),
                    ("kind", "kind"),
                    ("layer_index", "layer"),
                )
            },
            "head": ("component", [head for _, head, _ in heads]),
            "budget": list(fit.budgets),
            "structure": list(STRUCTURES),
            "null": list(NULLS),
            "epsilon": list(epsilon),
            "level": [2**level for level in range(fit.levels)],
        },
    )


def _check_settings(
    budget: float | Iterable[float], draws: int, levels: int, sweeps: int
) -> list[float]:
    """Return the budgets, the smallest first, each once; refuse invalid settings."""
    budgets = list(budget) if isinstance(budget, Iterable) else [budget]
    for share in budgets:
        if (
            isinstance(share, bool)
            or not isinstance(share, int | float | np.number)
            or not 0 < share <= 1
        ):
            raise InputError(
                f"budget is {share!r}, expected a share of d_head above 0 and up to 1, such as 0.5"
            )
    if not budgets:
        raise InputError(
            "budget is empty, expected at least one share of d_head, such as 0.5"
        )
    for name, value, least in (
        ("draws", draws, FEWEST),
        ("levels", levels, 1),
        ("sweeps", sweeps, 1),
    ):
        if not is_count(value) or value < least:
            raise InputError(
                f"{name} is {value!r}, expected a whole number of at least {least}"
            )
    return sorted({float(share) for share in budgets})
