"""Effects of the parts of an input on a forecast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import on_all, on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import capital, listed, num, signed
from tsfm_lens.viz import input_beeswarm, input_map, input_timeline, input_waterfall
from tsfm_lens.viz.select import array, median_position, names, unit_of

_MAX_NAMES = 3  # segments that a reading names
_FAR = 3.0  # standard deviations of the context, beyond which a reference forecast is none of the series
_STRETCHES = 6  # of the target's past, in a report


def read_inputs(ds: xr.Dataset) -> list[str]:
    """State the sum from the reference to the forecast, and the segments that make up most of it."""
    level = median_position(ds["quantile"].values)
    whole, nothing, rest = (
        array(ds, name, "step", quantile=level).mean() for name in ("forecast", "reference_forecast", "remainder")
    )
    steps = array(ds, "attribution", "segment", "step", quantile=level)
    effect = steps.mean(1)
    unit = (unit_of(ds) or "").strip()
    target, attrs = ds.attrs.get("target", ""), ds.attrs
    error = array(ds, "mean_error", "segment", quantile=level) if "mean_error" in ds else np.zeros_like(effect)
    clear = np.abs(effect) > np.maximum(2 * error, 2 * float(attrs.get("rounding", 0.0)))
    order = [int(i) for i in np.argsort(-np.abs(effect), kind="stable") if clear[i]][:_MAX_NAMES]
    largest = [f"{names(ds, 'segment')[i]} by {signed(effect[i])}" for i in order]
    most = f"It is moved most by {listed(largest)} {unit}" if order else "No part of the input moves it beyond rounding"
    # one reading, so that the overview of a page says what moves the forecast
    out = [
        f"On average over {ds.sizes['step']} steps the forecast of {target} is {num(whole)} {unit}".rstrip()
        + f"; with every part replaced by {attrs.get('reference')} values it is {num(nothing)}. {most.rstrip()}."
        + _cancellation(ds, steps, order)
    ]
    far = float(attrs.get("reference_distance", 0.0))
    if far > _FAR:
        out.append(
            f"The reference forecast is {num(far)} standard deviations of the context from its mean: the level of the "
            "series is a part of what is explained here, and a reference that keeps it says more of the rest."
        )
    if not order:
        return out
    if abs(rest) > 0.05 * np.abs(effect).sum():
        out.append(f"The parts do not add up: {signed(rest)} {unit}".rstrip() + " belongs to several of them together.")
    if attrs.get("repeats"):
        out.append(
            f"Sample paths were drawn under {attrs['repeats']} seeds; standard errors reach {num(float(error.max()))}."
        )
    elif "mean_error" in ds and not attrs.get("settled"):
        out.append(f"Orders were sampled, and the standard error is still {num(float(error.max()))}; sample more.")
    return out


def _cancellation(ds: xr.Dataset, steps: np.ndarray, order: list[int]) -> str:
    """Name the segment that moves single steps most, if a mean over steps hides it."""
    size = np.abs(steps).mean(1)
    first = int(size.argmax())
    level = median_position(ds["quantile"].values)
    noise = float(ds.attrs.get("rounding", 0.0))
    if "attribution_error" in ds:
        noise = max(noise, float(array(ds, "attribution_error", "segment", "step", quantile=level)[first].mean()))
    if first in order or size[first] <= 2 * noise:
        return ""
    amount = f"{num(size[first])} {unit_of(ds) or ''}".rstrip()
    return (
        f" Single steps are moved most by {names(ds, 'segment')[first]}, each by {amount} on average, up or down, "
        "most of which cancels in the mean."
    )


def _inputs(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(input_timeline(ds), _table(ds), read_inputs(ds))
    level = median_position(ds["quantile"].values)
    yield Plate(input_waterfall(ds), _table(ds), [])
    by_step = frame(ds.isel(quantile=level, drop=True), "attribution")
    yield Plate(input_map(ds), by_step, [])


def _table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the mean over steps, a row per segment and quantile."""
    mean = ds[["attribution"]].mean("step")
    table = frame(mean, "attribution")
    for name in ("kind", "start", "stop"):
        table.insert(1, name, ds[name].sel(segment=table["segment"].values).values)
    if "mean_error" in ds:
        table["standard_error"] = frame(ds, "mean_error")["mean_error"]
    return table


def read_effects(ds: xr.Dataset) -> list[str]:
    """Describe which segments move forecasts over many series."""
    standing = Standing(ds, "size", "segment")
    labels, kinds = names(ds, "segment"), np.array(names(ds.swap_dims(segment="kind"), "kind"))
    out = []
    for kind in dict.fromkeys(kinds):
        leading = standing.named(_MAX_NAMES, kinds == kind)
        if not leading:
            out.append(f"{capital(kind)}: nothing stands out of rounding.")
            continue
        first = standing.leader(kinds == kind)
        lead = f"{labels[first]} most of all; " if first is not None and len(np.flatnonzero(kinds == kind)) > 1 else ""
        moves = [f"{labels[i]} by {standing.told(i, lambda value: f'{num(value)} MASE')}" for i in leading]
        out.append(f"{capital(kind)}: {lead}forecasts are moved by {listed(moves)}.")
    return out


def _effects(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(input_beeswarm(ds), frame(ds, "effect", "size", "value"), read_effects(ds))


MEASUREMENTS = (
    Measurement(
        kind="input_attribution",
        theme="Inputs",
        about="how much each stretch of the past, each variate and each covariate moves each step and quantile",
        heading="Inputs",
        guide="The input is cut into segments. The forecast is made again with some of them masked, and what each one "
        "moves is summed up so that all add up to the forecast less the forecast of the reference, in data units. "
        "Steps are counted from the forecast: −1 is the last one before it.",
        compute=on_first("explain.attribute_inputs", reference="mean", parts=_STRETCHES),
        plates=_inputs,
        figures=(
            Figure("input_timeline", "What every segment of the input does, under the series."),
            Figure("input_waterfall", "From the reference forecast to the forecast, segment by segment."),
            Figure("input_map", "Segment × forecast step map of what each segment does."),
        ),
        helpers=("explain.refine_inputs",),
        source="Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874",
    ),
    Measurement(
        kind="input_effects",
        theme="Inputs",
        about="what the same segments move over many series, and which way",
        heading="Inputs over all series",
        guide="Every item is explained by itself. A dot is a series; its colour says whether the segment's values are "
        "above or below the mean of their context.",
        compute=on_all("explain.input_effects", parts=_STRETCHES),
        plates=_effects,
        figures=(Figure("input_beeswarm", "What each segment moves, a dot for each series."),),
        source="Lundberg and Lee 2017, arXiv:1705.07874",
    ),
)
