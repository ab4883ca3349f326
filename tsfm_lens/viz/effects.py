"""Direct effects of components, and how much of them later ones undo."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.errors import InputError
from tsfm_lens.viz.findings import finding, middle_of, over_words
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.select import array, model_of, names, series_rows, unit_of
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.theme import GREY, VERMILION, mixed, plain

__all__ = ["self_repair_bars"]


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
    sentences=summary(
        "Largest direct effects of components {way}, as shares of the series' "
        "range{direct_share:basis}: {direct_share:largest percent}.",
        "Largest total effects, with all that follows: {total_share:largest percent}.",
        "Self-repair, the share of a direct effect that later components undo (negative: "
        "they add to it): {self_repair:largest percent}; significant for "
        "{self_repair:significant}.",
        effect="total_share",
        noun="components",
        way=lambda ds: ablation_word(ds),
    ),
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
