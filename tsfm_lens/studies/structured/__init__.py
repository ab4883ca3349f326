"""Structured matrices, and attention that scores with them.

Kuang et al. (2025), "Customizing the Inductive Biases of Softmax Attention using Structured Matrices".
"""

from tsfm_lens.studies.structured.attention import KeyCache, ScoredAttention
from tsfm_lens.studies.structured.containments import as_contraction, as_levels, kronecker, nearest_tensor_train
from tsfm_lens.studies.structured.contraction import MultiLevelBlockTensorContraction
from tsfm_lens.studies.structured.counts import (
    bilinear_level_operations,
    bilinear_train_operations,
    cheapest_order,
    key_cache_entries,
    level_attention_operations,
    standard_operations,
)
from tsfm_lens.studies.structured.encoder import Encoder, InContextRegressor, PatchForecaster
from tsfm_lens.studies.structured.forms import (
    BilinearLevels,
    BilinearTrain,
    Form,
    Standard,
    TokenLevels,
    mixed,
    token_blocks,
)
from tsfm_lens.studies.structured.icl import (
    InContextTask,
    Prompts,
    errors_by_pairs,
    least_squares_in_context,
    make_regressor,
    oracle_errors,
)
from tsfm_lens.studies.structured.making import REGRESSORS
from tsfm_lens.studies.structured.matrices import (
    BlockTensorTrain,
    LowRank,
    LowRankBlockDiagonal,
    MultiLevelLowRank,
    StructuredMatrix,
    left_permutation,
    right_permutation,
)
from tsfm_lens.studies.structured.mup import fan_in_of, first_deviation, parameter_groups, redraw, rms_capped
from tsfm_lens.studies.structured.projections import (
    Copies,
    LevelFactor,
    LevelMap,
    StructuredLayer,
    TrainFactor,
    TrainMap,
)
from tsfm_lens.studies.structured.scoring_structure import scoring_structure
from tsfm_lens.studies.structured.sizes import balanced_factors, level_blocks
from tsfm_lens.studies.structured.steps import StepForecaster, make_forecaster
from tsfm_lens.studies.structured.tiles import Reach, block_depth, reaching_attention, reaching_scores
from tsfm_lens.studies.structured.wiring import ForecasterAdapter, StepAdapter, as_lens

__all__ = [
    "scoring_structure",
    "REGRESSORS",
    "BilinearLevels",
    "BilinearTrain",
    "BlockTensorTrain",
    "Copies",
    "Encoder",
    "ForecasterAdapter",
    "Form",
    "InContextRegressor",
    "InContextTask",
    "KeyCache",
    "LevelFactor",
    "LevelMap",
    "LowRank",
    "LowRankBlockDiagonal",
    "MultiLevelBlockTensorContraction",
    "MultiLevelLowRank",
    "PatchForecaster",
    "Prompts",
    "Reach",
    "ScoredAttention",
    "Standard",
    "StepAdapter",
    "StepForecaster",
    "StructuredLayer",
    "StructuredMatrix",
    "TokenLevels",
    "TrainFactor",
    "TrainMap",
    "as_contraction",
    "as_lens",
    "as_levels",
    "balanced_factors",
    "bilinear_level_operations",
    "bilinear_train_operations",
    "block_depth",
    "cheapest_order",
    "errors_by_pairs",
    "fan_in_of",
    "first_deviation",
    "key_cache_entries",
    "kronecker",
    "least_squares_in_context",
    "left_permutation",
    "level_attention_operations",
    "level_blocks",
    "make_forecaster",
    "make_regressor",
    "mixed",
    "nearest_tensor_train",
    "oracle_errors",
    "parameter_groups",
    "reaching_attention",
    "reaching_scores",
    "redraw",
    "right_permutation",
    "rms_capped",
    "standard_operations",
    "token_blocks",
]
