"""Families of series in the proportions that recipes draw them in, and how many rows of each there are."""

from __future__ import annotations

COPY_MIX: dict[str, float] = {"motif_rough": 4, "motif_smooth": 3, "harmonics": 3, "seasonal": 2, "kernelsynth": 2}
"""Mostly repetition: the mixture in which copying forms quickest."""

HOME_MIX: dict[str, float] = {
    "motif_rough": 3,
    "motif_smooth": 2,
    "harmonics": 1.5,
    "seasonal": 4,
    "seasonal_walk": 2,
    "double_season": 1.5,
    "intermittent": 0.5,
    "autoregressive": 1,
    "random_walk": 1,
    "trend": 1,
    "level_shift": 0.5,
    "white_noise": 0.5,
    "chaotic": 0.5,
}
"""Generators of `mixture.py` alone."""

WIDE_MIX: dict[str, float] = {name: 0.5 * weight for name, weight in HOME_MIX.items()} | {
    "kernelsynth": 8,
    "real": 8,
    "tsmixup": 6,
}
"""Gaussian processes, real series, mixtures of both, and every generator."""

SEASON_MIX: dict[str, float] = WIDE_MIX | {
    "motif_rough": 3,
    "motif_smooth": 3,
    "harmonics": 3,
    "seasonal": 10,
    "double_season": 3,
    "kernelsynth": 4,
    "real": 6,
    "tsmixup": 3,
}
"""As `WIDE_MIX`, with seasons and repeated motifs weighing as much as all the rest."""

WEEK_MIX: dict[str, float] = SEASON_MIX | {"day_types": 5}
"""As `SEASON_MIX`, with weeks of working days and days off."""

EVENT_MIX: dict[str, float] = WEEK_MIX | {"holidays": 4, "shocks": 2, "real": 12, "tsmixup": 4}
"""As `WEEK_MIX`, with holidays, shocks that fade, and real series weighing twice as much."""

WALK_MIX: dict[str, float] = EVENT_MIX | {"walks": 6, "seasonal_walk": 2, "holidays": 8, "shocks": 4, "level_shift": 1}
"""As `EVENT_MIX`, with walks of every kind, and twice as many holidays, shocks and shifts."""

CORPUS: dict[str, int] = dict.fromkeys([*HOME_MIX, "day_types", "kernelsynth"], 2_000) | {"chaotic": 500}
"""Rows of each family."""

WIDE_CORPUS: dict[str, int] = dict.fromkeys([*CORPUS, "holidays", "shocks", "walks"], 12_000) | {"chaotic": 3_000}
"""Rows of each family for the longest training."""
