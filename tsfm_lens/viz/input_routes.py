"""Routes of the input through components to the forecast, over many series, and their faithfulness tests."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.findings import finding, judged
from tsfm_lens.viz.input_attribution import read_tests
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import segment_words
from tsfm_lens.viz.select import array, kind_word, model_of, names, shown, unit_of
from tsfm_lens.viz.sheet import Look, blank, sheet
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
from tsfm_lens.viz.words import capital, listed, measured

__all__ = ["carried_dots", "faithfulness_dots", "route_map"]

_ROWS = 24  # components that are drawn by name
WORTH_A_WORD = 0.01  # of an effect
_MAX_NAMES = 3


def read_routes(ds: xr.Dataset) -> list[str]:
    """Describe through which components the most influential segments act, and what the parts sum to."""
    amount, segments, components = (
        measured(unit_of(ds)),
        segment_words(ds),
        names(ds, "component"),
    )
    size, total = (
        array(ds, "size", "segment", "component"),
        array(ds, "total", "segment", "step"),
    )
    stands = array(ds, "size_acts", "segment", "component") > 0
    movement = np.abs(total).mean(1)
    out = []
    attends = any("attn" in name for name in components)
    for place in np.argsort(-movement, kind="stable")[:_MAX_NAMES]:
        if movement[place] <= float(ds["total_floor"]):
            continue
        order = [
            i
            for i in np.argsort(-np.nan_to_num(size[place]), kind="stable")
            if stands[place, i]
        ][:_MAX_NAMES]
        leading = [f"{components[i]} ({amount(size[place, i])})" for i in order]
        through = (
            f" Most of it goes through {listed(leading)}."
            if leading
            else " No component carries more than rounding."
        )
        words = (
            past_attention(float(array(ds, "no_attention_share", "segment")[place]))
            if attends
            else ""
        )
        past = f" {capital(words)}." if words else ""
        out.append(
            f"Masking {segments[place]} moves the forecast by {amount(movement[place])} on average.{through}{past}"
        )
    if not out:
        return ["No segment moves the forecast by more than the noise."]
    rest = np.abs(array(ds, "rest", "segment", "step")).mean(1).sum() / movement.sum()
    out.append(
        f"Direct contributions explain all but {percent(rest)} of these effects; the rest is interaction in the "
        "output head."
    )
    if ds.attrs.get("search") == "gradient":
        rate, high = (
            percent(float(ds.attrs[name])) for name in ("miss_rate", "miss_rate_high")
        )
        out.append(
            f"Gradients selected the {ds.attrs['top']} components that were tested. A random check of the others found "
            f"{rate} missed (at most {high})."
        )
    return out


def read_kinds(ds: xr.Dataset) -> list[str]:
    """Name the component with the largest effect over all segments, and the largest effect of each kind."""
    size = np.nan_to_num(array(ds, "size", "segment", "component")).sum(0)
    if not (array(ds, "size_acts", "segment", "component") > 0).any():
        return ["No component carries more than the noise."]
    places = zip(ds["stack"].values, ds["component_kind"].values, strict=True)
    kinds = [f"{stack} {kind_word(str(kind))}".strip() for stack, kind in places]
    by_kind = {
        kind: float(size[[each == kind for each in kinds]].max())
        for kind in dict.fromkeys(kinds)
    }
    amount = measured(unit_of(ds))
    largest = [
        f"{kind} {amount(value)}"
        for kind, value in sorted(by_kind.items(), key=lambda item: -item[1])
    ]
    return [
        f"Over all segments, most of the effect goes through {names(ds, 'component')[int(size.argmax())]}. Largest "
        f"effect by kind: {listed(largest)}."
    ]


def past_attention(share: float) -> str:
    """Write the share of an effect that bypasses attention; "" where it is not a number."""
    if not np.isfinite(share):
        return ""
    if abs(share) < WORTH_A_WORD:
        return "almost none of the effect bypasses attention"
    if share < 0:
        return f"the part that bypasses attention reverses {percent(-share)} of the effect: attention overshoots"
    if share > 1:
        return f"the part that bypasses attention is {percent(share)} of the effect: attention reverses the excess"
    return f"{percent(share)} of the effect bypasses attention"


@figure(
    "input_routes",
    "Effect of each segment through each component.",
    table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True),
    sentences=lambda ds: [*read_routes(ds), *read_kinds(ds)],
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


def read_carried(ds: xr.Dataset) -> list[str]:
    """Name the components that carry most of the input's influence over all series."""
    carried = judged(ds, "carried", "component")
    labels = names(ds, "component")
    most = [
        f"{labels[place]} ({carried.told(place, percent)})"
        for place in carried.named(_MAX_NAMES)
    ]
    told = (
        f"Most of the input's influence goes through {listed(most)}."
        if most
        else "No component carries 1 % of it."
    )
    return [told, *carried.standing(labels, "components")]


@figure(
    "route_effects",
    "Share of the input's effect that each component carries.",
    table=("carried",),
    sentences=read_carried,
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
