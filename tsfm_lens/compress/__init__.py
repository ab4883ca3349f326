"""Compression: models of lower rank that are really smaller, and what that does to their forecasts."""

from tsfm_lens.compress.allocate import Allocation, allocate, allocated, deviation, rank_effects
from tsfm_lens.compress.checkpoint import save_compressed
from tsfm_lens.compress.cost import cost
from tsfm_lens.compress.factors import Factors, cut_off, error_of, product
from tsfm_lens.compress.gradients import felt_moments
from tsfm_lens.compress.healing import healed
from tsfm_lens.compress.layers import Compressed, LowRank, Part
from tsfm_lens.compress.matrices import Matrix, factorised, matrices
from tsfm_lens.compress.measure import pareto, quality, sizes, smallest_harmless
from tsfm_lens.compress.methods import METHODS, calibration_run, chosen_ranks, compressed
from tsfm_lens.compress.moments import second_moments
from tsfm_lens.compress.prune import native_without, taken_out, without
from tsfm_lens.compress.schedule import (
    Form,
    Ratio,
    guideline,
    rank_schedule,
    ranks_by_epsilon,
    ranks_by_share,
    ratio_of,
)

__all__ = [
    "Allocation",
    "Compressed",
    "Factors",
    "Form",
    "LowRank",
    "METHODS",
    "Matrix",
    "Part",
    "Ratio",
    "allocate",
    "allocated",
    "calibration_run",
    "chosen_ranks",
    "compressed",
    "cost",
    "cut_off",
    "deviation",
    "error_of",
    "factorised",
    "felt_moments",
    "guideline",
    "healed",
    "matrices",
    "native_without",
    "pareto",
    "product",
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
    "taken_out",
    "without",
]
