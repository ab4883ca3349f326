"""Attention with structured scores against its definition, gradients, cached decoding,
and counted costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tsfm_lens.models import load
from tsfm_lens.probes import head_spectra
from tsfm_lens.studies.structured.counts import (
    bilinear_level_operations,
    level_attention_operations,
)
from tsfm_lens.studies.structured.forms import (
    BilinearLevels,
    BilinearTrain,
    ScoringForm,
    Standard,
    TokenLevels,
    token_blocks,
)
from tsfm_lens.studies.structured.matrices import level_blocks
from tsfm_lens.studies.structured.models import (
    ScoredAttention,
    make_forecaster,
)
from tsfm_lens.studies.structured.scores import (
    Reach,
    reaching_scores,
)
from tsfm_lens.testing import assert_close

WIDTH = 16
HEADS = 2
SIZE = 8

FORMS: dict[str, ScoringForm] = {
    "standard": Standard(),
    "standard, as printed": Standard(scale="none"),
    "standard, mup and norm": Standard(scale="mup", constant=3.0, norm=True),
    "window": Standard(window=3),
    "window of one": Standard(window=0),
    "token levels": TokenLevels(ranks=(4, 2, 2)),
    "token levels of one rank 0": TokenLevels(ranks=(0, 6, 2), norm=True),
    "token levels, scaled": TokenLevels(
        ranks=(4, 2, 2), level_scale=True, by_depth=True, norm=True
    ),
    "token levels of a length": TokenLevels(
        ranks=(3, 3, 1, 1), length=40, by_depth=True
    ),
    "bilinear levels": BilinearLevels(ranks=(3, 2, 1)),
    "bilinear levels, mup and norm": BilinearLevels(
        ranks=(3, 2, 1), scale="mup", norm=True
    ),
    "bilinear train": BilinearTrain(),
    "bilinear train of rank 2, mup": BilinearTrain(rank=2, scale="mup"),
}


def module(form: ScoringForm, *, causal: bool = True) -> ScoredAttention:
    torch.manual_seed(0)
    made = ScoredAttention(WIDTH, HEADS, form, causal=causal).double()
    with torch.no_grad():
        for part in made.parameters():
            part.copy_(torch.randn_like(part) * 0.5)
    return made


def normed(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def factor(form: ScoringForm, features: int) -> float:
    return {"none": 1.0, "sqrt": features**-0.5, "mup": form.constant / features}[
        form.scale
    ]


def block_sum(
    x: np.ndarray, y: np.ndarray, left: np.ndarray, right: np.ndarray, head: int
) -> tuple[np.ndarray, ...]:
    """Queries and keys of one level of one head: chunk k of the features through block
    k.
    """
    size = x.shape[1] // len(left)
    q = [x[:, k * size : (k + 1) * size] @ left[k, :, head] for k in range(len(left))]
    k = [y[:, k * size : (k + 1) * size] @ right[k, :, head] for k in range(len(right))]
    return np.concatenate(q, 1), np.concatenate(k, 1)


def compute_scores(made: ScoredAttention, x: np.ndarray, head: int) -> np.ndarray:
    """The scores of one head by the definition, entry by entry where blocks matter."""
    form = made.form
    tokens = len(x)
    if isinstance(form, BilinearLevels):
        total = np.zeros((tokens, tokens))
        for left, right in zip(made.q.factors, made.k.factors, strict=True):
            q, k = block_sum(x, x, left.detach().numpy(), right.detach().numpy(), head)
            q, k = (normed(q), normed(k)) if form.norm else (q, k)
            total += q @ k.T * factor(form, q.shape[1])
        return total
    if isinstance(form, BilinearTrain):
        return x @ (x @ train_head(made, head).T).T * factor(form, WIDTH)
    rows = slice(head * made.d_score, (head + 1) * made.d_score)
    q, k = (x @ part.weight.detach().numpy()[rows].T for part in (made.q, made.k))
    q, k = (normed(q), normed(k)) if form.norm else (q, k)
    if isinstance(form, TokenLevels):
        return level_scores(form, q, k)
    scores = q @ k.T * factor(form, q.shape[1])
    at = np.arange(tokens)
    far = np.abs(at[:, None] - at) > (tokens if form.window is None else form.window)
    return np.where(far, -np.inf, scores)


def train_head(made: ScoredAttention, head: int) -> np.ndarray:
    """M[αb + β, γd + δ] = Σ_t L_β[α, γs + t] R_γ[δ, βs + t] of a head."""
    left = made.q
    right = made.k
    outer = left.factor.detach().numpy()[:, :, head]
    inner = right.factor.detach().numpy()[:, :, head]
    b = left.b
    a = left.a
    c = left.c
    d = left.d
    s = left.rank
    out = np.zeros((a * b, c * d))
    for alpha, beta, gamma, delta in np.ndindex(a, b, c, d):
        rows = outer[beta, alpha, gamma * s : (gamma + 1) * s]
        columns = inner[gamma, delta, beta * s : (beta + 1) * s]
        out[alpha * b + beta, gamma * d + delta] = rows @ columns
    return out


def level_scores(form: TokenLevels, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """x_jᵀ Σ_{l ≤ d(j, j')} L_l R_lᵀ x_j' with d by floor(j p_l / T), T filled up to
    what the levels divide.
    """
    tokens = len(q)
    levels = len(form.ranks)
    length = form.length or tokens
    length += -length % 2 ** (levels - 1)
    out = np.zeros((tokens, tokens))
    bounds = np.cumsum((0, *form.ranks))
    for j, i in np.ndindex(tokens, tokens):
        depth = (
            max(
                level
                for level in range(levels)
                if j * 2**level // length == i * 2**level // length
            )
            + 1
        )
        for level in range(depth):
            columns = slice(bounds[level], bounds[level + 1])
            if form.ranks[level]:
                if form.level_scale:
                    share = 1 / form.ranks[level]
                else:
                    share = factor(form, q.shape[1])
                out[j, i] += q[j, columns] @ k[i, columns] * share
        out[j, i] /= depth if form.by_depth else 1
    return out


def reference(made: ScoredAttention, x: np.ndarray) -> np.ndarray:
    """The module by its definition, one sequence (token, width)."""
    out = np.zeros_like(x)
    for head in range(HEADS):
        scores = compute_scores(made, x, head)
        if made.causal:
            scores = np.where(np.triu(np.ones_like(scores), 1) > 0, -np.inf, scores)
        pattern = np.exp(scores - scores.max(-1, keepdims=True))
        rows = slice(head * SIZE, (head + 1) * SIZE)
        z = (
            pattern
            / pattern.sum(-1, keepdims=True)
            @ (x @ made.v.weight.detach().numpy()[rows].T)
        )
        out += z @ made.o.weight.detach().numpy()[:, rows].T
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_attention_is_its_definition(name: str, causal: bool) -> None:
    made = module(FORMS[name], causal=causal)
    x = torch.randn(2, 16, WIDTH, dtype=torch.float64)
    expected = np.stack([reference(made, sequence) for sequence in x.numpy()])
    assert_close(made(x), expected, depth=2000)


@pytest.mark.parametrize(
    ("tokens", "ranks"), [(256, (4, 2, 1, 1)), (256, (1,) * 8), (128, (6,))]
)
def test_operations_of_token_levels_are_counted(
    tokens: int, ranks: tuple[int, ...]
) -> None:
    """The operations of token levels are those of the formula, as torch counts them."""
    distance = Reach(ranks, token_blocks(tokens, len(ranks)), causal=False)
    q = torch.randn(1, tokens, sum(ranks))
    with FlopCounterMode(display=False) as counter:
        reaching_scores(q, q, distance)
    counted = counter.get_total_flops() // 2
    assert counted == level_attention_operations(tokens, ranks)


@pytest.mark.parametrize("name", FORMS)
def test_layers_read_as_their_matrices(name: str) -> None:
    """A layer reads as the matrix that it is."""
    made = module(FORMS[name])
    x = torch.randn(5, WIDTH, dtype=torch.float64)
    for part in (made.q, made.k):
        weight: Tensor = part.weight
        assert weight.shape == (HEADS * made.d_score, WIDTH)
        assert_close(part(x), x @ weight.double().T, depth=200)
        if not isinstance(part, nn.Linear):
            with part.as_matrix(torch.zeros_like(weight)):
                assert not part(x).any()
            assert_close(part(x), x @ weight.double().T, depth=200)


def counted(work: object) -> int:
    """Multiply-adds of what is done."""
    assert callable(work)
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() // 2


def split_features(x: Tensor, blocks: int) -> Tensor:
    return x.unflatten(1, (blocks, -1)).transpose(0, 1)


def by_order(x: Tensor, ranks: Sequence[int], order: str) -> Tensor:
    """Scores of x with drawn factors, by one order of contraction, with batched
    products alone.
    """
    torch.manual_seed(0)
    width = x.shape[1]
    levels = []
    for rank, count in zip(ranks, level_blocks(len(ranks)), strict=True):
        left, right = (
            torch.randn(count, width // count, rank, dtype=x.dtype) for _ in range(2)
        )
        levels.append((count, left, right))
    if order == "a":
        matrix = sum(
            torch.block_diag(*torch.bmm(left, right.mT)) for _, left, right in levels
        )
        assert isinstance(matrix, Tensor)
        return x @ matrix @ x.T
    total = x.new_zeros(len(x), len(x))
    keys = torch.zeros_like(x)
    for count, left, right in levels:
        parts = split_features(x, count)
        if order == "b":
            inner = torch.bmm(parts, torch.bmm(left, right.mT))
            total = total + inner.transpose(0, 1).flatten(1) @ x.T
        elif order == "c":
            q, k = ((parts @ side).transpose(0, 1).flatten(1) for side in (left, right))
            total = total + q @ k.T
        else:
            wide = torch.bmm(parts @ right, left.mT).transpose(0, 1).flatten(1)
            keys = keys + wide
            if order == "d":
                total = total + x @ wide.T
    if order == "e":
        return x @ keys.T
    return total


@pytest.mark.parametrize(
    ("tokens", "width", "ranks"),
    [(12, 16, (3, 2, 1)), (40, 16, (4, 4)), (8, 32, (1, 2, 3, 4))],
)
def test_bilinear_levels_cost_what_formulas_say(
    tokens: int, width: int, ranks: tuple[int, ...]
) -> None:
    x = torch.randn(tokens, width, dtype=torch.float64)
    costs = bilinear_level_operations(tokens, width, ranks)
    plain = by_order(x, ranks, "a")
    blocks = level_blocks(len(ranks))
    # adding the blocks of finer levels into the coarsest: D² / p_l additions, half a
    # multiply-add each
    additions = sum(Fraction(width**2, 2 * count) for count in blocks[1:])
    for order, cost in costs.items():
        assert_close(by_order(x, ranks, order), plain, depth=2000)
        extra = 0
        if order == "a":
            extra = additions
        assert counted(lambda order=order: by_order(x, ranks, order)) + extra == cost, (
            order
        )


def test_spectra_of_queries_wider_than_values() -> None:
    """Queries and keys of more features than values keep all their singular values."""
    made = make_forecaster(
        "mlr-attention", 16, 16, 2, width=16, layers=1, heads=2, ranks=[9, 3]
    )
    lens = load(made, check=False)
    assert lens.wiring.output_stack.d_head < 12
    found = head_spectra(lens)
    weights = lens.weights.heads(0)
    for product, (left, right) in {
        "QK": (weights.W_Q, weights.W_K.mT),
        "OV": (weights.W_V, weights.W_O),
    }.items():
        dense = torch.linalg.svdvals((left @ right).double())
        ours = found["singular_value"].sel(product=product, layer=0).values
        width = min(ours.shape[-1], dense.shape[-1])
        assert_close(
            ours[:, :width], dense[:, :width].numpy(), depth=50, dtype=torch.float32
        )
        assert not ours[:, left.shape[-1] :].any()
