"""Routes of the input through components to the forecast, over many series, and their faithfulness tests."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.findings import judged
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.input_attribution import read_tests
from tsfm_lens.viz.panels import segment_words
from tsfm_lens.viz.select import array, kind_word, model_of, names, unit_of
from tsfm_lens.viz.theme import (
    percent,
)
from tsfm_lens.viz.words import capital, listed, measured

__all__ = ["carried_dots"]

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
    title = f"Share of the input's effect by component of {model_of(ds)}"
    return draw_variable(ds, "carried", title=title, top=components)


generic_figure(
    "input_routes",
    "size",
    "Effect of each segment through each component.",
    table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True),
    sentences=lambda ds: [*read_routes(ds), *read_kinds(ds)],
)
generic_figure(
    "route_faithfulness",
    "necessity",
    "Share of each segment's effect that is lost when its named routes are cut.",
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
