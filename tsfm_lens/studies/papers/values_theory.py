"""Printed numbers of the paper on the flow of ranks: experiments and theorems that need no model."""

from __future__ import annotations

from dataclasses import replace

from tsfm_lens.studies.papers.items import HOLDS, Item, Value

SOURCE = "Understanding Transformers for Time Series: Rank Structure, Flow-of-ranks, and Compressibility"
SLOPE_OF_RANK = "slope of the error over the singular value that is cut off, both as logarithms"
SLOPE_OF_WIDTH = "slope of the error over the width, both as logarithms"
SLOPE_OF_HEADS = "slope of the effective rank over the number of heads, both as logarithms"
COMPARABLE = "a sparse multi-head sketching is comparable to a dense multi-head sketching"
HIGHER_RANK_BY_HEADS = "the output matrix is higher-rank as h increases"
CHEBYSHEV_RANK = "rank of the embedding made for rank {rank}"
CHEBYSHEV_RANKS = (1, 2, 4, 8, 16, 32)
ABOVE_THEOREM_1 = "singular values above the bounds of theorem 1"
ABOVE_THEOREM_2 = "residual MLPs with more large singular values than theorem 2 allows"
ABOVE_COROLLARY_2 = "singular values above the bound of corollary 2, |w| up to 1"
ABOVE_THEOREM_3 = "errors above the bound with its factor √L"
REPEATED = "error of one token 256 times over that of the token once"
BELOW_THEOREM_3 = "value matrices that lose less than σ/4"
ABOVE_THEOREM_4 = "singular values above the upper bound"
BELOW_THEOREM_4 = "singular values of the construction below the lower bound"
SHARED_BELOW = "constructions in which one sketch for all heads loses less than σ/2"
OWN_ABOVE = "constructions in which a sketch for each head loses more than its bound"
ABOVE_PROOF = "singular values above the corollary, index as its proof gives it"
ABOVE_PRINTED = "singular values above the corollary, index as printed"


def _none(*rows: tuple[str, str]) -> tuple[Value, ...]:
    """List statements that nothing contradicts: none of so many."""
    return tuple(Value(quantity, 0, where) for quantity, where in rows)


_ITEMS = (
    Item(
        "S0-J1A",
        "error of an attention layer cut to a rank",
        "",
        (Value(SLOPE_OF_RANK, 1, "appendix J.1, figure 15 left, reference line"),),
        {"d": "512", "tokens": "4096", "ranks": "1 to 511"},
        note="how large the random weights are is not given; the slope is of ranks up to 3/4 of d, beyond which errors "
        "add up over ever fewer directions; at the right of figure 15 is S0-J1B",
        also=("S0-F15",),
    ),
    Item(
        "S0-J1B",
        "error of an attention layer cut to a fixed rank, by width",
        "",
        (Value(SLOPE_OF_WIDTH, 0.5, "appendix J.1, figure 15 right, reference line"),),
        {},
        note="√d is in the error only if the norm of W_V grows so, as the theorem allows and random entries of "
        "variance 1 do",
    ),
    Item(
        "S0-J2",
        "what sparse sketches of several heads miss",
        "",
        (
            Value(SLOPE_OF_HEADS, 1, "appendix J.2, in words: proportionally"),
            Value(COMPARABLE, 1, "appendix J.2", HOLDS),
        ),
        {"d": "2048", "tokens": "4096", "rank of a head": "4", "heads": "1 to 128", "entries of a row": "d / h"},
        note="comparable is taken as within a quarter; nothing depends on the number of tokens from d on",
        also=("S0-F16",),
    ),
    Item(
        "S0-J3",
        "rank of an attention layer's output by its number of heads",
        "",
        (Value(HIGHER_RANK_BY_HEADS, 1, "appendix J.3, figure 17", HOLDS),),
        {},
        note="sizes and decay are not given; it needs scores that differ, for which the input is taken times √L",
        also=("S0-F17",),
    ),
    Item(
        "S0-F14",
        "embeddings of Chebyshev polynomials",
        "",
        tuple(Value(CHEBYSHEV_RANK.format(rank=rank), rank, "appendix I, figure 14") for rank in CHEBYSHEV_RANKS),
        {"d": "768", "points": "4096", "largest value": "15"},
        also=("S0-CHEB",),
    ),
    Item(
        "S0-TH1",
        "singular values of smooth embeddings",
        "",
        _none((ABOVE_THEOREM_1, "theorem 1")),
    ),
    Item(
        "S0-TH2",
        "large singular values of residual MLPs",
        "",
        _none((ABOVE_THEOREM_2, "theorem 2")),
        note="the theorem's threshold is absolute, not a share of the largest singular value",
    ),
    Item(
        "S0-C2",
        "singular values of the embedding of Time-MoE",
        "",
        _none((ABOVE_COROLLARY_2, "corollary 2")),
        note="the formula drops w from the exponent; the constant is written out here",
    ),
    Item(
        "S0-TH3",
        "compression of attention, from both sides",
        "",
        _none((ABOVE_THEOREM_3, "theorems 3 and 5"), (BELOW_THEOREM_3, "theorem 3, second statement")),
        note="the printed constant cannot be independent of L: an input of one repeated token has √L; the second "
        "statement is checked with the logarithm of 4 max(d, L), the printed one is enough up to 4d + 1 tokens",
    ),
    Item(
        "S0-TH4",
        "growth of rank in one layer, from both sides",
        "",
        _none((ABOVE_THEOREM_4, "equation 5"), (BELOW_THEOREM_4, "equation 6")),
    ),
    Item(
        "S0-C1",
        "growth of rank in one layer of one",
        "",
        _none((ABOVE_PROOF, "corollary 1, corrected"), (ABOVE_PRINTED, "corollary 1")),
        note="the printed index has a sign that its proof has not: with one head it would make the largest singular "
        "value of the output go with the second of the input",
    ),
    Item(
        "S0-TH6",
        "one sketch for all heads and one for each",
        "",
        _none((SHARED_BELOW, "theorem 6, claim 1"), (OWN_ABOVE, "theorem 6, claim 2")),
        note="reciprocals of the last rows are of the diagonal of U, on which singular values stand interleaved",
    ),
)
ITEMS_OF_THEORY = tuple(replace(item, theory=True, source=SOURCE) for item in _ITEMS)
