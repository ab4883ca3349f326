"""Routes of the input through components to the forecast, over many series, and their faithfulness tests."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.findings import finding
from tsfm_lens.viz.input_attribution import read_tests
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import segment_words
from tsfm_lens.viz.select import array, kind_word, model_of, names, shown, unit_of
from tsfm_lens.viz.sheet import Look, blank, sheet
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREY,
    INK,
    VERMILION,
    number,
    percent,
    plain,
)

__all__ = ["carried_dots", "faithfulness_dots", "route_map"]

_ROWS = 24  # components that are drawn by name
WORTH_A_WORD = 0.01  # of an effect
_MAX_NAMES = 3


def read_routes(ds: xr.Dataset) -> list[str]:
    """Describe through which components the most influential segments act, and what the parts sum to."""
    ds = ds.assign_coords(segment=segment_words(ds))
    movement = np.abs(ds["total"]).mean("step")
    order = np.argsort(-movement.values, kind="stable")[:_MAX_NAMES]
    leading = order[movement.values[order] > float(ds["total_floor"])]
    if not len(leading):
        return ["No segment moves the forecast by more than the noise."]
    acting = ds["size"].where(ds["size_acts"] > 0).fillna(0.0)
    rest = np.abs(ds["rest"]).mean("step").sum() / movement.sum()
    return summarize(
        ds.isel(segment=leading),
        "Masking moves the forecast most, on average, at these segments: "
        "{movement:largest unit}.",
        "Most of that goes through: {routes:largest unit}.",
        "Components that carry most over all segments: {carried:largest unit}.",
        "Share of the effect that bypasses attention (negative: attention overshoots; "
        "above 100 %: attention reverses the excess): {no_attention_share:each percent}.",
        "Direct contributions explain all but {rest:percent} of these effects; the rest is "
        "interaction in the output head.",
        "Gradients selected the {top} components that were tested. A random check of the "
        "others found {miss_rate:percent} missed (at most {miss_rate_high:percent}).",
        movement=movement[leading],
        routes=acting[leading],
        carried=acting.sum("segment"),
        rest=rest,
    )


@figure(
    "input_routes",
    "Effect of each segment through each component.",
    table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True),
    sentences=read_routes,
)
def route_map(ds: xr.Dataset, *, components: int = _ROWS) -> go.Figure:
    """Draw how much of each segment's influence goes through each component.

    Args:
        components: rows, those of the largest effects.
    """
    size = array(ds, "size", "segment", "component").T
    order = np.argsort(-np.nan_to_num(size).sum(1), kind="stable")[:components]
    unit = unit_of(ds) or "data units"
    noise = finding(ds, "size", "component", "segment", unit=unit)
    sheet = blank(
        max(160, 20 * len(order)), min_width=160 + 44 * size.shape[1], below=100
    )
    panel = sheet.panel()
    segments = [plain(name) for name in segment_words(ds)]
    labels = [plain(names(ds, "component")[i]) for i in order]
    hover = f"%{{x}} through %{{y}}<br>%{{z:.4g}} {plain(unit)}"
    x, y = list(range(len(segments))), list(range(len(labels)))
    panel.cells(
        size[order], x, y, hover, noise=None if noise is None else noise.at(order)
    )
    sheet.colours(colour_scale(f"mean absolute effect ({unit})", size, low=0.0))
    panel.x("segment of the input", tickvals=x, ticktext=segments, tickangle=40)
    panel.y(tickvals=y, ticktext=labels, autorange="reversed")
    more = (
        f"the {len(labels)} of {size.shape[0]} components with the largest effects"
        * (len(labels) < size.shape[0])
    )
    search = ""
    if ds.attrs.get("search") == "gradient":
        search = f"selected by gradient; {percent(float(ds.attrs['miss_rate']))} of spot checks were missed"
    remarks = [f"forecast of {ds.attrs.get('target', '')}", more, search]
    return sheet.dress(
        f"Effects of the input through each component of {model_of(ds)}", *remarks
    )


@figure(
    "route_effects",
    "Share of the input's effect that each component carries.",
    table=("carried",),
    sentences=summary(
        "Components that carry most of the input's influence{carried:basis}: "
        "{carried:largest percent}.",
        effect="carried",
        noun="components",
    ),
)
def carried_dots(ds: xr.Dataset, *, components: int = _ROWS) -> go.Figure:
    """Draw what part of the input's influence goes through each component, over many series.

    Args:
        components: rows, those of the largest parts.

    Example:
        >>> "carried_dots" in viz.__all__
        True
    """
    mean = array(ds, "carried_size", "component")
    order = np.argsort(-mean, kind="stable")[:components]
    carried = finding(ds, "carried", "component")
    labels, kinds = (
        names(ds, "component"),
        [kind_word(str(kind)) for kind in ds["component_kind"].values],
    )
    sheet = blank(max(160, 20 * len(order)), min_width=420, below=64)
    panel = sheet.panel()
    for place, kind in enumerate(dict.fromkeys(kinds)):
        rows = [row for row, i in enumerate(order) if kinds[i] == kind]
        if rows:
            members = order[rows]
            look: Look = {
                "colour": CATEGORICAL[place % len(CATEGORICAL)],
                "text": [plain(labels[i]) for i in members],
            }
            noise = None if carried is None else carried.at(members)
            panel.dots(
                mean[members],
                rows,
                kind,
                "%{text}<br>%{x:.3g}",
                noise=noise,
                across=True,
                **look,
            )
    panel.upright(0.0)
    panel.x("effect through the component / effect of the input")
    ticks = [plain(labels[i]) for i in order]
    panel.y(
        tickvals=list(range(len(order))), ticktext=ticks, range=[len(order) - 0.5, -0.5]
    )
    fewer = (
        f"the {len(order)} of {len(labels)} components that carry most"
        if len(order) < len(labels)
        else ""
    )
    title, over = (
        f"Share of the input's effect by component of {model_of(ds)}",
        f"mean over {shown(names(ds, 'series'))}",
    )
    return sheet.dress(title, over, fewer)


@figure(
    "route_faithfulness",
    "Necessity and sufficiency of the named routes.",
    table=(
        "necessity",
        "sufficiency",
        "necessity_p",
        "sufficiency_p",
        "prediction_error",
        "overlap",
    ),
    sentences=read_tests,
)
def faithfulness_dots(ds: xr.Dataset) -> go.Figure:
    """Draw what cutting and restoring the named routes of each segment does to its effect.

    Example:
        >>> "faithfulness_dots" in viz.__all__
        True
    """
    segments, unit = segment_words(ds), unit_of(ds) or "data units"
    canvas = sheet(
        [max(230, 74 * len(segments))],
        [0.55, 0.45],
        column_gap=0.18,
        min_width=760,
        below=60,
    )
    shares, change = canvas
    for place, (name, words, colour) in enumerate(
        (
            ("necessity", "effect lost when cut", VERMILION),
            ("sufficiency", "effect back when restored", BLUE),
        )
    ):
        at = np.arange(len(segments)) + 0.24 * (place - 0.5)
        random = array(ds, f"random_{name}", "segment", "draw")
        low, middle, high = 100 * np.quantile(random, [0.025, 0.5, 0.975], axis=1)
        bars = {
            "type": "data",
            "array": high - middle,
            "arrayminus": middle - low,
            "color": GREY,
            "thickness": 5,
        }
        look: Look = {
            "colour": GREY,
            "size": 6,
            "symbol": "square",
            "error_x": bars | {"width": 0},
        }
        shares.dots(
            middle,
            at,
            "random components, 95 %",
            "random components, %{x:.0f} %",
            **look,
        )
        value = 100 * array(ds, name, "segment")
        shares.dots(
            value, at, words, f"{words}<br>%{{x:.0f}} %", colour=colour, size=10
        )
    shares.upright(0.0)
    shares.upright(100.0, dash="dot")
    shares.x("share of the segment's effect", ticksuffix=" %")
    ticks: Look = {
        "tickvals": list(range(len(segments))),
        "ticktext": [plain(name) for name in segments],
    }
    shares.y(range=[len(segments) - 0.5, -0.5], **ticks)
    for name, look in (
        ("predicted", {"colour": INK, "dash": "dash"}),
        ("measured", {"colour": VERMILION, "width": 2.5}),
    ):
        values = array(ds, name, "step", segment=0, cut=-1)
        change.line(
            1 + np.arange(len(values)),
            values,
            f"{name} change",
            f"{name} %{{y:.4g}} {plain(unit)}",
            **look,
        )
    change.level(0.0)
    change.x("forecast step")
    change.y(f"change of the forecast ({unit})")
    error = float(array(ds, "prediction_error", "segment")[0])
    right = (
        f"at the right {segments[0]}, error of the prediction {number(100 * error)} %"
    )
    title = f"Necessity and sufficiency of routes of {model_of(ds)}"
    return canvas.dress(title, f"forecast of {ds.attrs.get('target', '')}", right)
