"""Probes: one measurement a file; a lens and series in, a labelled dataset out."""

from tsfm_lens.probes.attention import attention_patterns, head_entropy, row_entropy
from tsfm_lens.probes.attribution import attribute, component_writes
from tsfm_lens.probes.entropic_rank import entropic_rank
from tsfm_lens.probes.induction import repeated_tokens
from tsfm_lens.probes.kernel_regression import kernel_regression
from tsfm_lens.probes.layer_gain import layer_gain
from tsfm_lens.probes.logit_lens import bin_quantiles, count_peaks, logit_lens
from tsfm_lens.probes.parroting import context_parroting, lag_attention
from tsfm_lens.probes.rollout import attention_flow, norm_weighted_attention, rollout_maps
from tsfm_lens.probes.seasonality import seasonality_bias
from tsfm_lens.probes.similarity import head_similarity, layer_similarity
from tsfm_lens.probes.spectra import head_spectra, stable_rank
from tsfm_lens.probes.trajectory import Trajectory, trajectory
from tsfm_lens.probes.zero_ablation import ablation_effects

__all__ = [
    "Trajectory",
    "ablation_effects",
    "attention_flow",
    "attention_patterns",
    "attribute",
    "bin_quantiles",
    "component_writes",
    "count_peaks",
    "context_parroting",
    "entropic_rank",
    "head_entropy",
    "head_similarity",
    "head_spectra",
    "kernel_regression",
    "lag_attention",
    "layer_gain",
    "layer_similarity",
    "logit_lens",
    "norm_weighted_attention",
    "repeated_tokens",
    "rollout_maps",
    "row_entropy",
    "seasonality_bias",
    "stable_rank",
    "trajectory",
]
