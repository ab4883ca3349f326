"""Printed numbers of the paper on the flow of ranks: models cut off after training or trained at low rank."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tsfm_lens.studies.papers.items import BOLT_SMALL, CHRONOS, HOLDS, Item, Value
from tsfm_lens.studies.papers.values_theory import SOURCE


class CutOff(NamedTuple):
    """Row of table 2: a pretrained model cut off by truncated SVD, scores over those of the whole model."""

    ratio: float
    in_domain_wql: float
    in_domain_mase: float
    zero_shot_wql: float
    zero_shot_mase: float
    overlap: float
    t5_log_perplexity: float
    t5_overlap: float


class Schedule(NamedTuple):
    """Row of figure 7 or of tables 3 and 4: a model trained with a schedule of ranks, beside the dense one."""

    first: float
    exponent: float
    numbers: dict[str, float]

    @property
    def words(self) -> str:
        """Name of the schedule in quantities."""
        return f"schedule ({self.first:g}, {self.exponent:g})"


TABLE_2 = (
    CutOff(0.073, 4.409, 4.095, 3.562, 3.435, 0.308, 3.313, 0.227),
    CutOff(0.151, 1.991, 2.412, 1.566, 1.576, 0.717, 2.530, 0.301),
    CutOff(0.237, 1.053, 1.005, 1.030, 1.011, 0.883, 1.652, 0.345),
    CutOff(0.393, 1.009, 1.024, 0.990, 0.994, 0.979, 1.544, 0.568),
    CutOff(0.569, 1.003, 0.952, 0.945, 0.995, 0.997, 1.290, 0.730),
    CutOff(0.755, 1.007, 1.021, 1.027, 1.000, 0.999, 1.085, 0.871),
    CutOff(0.889, 1.000, 0.960, 1.016, 1.001, 0.999, 1.028, 0.954),
)
"""Rows of table 2 without the last one, ratio 1, which is the whole model."""
COLUMNS_2 = {
    "zero_shot_wql": "zero-shot WQL",
    "zero_shot_mase": "zero-shot MASE",
    "overlap": "overlap of the ten likeliest tokens",
    "in_domain_wql": "in-domain WQL",
    "in_domain_mase": "in-domain MASE",
    "t5_log_perplexity": "log-perplexity of T5",
    "t5_overlap": "overlap of the ten likeliest tokens of T5",
}

_FIGURE_7 = (
    "size ratio",
    "time",
    "space",
    "in-domain WQL",
    "in-domain MASE",
    "zero-shot WQL",
    "zero-shot MASE",
    "in-domain WQL, embedding kept",
    "in-domain MASE, embedding kept",
    "zero-shot WQL, embedding kept",
    "zero-shot MASE, embedding kept",
)


def _rows(columns: tuple[str, ...], *rows: tuple[float, ...]) -> tuple[Schedule, ...]:
    return tuple(Schedule(row[0], row[1], dict(zip(columns, row[2:], strict=True))) for row in rows)


FIGURE_7 = _rows(
    _FIGURE_7,
    (3, 0.27, 0.075, 0.346, 0.186, 1.034, 0.988, 0.966, 0.982, 1.031, 1.047, 1.087, 1.084),
    (5, 0.35, 0.150, 0.398, 0.312, 1.048, 0.982, 1.080, 1.055, 1.025, 0.930, 0.936, 0.960),
    (7, 0.40, 0.250, 0.494, 0.440, 1.021, 0.949, 0.996, 1.019, 0.999, 1.007, 0.949, 0.943),
)
TABLE_3 = _rows(
    ("time", "space", "in-domain WQL", "in-domain MASE", "zero-shot WQL", "zero-shot MASE"),
    (2, 0.25, 0.517, 0.802, 1.005, 1.004, 1.013, 0.999),
    (3, 0.50, 0.601, 0.821, 1.005, 0.996, 1.009, 1.001),
    (5, 0.70, 0.740, 0.840, 0.980, 1.003, 0.991, 1.010),
)
TABLE_4 = _rows(
    ("size ratio", "WQL", "MASE"),
    (8, 0.34, 0.25, 1.001, 1.014),
    (16, 0.0, 0.25, 1.069, 1.050),
    (10, 0.58, 0.50, 0.996, 1.007),
    (32, 0.0, 0.50, 1.038, 1.036),
)

D_HEAD = 64
"""Size of a head of the paper's models: their last rows, rank 64, are the dense ones."""
LAYERED = (
    "given a fixed compression ratio, a model with a different reduced rank per layer performs significantly better "
    "than one whose rank remains layer-independent"
)
INCREASES = "the numerical ranks of attention matrices increase with rank(Ξ)"
LEADING = "the leading singular value, i.e., the norm of the weight matrix, eventually gets larger"
NOT_GIVEN_BACK = "matrices that factors of each head, as large as a head, do not give back"


def _values(rows: tuple[Schedule, ...], where: str) -> tuple[Value, ...]:
    return tuple(Value(f"{name}, {row.words}", number, where) for row in rows for name, number in row.numbers.items())


_NANO = "models of the size of a nano trained here, the paper's rank of heads of 64 brought to heads of 16"
_ITEMS = (
    Item(
        "S0-T2",
        "scores of a model cut off by truncated SVD",
        CHRONOS,
        tuple(
            Value(f"{words}, ratio {row.ratio:g}", getattr(row, name), "section 5, table 2")
            for row in TABLE_2
            for name, words in COLUMNS_2.items()
        ),
        {"series": "Chronos benchmark II (zero-shot), I (in-domain)", "ratio": "not defined"},
        note="ratio is read as the share of ranks, for which ε is sought; scores are those of the given series, beside "
        "the paper's zero-shot ones; in-domain scores need the training sets of benchmark I and those of T5 its "
        "published checkpoint and a text, which must be fetched",
    ),
    Item(
        "S0-T3",
        "Chronos-Bolt with a schedule of ranks",
        BOLT_SMALL,
        _values(TABLE_3, "appendix K, table 3"),
        {"ranks": "trained", "series": "Chronos benchmark II (zero-shot), I (in-domain)"},
        note="the paper trains these models, which takes its training sets and GPUs; here a trained model is cut to "
        "the same schedule and not trained again, which is worse; space is that of weights, time is of a forward of "
        "one series in turn with the whole model",
    ),
    Item(
        "S0-F7",
        "Chronos trained with a schedule of ranks",
        "",
        _values(FIGURE_7, "section 5, figure 7"),
        {"model": "Chronos of the paper's sizes", "heads": "of 64"},
        note=f"{_NANO}; scores are of held-out synthetic series, beside the paper's zero-shot ones; space is numbers "
        "held, time is of a training step; schedule (5, 0.35) and kept embeddings are not trained here; a given model "
        "is cut to the schedules and not trained",
    ),
    Item(
        "S0-T4",
        "a schedule of ranks beside one rank for all layers",
        "",
        (*_values(TABLE_4, "appendix K, table 4"), Value(LAYERED, 1, "appendix K, table 4", HOLDS)),
        {"model": "Moirai-1.0-R-base", "heads": "of 64"},
        note=f"{_NANO}, of Chronos, at a quarter of the ranks; the schedule has a tenth fewer of them than the one "
        "rank; a given model is cut to the schedules and not trained",
    ),
    Item(
        "S0-LR",
        "factors shared by all heads, and factors of each head",
        "",
        (Value(NOT_GIVEN_BACK, 0, "equation 20"),),
        {},
        note="as many numbers are held by one pair of factors for all heads and by a pair for each, in models trained "
        "here",
    ),
    Item(
        "S0-F4C",
        "ranks of W_Q by the rank of a fixed vocabulary",
        "",
        (Value(INCREASES, 1, "section 3, figure 4c", HOLDS),),
        {"d": "512", "ranks of the vocabulary": "1 to 32"},
        note="its parts are of W_Q as it is and of what training added to it: entries that are drawn have nearly full "
        "rank, which so short a training leaves in W_Q; neither the size of the paper's first weights nor its ε is "
        "given",
        also=("S0-I",),
    ),
    Item(
        "S0-F11",
        "singular values of W_Q over training",
        "",
        (Value(LEADING, 1, "appendix G, figure 11", HOLDS),),
        {"layers": "6"},
    ),
)
ITEMS_OF_LOW_RANK = tuple(replace(item, source=SOURCE) for item in _ITEMS)
SHIPPED = tuple(item.id for item in ITEMS_OF_LOW_RANK if not item.model)
"""Items measured on models trained for them, whose results ship."""
