"""Use of covariates: worth, response and share of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.viz.findings import judged
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import array, medians, names, shown, unit_of
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import after_number, num, signed

_BENT = 0.2  # of the way up or down, beyond which the other way is no noise
_WHEN = {
    "removed": "removing it",
    "constant": "holding it at its mean",
    "shuffled": "shuffling it",
}


def read_use(ds: xr.Dataset) -> list[str]:
    """State the worth, the response and the share of each covariate, of what moves the forecast most first."""
    size = array(ds, "moved_size", "covariate", "way").max(1)
    order = [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")]
    empty = np.isnan(array(ds, "moved", "covariate", "way", "series")).all(1)
    out = []
    for place in order:
        silent = [
            name
            for name, none in zip(names(ds, "series"), empty[place], strict=True)
            if none
        ]
        rest = (
            f" No verdict on {shown(silent)}, where it or the series is constant."
            if silent
            else ""
        )
        parts = [_describe(ds, place), _response(ds, place), _share(ds, place)]
        out.append(
            f"{names(ds, 'covariate')[place]}: {' '.join(filter(None, parts))}{rest}"
        )
    return out


def covariate_totals(ds: xr.Dataset) -> list[dict[str, Any]]:
    """List worth, response and share of each covariate, medians over series in MASE; None where not measured.

    Shares of its parts sum to that of the covariate.
    """
    order, level = (names(ds, "way").index(way) for way in ("shuffled", "constant"))
    columns = {
        "worth": array(ds, "worth_size", "covariate", "way")[:, order]
        if "worth" in ds
        else None,
        "worth_significant": array(ds, "worth_significant", "covariate", "way")[
            :, order
        ]
        if "worth" in ds
        else None,
        "slope": array(ds, "slope_size", "covariate"),
        "slope_significant": array(ds, "slope_significant", "covariate"),
        "step": medians(array(ds, "step_size", "covariate", "series")),
        "share": array(ds, "moved_size", "covariate", "way")[:, level],
    }
    for at, part in enumerate(names(ds, "part")):
        shares = [_part_shares(ds, place)[at] for place in range(ds.sizes["covariate"])]
        columns[f"share of {part}"] = columns["share"] * np.array(shares)

    def plain_value(
        name: str, values: np.ndarray | None, place: int
    ) -> float | bool | None:
        value = None if values is None else values[place].item()
        missing = value is None or value != value
        return (
            None if missing else bool(value) if name.endswith("_significant") else value
        )

    return [
        {
            "covariate": label,
            **{
                name: plain_value(name, values, place)
                for name, values in columns.items()
            },
        }
        for place, label in enumerate(names(ds, "covariate"))
    ]


def _scale(ds: xr.Dataset) -> tuple[np.ndarray, str]:
    """Return what changes are multiplied by, (series,), and the unit that they then have: MASE over several series."""
    several = ds.sizes["series"] > 1
    return (
        (np.ones(1), "MASE")
        if several
        else (array(ds, "unit", "series"), unit_of(ds, 0) or "data units")
    )


def _steps(ds: xr.Dataset, place: int) -> str:
    """Name the step of a response: of two values both, else a standard deviation, and its size if series agree."""
    value = array(ds, "value", "shift", "series", covariate=place)
    size = array(ds, "step_size", "series", covariate=place)
    two, finite = np.isnan(value[0]).all(), size[np.isfinite(size)]
    same = len(finite) and np.allclose(finite, finite[0])
    if two:
        low, high = (np.nanmedian(value[at]) for at in (1, -2))
        return f"{num(low)} to {num(high)}" if same else "the lower to the upper value"
    return f"one standard deviation{f' ({num(finite[0])})' * bool(same)} more"


def _response(ds: xr.Dataset, place: int) -> str:
    """State the way and the slope of the response; "" of categories, and where nothing moves."""
    slope = judged(ds, "slope", "covariate")
    if not slope.acts[place]:
        return ""
    scale, unit = _scale(ds)
    size = slope.told(
        place,
        lambda value: f"{signed(value * float(scale[0]))} {after_number(unit)}",
        over=True,
    )
    sure = ", significantly" * bool(slope.significant[place])
    return f"Response: the forecast {_way(ds, place)}{sure}, {size} for {_steps(ds, place)}."


def _way(ds: xr.Dataset, place: int) -> str:
    """State whether forecasts rise, fall or bend with a covariate, or differ from series to series."""
    line = medians(array(ds, "response", "shift", "series", covariate=place))
    rises = np.diff(line[np.isfinite(line)])
    up, down = float(rises[rises > 0].sum()), float(-rises[rises < 0].sum())
    if min(up, down) > _BENT * max(up, down):
        return "bends with it"
    low, high = (
        float(array(ds, f"slope_{end}", "covariate")[place]) for end in ("low", "high")
    )
    if low < 0 < high:
        many = array(ds, "slope", "covariate", "series")[place]
        rising, count = int((many > 0).sum()), int(np.isfinite(many).sum())
        return f"rises with it in {rising} of {count} series, falls in the others"
    return (
        "rises with it"
        if judged(ds, "slope", "covariate").size[place] > 0
        else "falls with it"
    )


def _share(ds: xr.Dataset, place: int) -> str:
    """State the size of its effect, and of a known covariate which part its past and its known future have."""
    scale, unit = _scale(ds)
    size = array(
        ds, "moved", "series", covariate=place, way=names(ds, "way").index("constant")
    )
    total = float(medians((size * scale)[None])[0])
    if not total > 0:
        return ""
    parts = zip(names(ds, "part"), _part_shares(ds, place), strict=True)
    split = ", ".join(f"{part} {percent(float(share))}" for part, share in parts)
    split = f" ({split})" if str(ds["role_of"].values[place]) == "known" else ""
    return f"Share: {num(total)} {after_number(unit)}, its mean absolute effect{split}."


def _part_shares(ds: xr.Dataset, place: int) -> np.ndarray:
    """Return the part of a covariate's effect that its past and its known future have, (part,), medians over series.

    Medians of two parts of the same wholes sum to 1; NaN where the covariate has no effect in any series.
    """
    parts = array(ds, "share", "part", "series", covariate=place)
    whole = parts.sum(0)
    return medians(
        np.divide(parts, whole, out=np.full(parts.shape, np.nan), where=whole > 0)
    )


def _size(ds: xr.Dataset, place: int) -> str:
    """Write how far the forecasts move without a covariate; "" if none of them moves by more than rounding."""
    moved, ways = judged(ds, "moved", "way", covariate=place), names(ds, "way")
    if not moved.acts.any():
        return ""
    way = max(
        range(len(ways)), key=lambda i: (moved.acts[i] > 0, ways[i] == "shuffled")
    )
    there = int(
        np.isfinite(array(ds, "moved", "series", covariate=place, way=way)).sum()
    )
    some = f" ({int(moved.acts[way])} of {there})"
    return f"{_WHEN[ways[way]]} moves the forecasts{some} by {moved.told(way, _mase, over=True)}"


def _describe(ds: xr.Dataset, place: int) -> str:
    ways = names(ds, "way")
    size = _size(ds, place)
    if not size:
        return "removing it changes no forecast beyond rounding, so the model does not use it."
    if "worth_size" not in ds:
        return f"{size}."
    worth = judged(ds, "worth", "way", covariate=place)
    shuffled = ways.index("shuffled")
    change = float(worth.size[shuffled])
    told = worth.told(
        shuffled, lambda value: _mase(value if change > 0 else -value), over=True
    )
    helps, harms = (
        bool((worth.significant & side).any())
        for side in (worth.size > 0, worth.size < 0)
    )
    outcome = {
        (True, False): "it helps, significantly",
        (False, True): "forecasts are better without it, significantly",
        (
            True,
            True,
        ): "it helps or harms, significantly, depending on how it is left out",
    }.get((helps, harms))
    outcome = outcome or worth.for_others(shuffled)
    return f"{size}, and the error is {'larger' if change > 0 else 'smaller'} by {told}: {outcome}."


def _mase(value: float) -> str:
    return f"{num(value)} MASE"


generic_figure(
    "covariate_use",
    "moved",
    "Change of forecasts without each covariate.",
    table=("moved", "error_without", "worth"),
    sentences=read_use,
)
generic_figure(
    "covariate_use",
    "response",
    "Change of the forecast against steps of a covariate.",
    table=("value", "response"),
    options={"covariate": 0},
)
