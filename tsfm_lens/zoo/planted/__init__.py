"""Models whose mechanism is known, because their weights are set and not trained."""

from __future__ import annotations

from tsfm_lens.zoo.planted.card import Attends, Card, Part, read_card, write_card
from tsfm_lens.zoo.planted.planting import Planted, mechanisms, plant
from tsfm_lens.zoo.planted.rules import CovariateTimes, Gate, LinearTrend, LocalMean, SeasonalCopy

__all__ = [
    "Attends",
    "Card",
    "CovariateTimes",
    "Gate",
    "LinearTrend",
    "LocalMean",
    "Part",
    "Planted",
    "SeasonalCopy",
    "mechanisms",
    "plant",
    "read_card",
    "write_card",
]
