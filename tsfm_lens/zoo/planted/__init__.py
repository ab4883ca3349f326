"""Models whose mechanism is known, because their weights are set and not trained."""

from __future__ import annotations

from tsfm_lens.zoo.planted.card import Attends, Card, PlantedPart, read_card, write_card
from tsfm_lens.zoo.planted.draft import rule_error
from tsfm_lens.zoo.planted.planting import Planted, mechanisms, open_planted, plant
from tsfm_lens.zoo.planted.rules import CovariateTimes, Gate, LinearTrend, LocalMean, SeasonalCopy, draw_contexts

__all__ = [
    "Attends",
    "Card",
    "CovariateTimes",
    "Gate",
    "LinearTrend",
    "LocalMean",
    "Planted",
    "PlantedPart",
    "SeasonalCopy",
    "draw_contexts",
    "mechanisms",
    "open_planted",
    "plant",
    "read_card",
    "rule_error",
    "write_card",
]
