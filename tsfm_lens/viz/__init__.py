"""Figures of labelled results: ``xarray.Dataset`` in, plotly ``Figure`` out, never a model.

Importing this package registers the plotly template "tsfm_lens" and leaves plotly's default alone.
"""

from tsfm_lens.viz.ablation import ablation_forecasts
from tsfm_lens.viz.ablation_map import ablation_heatmap
from tsfm_lens.viz.attention import attention_map
from tsfm_lens.viz.attention_film import attention_film, attention_snapshots
from tsfm_lens.viz.attention_heads import attention_grid, norm_weighted_map
from tsfm_lens.viz.attribution import attribution_bars, attribution_heatmap
from tsfm_lens.viz.attribution_patching import attribution_patching_scatter
from tsfm_lens.viz.behaviour import head_parroting_map, repeated_motif_map
from tsfm_lens.viz.beside import side_by_side
from tsfm_lens.viz.circuit import circuit_curve, circuit_forecasts, circuit_graph
from tsfm_lens.viz.compress import compressed_forecasts, size_and_error
from tsfm_lens.viz.covariates import covariate_dots
from tsfm_lens.viz.effects import effects_scatter, self_repair_bars
from tsfm_lens.viz.entropy import head_entropy_map
from tsfm_lens.viz.explain_inputs import input_map, input_timeline, input_waterfall
from tsfm_lens.viz.explain_inputs_swarm import input_beeswarm
from tsfm_lens.viz.explain_proof import deletion_lines, proof_dots
from tsfm_lens.viz.explain_routes import carried_dots, route_map, route_river
from tsfm_lens.viz.explore import explore_figure
from tsfm_lens.viz.forecast import forecast_fan, lens_forecast
from tsfm_lens.viz.induction import induction_corner, induction_maps, overlap_thresholds
from tsfm_lens.viz.kernel import concentration_bound_plot, kernel_bandwidths, tilt_map
from tsfm_lens.viz.layers import layer_entropy, layer_gain
from tsfm_lens.viz.lens_map import logit_map
from tsfm_lens.viz.logits import lens_logit_map
from tsfm_lens.viz.loss_landscape import loss_landscape
from tsfm_lens.viz.parroting import lag_attention_map, parroting_forecast
from tsfm_lens.viz.patch_attention import patch_attention_grid, selected_patch
from tsfm_lens.viz.patching import patched_forecasts, patching_map
from tsfm_lens.viz.paths import path_map
from tsfm_lens.viz.printing import for_print
from tsfm_lens.viz.rank_angles import head_closeness, row_angle_map, token_angle_map
from tsfm_lens.viz.rank_flow import embedding_spectra, rank_flow_map, rank_flow_spectra, rank_rise
from tsfm_lens.viz.ranks import rank_histograms, weight_rank_map, weight_spectra
from tsfm_lens.viz.recipes import recipe_forecasts
from tsfm_lens.viz.rollout import attention_flow_map, rollout_panels
from tsfm_lens.viz.saving import save
from tsfm_lens.viz.scheme import stream_scheme
from tsfm_lens.viz.seasonality import season_amplitudes
from tsfm_lens.viz.structure import (
    entropic_rank_line,
    head_similarity_map,
    similarity_map,
    spectrum_lines,
    stable_rank_map,
)
from tsfm_lens.viz.sweep_datasets import dataset_heatmap
from tsfm_lens.viz.sweep_heads import head_changes, head_curves, heads_at_layers
from tsfm_lens.viz.sweep_layers import component_errors, layer_distances, range_curves
from tsfm_lens.viz.sweep_recipes import recipe_changes, recipe_table, selection_comparison
from tsfm_lens.viz.thought import thought_counts, thought_lines
from tsfm_lens.viz.training_history import training_history
from tsfm_lens.viz.training_watch import nuclear_norms, training_measures

__all__ = [
    "ablation_forecasts",
    "ablation_heatmap",
    "attention_film",
    "attention_flow_map",
    "attention_grid",
    "attention_map",
    "attention_snapshots",
    "attribution_bars",
    "attribution_heatmap",
    "attribution_patching_scatter",
    "carried_dots",
    "circuit_curve",
    "circuit_forecasts",
    "circuit_graph",
    "component_errors",
    "compressed_forecasts",
    "concentration_bound_plot",
    "covariate_dots",
    "dataset_heatmap",
    "deletion_lines",
    "effects_scatter",
    "embedding_spectra",
    "entropic_rank_line",
    "explore_figure",
    "for_print",
    "forecast_fan",
    "head_changes",
    "head_closeness",
    "head_curves",
    "head_entropy_map",
    "head_parroting_map",
    "head_similarity_map",
    "heads_at_layers",
    "induction_corner",
    "induction_maps",
    "input_beeswarm",
    "input_map",
    "input_timeline",
    "input_waterfall",
    "kernel_bandwidths",
    "lag_attention_map",
    "layer_distances",
    "layer_entropy",
    "layer_gain",
    "lens_forecast",
    "lens_logit_map",
    "logit_map",
    "loss_landscape",
    "norm_weighted_map",
    "nuclear_norms",
    "overlap_thresholds",
    "parroting_forecast",
    "patch_attention_grid",
    "patched_forecasts",
    "patching_map",
    "path_map",
    "proof_dots",
    "range_curves",
    "rank_flow_map",
    "rank_flow_spectra",
    "rank_histograms",
    "rank_rise",
    "recipe_changes",
    "recipe_forecasts",
    "recipe_table",
    "repeated_motif_map",
    "rollout_panels",
    "route_map",
    "route_river",
    "row_angle_map",
    "save",
    "season_amplitudes",
    "selected_patch",
    "selection_comparison",
    "self_repair_bars",
    "side_by_side",
    "similarity_map",
    "size_and_error",
    "spectrum_lines",
    "stable_rank_map",
    "stream_scheme",
    "thought_counts",
    "thought_lines",
    "tilt_map",
    "token_angle_map",
    "training_history",
    "training_measures",
    "weight_rank_map",
    "weight_spectra",
]
