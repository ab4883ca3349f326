"""Attribution: contributions of components to the forecast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.noise import Finding
from tsfm_lens.viz.select import (
    array,
    forecast_series,
    median_position,
    model_of,
    names,
    position,
    series_position,
    statistic_of,
    unit_of,
)
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.standing import Standing
from tsfm_lens.viz.theme import BLUE, PALE, VERMILION, number, percent, plain
from tsfm_lens.viz.timeline import timeline
from tsfm_lens.viz.words import listed, signed

__all__ = ["attribution_bars", "attribution_heatmap"]
_OTHERS = "#9A9A9A"
_BEYOND = {"embed": 2.0, "the first step": 1.25}  # so many times larger than all else, these leave the colours
_METHOD_WORDS = {
    "logit": "logit attribution",
    "probability": "probability attribution",
    "expected_value": "expected-value attribution",
    "lens_difference": "lens differences",
    "linearised": "linearised attribution",
    "integrated": "integrated attribution",
}
_MAX_SERIES = 3  # series with figures of their own
# of several attribution decompositions, the one whose unit a reader knows
_PREFERRED = ("integrated", "expected_value", "linearised", "lens_difference")


ATTRIBUTION = measurement(
    "attribution",
    theme="Activations",
    title="Attribution",
    summary="who writes the forecast",
    description="The forecast is split into what each component writes to the residual stream adds to it, with its "
    "sign.",
    source="tsfm-lens, section 2; Sundararajan et al. 2017",
)


def read_attribution(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Describe the components that push the forecast up and down, and whether the sum is complete."""
    shares = _shares_of(ds, decomposition, series)
    mean = shares.values.mean(axis=1)
    order = np.argsort(-np.abs(mean))[:3]
    parts = [f"{shares.components[i]} ({signed(mean[i])})" for i in order]
    unit = {"logit": "logits", "probability": "probabilities"}.get(shares.unit, shares.unit)
    up, down = float(mean[mean > 0].sum()), float(mean[mean < 0].sum())
    out = [
        f"On {shares.series}, by {shares.decomposition}, in {unit}, mean over steps, the largest contributions are "
        f"{listed(parts)}. "
        f"All positive ones sum to {signed(up)}, all negative ones to {signed(down)}."
    ]
    if "completeness_error" in ds:
        place = names(ds, "decomposition").index(decomposition)
        error = float(ds["completeness_error"].isel(decomposition=place, series=series))
        small = "up to rounding they add up to the whole" if error < 1e-3 else "so much of the whole is unexplained"
        out.append(f"The completeness error is {percent(error)}: {small}.")
    return out


def read_attribution_over_series(ds: xr.Dataset, decomposition: str) -> list[str]:
    """Name the head and the MLP that contribute most over all series, if one does."""
    if ds.sizes["series"] < 2:
        return []
    place = names(ds, "decomposition").index(decomposition)
    share = Standing(ds, "attribution_share", "component", decomposition=place)
    heads = ds["head"].values >= 0
    out = []
    for word, among in (("head", heads), ("MLP", (ds["kind"].values == "mlp") & ~heads)):
        # one alone leads nobody
        first = share.leader(among) if among.sum() > 1 else None
        if first is not None:
            out.append(
                f"Over all series {names(ds, 'component')[first]} contributes most of all {word}s, as a share of the "
                f"sizes of all contributions ({share.told(first, percent)})."
            )
    return out or ["Over all series no head and no MLP contributes more than every other."]


def read_attribution_steps(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Describe which component varies most over the steps, and which one leads how often."""
    shares = _shares_of(ds, decomposition, series)
    steps = names(ds, "step")
    varying = int(np.ptp(shares.values, axis=1).argmax())
    row = shares.values[varying]
    lead = np.abs(shares.values).argmax(axis=0)
    places, counts = np.unique(lead, return_counts=True)
    most = int(counts.argmax())
    return [
        f"{shares.components[varying]} changes most over the steps: from {signed(row.min())} (step "
        f"{steps[int(row.argmin())]}) to {signed(row.max())} (step {steps[int(row.argmax())]}), in {shares.unit}.",
        f"{shares.components[places[most]]} has the largest contribution at {int(counts[most])} of {len(lead)} steps.",
    ]


def attribution_table(ds: xr.Dataset, decomposition: str, series: int) -> pd.DataFrame:
    """Tabulate the mean contribution and that of every step, a row per component."""
    shares = _shares_of(ds, decomposition, series)
    table = pd.DataFrame({"component": shares.components, "unit": shares.unit})
    table["mean"] = shares.values.mean(axis=1)
    steps = pd.DataFrame(shares.values, columns=[f"step {s}" for s in names(ds, "step")])
    return pd.concat([table, steps], axis=1)


@ATTRIBUTION.figure("Who writes the forecast, component by component.", variables=("attribution",))
def attribution_bars(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    step: int | None = None,
    quantile: float | None = None,
    top: int = 20,
) -> go.Figure:
    """Draw the components that push the forecast most, as signed bars, largest first.

    Args:
        ds: of kind "attribution": ``attribution`` (decomposition, component, series[, quantile], step).
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        step: forecast step; the mean over steps unless given.
        quantile: level, for patch models; the median unless given.
        top: how many bars; all other components are a grey one.

    Returns:
        Horizontal bars, vermilion for positive and blue for negative contributions, as in the map.
    """
    shares = _shares_of(ds, decomposition, series, quantile)
    values, when = shares.values.mean(axis=1), f"mean over {shares.values.shape[1]} forecast steps"
    if step is not None:
        place = position(ds, "step", step)
        label = timeline(ds, series_position(ds, series)).label(int(names(ds, "step")[place]))
        values, when = shares.values[:, place], f"forecast {label}"
    order = np.argsort(-np.abs(np.nan_to_num(values)))
    most, rest = order[:top], order[top:]
    labels, lengths = [plain(shares.components[i]) for i in most], values[most]
    colours = [VERMILION if v >= 0 else BLUE for v in lengths]
    canvas = blank(max(110, 20 * (len(most) + bool(len(rest)))), 400)
    panel, hover = canvas.panel(), f"%{{y}}<br>moves it by %{{x:+.4g}} {plain(shares.unit)}"
    # of one step or of one series nothing is known beside the value
    noise = shares.noise if step is None else None
    panel.floor(noise, across=True)
    noise = noise and noise.at(most)
    if len(rest):
        labels, lengths = [*labels, f"{len(rest)} others, summed"], np.append(lengths, values[rest].sum())
        colours, noise = [*colours, _OTHERS], noise and noise.with_another(lengths[-1])
    panel.bars(labels, lengths, "", hover, colour=colours, across=True, noise=noise)
    _keep_readable(panel, lengths)
    panel.upright(0)
    panel.y("component", autorange="reversed", ticks="", showline=False, dtick=1)
    panel.x(f"contribution ({shares.unit})", showgrid=True, gridcolor=PALE)
    return canvas.dress(
        f"What moves the forecast of {shares.series} by {model_of(ds)}: {shares.decomposition}", when, shares.note
    )


def _keep_readable(panel: Panel, lengths: np.ndarray, ratio: float = 5.0) -> None:
    """Let one bar that dwarfs all others run off the axis, with its value written on it."""
    sizes = np.sort(np.abs(lengths[np.isfinite(lengths)]))
    if len(sizes) < 3 or not sizes[-1] > ratio * sizes[-2] > 0:
        return
    limit, giant = 1.4 * sizes[-2], int(np.nanargmax(np.abs(lengths)))
    sign, others = np.sign(lengths[giant]), np.delete(lengths, giant)
    low = -limit if sign < 0 else min(1.15 * float(np.nanmin(others)), 0.0)
    high = limit if sign > 0 else max(1.15 * float(np.nanmax(others)), 0.0)
    panel.x(range=[low, high])
    words = f"{lengths[giant]:+.4g}, beyond the axis".replace("-", "−")
    # on a white ground, since the bar may be hatched
    end = "right" if sign > 0 else "left"
    panel.note(words, 0.97 * limit * sign, giant, size=11, xanchor=end, bgcolor="#FFFFFF", borderpad=1)


@ATTRIBUTION.figure("Who writes the forecast, step by step.", variables=("attribution",))
def attribution_heatmap(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
    top: int = 40,
) -> go.Figure:
    """Draw the component × forecast step map of contributions.

    Args:
        ds: of kind "attribution": ``attribution`` (decomposition, component, series[, quantile], step).
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        quantile: level, for patch models; the median unless given.
        top: at most so many components, those with the largest mean size; they keep the model's order.

    Returns:
        One heat map, its colours symmetric about 0; an embedding or a first step that dwarfs all else is beyond them.
    """
    shares = _shares_of(ds, decomposition, series, quantile)
    time = timeline(ds, series_position(ds, series))
    size = np.abs(np.nan_to_num(shares.values)).mean(axis=1)
    keep = np.sort(np.argsort(-size)[:top])
    z = shares.values[keep]
    limit, beyond = _colour_end(z, [shares.components[i] == "embed" for i in keep])
    canvas = blank(max(140, 17 * len(keep)), 480)
    panel, labels = canvas.panel(), [plain(shares.components[i]) for i in keep]
    hover = f"%{{y}}, {time.hover}<br>moves it by %{{z:+.4g}} {plain(shares.unit)}"
    panel.cells(z, time.at(np.array([int(v) for v in names(ds, "step")])), labels, hover, xgap=0, ygap=0)
    panel.y("component", autorange="reversed", ticks="", showline=False, dtick=1, tickfont_size=11)
    panel.x("date" if time.stamps is not None else "forecast step")
    canvas.colours(colour_scale(f"contribution ({shares.unit})", high=limit, diverging=True))
    return canvas.dress(
        f"What moves the forecast of {shares.series} by {model_of(ds)}, by step: {shares.decomposition}",
        shares.note,
        f"the {len(keep)} largest of {len(size)} components" if len(keep) < len(size) else "",
        beyond,
    )


def _colour_end(z: np.ndarray, embeds: list[bool]) -> tuple[float, str]:
    """Return where the colours of a (component, step) map end, and what reaches beyond them."""
    size, inside, beyond = np.abs(np.nan_to_num(z)), np.ones(z.shape, dtype=bool), []
    # what is read at the first step has seen nothing of the forecast
    first = (np.arange(z.shape[1]) == 0) & (z.shape[1] > 1)
    rows, columns = np.broadcast_to(np.array(embeds)[:, None], z.shape), np.broadcast_to(first, z.shape)
    core = float(size[~rows & ~columns].max(initial=0.0))
    for (words, times), part, other in zip(_BEYOND.items(), (rows, columns), (columns, rows), strict=True):
        if float(size[part & ~other].max(initial=0.0)) > times * core > 0:
            beyond.append(f"{words} reaches {number(float(size[part & inside].max()))}")
            inside &= ~part
    return float(size[inside].max(initial=0.0)), ", ".join([*beyond, "beyond the colours"]) if beyond else ""


class _Shares(NamedTuple):
    """Attribution of one decomposition to one series: names (component,), values (component, step), words, noise."""

    components: list[str]
    values: np.ndarray
    series: str
    decomposition: str
    unit: str
    note: str
    noise: Finding | None


def _shares_of(ds: xr.Dataset, decomposition: str | None, series: str | int, quantile: float | None = None) -> _Shares:
    """Cut an attribution to one series, decomposition and quantile, without whole layers (sums of the others)."""
    at = series_position(ds, series)
    which = 0 if decomposition is None else position(ds, "decomposition", decomposition)
    label = names(ds, "decomposition")[which]
    cut = ds.isel(decomposition=which, series=at)
    unit = str(ds["unit"].values[which]) if "unit" in ds.coords else ""
    data_unit = unit_of(ds, at)
    unit = data_unit if unit in ("", "data units") and data_unit else unit or "data units"
    note, noise = [], None
    if "attribution_share_floor" in cut:
        mean = array(cut, "mean_attribution", "component")
        floor = float(cut["attribution_share_floor"]) * float(np.abs(mean).sum())
        noise = Finding(mean, mean, mean, np.abs(mean) > floor, floor, floor, unit)
    if "quantile" in ds.dims:
        levels = np.asarray(ds["quantile"].values, dtype=float)
        place = median_position(levels) if quantile is None else int(np.argmin(np.abs(levels - quantile)))
        if quantile is not None and abs(levels[place] - quantile) > 1e-6:
            raise unknown_name("quantile", quantile, [f"{v:g}" for v in levels])
        cut = cut.isel(quantile=place)
        middle = abs(levels[place] - 0.5) < 1e-6
        # only the median's noise is known
        noise = noise if middle else None
        note.append(f"of the {statistic_of(ds)}" if middle else f"of the {levels[place]:g} quantile")
    if "completeness_error" in ds:
        error = float(ds["completeness_error"].isel(decomposition=which, series=at))
        note.append(f"completeness error {percent(error)}")
    values = array(cut, "attribution", "component", "step")
    components = names(ds, "component")
    fine = ds["kind"].values.astype(str) != "layer" if "kind" in ds.coords else np.zeros(len(components), dtype=bool)
    if fine.any():
        values, noise = values[fine], noise and noise.at(fine)
        components = [components[i] for i in np.flatnonzero(fine)]
    series = names(ds, "series")[at]
    return _Shares(components, values, series, _METHOD_WORDS.get(label, label), unit, "; ".join(note), noise)


@ATTRIBUTION.panels
def _attribution(ds: xr.Dataset) -> Iterator[ReportPanel]:
    decompositions = names(ds, "decomposition")
    main = next((m for m in _PREFERRED if m in decompositions), decompositions[0])
    several = [(main, i) for i in forecast_series(ds, _MAX_SERIES)]
    for decomposition, i in [*several, *((other, 0) for other in decompositions if other != main)]:
        table, words = attribution_table(ds, decomposition, i), read_attribution(ds, decomposition, i)
        words += read_attribution_over_series(ds, main) if i == 0 and decomposition == main else []
        yield ReportPanel(attribution_bars(ds, decomposition=decomposition, series=i), table, words)
        if decomposition == main:
            steps = read_attribution_steps(ds, main, i)
            yield ReportPanel(attribution_heatmap(ds, decomposition=main, series=i), table, steps)
