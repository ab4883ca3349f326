"""Reported numbers of the papers, and the settings they were measured with: data, no code of a measure."""

from __future__ import annotations

from tsfm_lens.studies.papers.items import BOLT, BOLT_SMALL, CHRONOS, FIVE, HOLDS, TIMESFM, TOTO, Item, Value
from tsfm_lens.studies.papers.items_samformer import ITEMS_OF_SAMFORMER
from tsfm_lens.studies.papers.items_structured import ITEMS_OF_STRUCTURED
from tsfm_lens.studies.papers.values_lowrank import ITEMS_OF_LOW_RANK
from tsfm_lens.studies.papers.values_ranks import ITEMS_OF_RANKS
from tsfm_lens.studies.papers.values_sweeps import BENCHMARK, LAYERS_BY_DATASET
from tsfm_lens.studies.papers.values_theory import ITEMS_OF_THEORY


def _overlap() -> tuple[Value, ...]:
    rows = (
        ("proportion induction, sharp", 0.0139),
        ("proportion induction, not sharp", 0.0694),
        ("proportion induction", 0.0833),
        ("proportion not induction, sharp", 0.0556),
        ("proportion not induction, not sharp", 0.8611),
        ("proportion not induction", 0.9167),
        ("proportion sharp", 0.0694),
        ("proportion not sharp", 0.9306),
        ("P(sharp | induction)", 0.1667),
        ("P(induction | sharp)", 0.2),
    )
    return tuple(Value(quantity, paper, "appendix G, table 5") for quantity, paper in rows)


def _sizes() -> tuple[Value, ...]:
    rows = (
        ("TimesFM 2.5", 200, 20, 16, 32),
        ("Chronos", 200, 12, 12, 1),
        ("Chronos-Bolt", 205, 12, 12, 16),
        ("Toto 1.0", 151, 12, 12, 32),
        ("Moirai 1.1", 91, 12, 12, 32),
    )
    values = []
    for name, parameters, layers, heads, patch in rows:
        values.append(Value(f"{name}: parameters", parameters, "appendix A", "million"))
        values.append(Value(f"{name}: layers", layers, "appendix A"))
        values.append(Value(f"{name}: heads per layer", heads, "appendix A"))
        values.append(Value(f"{name}: steps per token", patch, "table 3"))
    return (*values, Value("Chronos-Bolt small: parameters", 48, "appendix D.3", "million"))


_DYSTS = {"series": "dysts", "context": "512", "samples": "20"}
_RRT = {
    "motif": "32",
    "repeats": "4",
    "decoding": "rollout",
    "prefix matching looks at": "the instance itself (text), the token after it (released code)",
    "scores are read at": "the last decoder position (text), after a single step (released code)",
}
_SPEARMAN = {"series": "GIFT-Eval, about 2000 windows (Chronos: dysts)", "horizon": "64"}


# claims in the paper's words; each measure splits its claim into parts and tests them
RAISE_ENTROPY = (
    "middle layers introduce uncertainty, measured as an increase in the entropy of the resulting distribution over "
    "tokens"
)
CONSOLIDATES = "the last layer consolidates the representation by selecting the final prediction"
HIGHER_RANK = "a higher average entropic rank in the middle layers"
WHOLE = "all heads and the MLP"
ABLATABLE = (
    "the middle layers show greater ablatability, whereas the first and last layers are the most important ({what})"
)
VARIES = "a depthwise variation in layer importance ({what})"
SHARP_HEAD = "ablating even a single sharp head causes significant degradation, diffuse heads can be ablated"
SIX_HEADS = "ablating only a few (six) sharp heads causes the predictions to lose their structure"
ABLATED_LAST = "by stable rank, heads 0 and 7 of layer 3 are ablated last"
NO_IMPROVEMENT = "the middle layers consistently show no improvement on the metrics"
SCORES_GO_TOGETHER = "heads with high prefix scores tend to have higher copy scores as well as a lower average entropy"
RELAXED = "relaxing the constraints, 50-60% induction heads could potentially be sharp heads"
BETTER_THAN_RANDOM = "induction heads and sharp heads had better-than-random overlap"


def _distances(item: str, what: str, figure: str) -> Item:
    ablatable = Value(ABLATABLE.format(what=what), 1, "figure 2", HOLDS)
    claims = (ablatable,) if what == WHOLE else (Value(VARIES.format(what=what), 1, figure, HOLDS), ablatable)
    return Item(
        item,
        f"Spearman distance of forecasts with {what} of a layer ablated",
        CHRONOS,
        claims,
        _SPEARMAN,
        note=f"a statement about five models, each in a run of its own: --model with {', '.join(FIVE)}",
        others=FIVE,
    )


def _shares(item: str, title: str, model: str, value: Value, more: tuple[Value, ...] = ()) -> Item:
    return Item(item, title, "", (value, *more), note=f"counted in the released heads@1pp of {model}")


ITEMS: tuple[Item, ...] = (
    Item(
        "S3-SYS",
        "sizes of the models",
        "",
        _sizes(),
        note="without --model built at the published sizes; 28 of TimesFM's millions are its quantile head",
        others=(*FIVE, BOLT_SMALL),
    ),
    Item(
        "S3-F1D",
        "entropy of the logits after each layer",
        CHRONOS,
        (
            Value(RAISE_ENTROPY, 1, "figure 1D", HOLDS),
            Value(CONSOLIDATES, 1, "section 2.3", HOLDS),
        ),
        {**_DYSTS, "windows": "401"},
    ),
    Item(
        "S3-F1E",
        "entropic rank of the heads of each layer",
        CHRONOS,
        (Value(HIGHER_RANK, 1, "figure 1E", HOLDS),),
        {**_DYSTS, "windows": "401"},
    ),
    _distances("S3-F2", WHOLE, "figure 2"),
    BENCHMARK["S3-F3"],
    BENCHMARK["S3-F4"],
    _shares(
        "S3-F6",
        "heads ablated in figures 6 and 12",
        TIMESFM,
        Value("heads ablated with layers 7 to 13 at heads@1pp", 28, "figure 6, table 1", "%"),
        (Value("MLPs ablated", 2, "figure 6, table 1"),),
    ),
    BENCHMARK["S3-F7"],
    _distances("S3-F8", "all heads", "figure 8"),
    _distances("S3-F9", "the MLP", "figure 9"),
    BENCHMARK["S3-F10"],
    BENCHMARK["S3-F11"],
    _shares(
        "S3-F13",
        "heads ablated in figure 13",
        TIMESFM,
        Value("heads ablated with layers 7 to 13 at heads@1pp and all others at one head more", 51, "figure 13", "%"),
        (Value("MLPs ablated", 2, "figure 13"),),
    ),
    _shares(
        "S3-F14",
        "heads ablated in figure 14",
        TOTO,
        Value("heads ablated with layers 2, 9, 10 and 11 at heads@1pp", 29, "figure 14, table 1", "%"),
    ),
    _shares(
        "S3-F15",
        "heads and MLPs ablated in figure 15",
        BOLT,
        Value("heads ablated with layers 0 to 10 at heads@1pp", 60, "figure 15", "%"),
        (Value("MLPs ablated", 9, "figure 15"),),
    ),
    *(BENCHMARK[f"S3-F{number}"] for number in LAYERS_BY_DATASET),
    Item(
        "S3-F20",
        "forecasts without sharp and without diffuse heads",
        CHRONOS,
        (
            Value("six heads of all", 4, "figure 20", "%"),
            Value(SHARP_HEAD, 1, "section 4, figures 5, 20", HOLDS),
            Value(SIX_HEADS, 1, "figure 20", HOLDS),
        ),
        {"series": "dysts and GIFT-Eval, single windows", "context": "512", "horizon": "512", "samples": "20"},
    ),
    Item(
        "S3-F21",
        "cross-attention between patches on Lorenz-63",
        BOLT_SMALL,
        (
            Value("context patches", 128, "appendix D.3, figure 21"),
            Value("context tokens with the register", 129, "appendix D.3, figure 21"),
            Value("decoder patches", 128, "appendix D.3, figure 21"),
            Value("patch that layer 3, head 4 attends to most", 85, "appendix D.3"),
            Value("first step of that patch", 1360, "appendix D.3", "steps from the context's start"),
            Value(ABLATED_LAST, 1, "appendix D.3", HOLDS),
        ),
        {"series": "one random Lorenz-63 trajectory", "context": "2048", "horizon": "8192", "head": "layer 3, head 4"},
        note="the paper's trajectory is not given, and the patch depends on it",
    ),
    Item(
        "S3-F22",
        "gain of each layer over the one before",
        CHRONOS,
        (Value(NO_IMPROVEMENT, 1, "figure 22", HOLDS),),
        {**_DYSTS, "windows": "117"},
        note="an improvement by less than 1 % of the error is taken for none",
    ),
    Item(
        "S3-F23",
        "scores of induction and sharpness over thresholds",
        CHRONOS,
        (
            Value(SCORES_GO_TOGETHER, 1, "appendix G, figure 23A", HOLDS),
            Value(RELAXED, 1, "appendix G", HOLDS),
            Value("P(induction | sharp), median over thresholds", 0.2, "appendix G, figure 23E"),
        ),
        {**_RRT, "series": "dysts"},
    ),
    Item(
        "S3-HENT",
        "sharp heads",
        CHRONOS,
        (
            Value("normalised entropy below which a head is sharp", 0.38, "appendix G"),
            Value("sharp heads of all", 6.9, "appendix G", "%"),
            Value("heads of the decoder's cross-attention", 144, "appendix G"),
        ),
        _DYSTS,
    ),
    Item(
        "S3-PREF",
        "induction heads",
        CHRONOS,
        (
            Value("prefix-matching score from which a head matches", 0.3, "appendix G"),
            Value("copy score from which a head copies", 2, "appendix G", "standard deviations"),
            Value("induction heads of all", 8.3, "appendix G", "%"),
        ),
        _RRT,
    ),
    Item(
        "S3-RRT",
        "tokens of the repeated-random-tokens test",
        CHRONOS,
        (
            Value("lowest token id", 1911, "appendix G"),
            Value("highest token id", 2187, "appendix G"),
            Value("tokens in a motif", 32, "appendix G"),
            Value("times it is shown", 4, "appendix G"),
        ),
        {"tokens of the vocabulary": "4096"},
    ),
    BENCHMARK["S3-T1"],
    BENCHMARK["S3-T4"],
    Item(
        "S3-T5",
        "overlap of induction and sharp heads",
        CHRONOS,
        (*_overlap(), Value(BETTER_THAN_RANDOM, 1, "appendix G", HOLDS)),
        {**_RRT, "series": "dysts", "sharp below": "0.38", "prefix from": "0.3", "copy from": "2"},
        note="the text measures entropy along the repeated tokens, figure 5 along forecasts; forecasts are taken here",
    ),
    *ITEMS_OF_THEORY,
    *ITEMS_OF_RANKS,
    *ITEMS_OF_LOW_RANK,
    *ITEMS_OF_SAMFORMER,
    *ITEMS_OF_STRUCTURED,
)
