"""Direct effects of components, and how much of them later ones undo."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.errors import InputError
from tsfm_lens.viz.findings import WORTH_A_WORD, finding, judged, middle_of, over_words
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.select import array, model_of, names, series_rows, unit_of
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import GREY, VERMILION, mixed, percent, plain
from tsfm_lens.viz.words import listed

__all__ = ["self_repair_bars"]


_MAX_NAMES = 3  # components in a sentence


def read_effects(ds: xr.Dataset) -> list[str]:
    """Describe the components with the largest direct and total effects on the forecast."""
    labels, way = names(ds, "component"), ablation_word(ds)
    direct, total = (
        judged(ds, f"{effect}_share", "component") for effect in ("direct", "total")
    )
    most = [
        [
            f"{labels[flat]} ({share.told(flat, percent)})"
            for flat in share.named(_MAX_NAMES)
        ]
        for share in (direct, total)
    ]
    none = f"of any component is below {percent(WORTH_A_WORD)} of its series' range"
    return [
        f"Largest direct effects of components {way}, as shares of the series' range{direct.basis}: {listed(most[0])}."
        if most[0]
        else f"The direct effect {none}.",
        f"Largest total effects, with all that follows: {listed(most[1])}."
        if most[1]
        else f"The total effect {none}.",
        *total.standing(labels, "components"),
    ]


def read_self_repair(ds: xr.Dataset) -> list[str]:
    """State how many direct effects later components undo, and where they undo most."""
    repair, labels = judged(ds, "self_repair", "component"), names(ds, "component")
    count = int(np.isfinite(repair.size).sum())
    if not count:
        return ["No direct effect is large enough to say what share of it is undone."]
    undone, added = (
        int((side & repair.significant).sum())
        for side in (repair.size > 0, repair.size < 0)
    )
    most = [
        f"{labels[i]} ({repair.told(i, percent)})"
        for i in repair.named(_MAX_NAMES, repair.size > 0)
    ]
    return [
        f"{count} components have a direct effect large enough to say what share of it later components undo.",
        f"Self-repair is largest for {listed(most)}."
        if most
        else "Later components undo none of these effects.",
        f"Self-repair is significantly positive for {undone} and negative for {added} of them.",
    ]


def _sizes(ds: xr.Dataset, series: list[int]) -> tuple[np.ndarray, np.ndarray, str]:
    """Return direct and total effects."""
    rest = 1 - array(ds, "self_repair", "component", "series")[:, series]
    if len(series) == 1:
        later = slice(int(ds.attrs.get("first_step", 0)), None)
        size = np.abs(
            array(ds, "direct", "component", "series", "step")[:, series, later]
        ).mean(-1)
        return size, size * rest, unit_of(ds, series[0]) or "data units"
    share = array(ds, "direct_share", "component", "series")[:, series]
    return share, share * rest, "share of the series' range"


@figure(
    "causal_effects",
    "Share of an ablation's direct effect that later layers undo.",
    table=("direct_share", "total_share", "self_repair"),
    sentences=lambda ds: read_effects(ds) + read_self_repair(ds),
)
def self_repair_bars(
    ds: xr.Dataset, *, top: int = 15, series: str | int | None = None
) -> go.Figure:
    """Draw how much of its direct effect later components undo, for the largest direct effects."""
    if top < 1:
        raise InputError(f"top is {top}, expected 1 or more")
    ids, rows = names(ds, "series"), series_rows(ds, series)
    direct, _, unit = _sizes(ds, rows)
    each = array(ds, "self_repair", "component", "series")[:, rows]
    noises = [
        finding(ds, name, "component", unit=word) if series is None else None
        for name, word in (("direct_share", "of the range"), ("self_repair", ""))
    ]
    repair, size = (
        middle_of(noises[1], each),
        middle_of(noises[0] if len(rows) > 1 else None, direct),
    )
    order = [
        int(i) for i in np.argsort(-size, kind="stable") if np.isfinite(repair[i])
    ][:top]
    labels = [plain(names(ds, "component")[i]) for i in order]
    noise, mine = (
        None if each_noise is None else each_noise.at(order) for each_noise in noises
    )
    canvas = sheet(
        [max(140, 22 * len(order))],
        [0.35, 0.65],
        column_gap=0.08,
        min_width=620,
        below=68,
        shared_yaxes=True,
    )
    left, right = canvas
    hover = f"%{{y}}<br>direct effect %{{x:.3g}} {plain(unit)}"
    left.bars(
        labels,
        size[order],
        "",
        hover,
        colour=mixed(GREY, 0.6),
        across=True,
        noise=noise,
    )
    colours = [VERMILION if v > 0 else mixed(GREY, 0.6) for v in repair[order]]
    right.floor(mine, across=True)
    right.bars(
        labels,
        repair[order],
        "",
        "%{y}<br>self-repair %{x:.3g}",
        colour=colours,
        across=True,
        noise=mine,
    )
    if len(rows) > 1:
        right.dots(
            each[order].ravel(),
            np.repeat(labels, len(rows)),
            "one series",
            "%{y}, %{text}<br>self-repair %{x:.3g}",
            size=4,
            text=[plain(ids[i]) for _ in order for i in rows],
        )
    # what is drawn pale does not set the axis
    sure = repair[order] if mine is None else repair[order][~mine.pale]
    bounds, cut = fitted_range(
        np.append(sure, [0.0, 1.0]), np.append(each[order], repair[order]), reach=0.5
    )
    right.upright(0.0)
    right.upright(1.0, dash="dash")
    canvas.y(autorange="reversed", ticks="", showline=False, dtick=1)
    left.y("component")
    short = unit.replace("the series' range", "range")
    left.x(f"direct effect\n({short})", nticks=5)
    right.x("self-repair\n(share of the direct effect undone)", range=bounds)
    return canvas.dress(
        f"Self-repair in {model_of(ds)} after ablation of its strongest components",
        f"{over_words(ds, noises[0], rows)}, {ablation_word(ds)} one at a time",
        "0: nothing undone, 1 (dashed): all of it, below 0: amplified",
        "values beyond the axis are cut off" if cut else "",
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
