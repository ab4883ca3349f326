"""Definitions of the paper on the flow of ranks, and its printed spectra and ranks of models."""

from __future__ import annotations

from dataclasses import replace

from tsfm_lens.studies.papers.items import BOLT, CHRONOS, HOLDS, Item, Value
from tsfm_lens.studies.papers.values_theory import SOURCE

T5 = "google-t5/t5-base"
EMBEDDED = ("bolt-nano", "chronos-nano")

CUT_OFF = "matrices cut at their ε-rank that are off by more than ε of their norm"
CUT_FURTHER = "matrices cut one rank lower that are off by no more than that"
ZERO = "ε-rank of the zero matrix"
ANGLES_OFF = "angles of lines in a plane that are not those they were drawn at"
ANGLES_OUTSIDE = "angles below 0 or above 90 degrees"
DECADES_OFF = "singular values counted in another decade than they were put into"
DECADES = "decades"
ON_EDGES = "powers of ten counted elsewhere than at the top of their decade"
PATCHES_OFF = "entries of tokens that are not φ of their patch"
PATCHES = "tokens of 512 steps in patches of 16"
BINS_OFF = "entries of tokens that are not the vector of the value's bin"
FIVE_VALUES = "rank of a series of five values"
MLP_OFF = "entries of residual MLPs off the formula, a patch at a time"
GATED_OFF = "entries of gated embeddings off the formula, a value at a time"
ATTENTION_OFF = "entries of attention off its formula, a token at a time"
SUMS_OFF = "columns of the softmax that do not add up to 1"
ONE_HEAD_OFF = "entries of one head that differ from attention without heads"
HEADS_OFF = "entries of several heads off each head by itself, stacked"
EXACT_OFF = "entries that change at the rank of the vocabulary, whatever the heads"
SKETCH_BELOW = "distances below the singular value after as many as the sketch has rows"
SKETCH_ABOVE = "distances above the largest singular value"
SKETCH_FULL = "sketches of full rank that miss something"
SKETCH_INDEX = "sketches as good as more directions than they have rows"
GUIDE_FIRST = "rank of the first layer, 16 if the rank of embedded series is not known"
GUIDE_LAST = "rank of the last layer, half of the width"
GUIDE_OFF = "layers off the formula, or no higher than the one before"
GUIDE_ONE = "rank of a single layer"
# quantity, d̃₀, α, size ratio as printed
SCHEDULES = tuple(
    (f"size ratio of {model}, d̃₀ = {first}, α = {exponent:.2f}", first, exponent, ratio)
    for model, first, exponent, ratio in (
        ("Chronos", 3, 0.27, 0.075),
        ("Chronos", 5, 0.35, 0.150),
        ("Chronos", 7, 0.40, 0.250),
        ("Moirai", 8, 0.34, 0.250),
        ("Moirai", 10, 0.58, 0.500),
    )
)

MODEL_CUT_OFF = "attention matrices cut at their ε-rank that are off by more than ε of their norm"
QUARTER, HALF = "size ratio of rank 16 of heads of 64", "size ratio of rank 32 of heads of 64"
SAME_MASE = "rise of MASE of a model beside itself"
SAME_WQL = "rise of WQL of a model beside itself"
SAME_OVERLAP = "overlap of the ten likeliest tokens of a model with its own"
SAME_LPPL = "log-perplexity of a model over its own"

FASTER = "the singular values of TSFM embeddings decay dramatically faster than those from the language models"
STRUCTURED = "the embedding of a quantised model has a clear low-dimensional structure, the T5 embedding far less"
BY_PATCH = "the numerical rank of the embedding increases with the patch size"
SMALLER_SPACE = "embedded input spans a subspace of significantly smaller dimension than the hidden space"
RANDOM_HIGHER = "the numerical rank of the embedded input is higher when the context is random than sinusoidal"
STAYS_LOW = "as the size of W_Q increases, it stays low-rank in a time-series model"
LINEAR = "the rank of W_Q scales almost linearly with d in a T5 LLM"
DEEPER_INPUT = "the rank of the input increases as it goes deeper into the layers"
DEEPER_WEIGHTS = "the numerical ranks of attention matrices become higher for deeper layers"
MORE_HEADS = "the numerical rank of attention matrices increases with the number of heads"
HEAD_CONSTANT = "the numerical rank of the projection matrix in each head remains relatively constant"
BLOCKS = "we can see clearly h low-rank blocks on the diagonal"
WEIGHTS_FASTER = "relative singular values decay faster for time-series models than for T5"
LESS_THAN_MLP = "attention matrices are generally more compressible than MLP matrices"

_NO_TEXT = "for claims on language give a T5 beside: --model bolt-nano --model google-t5/t5-small"


def _zeros(where: str, *quantities: str) -> tuple[Value, ...]:
    return tuple(Value(quantity, 0, where) for quantity in quantities)


def _claims(*rows: tuple[str, str]) -> tuple[Value, ...]:
    return tuple(Value(words, 1, where, HOLDS) for words, where in rows)


_DEFINITIONS = (
    Item("S0-ERANK", "ε-rank", "", _zeros("equation 1, section 5", CUT_OFF, CUT_FURTHER, ZERO)),
    Item(
        "S0-ANG",
        "angles of lines",
        "",
        _zeros("equation 2, appendix H", ANGLES_OFF, ANGLES_OUTSIDE),
        note="equation 2 prints the cosine; appendix H has the arccos, without which nothing is an angle",
    ),
    Item(
        "S0-HIST",
        "relative singular values by decade",
        "",
        (Value(DECADES, 5, "figure 10"), *_zeros("figure 10", DECADES_OFF, ON_EDGES)),
    ),
    Item(
        "S0-PATCH",
        "patch embedding",
        "",
        (Value(PATCHES, 32, "section 2, T / k"), *_zeros("section 2", PATCHES_OFF)),
    ),
    Item(
        "S0-QEMB",
        "quantised embedding",
        "",
        (*_zeros("section 2", BINS_OFF), Value(FIVE_VALUES, 5, "section 2: as many bins are met")),
        note="bins that five values meet may be fewer than five",
    ),
    Item(
        "S0-CEMB",
        "continuous embeddings",
        "",
        _zeros("theorem 2, corollary 2", MLP_OFF, GATED_OFF),
    ),
    Item(
        "S0-ATT",
        "attention on columns",
        "",
        _zeros("section 3", ATTENTION_OFF, SUMS_OFF),
        note="section 3 prints W_K transposed, the proofs do not; W_Q acts on the token that is attended to",
    ),
    Item("S0-MHA", "attention of several heads", "", _zeros("equation 18", ONE_HEAD_OFF, HEADS_OFF)),
    Item("S0-TH5", "compression of several heads", "", _zeros("theorem 5, appendix E", EXACT_OFF)),
    Item(
        "S0-SKETCH",
        "sketching distance",
        "",
        _zeros("equation 30", SKETCH_BELOW, SKETCH_ABOVE, SKETCH_FULL, SKETCH_INDEX),
        note="the equation writes W_R for W₂",
    ),
    Item(
        "S0-SCHED",
        "size ratios of the rank schedules",
        "",
        tuple(
            Value(quantity, ratio, "figure 7" if "Chronos" in quantity else "table 4")
            for quantity, _, _, ratio in SCHEDULES
        ),
        {"layers": "12, base not said", "rank of a head": "64"},
        note="whether layers count from 0 or 1 is not said, and no single reading gives all five ratios",
    ),
    Item(
        "S0-GUIDE",
        "guideline of ranks",
        "",
        (
            Value(GUIDE_FIRST, 16, "appendix K"),
            Value(GUIDE_LAST, 384, "appendix K"),
            Value(GUIDE_ONE, 16, "appendix K"),
            *_zeros("appendix K", GUIDE_OFF),
        ),
        note="the formula's r_1, r_D and α are read as the text's r_min, r_max and γ",
    ),
)

_FLOW = Item(
    "S0-F5",
    "ranks of queries and of their input, layer by layer",
    "",
    _claims((DEEPER_WEIGHTS, "section 4, figure 5 a"), (DEEPER_INPUT, "section 4, figure 5 c")),
    note="ε is not given; the stack that reads the series is looked at; deeper is taken as the last layer against the "
    "first",
    others=(CHRONOS, T5),
    models=EMBEDDED,
    also=("S0-FOR",),
)
_OF_MODELS = (
    Item(
        "S0-TSVD",
        "attention cut at a threshold",
        "",
        (
            *_zeros("section 5", MODEL_CUT_OFF),
            Value(QUARTER, 0.25, "table 4"),
            Value(HALF, 0.5, "table 4"),
        ),
        note="the paper does not define its ratio: of ranks, as its tables fit, and of entries of both factors",
        others=(CHRONOS, T5),
        models=EMBEDDED,
    ),
    Item(
        "S0-METR",
        "scores of compression, of a model beside itself and cut to a quarter",
        "",
        (
            *_zeros("table 2, last row", SAME_MASE, SAME_WQL),
            Value(SAME_OVERLAP, 1, "table 2, last row"),
            Value(SAME_LPPL, 1, "table 2, last row"),
        ),
        note="overlap and perplexity are of token models",
        others=(CHRONOS, T5),
        models=EMBEDDED,
    ),
    Item(
        "S0-F2",
        "spectra of embedded signals, and vocabularies on two directions",
        "",
        _claims((FASTER, "section 2, figure 2 a"), (STRUCTURED, "section 2, figure 2 b, c")),
        note="structure is told by how near tokens with neighbouring ids lie on two directions; ViT, Mitra and the "
        f"novel are not measured; {_NO_TEXT}",
        others=(CHRONOS, BOLT, T5),
        models=EMBEDDED,
    ),
    Item(
        "S0-F3",
        "embeddings by patch size, and angles of tokens",
        "",
        _claims((BY_PATCH, "section 2, figure 3 a"), (SMALLER_SPACE, "section 2, figure 3 b")),
        note="the paper's six models are not published; random residual MLPs of their patch sizes stand beside",
        others=(BOLT,),
        models=EMBEDDED[:1],
    ),
    Item(
        "S0-F4",
        "average rank of queries by width",
        "",
        _claims((STAYS_LOW, "section 3, figure 4 a"), (LINEAR, "section 3, figure 4 b")),
        note="ε is not given; sizes are compared within an architecture; to stay low is taken as a falling share of d, "
        f"almost linearly as a power from 0.8 on; {_NO_TEXT}",
        others=(CHRONOS, T5),
        models=EMBEDDED,
    ),
    _FLOW,
    replace(
        _FLOW,
        id="S0-F6",
        models=("Salesforce/moirai-1.0-R-base",),
        others=("Salesforce/moirai-1.0-R-base",),
        also=(),
        note=f"{_FLOW.note}; WaveToken and VisionTS are not supported",
    ),
    Item(
        "S0-F9",
        "rank of queries by number of heads, and angles of their rows",
        "",
        _claims(
            (MORE_HEADS, "appendix E, figure 9 left"),
            (HEAD_CONSTANT, "appendix E, figure 9 middle"),
            (BLOCKS, "appendix G.3, figures 9 right and 12"),
        ),
        {"d": "1024"},
        note="ε is not given; relatively constant is taken as within a factor of 1.5 from one number of heads to the "
        "next, within an architecture; blocks are rows of a head that lie closer together than shuffled rows",
        others=(CHRONOS,),
        models=EMBEDDED,
        also=("S0-F12",),
    ),
    Item(
        "S0-F10",
        "relative singular values of queries and of the MLP's first matrix",
        "",
        _claims(
            (WEIGHTS_FASTER, "appendix G.1, observation 1"),
            (DEEPER_WEIGHTS, "appendix G.1, observation 2"),
            (LESS_THAN_MLP, "appendix G.1, observation 3"),
        ),
        note=f"told by the share of relative singular values above 0.1 in the stack that reads the series; {_NO_TEXT}",
        others=(T5, CHRONOS, BOLT),
        models=EMBEDDED,
    ),
    Item(
        "S0-F13",
        "embedded sines and noise",
        "",
        _claims((RANDOM_HIGHER, "appendix H, figure 13")),
        note="of Chronos, WaveToken, TOTEM and Time-MoE only Chronos is supported",
        others=(CHRONOS,),
        models=EMBEDDED,
    ),
)
ITEMS_OF_RANKS = tuple(replace(item, source=SOURCE, theory=not item.models) for item in (*_DEFINITIONS, *_OF_MODELS))
