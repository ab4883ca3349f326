"""Rules of figures at their edges: gaps, missing values, padded dates, two stacks,
empty bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

import planted
from tsfm_lens import viz
from tsfm_lens.core.registry import find
from tsfm_lens.viz import theme
from tsfm_lens.viz.sheet import Panel, Sheet, blank
from viz.marks import heatmaps

LONG = "Wirkleistung am Knoten Köln-Süd " * 3
ROLLOUT = "autoregressive_attention"
HEADS = np.full((2, 2), 0.5)
SPAN = np.array([[1.0, 3.0]])
DAYS = np.arange("2001-01-01", "2001-01-06", dtype="datetime64[D]").astype(
    "datetime64[ns]"
)
Change = Callable[[xr.Dataset], xr.DataArray]
made = cache(planted.everything)


# what an edge makes of one variable
unknown: Change = lambda ds: ds["spearman_distance_size"].where(False)  # noqa: E731
rest: Change = lambda ds: ds["pattern"].where(ds["key_special"] == "", 1.0)  # noqa: E731
longer: Change = lambda ds: ds["key_stop"] + 2 * (ds["key_special"] == "")  # noqa: E731


def of(name: str, **changes: Change) -> xr.Dataset:
    """A planted result with other variables or coordinates, each a function of it."""
    ds = made()[name]
    values = {key: change(ds) for key, change in changes.items()}
    coords = {key: value for key, value in values.items() if key in ds.coords}
    return ds.assign_coords(coords).assign(
        {key: value for key, value in values.items() if key not in coords}
    )


def two_stacks() -> xr.Dataset:
    ds = made()["ablation_effects"]
    names = [
        f"encoder.0.{part}"
        for part in ("cross_attn.0", "cross_attn.1", "cross_attn.2", "mlp")
    ]
    encoder = ds.isel(component=range(4)).assign_coords(
        component=names, stack=("component", ["encoder"] * 4)
    )
    return xr.concat([encoder, ds], "component", data_vars="minimal")


def many(name: str, dim: str, indices: list[int]) -> xr.Dataset:
    """A result whose members come again and again, each under a name of its own."""
    return (
        made()[name]
        .isel({dim: indices})
        .assign_coords({dim: [f"{i}" for i in range(len(indices))]})
    )


def drawn(draw: Callable[[Panel], Any], canvas: Sheet | None = None) -> go.Figure:
    canvas = canvas or blank()
    draw(canvas.panel())
    return canvas.finalize("title")


def room(fig: go.Figure) -> float:
    return float(fig.layout.height - fig.layout.margin.t - fig.layout.margin.b)


SAID: dict[str, tuple[Callable[[], go.Figure], str]] = {
    "long context": (
        lambda: viz.forecast_fan(made()["forecast"], context_steps=7),
        "last 7 of 24 context steps",
    ),
    "values outside": (
        lambda: viz.logit_map(made()["lens"], value_range=(9.6, 10.4)),
        "100 % outside",
    ),
    "special keys": (
        lambda: viz.autoregressive_attention_map(made()[ROLLOUT], heads="diffuse"),
        "90 % on EOS",
    ),
    "padded dates": (
        lambda: viz.forecast_fan(
            of(
                "forecast",
                context_timestamp=lambda ds: ds["context_timestamp"].where(
                    ds["time"] > -20
                ),
            )
        ),
        "axis of dates",
    ),
    "a date is missing": (
        lambda: viz.forecast_fan(
            of(
                "forecast",
                forecast_timestamp=lambda ds: ds["forecast_timestamp"].where(
                    ds["step"] != 2
                ),
            )
        ),
        "axis time (steps",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_text_says_what_marks_omit(case: str) -> None:
    """The words of a figure say what its marks leave out."""
    draw, text = SAID[case]
    fig = draw()
    axes = [f"axis {axis.title.text or 'of dates'}" for axis in fig.select_xaxes()]
    assert text in " ".join(
        [
            fig.layout.meta["subtitle"],
            *(note.text for note in fig.layout.annotations),
            *axes,
        ]
    )


RULES: dict[str, tuple[Callable[[], Any], Any]] = {
    "a quantile without partner is a line": (
        lambda: [
            trace.name
            for trace in viz.forecast_fan(made()["forecast"].isel(quantile=[1, 2])).data
        ][:2],
        ["median forecast", "quantile 0.9"],
    ),
    "a gain of nothing has no chapter": (
        lambda: list(
            find("layer_gain").draw_panels(
                of("gain", gain=lambda ds: ds["gain"] * np.nan)
            )
        ),
        [],
    ),
    "two stacks stand apart": (
        lambda: [
            np.shape(heatmap.z)
            for heatmap in heatmaps(viz.ablation_heatmap(two_stacks()))
        ],
        [(3, 5)],
    ),
    "a missing effect is an empty cell": (
        lambda: heatmaps(
            viz.ablation_heatmap(of("ablation_effects", spearman_distance_size=unknown))
        )[0].text[0][0],
        "",
    ),
    "tokens of the forecast read no context": (
        lambda: len(
            viz.attention_map(
                made()["attention_patterns"]
                .isel(key=[0, 1])
                .assign_coords(planted.tokens("key", [0, 1]))
            ).data
        ),
        1,
    ),
    "special keys do not set the colours": (
        lambda: (
            viz.attention_grid(
                of("attention_patterns", pattern=rest).isel(layer=[0], head=[1])
            ).layout.coloraxis.cmax
        ),
        0.04,
    ),
    "keys of several passes may overlap": (
        lambda: (
            np.diff(
                viz.autoregressive_attention_map(of(ROLLOUT, key_stop=longer)).data[0].y
            )
            > 0
        ).all(),
        True,
    ),
    "panels keep their height": (
        lambda: [
            room(fig(viz.forecast_fan(made()["forecast"])))
            for fig in (go.Figure, theme.untitled)
        ],
        [300, 300],
    ),
    "variates in one sequence have a map each": (
        lambda: len(
            heatmaps(
                viz.patching_map(
                    made()["activation_patching"].isel(position=[0, 1, 0, 1])
                )
            )
        ),
        2,
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_at_the_edges(rule: str) -> None:
    result, expected = RULES[rule]
    if np.asarray(expected).dtype.kind == "f":
        np.testing.assert_allclose(np.asarray(result(), dtype=float), expected)
    else:
        assert result() == expected
