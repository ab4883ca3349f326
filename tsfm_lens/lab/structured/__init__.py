"""Structured matrices, and attention that scores with them.

Kuang et al. (2025), "Customizing the Inductive Biases of Softmax Attention using Structured Matrices".
"""

from tsfm_lens.lab.structured.containments import as_contraction, as_levels, kronecker, nearest_tensor_train
from tsfm_lens.lab.structured.contraction import MultiLevelBlockTensorContraction
from tsfm_lens.lab.structured.counts import (
    bilinear_level_operations,
    bilinear_train_operations,
    cheapest_order,
    key_cache_entries,
    level_attention_operations,
    standard_operations,
)
from tsfm_lens.lab.structured.matrices import (
    BlockTensorTrain,
    LowRank,
    LowRankBlockDiagonal,
    MultiLevelLowRank,
    StructuredMatrix,
    left_permutation,
    right_permutation,
)
from tsfm_lens.lab.structured.sizes import balanced_factors, level_blocks

__all__ = [
    "BlockTensorTrain",
    "LowRank",
    "LowRankBlockDiagonal",
    "MultiLevelBlockTensorContraction",
    "MultiLevelLowRank",
    "StructuredMatrix",
    "as_contraction",
    "as_levels",
    "balanced_factors",
    "bilinear_level_operations",
    "bilinear_train_operations",
    "cheapest_order",
    "key_cache_entries",
    "kronecker",
    "left_permutation",
    "level_attention_operations",
    "level_blocks",
    "nearest_tensor_train",
    "right_permutation",
    "standard_operations",
]
