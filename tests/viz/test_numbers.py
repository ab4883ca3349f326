"""Figures hold the numbers of planted results: maps their cells, lines their values;
and they refuse other results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import pytest
import xarray as xr

import planted
from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.core.registry import measurements
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.generic import draw_variable
from viz.marks import heatmaps

Case = tuple[str, dict[str, Any], Callable[[xr.Dataset], Any]]
everything = cache(planted.everything)

MAPS: dict[str, Case] = {
    "head_entropy_map": ("head_entropy", {}, lambda ds: [ds["entropy"]]),
    "weight_rank_map": (
        "weight_ranks",
        {"epsilon": 0.1},
        lambda ds: [[[25, 100], [75, 100]]],
    ),
    "patch_attention_grid": (
        "patch_attention",
        {"layer": -1},
        # a gap stands before the special token
        lambda ds: np.insert(ds["attention"].sel(layer=1).values, 3, np.nan, axis=-1),
    ),
    "attention_rollout_map": ("flow", {}, lambda ds: ds["flow"]),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_hold_the_numbers(name: str) -> None:
    result, options, expected = MAPS[name]
    ds = everything()[result]
    fig = getattr(viz, name.split()[0])(ds, **options)
    for trace, values in zip(heatmaps(fig), expected(ds), strict=True):
        assert_close(
            np.asarray(trace.z, dtype=float),
            np.asarray(values),
            depth=16,
            dtype=np.float32,
        )


def test_sharp_heads_are_framed() -> None:
    entropy = everything()["head_entropy"]
    fig = viz.head_entropy_map(entropy)
    middles = {
        (round((s.y0 + s.y1) / 2), round((s.x0 + s.x1) / 2)) for s in fig.layout.shapes
    }
    assert middles == {
        tuple(position) for position in np.argwhere(entropy["sharp"].values)
    }
    assert fig.layout.coloraxis.reversescale is True


def test_unknown_ranks_are_not_drawn() -> None:
    """Ranks that cannot be told at this epsilon are not drawn."""
    ranks = everything()["weight_ranks"]
    assert np.isnan(
        np.array(viz.weight_rank_map(ranks, epsilon=0.01).data[0].z, dtype=float)
    ).all()


@pytest.mark.parametrize(
    ("name", "result", "options", "message"),
    [
        ("patch_attention_grid", "patch_attention", {"layer": "7"}, "no layer '7'"),
        ("patching_map", "activation_patching", {"value": "first_order"}, "recovered"),
        (
            "autoregressive_attention_map",
            "autoregressive_attention",
            {"heads": "blunt"},
            "sharp",
        ),
        (
            "autoregressive_attention_map",
            "autoregressive_attention",
            {"count": 0},
            "count is 0",
        ),
        ("attention_map", "attention_patterns", {"head": 5}, "no head '5'"),
        ("attention_rollout_map", "flow", {"layers": [9]}, "no layer '9'"),
        ("lens_forecast", "patches", {"layers": [7]}, "no layer '7'"),
        (
            "ablation_heatmap",
            "ablation_effects",
            {"metric": "spearman"},
            "spearman_distance",
        ),
        (
            "ablation_forecasts",
            "ablation_effects",
            {"components": ["decoder.0.mpl"]},
            r"decoder\.0\.mlp",
        ),
        (
            "ablation_forecasts",
            "ablation_effects",
            {"components": []},
            "components is empty",
        ),
        (
            "attribution_bars",
            "attribution",
            {"decomposition": "expected"},
            "expected_value",
        ),
        ("recipe_forecasts", "ablation_recipes", {"recipes": ["fex"]}, "'fex'.*few"),
    ],
)
def test_missing_parts_of_results_are_refused(
    name: str, result: str, options: dict[str, Any], message: str
) -> None:
    """What a result does not have is refused."""
    with pytest.raises((InputError, UnknownNameError), match=message):
        getattr(viz, name)(everything()[result], **options)


def test_figures_refuse_other_kinds_and_document() -> None:
    """Every figure refuses other kinds of results and documents its arguments."""
    other = xr.Dataset(attrs={"kind": "forecast"})
    for entry in measurements().values():
        for figure in entry.figures:
            # of any kind: it draws what is named
            if figure.function is draw_variable:
                continue
            expect_error(
                "is of kind 'nothing'",
                figure.function,
                xr.Dataset(attrs={"kind": "nothing"}),
            )
            if entry.kind != "forecast":
                expect_error("forecast_fan draws that kind", figure.function, other)
            if figure.function.__module__.startswith("tsfm_lens.viz"):
                text = figure.function.__doc__ or ""
                assert [
                    line for line in text.splitlines() if line in ("Args:", "Raises:")
                ] == ["Args:", "Raises:"]
                for name in signature(figure.function).parameters:
                    assert (
                        f"    {name}:" in text
                        or f"{name}," in text
                        or f", {name}:" in text
                    ), (figure.name, name)
