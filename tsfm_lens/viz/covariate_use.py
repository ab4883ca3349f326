"""Use of covariates: worth, response and share of each.

:func:`read_use` states them in sentences, :func:`covariate_totals` lists them as
numbers; the figures are made by :func:`generic_figure`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.viz.findings import EffectEstimate, find_estimate, read_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import array, find_unit, medians, names, shown
from tsfm_lens.viz.summary import labelled, summarize
from tsfm_lens.viz.words import listed, measured, signed

# A response bends if it goes down by more than this share of its way up, or the other
# way round.
_BENT = 0.2
_IDLE = "removing it changes no forecast beyond rounding, so the model does not use it."


def read_use(ds: xr.Dataset) -> list[str]:
    """Return sentences on the worth, the response and the share of each covariate.

    The covariate that moves the forecast most comes first; those that could not be
    measured come last.
    """
    # by the way of leaving it out that moves most; a covariate without a value is last
    size = np.nan_to_num(array(ds, "moved_size", "covariate", "way").max(1))
    texts = [
        _describe(ds, int(position)) for position in np.argsort(-size, kind="stable")
    ]
    return [*texts, *summarize(ds, "Not measured: {left_out}.")]


def covariate_totals(ds: xr.Dataset) -> list[dict[str, Any]]:
    """Return worth, response and share of each covariate, medians over series in MASE.

    ``worth`` is the rise of the error with its values shuffled, ``worth_removed``
    without it, which alone says whether it helps. What was not measured is None.

    Shares of its parts sum to that of the covariate.
    """
    shuffled, constant = (
        names(ds, "way").index(way) for way in ("shuffled", "constant")
    )
    removed = names(ds, "way").index("removed")
    columns: dict[str, Any] = {"covariate": names(ds, "covariate")}
    for name, way in (("worth", shuffled), ("worth_removed", removed)):
        columns |= {name: None, f"{name}_significant": None}
        if "worth" in ds:
            columns[name] = array(ds, "worth_size", "covariate", "way")[:, way]
            significant = array(ds, "worth_significant", "covariate", "way") > 0
            columns[f"{name}_significant"] = significant[:, way]
    share = array(ds, "moved_size", "covariate", "way")[:, constant]
    columns |= {
        "slope": array(ds, "slope_size", "covariate"),
        "slope_significant": array(ds, "slope_significant", "covariate") > 0,
        "step": medians(array(ds, "step_size", "covariate", "series")),
        "share": share,
    }
    for at, part in enumerate(names(ds, "part")):
        shares = [_part_shares(ds, index)[at] for index in range(ds.sizes["covariate"])]
        columns[f"share of {part}"] = share * np.array(shares)
    table = pd.DataFrame(columns).astype(object)
    # answers as JSON have no NaN
    rows: list[Any] = table.where(table.notna(), None).to_dict("records")
    return rows


def _scale(ds: xr.Dataset) -> tuple[np.ndarray, str]:
    """Return what changes are multiplied by, (series,), and the unit that they get.

    Over several series the unit is MASE.
    """
    # several series have no unit in common
    if ds.sizes["series"] > 1:
        return (np.ones(1), "MASE")
    return (array(ds, "unit", "series"), find_unit(ds, 0) or "data units")


def _describe_tests(worth: EffectEstimate, ways: list[str]) -> str:
    """Return by which ways of leaving a covariate out its worth is significant.

    A covariate helps if the error rises without it. Shuffled values may raise the
    error of a model that would do better without the covariate.
    """
    tested = [
        way for way, is_one in zip(ways, worth.significant, strict=True) if is_one
    ]
    text = worth.for_others(int(worth.significant.argmax()))
    if tested and len(tested) < len(ways):
        text = f"{listed(tested)}: {text}, not the others"
    signs = np.sign(worth.size[[ways.index("removed"), ways.index("shuffled")]])
    if signs[0] <= 0 < signs[1]:
        text += (
            "; the error is no larger without it, so shuffling does not say it helps"
        )
    return text


def _steps(ds: xr.Dataset, covariate: int) -> str:
    """Name the step of a response: of two values both, else a standard deviation."""
    value = array(ds, "value", "shift", "series", covariate=covariate)
    if np.isnan(value[0]).all():
        return "the lower to the upper value"
    return "one standard deviation more"


def _direction(ds: xr.Dataset, covariate: int) -> str:
    """Return in how many series forecasts rise with a covariate.

    The text says too where the response bends.
    """
    slopes = array(ds, "slope", "covariate", "series")[covariate]
    count = int(np.isfinite(slopes).sum())
    text = f"rises with it in {(slopes > 0).sum()} of {count} series"
    # the median response over series, (shift,)
    line = medians(array(ds, "response", "shift", "series", covariate=covariate))
    rises = np.diff(line[np.isfinite(line)])
    up = rises[rises > 0].sum()
    down = -rises[rises < 0].sum()
    if min(up, down) > _BENT * max(up, down):
        return f"{text}, and bends"
    return text


def _part_shares(ds: xr.Dataset, covariate: int) -> np.ndarray:
    """Return the shares of a covariate's effect by its past and its known future.

    They are (part,), medians over series.

    Medians of two parts of the same wholes sum to 1; NaN where the covariate has no
    effect in any series.
    """
    parts = array(ds, "share", "part", "series", covariate=covariate)
    full = parts.sum(0)
    # series without an effect of the covariate stay NaN, and medians() passes over them
    return medians(
        np.divide(parts, full, out=np.full(parts.shape, np.nan), where=full > 0)
    )


def _describe(ds: xr.Dataset, index: int) -> str:
    """State the worth, the response and the share of one covariate."""
    one = ds.isel(covariate=index)
    # (way,): the ways of leaving the covariate out that move any forecast
    acting = one["moved_acts"] > 0
    known = one["moved"].notnull().any("way").values
    silent = one["series"].values[~known]
    worth = find_estimate(one, "worth", "way")
    slope = read_estimate(ds, "slope", "covariate")
    scale, unit = _scale(ds)
    factor = float(scale[0])
    return " ".join(
        summarize(
            one.isel(way=acting.values),
            "{covariate}:",
            "{idle}",
            "without it {count:whole} of {known:whole} forecasts move, by the way of"
            " leaving it out{moved:basis}: {moved:each MASE}.",
            "The error is then larger (negative: smaller) by: {worth:each MASE};"
            " {verdict}.",
            "Response: the forecast {way}, {response} for {steps}.",
            "Share: {total}, its mean absolute effect: {shares:each percent}.",
            "No verdict on {silent}, where it is constant, or the series repeats its"
            " season exactly.",
            covariate=names(ds, "covariate")[index],
            idle=None if acting.any() else _IDLE,
            count=one["moved_acts"].max(),
            known=known.sum(),
            verdict=worth and _describe_tests(worth, names(ds, "way")),
            way=_direction(ds, index) if slope.acts[index] else None,
            response=slope.told(
                index, lambda value: f"{signed(value * factor)} {unit}", over=True
            ),
            steps=_steps(ds, index),
            total=measured(unit)(
                float((one["moved"].sel(way="constant") * scale).median())
            ),
            shares=labelled(ds, _part_shares(ds, index), "part"),
            silent=shown(silent.tolist()) or None,
        )
    )


generic_figure(
    "covariate_use",
    "moved",
    "Change of forecasts without each covariate.",
    table=("moved", "error_without", "worth", "worth_size", "worth_significant"),
    sentences=read_use,
)
generic_figure(
    "covariate_use",
    "response",
    "Change of the forecast against steps of a covariate.",
    table=("value", "response"),
    options={"covariate": 0},
)
