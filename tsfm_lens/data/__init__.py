"""Coercion, validation and reading of series, and real series that come with the package."""

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.bundled import BundledSeries, bundled, bundled_info, bundled_names
from tsfm_lens.data.coerce import as_series
from tsfm_lens.data.corruption import remove_motif, shift_phase, swap_season
from tsfm_lens.data.dysts_sets import dysts_sets, dysts_systems
from tsfm_lens.data.evaluation import EvaluationSet, Window
from tsfm_lens.data.evaluation_sources import gluonts_set, holdout_sets
from tsfm_lens.data.files import read_series
from tsfm_lens.data.frames import from_frame
from tsfm_lens.data.gift_eval import (
    GiftEvalConfig,
    gift_eval,
    gift_eval_configs,
    gift_eval_folder,
)
from tsfm_lens.data.variates import by_variate

__all__ = [
    "BundledSeries",
    "EvaluationSet",
    "GiftEvalConfig",
    "SeriesBatch",
    "Window",
    "as_series",
    "bundled",
    "bundled_info",
    "bundled_names",
    "by_variate",
    "dysts_sets",
    "dysts_systems",
    "from_frame",
    "gift_eval",
    "gift_eval_configs",
    "gift_eval_folder",
    "gluonts_set",
    "holdout_sets",
    "read_series",
    "remove_motif",
    "shift_phase",
    "swap_season",
]
