"""Direct and total effects of components, and self-repair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.registry import measurement
from tsfm_lens.viz.noise import WORTH_A_WORD, Finding, finding, judged
from tsfm_lens.viz.panels import fitted_range, means
from tsfm_lens.viz.places import Places, places_in
from tsfm_lens.viz.select import array, kind_word, model_of, names, series_rows, unit_of
from tsfm_lens.viz.sheet import Look, Panel, blank, sheet
from tsfm_lens.viz.theme import GREY, INK, PALE, VERMILION, mixed, number, percent, plain
from tsfm_lens.viz.words import capital, listed, over_series, verb

__all__ = ["effects_scatter", "self_repair_bars"]


_MAX_LABELS = 6
_LETTER, _LINE = 0.0125, 0.04  # of a label, in shares of the axes
_WIDTH = 84 + round(6.6 / _LETTER)  # pixels at which letters have that share
_MAX_NAMES = 3  # components in a sentence

EFFECTS = measurement("effects")


def read_effects(ds: xr.Dataset) -> list[str]:
    """Describe the components that act most on the forecast directly."""
    labels, way = names(ds, "component"), capital(ablation_word(ds))
    counts, most, large = [], [], []
    for share in (judged(ds, f"{effect}_share", "component") for effect in ("direct", "total")):
        count = int(share.stands.sum())
        more = int((share.stands & (share.estimate >= WORTH_A_WORD)).sum())
        counts.append(count)
        most.append([f"{labels[flat]} ({share.told(flat, percent)})" for flat in share.named(_MAX_NAMES)])
        large.append(f"{'all' if more == count else more or 'none'} of them by {percent(WORTH_A_WORD)} or more")
    later = "With all that follows, none changes it by more than the noise either."
    if most[1]:
        do = f"{counts[1]} of {len(labels)} {verb(counts[1], 'do', 'does')}"
        later = f"With all that follows, {do}, {large[1]}, most of all {listed(most[1])}."
    if not most[0]:
        return [f"{way}, no component changes the forecast directly by more than the noise.", later]
    return [
        f"{way}, these change the forecast most directly, as shares of the range of the series: {listed(most[0])}.",
        f"{counts[0]} of {len(labels)} components stand out of the noise directly, {large[0]}.",
        later,
    ]


def read_self_repair(ds: xr.Dataset) -> list[str]:
    """State how many direct effects are undone later, and whose most."""
    repair, labels = judged(ds, "self_repair", "component"), names(ds, "component")
    count = int(np.isfinite(repair.estimate).sum())
    if not count:
        return ["No component has a direct effect large enough to say what share of it is undone."]
    positive, negative = repair.stands & (repair.estimate > 0), repair.stands & (repair.estimate < 0)
    out = [
        f"Of {count} components the direct effect is large enough on some series to say what share of it is undone. "
        + (
            f"Later components undo a part of it for {int(positive.sum())}, and add to it for {int(negative.sum())}."
            if positive.any() or negative.any()
            else "No share stands out of the noise."
        )
    ]
    first = repair.leader(positive)
    if first is not None:
        out.append(f"Most is undone of {labels[first]}: {repair.told(first, percent)} of its direct effect.")
    return out


def _sizes(ds: xr.Dataset, series: list[int]) -> tuple[np.ndarray, np.ndarray, str]:
    """Return direct and total effects."""
    rest = 1 - array(ds, "self_repair", "component", "series")[:, series]
    if len(series) == 1:
        later = slice(int(ds.attrs.get("first_step", 0)), None)
        size = np.abs(array(ds, "direct", "component", "series", "step")[:, series, later]).mean(-1)
        return size, size * rest, unit_of(ds, series[0]) or "data units"
    share = array(ds, "direct_share", "component", "series")[:, series]
    return share, share * rest, "share of the series' range"


@EFFECTS.figure(table=("direct", "total", "indirect"), sentences=read_effects)
def effects_scatter(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw total against direct effect of every component: below the diagonal, later components undo part of it."""
    rows = series_rows(ds, series)
    (direct, total, unit), places = _sizes(ds, rows), places_in(ds)
    x, y = means(direct)[places.order], means(total)[places.order]
    giants = _giants(x, y)
    fine = np.isfinite(y)
    fine[giants] = False
    canvas = blank(380, min_width=_WIDTH)
    panel = canvas.panel()
    _regions(panel, x[fine], y[fine])
    shares = [finding(ds, f"{effect}_share", "component", unit="of the range") for effect in ("direct", "total")]
    noise = None
    if shares[0] is not None and shares[1] is not None:
        # the intervals are those of whole effects, and what is drawn upwards is a part of one
        noise = replace(shares[1], stands=shares[0].stands | shares[1].stands).at(places.order).without_interval
    _dots(panel, places, x, y, unit, fine, noise)
    panel.x(f"direct effect ({unit})")
    panel.y(f"total effect along the direct one\n({unit})")
    without = int((~np.isfinite(y)).sum())
    far = [f"{places.labels[i]}, direct {number(x[i])}, total {number(y[i])}".replace("-", "−") for i in giants]
    return canvas.dress(
        f"Direct and total effect of every component of {model_of(ds)}",
        f"{over_series(ds, rows)}, {ablation_word(ds)} one at a time",
        "direct: with all later attention and MLPs held, mean size over steps; total: all free, its part along the "
        "direct effect",
        *(f"beyond the axes: {words}" for words in far),
        f"{without} without direct effect not drawn" if without else "",
    )


@EFFECTS.figure(table=("self_repair",), sentences=read_self_repair)
def self_repair_bars(ds: xr.Dataset, *, top: int = 15, series: str | int | None = None) -> go.Figure:
    """Draw how much of its direct effect later components undo, for the largest direct effects."""
    if top < 1:
        raise InputError(f"top is {top}, expected 1 or more")
    ids, rows = names(ds, "series"), series_rows(ds, series)
    direct, _, unit = _sizes(ds, rows)
    each = array(ds, "self_repair", "component", "series")[:, rows]
    repair, size = means(each), means(direct)
    order = [int(i) for i in np.argsort(-size, kind="stable") if np.isfinite(repair[i])][:top]
    labels = [plain(names(ds, "component")[i]) for i in order]
    noises = [
        finding(ds, name, "component", unit=word) if series is None else None
        for name, word in (("direct_share", "of the range"), ("self_repair", ""))
    ]
    noise, mine = (None if each_noise is None else each_noise.at(order) for each_noise in noises)
    canvas = sheet(
        [max(140, 22 * len(order))], [0.35, 0.65], column_gap=0.08, min_width=620, below=68, shared_yaxes=True
    )
    left, right = canvas
    hover = f"%{{y}}<br>direct effect %{{x:.3g}} {plain(unit)}"
    left.bars(labels, size[order], "", hover, colour=mixed(GREY, 0.6), across=True, noise=noise)
    colours = [VERMILION if v > 0 else mixed(GREY, 0.6) for v in repair[order]]
    right.floor(mine, across=True)
    right.bars(labels, repair[order], "", "%{y}<br>self-repair %{x:.3g}", colour=colours, across=True, noise=mine)
    if len(rows) > 1:
        right.dots(
            each[order].ravel(),
            np.repeat(labels, len(rows)),
            "one series",
            "%{y}, %{text}<br>self-repair %{x:.3g}",
            size=4,
            text=[plain(ids[i]) for _ in order for i in rows],
        )
    # what may be noise does not set the axis
    sure = repair[order] if mine is None else repair[order][mine.stands]
    bounds, cut = fitted_range(np.append(sure, [0.0, 1.0]), np.append(each[order], repair[order]), reach=0.5)
    right.upright(0.0)
    right.upright(1.0, dash="dash")
    canvas.y(autorange="reversed", ticks="", showline=False, dtick=1)
    left.y("component")
    short = unit.replace("the series' range", "range")
    left.x(f"direct effect\n({short})", nticks=5)
    right.x("self-repair\n(share of the direct effect undone)", range=bounds)
    return canvas.dress(
        f"Self-repair in {model_of(ds)} after its strongest components are taken out",
        f"{over_series(ds, rows)}, {ablation_word(ds)} one at a time",
        "0: nothing undone, 1: all of it (dashed), below 0: added to",
        "what leaves the axis is cut off" if cut else "",
    )


def ablation_word(ds: xr.Dataset) -> str:
    """Write what was put in a component's place, as a verb."""
    how = str(ds.attrs.get("how", "zero"))
    return {
        "zero": "set to zero",
        "mean": "set to its mean",
        "resample": "resampled",
        "noise": "replaced by noise",
        "corrupted": "taken from the corrupted run",
    }.get(how, how)


def _giants(x: np.ndarray, y: np.ndarray, ratio: float = 2.5) -> list[int]:
    """Find at most two components that dwarf all others, which would leave them no room."""
    size = np.where(np.isfinite(y), np.maximum(x, np.abs(np.nan_to_num(y))), 0.0)
    order = np.argsort(-size)[:3]
    for count in (2, 1):
        if len(order) > count and size[order[count - 1]] > ratio * size[order[count]] > 0:
            return [int(i) for i in order[:count]]
    return []


def _regions(panel: Panel, x: np.ndarray, y: np.ndarray) -> None:
    """Draw the diagonal, the wedge under it, and what each region means."""
    right = 1.08 * float(x.max(initial=0.0)) or 1.0
    high, low = max(float(y.max(initial=0.0)), right), float(y.min(initial=0.0))
    room = 0.08 * (high - low)
    panel.x(range=[-0.02 * right, right])
    panel.y(range=[low - room, high + room])
    label = "partly undone by later components (self-repair)"
    wedge: Look = {"fill": "toself", "fillcolor": mixed(VERMILION, 0.1)}
    panel.line([0, right, right], [0, right, 0], label, colour=mixed(VERMILION, 0.1), width=0, **wedge)
    panel.line([0, right], [0, right], "total = direct", colour=GREY, width=1, dash="dash")
    panel.level(0)
    look: Look = {"xref": "domain", "yref": "domain", "xanchor": "left", "colour": GREY}
    panel.note("added to by later components", 0.02, 0.99, yanchor="top", **look)
    if low < -0.1 * high:
        # on the side where no dot lies below
        crowded = bool(((y < 0) & (x < 0.4 * right)).any())
        place, side = (0.98, "right") if crowded else (0.02, "left")
        panel.note("more than undone", place, 0.01, yanchor="bottom", **look | {"xanchor": side})


def _dots(
    panel: Panel, places: Places, x: np.ndarray, y: np.ndarray, unit: str, fine: np.ndarray, noise: Finding | None
) -> None:
    """Draw a dot per component, the largest with their names where these do not run into each other."""
    layout = panel.sheet.fig.layout
    spans = [float(np.ptp(axis.range)) or 1.0 for axis in (layout.xaxis, layout.yaxis)]
    size = np.where(fine, np.maximum(x, np.abs(np.nan_to_num(y))), -1.0)
    if noise is not None:
        # the noise has no name
        size = np.where(noise.stands, size, -1.0)
    largest = [int(i) for i in np.argsort(-size)[:_MAX_LABELS] if size[i] >= 0]
    sides = _sides(places.labels, x / spans[0], y / spans[1], largest, np.flatnonzero(fine), spans[0] / spans[1])
    for kind, colour in places.colours().items():
        mine = [i for i, other in enumerate(places.kind) if other == kind and fine[i]]
        panel.dots(
            x[mine],
            y[mine],
            kind_word(kind),
            f"%{{customdata[0]}}<br>direct %{{x:.3g}}, total %{{y:.3g}} {plain(unit)}"
            "<br>self-repair %{customdata[1]:.3g}",
            colour=colour,
            size=8,
            edge="#FFFFFF" if noise is None else None,
            noise=None if noise is None else noise.at(mine),
            mode="markers+text",
            text=[plain(places.labels[i]) if i in sides else "" for i in mine],
            textposition=[sides.get(i, "middle right") for i in mine],
            textfont={"size": 11, "color": INK},
            customdata=[[plain(places.names[i]), 1 - y[i] / x[i]] for i in mine],
        )
    for axis in (panel.x, panel.y):
        axis(showgrid=True, gridcolor=mixed(PALE, 0.5))


def _sides(
    labels: list[str], x: np.ndarray, y: np.ndarray, candidates: list[int], dots: np.ndarray, slope: float
) -> dict[int, str]:
    """Choose the side of its dot on which each label stands, where it has room; ``x``, ``y`` in shares of the axes."""
    boxes = [(float(x[i]), float(x[i]), float(y[i]), i) for i in dots]
    placement: dict[int, str] = {}
    for i in candidates:
        width = _LETTER * len(labels[i]) + 0.02
        beside = [("middle right", 0.0, 0.0), ("middle left", -width, 0.0)]
        over = [("top center", -width / 2, _LINE), ("bottom center", -width / 2, -_LINE)]
        aslant = [("top left", -width, _LINE), ("bottom right", 0.0, -_LINE)]
        free = []
        for side, off, up in [*(beside[::-1] if x[i] > 0.75 else beside), *over, *aslant]:
            low, height = float(x[i]) + off, float(y[i]) + up
            near = [(start, end) for start, end, at, whose in boxes if whose != i and abs(height - at) < 0.9 * _LINE]
            if low >= 0 and low + width <= 1 and not any(low < end and low + width > start for start, end in near):
                ends = slope * low, slope * (low + width)
                crossed = min(ends) - 0.5 * _LINE < height < max(ends) + 0.5 * _LINE
                free.append((crossed, side, (low, low + width, height, i)))
        if free:
            # better beside the diagonal than on it
            _, placement[i], place = min(free, key=lambda one: one[0])
            boxes.append(place)
    return placement
