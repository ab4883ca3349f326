"""Reported numbers of the paper as data types, and the paper's models and evaluation (tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CHRONOS = "amazon/chronos-t5-base"
BOLT = "amazon/chronos-bolt-base"
BOLT_SMALL = "amazon/chronos-bolt-small"
TIMESFM = "google/timesfm-2.5-200m-pytorch"
TOTO = "Datadog/Toto-Open-Base-1.0"
MOIRAI = "Salesforce/moirai-1.1-R-base"
FIVE = (TIMESFM, BOLT, CHRONOS, TOTO, MOIRAI)


@dataclass(frozen=True)
class Evaluated:
    """Description of one model (table 2) and its evaluation (table 3) in the paper.

    Attributes:
        model: checkpoint.
        title: in its tables.
        layers, heads: layers of the stack that is read out, and heads in each.
        context: steps shown to the model.
        samples: sample paths; None for a model of quantiles.
        patch: steps per token.
        tokens: tokenisation of a series.
        loss: of its training.
    """

    model: str
    title: str
    layers: int
    heads: int
    context: int
    samples: int | None
    patch: int
    tokens: str
    loss: str


# by architecture
TABLE_3: Mapping[str, Evaluated] = {
    "timesfm-2.5": Evaluated(
        TIMESFM, "TimesFM 2.5", 20, 16, 2048, None, 32, "patches side by side, causal", "mean squared error"
    ),
    "chronos-bolt": Evaluated(BOLT, "Chronos-Bolt", 12, 12, 512, None, 16, "patches side by side", "quantile loss"),
    "chronos": Evaluated(CHRONOS, "Chronos", 12, 12, 512, 20, 1, "mean scaling and uniform bins", "cross-entropy"),
    "toto-1": Evaluated(
        TOTO,
        "Toto",
        12,
        12,
        4096,
        20,
        32,
        "patches side by side, scaled causally by variate",
        "likelihood of a mixture of Student's t, and a robust loss",
    ),
    "moirai-1.1": Evaluated(
        MOIRAI, "Moirai 1.1", 12, 12, 4000, 100, 32, "patches of several lengths", "likelihood of a mixture"
    ),
}

HOLDS = "claim: 1 holds, 0 does not, none is undecided"


@dataclass(frozen=True)
class Value:
    """One number, or one claim that a test can check.

    Attributes:
        quantity: its name, a claim in the paper's words; the measure here uses the same name.
        paper: the number as printed; 1 for a claim.
        where: where the paper prints it.
        unit: "" for a pure number, HOLDS for a claim.
    """

    quantity: str
    paper: float
    where: str
    unit: str = ""


@dataclass(frozen=True)
class Item:
    """Numbers of one table or figure.

    Attributes:
        id: as in ``tsfm-lens reproduce ID``.
        title: of the measurement.
        model: the checkpoint; "" where the numbers follow from counts alone.
        others: further checkpoints that the numbers are about.
        settings: the paper's, by name.
        values: printed numbers and claims.
        sweep: whether they are errors over the whole benchmark under ablations, for which a sweep is run.
        note: remark needed to read a difference.
        theory: whether it is an experiment or a statement of no model, which takes a seed and a number of draws.
        source: the paper that prints it.
        models: default models of the measure, one or several, each in turn; ``model`` is then empty and ``others`` are
            the paper's.
        also: further ids under which the same numbers are known.
    """

    id: str
    title: str
    model: str
    values: tuple[Value, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    sweep: bool = False
    note: str = ""
    others: tuple[str, ...] = ()
    theory: bool = False
    source: str = "tsfm-lens paper"
    models: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids of the item."""
        return (self.id, *self.also)
