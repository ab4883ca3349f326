"""Probes: one measurement per file; a run in, a labelled dataset out."""

from tsfm_lens.probes.attention import attention_patterns, head_entropy, row_entropy
from tsfm_lens.probes.attribution import attribute
from tsfm_lens.probes.attribution_patching import attribution_patching
from tsfm_lens.probes.circuits import minimal_circuit
from tsfm_lens.probes.edge_attribution import edge_attribution
from tsfm_lens.probes.effects import causal_effects
from tsfm_lens.probes.embedding_ranks import embedding_ranks, signal_families
from tsfm_lens.probes.entropic_rank import entropic_rank
from tsfm_lens.probes.flow_of_ranks import flow_of_ranks
from tsfm_lens.probes.given import refuse_others as _refuse_others
from tsfm_lens.probes.head_choice import diffuse_heads, heads_at_1pp, heads_by_stable_rank, random_heads, sharp_heads
from tsfm_lens.probes.head_parroting import head_parroting
from tsfm_lens.probes.head_states import head_states
from tsfm_lens.probes.induction import repeated_tokens
from tsfm_lens.probes.induction_overlap import induction_overlap
from tsfm_lens.probes.kernel_regression import kernel_regression
from tsfm_lens.probes.layer_gain import layer_gain
from tsfm_lens.probes.lens_logits import lens_logits
from tsfm_lens.probes.lines_of_thought import lines_of_thought, trace_lines
from tsfm_lens.probes.logit_lens import bin_quantiles, count_peaks, logit_lens
from tsfm_lens.probes.parroting import context_parroting, lag_attention
from tsfm_lens.probes.patch_attention import patch_attention
from tsfm_lens.probes.patching import activation_patching
from tsfm_lens.probes.path_patching import path_patching
from tsfm_lens.probes.recipes import ablated_share, ablation_recipes
from tsfm_lens.probes.repeated_motif import repeated_motif
from tsfm_lens.probes.rollout import attention_flow, norm_weighted_attention, rollout_maps
from tsfm_lens.probes.row_angles import row_angles
from tsfm_lens.probes.seasonality import seasonality_bias
from tsfm_lens.probes.similarity import head_similarity, layer_similarity
from tsfm_lens.probes.spectra import head_spectra, stable_rank
from tsfm_lens.probes.stream_shares import stream_shares
from tsfm_lens.probes.training_history import training_history
from tsfm_lens.probes.weight_ranks import weight_ranks
from tsfm_lens.probes.writes import component_writes
from tsfm_lens.probes.zero_ablation import ablation_effects

__all__ = [
    "ablated_share",
    "ablation_effects",
    "ablation_recipes",
    "activation_patching",
    "attention_flow",
    "attention_patterns",
    "attribute",
    "attribution_patching",
    "bin_quantiles",
    "causal_effects",
    "component_writes",
    "context_parroting",
    "count_peaks",
    "diffuse_heads",
    "edge_attribution",
    "embedding_ranks",
    "entropic_rank",
    "flow_of_ranks",
    "head_entropy",
    "head_parroting",
    "head_similarity",
    "head_spectra",
    "head_states",
    "heads_at_1pp",
    "heads_by_stable_rank",
    "induction_overlap",
    "kernel_regression",
    "lag_attention",
    "layer_gain",
    "layer_similarity",
    "lens_logits",
    "lines_of_thought",
    "logit_lens",
    "minimal_circuit",
    "norm_weighted_attention",
    "patch_attention",
    "path_patching",
    "random_heads",
    "repeated_motif",
    "repeated_tokens",
    "rollout_maps",
    "row_angles",
    "row_entropy",
    "seasonality_bias",
    "sharp_heads",
    "signal_families",
    "stable_rank",
    "stream_shares",
    "trace_lines",
    "training_history",
    "weight_ranks",
]

_refuse_others(__name__)
