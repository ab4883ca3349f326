"""A figure for every renderer of ``tsfm_lens.viz``, under the renderer's own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.errors import InputError
from tsfm_lens.models.run import Run
from tsfm_lens.paper.registry import Entry, Plate, first_item, need_tokens

Compute = Callable[[Run], xr.Dataset]


def of_one(probe: Compute) -> Compute:
    """A probe on the first series."""
    return lambda run: probe(first_item(run))


def _token_lens(run: Run) -> xr.Dataset:
    need_tokens(run, "of probabilities", "lens_forecast")
    return probes.logit_lens(run)


def _gain(run: Run) -> xr.Dataset:
    found = probes.logit_lens(run)
    return probes.layer_gain(found, reference="truth" if "truth" in found else "model")


def _recipes(run: Run) -> xr.Dataset:
    entropy = probes.head_entropy(run)
    count = max(1, entropy["entropy"].size // 10)
    recipes = {
        "sharp heads": probes.sharp_heads(entropy, count),
        "diffuse heads": probes.diffuse_heads(entropy, count),
    }
    return probes.ablation_recipes(run, recipes)


def _lag(run: Run) -> xr.Dataset:
    one = first_item(run)
    season = one.batch.seasonalities[0]
    if season < 2:
        raise InputError(f"series {one.batch.ids[0]!r} has no season, at whose lag attention could be counted")
    return probes.lag_attention(one, season)


def _overlap(run: Run) -> xr.Dataset:
    return probes.induction_overlap(_repeated(run), probes.head_entropy(run))


def _repeated(run: Run) -> xr.Dataset:
    return probes.repeated_tokens(run.lens, seed=run.seed)


def plain(name: str, computes: str, compute: Compute, title: str, **options: Any) -> Entry:
    """A figure that is one renderer on one result."""

    def draw(run: Run) -> list[Plate]:
        ds = compute(run)
        return [Plate("", getattr(viz, name)(ds, **options), (ds,))]

    return Entry(name, title, computes, (name,), draw)


_LENS = ("logit_lens on all series, of which the first is drawn", probes.logit_lens)
_TOKENS = (_LENS[0], _token_lens)
_ATTRIBUTION = ("attribute on all series, of which the first is drawn", probes.attribute)
_EFFECTS = ("ablation_effects: every head, MLP and layer by itself", probes.ablation_effects)
_PATTERNS = ("attention_patterns on the first series", of_one(probes.attention_patterns))
_KERNEL = ("kernel_regression on the first series", of_one(probes.kernel_regression))
_ROLLOUT = ("rollout_maps on the first series", of_one(probes.rollout_maps))
_SPECTRA = ("head_spectra, from the weights alone", lambda run: probes.head_spectra(run.lens))
_INDUCTION = ("repeated_tokens", _repeated)
_OVERLAP = ("repeated_tokens, head_entropy, induction_overlap", _overlap)
_SELECTED = ("patch_attention on the first series", of_one(probes.patch_attention))

ENTRIES = [
    plain(
        "forecast_fan", "forecast", lambda run: run.forecast.to_dataset(run.truth), "A forecast over context and truth."
    ),
    plain("logit_map", *_TOKENS, "Probabilities of values, read after each layer."),
    plain("lens_forecast", *_LENS, "The forecast that each layer holds."),
    plain("layer_entropy", *_TOKENS, "Uncertainty of the next value after each layer."),
    plain("layer_gain", "logit_lens, layer_gain", _gain, "What each layer adds to the accuracy."),
    plain("ablation_heatmap", *_EFFECTS, "What the forecast loses without a head, an MLP or a layer."),
    plain("ablation_forecasts", *_EFFECTS, "Forecasts without single components."),
    plain("attribution_bars", *_ATTRIBUTION, "Who writes the forecast, component by component."),
    plain("attribution_heatmap", *_ATTRIBUTION, "Who writes the forecast, step by step."),
    plain("attention_map", *_PATTERNS, "What one head of the last layer reads.", layer=-1),
    plain("attention_grid", *_PATTERNS, "What every head reads."),
    plain("rollout_panels", *_ROLLOUT, "What the sharpest heads read along the forecast."),
    plain("stable_rank_map", *_SPECTRA, "Stable rank of every head."),
    plain("spectrum_lines", *_SPECTRA, "Singular values of every head."),
    plain("kernel_bandwidths", *_KERNEL, "Bandwidths of the kernel that each head is."),
    plain("tilt_map", *_KERNEL, "How much of the attention is tilt, not kernel."),
    plain("concentration_bound_plot", *_KERNEL, "Measured concentration and its bound."),
    plain("induction_maps", *_INDUCTION, "Prefix-matching and copying of every head."),
    plain("induction_corner", *_OVERLAP, "Prefix-matching, copying and entropy against each other."),
    plain("overlap_thresholds", *_OVERLAP, "Overlap of induction and sharp heads over thresholds."),
    plain("lag_attention_map", "lag_attention at the season", _lag, "Attention one season before each step."),
    plain("patch_attention_grid", *_SELECTED, "Attention matrices of the first layer, head by head."),
    plain("selected_patch", *_SELECTED, "The patch that a head of the last layer selects."),
    plain("recipe_forecasts", "head_entropy, ablation_recipes", _recipes, "Forecasts without sharp or diffuse heads."),
    plain(
        "norm_weighted_map",
        "norm_weighted_attention on the first series",
        of_one(probes.norm_weighted_attention),
        "How long the vectors are that keys contribute.",
    ),
    plain(
        "attention_flow_map",
        "attention_flow on the first series",
        of_one(probes.attention_flow),
        "How much of each token may have reached each other.",
    ),
    plain(
        "entropic_rank_line",
        "entropic_rank on all series",
        probes.entropic_rank,
        "Directions that the heads of a layer write in.",
    ),
    plain(
        "similarity_map",
        "layer_similarity on all series",
        probes.layer_similarity,
        "How alike the layers' streams are.",
    ),
    plain(
        "head_similarity_map",
        "head_similarity on all series",
        probes.head_similarity,
        "How alike the heads of a layer write.",
    ),
    plain(
        "head_entropy_map",
        "head_entropy on all series",
        probes.head_entropy,
        "How widely every head spreads its attention.",
    ),
    plain(
        "parroting_forecast",
        "context_parroting",
        probes.context_parroting,
        "The forecast beside the best shifted copy of its context.",
    ),
    plain(
        "season_amplitudes",
        "seasonality_bias",
        probes.seasonality_bias,
        "Seasonal amplitude of the forecast against that of context and truth.",
    ),
    plain(
        "explore_figure",
        "head_states on the first series",
        of_one(probes.head_states),
        "One head: what it reads, what it writes, and the forecast without it.",
    ),
    plain(
        "lens_logit_map",
        "lens_logits on the first series",
        of_one(probes.lens_logits),
        "Logits of values, read after each layer.",
    ),
    plain(
        "stream_scheme",
        "stream_shares on all series",
        probes.stream_shares,
        "Who writes to the residual stream.",
    ),
]
