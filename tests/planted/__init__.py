"""Planted results: of every kind of measurement one, with known answers, made in one
place.
"""

# ruff: noqa: F401
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xarray as xr

from planted.ablations import ablation, attribution, circuit, effects, stream_shares
from planted.attention import (
    attention,
    attention_rollout,
    head_entropy,
    kernel_regression,
    lag_attention,
    norm_weighted,
    patch_attention,
    rollout,
)
from planted.copying import parroting, seasonality
from planted.explore import explore
from planted.forecasts import (
    forecast,
    layer_gain,
    lens_logits,
    quantile_lens,
    recipes,
    token_lens,
)
from planted.patching import attribution_patching, edges, patching, paths
from planted.ranks import embedding_ranks, flow_of_ranks, row_angles, weight_ranks
from planted.schema import differences, table_differences
from planted.series import (
    EMBED,
    IDS,
    components,
    rivers_and_roads,
    series,
    tokens,
    with_components,
)
from planted.structure import entropic_rank, layer_similarity, spectra
from planted.sweep import sweep


def in_report(ids: Sequence[str] = IDS, **options: Any) -> dict[str, xr.Dataset]:
    """What the tests of the report put into one page, by name; ``options`` of
    :func:`series`.
    """
    on = series(ids, **options)
    return {
        "forecast": forecast(on),
        "lens": token_lens(on),
        "gain": layer_gain(on),
        "ablation_effects": ablation(on),
        "attribution": attribution(on),
        "attention_patterns": attention(on),
        "patches": quantile_lens(on.isel(series=[0])),
        "head_spectra": spectra(),
        "entropic_rank": entropic_rank(on),
        "layer_similarity": layer_similarity(),
        "kernel": kernel_regression(on),
        "head_entropy": head_entropy(),
        "autoregressive_attention": rollout(on),
        "flow": attention_rollout(on),
        "norm_weighted_attention": norm_weighted(on),
        "context_parroting": parroting(on),
        "lag": lag_attention(on),
        "seasonality_bias": seasonality(on),
        "head_states": explore(on),
        "activation_patching": patching(on),
        "attribution_patching": attribution_patching(on),
        "path_patching": paths(on),
        "edge_attribution": edges(on),
        "causal_effects": effects(on),
        "minimal_circuit": circuit(on),
    }


def everything() -> dict[str, xr.Dataset]:
    """Every planted dataset by name, as it is made by default."""
    rest = {
        "lens_logits": lens_logits(),
        "ablation_recipes": recipes(),
        "stream_shares": stream_shares(),
    }
    ranks = {"weight_ranks": weight_ranks(), "row_angles": row_angles()}
    ranks |= {"embedding_ranks": embedding_ranks(), "flow_of_ranks": flow_of_ranks()}
    return in_report() | rest | ranks | {"patch_attention": patch_attention()}
