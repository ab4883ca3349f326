"""Low-rank compression and pruning of models, and their effect on forecasts."""

from tsfm_lens.compress.checkpoint import save_compressed
from tsfm_lens.compress.healing import healed
from tsfm_lens.compress.layers import Compressed, Factors, LowRankLinear, PartialLinear, error_of, product, truncate
from tsfm_lens.compress.matrices import WeightMatrix, factorised, matrices
from tsfm_lens.compress.measure import cost, pareto, quality, sizes, smallest_harmless
from tsfm_lens.compress.methods import (
    METHODS,
    Allocation,
    allocate,
    allocated,
    calibration_run,
    chosen_ranks,
    compressed,
    deviation,
    rank_effects,
)
from tsfm_lens.compress.moments import output_sensitivity, second_moments
from tsfm_lens.compress.prune import prune, prune_native, pruned
from tsfm_lens.compress.schedule import (
    BlockShape,
    Ratio,
    guideline,
    rank_schedule,
    ranks_by_epsilon,
    ranks_by_share,
    ratio_of,
)

__all__ = [
    "Allocation",
    "BlockShape",
    "Compressed",
    "Factors",
    "LowRankLinear",
    "METHODS",
    "PartialLinear",
    "Ratio",
    "WeightMatrix",
    "allocate",
    "allocated",
    "calibration_run",
    "chosen_ranks",
    "compressed",
    "cost",
    "deviation",
    "error_of",
    "factorised",
    "guideline",
    "healed",
    "matrices",
    "output_sensitivity",
    "pareto",
    "product",
    "prune",
    "prune_native",
    "pruned",
    "quality",
    "rank_effects",
    "rank_schedule",
    "ranks_by_epsilon",
    "ranks_by_share",
    "ratio_of",
    "save_compressed",
    "second_moments",
    "sizes",
    "smallest_harmless",
    "truncate",
]
