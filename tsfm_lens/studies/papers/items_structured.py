"""Numbers of the paper on structured attention that are measured here: ids, quantities and claims."""

from __future__ import annotations

from tsfm_lens.studies.papers.items import HOLDS, Item, Value

SOURCE = "Customizing the Inductive Biases of Softmax Attention using Structured Matrices"

UNLEARNED = "error before learning"
SOLVED = "error of least squares after the last pair"
LOW_FAILS = "heads fail whose scores have a rank below the inputs"
EIGHT_FAIL = "8 heads of a rank below the inputs do worse than 1 head"
STRUCTURED = "one head of BTT or MLR does better than one of low rank with as many parameters"
STRUCTURED_EIGHT = "8 heads of BTT or MLR do better than 8 heads of a rank below the inputs"
EIGHT_WIDE = "at the largest width 8 heads still do worse than 1 head"
FORMS_WIDE = "at every width 8 heads of BTT do better than 8 heads"
BETTER = "MLR attention of two levels errs less than standard attention, T = 96"
RELATIVE = "absolute error over that of standard attention, less 1, {arm}"
LOSS = "loss in nats, {arm}"
EXCESS = "loss in nats, less that of standard attention, {arm}"
SHARE = "multiply-adds of the encoder's scores over those of standard attention, {arm}"
CARRIED = "best rate at the largest width over that at the smallest, {kind}"
SLOWER = "time of a step with BTT over standard attention"
SEEN = "keys that a token scores, T = 1,024, window of 128"
WINDOWED = "multiply-adds of the scores over those of standard attention, {pattern}"
AFTER = "error after the last pair, {arm}"

CHRONOS_RANKS = "8+2+2+2+1+1"
EIGHT = (8,) * 8
WIDE = {"tokens": 256, "width": 512}
RANKS = "16|8|4|4"
BEST = "order c takes the fewest multiply-adds, T = 256, D = 512, ranks {ranks}"
COST = "multiply-adds, T = 256, D = 512, ranks {ranks}, order {order}"
TRAIN = "multiply-adds, T = D = 256, s = 2, {order}"
LISTS = {
    "r/8, 8 levels": EIGHT,
    "32|8|6|4|4|4|4|2": (32, 8, 6, 4, 4, 4, 4, 2),
    "32|10|8|8|4|2": (32, 10, 8, 8, 4, 2),
    "48|16": (48, 16),
    "40|16|4|4": (40, 16, 4, 4),
}
"""The paper's ranks of MLR attention."""
SAVES = "key cache, times smaller, {ranks}"
FORMED = "multiply-adds of the scores over those of standard attention, {ranks}"
APART = "largest difference of blocks and lemma D.1"
PARAMETERS, RANK = "parameters, {family}, D = 64", "rank, {family}, D = 64"

_RUNS = {
    "inputs": "16 to 128",
    "width": "16 to 512",
    "layers": "6",
    "steps": "up to 500,000",
    "heads": "8 for every structured form",
}


def _levels(width: int, ranks: tuple[int, ...]) -> int:
    """Compute Σ r_l p_l."""
    return sum(rank * 2**level for level, rank in enumerate(ranks))


_PROJECTIONS = 2 * 256 * 512 * 64

ITEMS_OF_STRUCTURED = (
    Item(
        "S2-F2",
        "regression in context by the rank of the scores",
        "",
        (
            Value(UNLEARNED, 1, "section 4; E f² at a read-out of zero"),
            Value(SOLVED, 0, "closed form: 1 - i / d after i pairs, without noise"),
            Value(LOW_FAILS, 1, "section 2.2, figures 2 and 6", HOLDS),
        ),
        _RUNS,
        note="a thousandth of the paper's training on the smallest inputs: an arm that is high may be slow as well as "
        "unable. Rank is varied within one head, all else equal; the paper varies width and rank together",
        also=("S2-F6", "S2-ICL"),
        source=SOURCE,
    ),
    Item(
        "S2-F3",
        "regression in context: 1 head, 8 heads, bilinear MLR and BTT",
        "",
        (
            Value(EIGHT_FAIL, 1, "section 4, figure 3a", HOLDS),
            Value(STRUCTURED_EIGHT, 1, "section 4, figure 3", HOLDS),
            Value(STRUCTURED, 1, "section 3.2, for a head", HOLDS),
        ),
        _RUNS,
        note="at one width; parameters are those of a head's scores",
        source=SOURCE,
    ),
    Item(
        "S2-F11",
        "regression in context by the width of the model",
        "",
        (
            Value(EIGHT_WIDE, 1, "section 4, figures 3a and 11", HOLDS),
            Value(FORMS_WIDE, 1, "section 4, figures 3a and 11", HOLDS),
        ),
        _RUNS,
        note="at one number of inputs. 8 heads have a rank of 2 to 8 here, at the largest width no longer below the "
        "inputs; the paper has 16 inputs and more",
        source=SOURCE,
    ),
    Item(
        "S2-ETT",
        "forecasts of ETTh1 by the scoring function",
        "",
        (
            Value(BETTER, 1, "figure 14a", HOLDS),
            Value(RELATIVE.format(arm="MLR attention 6+2, T = 96"), -0.01, "section 5.2, as around 1 % better"),
        ),
        {"width": "512", "heads": "8", "layers": "2", "steps": "200 or 1,000, the better", "seeds": "not said"},
        note="ranks are an eighth of the paper's, for heads of 8 in place of 64; one rate for all arms, by the "
        "validation error of standard attention; errors of all seven channels, where the paper has oil temperature",
        also=("S2-F14",),
        source=SOURCE,
    ),
    Item(
        "S2-CHR",
        "Chronos with MLR attention at equal steps",
        "",
        (Value(EXCESS.format(arm=f"MLR {CHRONOS_RANKS}"), 0, "figure 15, the same loss"),),
        {"ranks": "32|10|8|8|4|2 of 64", "layers": "all of T5", "data": "the mixture of Chronos"},
        note="a thousandth of a training: the loss still falls. Levels are in the encoder alone, whose 49 tokens can "
        "be divided so often; ranks are about a quarter",
        also=("S2-F15",),
        source=SOURCE,
    ),
    Item(
        "S2-F5",
        "learning rates across widths by μP",
        "",
        (
            Value(CARRIED.format(kind="μP"), 1, "figure 5, the same"),
            Value(CARRIED.format(kind="μP, MLR attention"), 1, "figure 5, the same"),
        ),
        {"widths": "512, 768, 1,024", "data": "OpenWebText", "heads": "of 64"},
        note="on regression in context at small widths",
        also=("S2-MUPX", "S2-MUP"),
        source=SOURCE,
    ),
    Item(
        "S2-T1",
        "parameters and ranks of the families",
        "",
        (
            Value(PARAMETERS.format(family="dense"), 64**2, "table 1, D²"),
            Value(PARAMETERS.format(family="low rank, r = 8"), 2 * 64 * 8, "table 1, 2 D r"),
            Value(PARAMETERS.format(family=f"MLR {RANKS}"), 2 * 64 * 32, "table 1, 2 D Σ r_l"),
            Value(PARAMETERS.format(family="BTT, s = 2"), 2 * 64 * 8 * 2, "table 1, 2 s D^(3/2)"),
            Value(RANK.format(family="low rank, r = 8"), 8, "table 1, r"),
            Value(RANK.format(family=f"MLR {RANKS}"), _levels(64, (16, 8, 4, 4)), "table 1, Σ r_l p_l"),
            Value(RANK.format(family="BTT, s = 2"), 64, "table 1, D"),
        ),
        note="the printed rank of MLR is an upper bound, which can exceed the width",
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-T2",
        "costs of bilinear MLR scores by order of contraction",
        "",
        (
            Value(BEST.format(ranks="32|8|8|16"), 1, "table 2", HOLDS),
            Value(BEST.format(ranks="8 of 8"), 1, "table 2", HOLDS),
            Value(COST.format(ranks="8 of 8", order="c"), _PROJECTIONS + 256**2 * _levels(512, EIGHT), "table 2"),
            Value(COST.format(ranks="8 of 8", order="d"), 8 * 256**2 * 512 + _PROJECTIONS, "table 2"),
            Value(COST.format(ranks="8 of 8", order="e"), 256**2 * 512 + _PROJECTIONS, "table 2"),
        ),
        note="c is the cheapest only while Σ 2^(l-1) r_l < D; beyond, where the scores can have full rank, e is",
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-T3",
        "costs of bilinear BTT scores by order of contraction",
        "",
        (
            Value(TRAIN.format(order="both sides"), 2 * 256**3 + 2 * 2 * 256 * 256 * 16, "table 3, derived anew"),
            Value(TRAIN.format(order="keys alone"), 256**3 + 2 * 2 * 256 * 256 * 16, "table 3"),
        ),
        note="the body of table 3 is not in the text that there is: s T² D and T² D, each with 2 s T D^(3/2)",
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-KV",
        "key cache of MLR attention",
        "",
        (Value(SAVES.format(ranks="r/8, 8 levels"), 4, "section 3.4, as about 4"),),
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-FL",
        "cost of the scores of MLR attention",
        "",
        (Value(FORMED.format(ranks="r/8, 8 levels"), sum(2.0**-level for level in range(8)) / 8, "section 3.4"),),
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-L1",
        "lemma D.1: scores by blocks are those by the deepest common level",
        "",
        (Value(APART, 0, "lemma D.1"),),
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-F12",
        "time of a training step with bilinear BTT",
        "",
        (Value(SLOWER, 1.35, "figure 12b"),),
        {"inputs": "16", "width": "64", "heads": "8", "layers": "6", "device": "not said"},
        note="processor time of whole steps in turn on this machine; the ends are the smallest and "
        "the largest ratio of a round",
        theory=True,
        source=SOURCE,
    ),
    Item(
        "S2-SWA",
        "sliding windows: keys seen, and cost",
        "",
        (Value(SEEN, 129, "section 2.3, |j - j'| ≤ T' with the causal mask"),),
        {"tokens": "1,024", "window": "128", "layers": "6"},
        note="the cost counts scores of pairs that are seen, as tiles compute no others; the paper prints none",
        also=("S2-GSWA",),
        theory=True,
        source=SOURCE,
    ),
)
SHIPPED_IN_CONTEXT = tuple(item.id for item in ITEMS_OF_STRUCTURED if not item.theory)
"""Items measured on runs of the lab, whose results ship."""
FORMULAS = tuple(item.id for item in ITEMS_OF_STRUCTURED if item.theory)
"""Items measured by counts and draws alone."""
