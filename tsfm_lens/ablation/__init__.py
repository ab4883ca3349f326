"""Ablations: variants of a model, run fast, and how far they move a forecast.

Read :func:`run_variants` first (one forward pass), then :func:`forecast_variants` (the
library's own forecasts). Which components to ablate, and how to test the effects, is in
:mod:`tsfm_lens.probes`.
"""

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.ablation.metrics import (
    mae,
    relative_change,
    seasonal_scale,
    spearman_distance,
)
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import VariantForecasts, forecast_variants

__all__ = [
    "Variant",
    "VariantForecasts",
    "forecast_variants",
    "mae",
    "point_forecasts",
    "relative_change",
    "run_variants",
    "seasonal_scale",
    "spearman_distance",
]


def __dir__() -> list[str]:
    return __all__
