"""Cases of the benchmark of explanations: forecasts of planted models, whose true inputs and routes are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tsfm_lens.explain.routes import all_writers
from tsfm_lens.explain.segments import Segment, item_of, segments
from tsfm_lens.models.run import Run

Card = Any
"""Type of :class:`tsfm_lens.zoo.planted.Card`, which functions import late."""
REFERENCE = "mean"
"""Reference that replaces a masked step in the benchmark."""
PARTS = 8
"""Segments of a case's target."""
# openings of the task of a part that writes the same for all values: no influence of the input passes it
_CONSTANT = ("marks ", "tells the step")


@dataclass(frozen=True, eq=False)
class Case:
    """Forecast of a planted model, or of an untrained twin of it.

    Attributes:
        mechanism, architecture, seed: of the planted model; number: of the series.
        twin: whether the weights were drawn anew.
        run: of one item.
        parts: its segments.
        components: candidates for routes: every head and MLP but backups, which wait until another head is gone.
        true_parts: (segment, step) 1 where the rule reads any of the segment's values for the step, 0 where not. NaN
            where it reads them only to decide whether a gate is open.
        true_components: (component,) whether the component is of the mechanism and passes values on. Parts that mark
            positions or tell the step write the same for every series.
    """

    mechanism: str
    architecture: str
    seed: int
    number: int
    twin: bool
    run: Run
    parts: tuple[Segment, ...]
    components: tuple[str, ...]
    true_parts: np.ndarray
    true_components: np.ndarray

    @property
    def model(self) -> str:
        """Mechanism, architecture and seed, which cases of one model share."""
        return f"{self.mechanism} in {self.architecture}, seed {self.seed}{', untrained' * self.twin}"


def cases(
    pairs: Sequence[tuple[str, str]] | None = None, *, seeds: int = 3, series: int = 1, twins: bool = False
) -> Iterator[Case]:
    """Yield every case of the benchmark, model by model.

    Args:
        pairs: (mechanism, architecture); all that can be planted if None.
        seeds: parametrisations of each.
        series: forecasts of each model.
        twins: whether each model also has a twin, its weights drawn anew.
    """
    from tsfm_lens.zoo.planted import mechanisms

    for mechanism, architecture in mechanisms() if pairs is None else pairs:
        for seed in range(seeds):
            for twin in (False, True)[: 1 + twins]:
                yield from _of_model(mechanism, architecture, seed, twin, series)


@lru_cache(maxsize=2)
def _plant(mechanism: str, architecture: str, seed: int) -> Any:
    from tsfm_lens.zoo.planted import plant

    return plant(mechanism, architecture, seed=seed)


@lru_cache(maxsize=256)
def _of_model(mechanism: str, architecture: str, seed: int, twin: bool, series: int) -> tuple[Case, ...]:
    from tsfm_lens.studies.method_scores.series import bench
    from tsfm_lens.studies.method_scores.twins import untrained
    from tsfm_lens.zoo.planted.rules import CovariateTimes

    planted = _plant(mechanism, architecture, seed)
    card = planted.card
    lens = untrained(planted, seed) if twin else planted.lens()
    noise = 0.0 if isinstance(card.rule, CovariateTimes) else 0.05
    run = bench(lens, card, series=series, noise=noise, seed=seed).clean
    backups = set(card.components("backup"))
    names = tuple(name for name in map(str, all_writers(lens)) if name not in backups)
    carriers = {
        part.component for part in card.parts if part.role == "mechanism" and not part.does.startswith(_CONSTANT)
    }
    true = np.array([name in carriers for name in names])
    forecasts = []
    for number in range(series):
        parts = segments(run, number, parts=PARTS, season=1)
        labels = _labels(card, item_of(run, number), parts)
        forecasts.append(
            Case(mechanism, architecture, seed, number, twin, item_of(run, number), parts, names, labels, true)
        )
    return tuple(forecasts)


def _labels(card: Card, run: Run, parts: Sequence[Segment]) -> np.ndarray:
    """Label (segment, step) whether the rule reads the segment for the step; NaN where only a gate does.

    Of a covariate the rule reads the known future. Past values only set its scale, which is no reading of them.
    """
    from tsfm_lens.zoo.planted.rules import CovariateTimes, Gate

    if isinstance(card.rule, CovariateTimes):
        future = np.array([part.kind == "known covariate" and part.start >= 0 for part in parts])
        return np.tile(future[:, None], (1, card.horizon)).astype(float)
    values = np.asarray(run.batch.values[0])
    weights = np.abs(card.rule.inputs(values, card.horizon)) > 0
    reads = np.stack([weights[:, part.start + len(values) : part.stop + len(values)].any(1) for part in parts])
    labels = reads.astype(float)
    if isinstance(card.rule, Gate):
        in_gate = np.array([part.stop > -2 * card.rule.period for part in parts])
        labels[in_gate[:, None] & ~reads] = np.nan
    return labels
