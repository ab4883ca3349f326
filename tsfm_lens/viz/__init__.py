"""Figures of labelled results: ``xarray.Dataset`` in, plotly ``Figure`` out, never a model.

Importing this package registers the plotly template "tsfm_lens" and leaves plotly's default alone.
"""

from tsfm_lens.viz.ablation import ablation_forecasts
from tsfm_lens.viz.ablation_map import ablation_heatmap
from tsfm_lens.viz.attention import attention_map
from tsfm_lens.viz.attention_heads import attention_grid
from tsfm_lens.viz.attribution import attribution_bars, attribution_heatmap
from tsfm_lens.viz.forecast import forecast_fan, lens_forecast
from tsfm_lens.viz.layers import layer_entropy, layer_gain
from tsfm_lens.viz.lens_map import logit_map
from tsfm_lens.viz.rollout import rollout_panels
from tsfm_lens.viz.saving import save
from tsfm_lens.viz.structure import entropic_rank_line, similarity_map, spectrum_lines, stable_rank_map

__all__ = [
    "ablation_forecasts",
    "ablation_heatmap",
    "attention_grid",
    "attention_map",
    "attribution_bars",
    "attribution_heatmap",
    "entropic_rank_line",
    "forecast_fan",
    "layer_entropy",
    "layer_gain",
    "lens_forecast",
    "logit_map",
    "rollout_panels",
    "save",
    "similarity_map",
    "spectrum_lines",
    "stable_rank_map",
]
