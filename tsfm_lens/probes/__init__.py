"""Probes: one measurement a file; a lens and series in, a labelled dataset out."""

from tsfm_lens.probes.attention import attention_patterns, head_entropy, row_entropy
from tsfm_lens.probes.attribution import attribute, component_writes
from tsfm_lens.probes.induction import repeated_tokens
from tsfm_lens.probes.layer_gain import layer_gain
from tsfm_lens.probes.logit_lens import bin_quantiles, count_peaks, logit_lens
from tsfm_lens.probes.trajectory import Trajectory, trajectory
from tsfm_lens.probes.zero_ablation import ablation_effects

__all__ = [
    "Trajectory",
    "ablation_effects",
    "attention_patterns",
    "attribute",
    "bin_quantiles",
    "component_writes",
    "count_peaks",
    "head_entropy",
    "layer_gain",
    "logit_lens",
    "repeated_tokens",
    "row_entropy",
    "trajectory",
]
