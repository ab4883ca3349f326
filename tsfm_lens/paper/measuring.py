"""What the measures of the paper's numbers are given, and what they hand back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tsfm_lens.models import Lens
from tsfm_lens.models.run import Run


@dataclass(frozen=True)
class Asked:
    """What a measure is asked for.

    Attributes:
        found_on: the run that it is measured on; None where counts are enough.
        lens: the model; None where counts are enough.
        stand_in: whether the series are chaotic windows made here.
        n_sequences: of the repeated-random-tokens test.
        seed: of those sequences.
        progress: called with what is done, how much of it, of how much, and None for the time left.
    """

    found_on: Run | None
    lens: Lens | None
    stand_in: bool
    n_sequences: int
    seed: int
    progress: Callable[[str, int, int, float | None], None] | None = None

    def tell(self, what: str, done: int, of: int) -> None:
        """Say how far the measure is."""
        if self.progress is not None:
            self.progress(what, done, of, None)

    @property
    def run(self) -> Run:
        """The run of an item that needs one."""
        assert self.found_on is not None
        return self.found_on

    @property
    def model(self) -> Lens:
        """The lens of an item that needs one."""
        assert self.lens is not None
        return self.lens

    def settings(self) -> dict[str, str]:
        """The series and forecasts, in the words of the items' settings."""
        batch = self.run.batch
        made = "windows of Lorenz and Roessler made here"
        given = ", ".join(batch.ids[:4]) + (" …" if len(batch) > 4 else "")
        words = {
            "series": made if self.stand_in else given,
            "windows": str(len(batch)),
            "context": str(max(batch.lengths)),
            "horizon": str(self.run.horizon),
        }
        if self.model.adapter.readout == "token":
            own = getattr(self.model.adapter.settings, "num_samples", 0)  # type: ignore[attr-defined]
            words["samples"] = str(self.run.num_samples or own)
        return words


@dataclass(frozen=True)
class Found:
    """What was measured.

    Attributes:
        values: by quantity, in the items' words; others beside them.
        settings: by name, in the items' words.
        units: of quantities that the paper does not print.
        intervals: lower and upper end, of quantities that have one.
        notes: what must be known to read a difference, beside what the item says.
    """

    values: dict[str, float]
    settings: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def per_layer(what: str, values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """One value per layer, by name."""
    return {f"{what}, layer {layer}": float(value) for layer, value in enumerate(values)}


def as_numbers(statements: dict[str, bool]) -> dict[str, float]:
    """Statements as 1 where they hold and 0 where they do not."""
    return {words: float(holds) for words, holds in statements.items()}
