"""Zero-ablation of single components: a map, and the forecasts without them.

:func:`ablation_heatmap` draws the effects of all components, :func:`ablation_forecasts`
the forecasts without some. ``MEASURES`` has the effects that can be drawn. Many
components that are ablated together are in :mod:`tsfm_lens.viz.recipes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.registry import FigurePanel, check, figure, panels
from tsfm_lens.viz.findings import EffectEstimate, read_estimate
from tsfm_lens.viz.generic import draw_variable, with_range
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.nulls import describe_nulls
from tsfm_lens.viz.panels import fit, series_window
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    flat_series,
    forecast_series,
    medians,
    name_model,
    name_statistic,
    names,
    positions,
    varying,
)
from tsfm_lens.viz.sites import by_layer, coordinate
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.tables import steps_table
from tsfm_lens.viz.theme import BLUE, PALE, VERMILION, percent
from tsfm_lens.viz.words import listed

__all__ = ["ablation_forecasts", "ablation_heatmap"]


def read_ablation(ds: xr.Dataset, metric: str) -> list[str]:
    """Describe the heads and MLPs with the largest effects, and their significance."""
    effect = read_estimate(ds, metric, "component")
    labels = names(ds, "component")
    measure = find_measure(ds, metric)
    unit = ""
    if measure.relative:
        unit = " percent"
    # "head" is negative for a component that is no head
    heads = ds["head"].values >= 0
    mlps = ds["kind"].values.astype(str) == "mlp"
    out = []
    for noun, group in (("head", heads), ("MLP", mlps)):
        lead = f"Largest {measure.word} without one {noun}"
        out += summarize(
            ds.isel(component=group),
            f"{lead}{{{metric}:basis}}: {{{metric}:largest{unit}}}.",
        )
    for largest in effect.named(1, heads):
        text = effect.lead(largest)
        out += [f"{labels[largest]}: {text}."] if text else []
    if metric == "spearman_distance" and "mean_shift_size" in ds:
        out += read_shift(ds, effect)
    out += effect.standing(labels, "heads", heads)
    return [
        *out,
        "Components are ablated one at a time, so redundant ones look unimportant.",
    ]


def read_shift(ds: xr.Dataset, shape: EffectEstimate) -> list[str]:
    """Return sentences on the components that move the forecast, or its shape, most.

    ``shape`` is the effect in Spearman distance, which ignores level and scale.
    """
    # a whole layer contains heads and an MLP, and would lead them
    parts = ds["kind"].values.astype(str) != "layer"
    farthest = read_estimate(ds, "mean_shift", "component").named(1, parts)
    if not farthest:
        return []
    first = shape.named(1, parts)
    labels = names(ds, "component")
    return [
        *summarize(
            ds.isel(component=farthest),
            "The forecast moves farthest, as a share of the series' range, without "
            "{mean_shift:each percent}.",
            "That is size, in which {size} leads; Spearman distance is shape, in which "
            "{shape} leads. A change of level or scale has size without shape.",
            size=labels[farthest[0]],
            shape=labels[first[0]] if first and first != farthest else None,
        ),
        *describe_nulls(
            ds,
            "mean_shift",
            "component",
            at=farthest[0],
            subject=f"{labels[farthest[0]]}, by the size of the move: of",
        ),
        *summarize(
            ds.isel(component=farthest[0]),
            "Of the others of its kind whose write is nearest in norm,"
            " {mean_shift_like_norm_share:percent} move it as far.",
        ),
        *name_improvements(ds, list(dict.fromkeys([*farthest, *first]))),
    ]


def name_improvements(ds: xr.Dataset, components: Sequence[int]) -> list[str]:
    """Name those components, given by position, without which the error falls."""
    if "mae_change_size" not in ds:
        return []
    change = read_estimate(ds, "mae_change", "component")
    labels = names(ds, "component")
    harmful = [at for at in components if change.large[at] and change.size[at] < 0]
    falls = [f"{labels[at]} ({change.told(at, percent)})" for at in harmful]
    if not falls:
        return []
    over = ""
    if change.spread:
        over = " in the median"
    return [
        f"Without it the error falls{over}: {listed(falls)}. A large effect is not"
        " always a useful one."
    ]


def read_ablation_forecasts(
    ds: xr.Dataset, series: int, components: list[str]
) -> list[str]:
    """Describe how far ablating the first, strongest component moves the forecast."""
    one = ds.isel(series=[series]).sel(component=components[0])
    # ranges over the steps
    before, after = (
        float(np.ptp(one[name].values)) for name in ("baseline_forecast", "forecast")
    )
    shift = float(one["mean_shift"].values[0])
    return summarize(
        one,
        "Without {component} the {statistic} forecast of {series} moves by {shift:unit}"
        " on average. Its range changes from {before:unit} to {after:unit}.",
        "That move is {share:percent} of its range.",
        statistic=name_statistic(ds),
        shift=shift,
        before=before,
        after=after,
        # a flat forecast has no range to be a share of
        share=shift / before if before > 0 else None,
    )


def ablation_table(ds: xr.Dataset, metric: str) -> pd.DataFrame:
    """Tabulate the effect on every series and the median, a row per component."""
    effect = array(ds, metric, "component", "series")
    table = pd.DataFrame({"component": names(ds, "component")})
    for coord in ("stack", "kind", "layer", "head"):
        table[coord] = ds[coord].values
    # over series that are not flat, as in the test of the effect
    table["median"] = medians(effect[:, varying(ds)])
    for i, name in enumerate(names(ds, "series")):
        table[f"{metric}: {name}"] = effect[:, i]
    return table


def ablated_forecast_table(
    ds: xr.Dataset, series: int, components: list[str]
) -> pd.DataFrame:
    """Return truth, unablated forecast and the forecast without each component.

    There is a row per step.
    """
    table = steps_table(ds, series)
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    table["unablated"] = array(ds, "baseline_forecast", "step", series=series)
    for row, component in zip(
        positions(ds, "component", components), components, strict=True
    ):
        table[f"without {component}"] = array(
            ds, "forecast", "step", component=row, series=series
        )
    return table


def strongest(ds: xr.Dataset, series: int) -> list[str]:
    """Return the six heads and MLPs of the largest Spearman distance on a series.

    The strongest comes first. They are those of the largest mean shift where the
    forecast is flat, so that it has no shape; a flat context has none.
    """
    effect = array(ds, "spearman_distance", "component", series=series)
    if not np.isfinite(effect).any() and not flat_series(ds)[series]:
        effect = array(ds, "mean_shift", "component", series=series)
    # a whole layer and the embedding are no single components, and would come first
    kinds = coordinate(ds, "kind")
    single = [
        i
        for i in range(len(kinds))
        if kinds[i] not in ("layer", "embed") and np.isfinite(effect[i])
    ]
    return [
        names(ds, "component")[i] for i in sorted(single, key=lambda i: -effect[i])[:6]
    ]


@figure(
    "ablation_effects",
    "Change of the forecast without each head, MLP or layer.",
    table=("spearman_distance", "mase_change", "mae_change", "metric_change"),
)
def ablation_heatmap(ds: xr.Dataset, *, metric: str | None = None) -> go.Figure:
    """Draw what zeroing each head, MLP and layer does, layer × component.

    Effects are medians over series.

    Args:
        ds: result of kind "ablation_effects".
        metric: "spearman_distance", or "mase_change", "mae_change" and "metric_change"
            (relative); the last if None and the result has it, else the first.

    Returns:
        A layer × component map for each kind of component: heads of each attention,
        MLPs and whole layers. All share a colour scale, without a unit.

    Example:
        >>> effects = probes.ablation_effects(run, components="decoder.*.mlp")
        >>> viz.ablation_heatmap(effects, metric="mae_change").layout.meta["title"]
        'Ablation of single components of the decoder of chronos-nano: change of MAE'
    """
    available = [name for name in (*MEASURES, OWN) if name in ds]
    if metric is None:
        metric = OWN if OWN in ds else "spearman_distance"
    if metric not in available:
        raise unknown_name("metric", metric, available)
    measure = find_measure(ds, metric)
    parts = [name for name in ds.data_vars if str(name).startswith(metric)]
    drawn = by_layer(ds[parts])
    if measure.relative:
        drawn = _in_percent(drawn, metric)
    drawn[metric].attrs["long_name"] = measure.word
    if f"{metric}_size" not in ds:
        drawn = with_range(drawn, drawn[metric])
    stacks = " and ".join(dict.fromkeys(coordinate(ds, "stack").astype(str)))
    title = (
        "Ablation of single components of"
        f" {stacks and f'the {stacks} of '}{name_model(ds)}: {measure.word}"
    )
    remarks = [f"{measure.words}, zeroed one at a time"]
    return draw_variable(drawn, metric, title=title, remarks=remarks)


def _in_percent(ds: xr.Dataset, metric: str) -> xr.Dataset:
    """Return a share with its size, its range over series and its floor in percent."""
    parts = ("size", "low", "high", "floor")
    known = [
        name for name in (metric, *(f"{metric}_{part}" for part in parts)) if name in ds
    ]
    return ds.assign({name: (100 * ds[name]).assign_attrs(units="%") for name in known})


@figure("ablation_effects", "Forecasts without single components.")
def ablation_forecasts(
    ds: xr.Dataset,
    *,
    components: Sequence[str] | None = None,
    series: str | int = 0,
    context_steps: int | None = None,
) -> go.Figure:
    """Draw the forecast with and without a component, one panel each.

    Args:
        ds: result of kind "ablation_effects".
        components: names to draw; if None the six heads and MLPs of the largest
            Spearman distance, or of the largest mean shift where the forecast is flat.
        series: id of the series, or its place counted from 0.
        context_steps: steps of the context that are drawn, a few horizons if None.

    Returns:
        A panel for each component: both forecasts, the end of the context and, where
        known, the truth, in data units by step; with nulls a band that spans the
        forecasts under the draws. Its title has the Spearman distance.

    Example:
        >>> effects = probes.ablation_effects(run, components="decoder.*.mlp")
        >>> fig = viz.ablation_forecasts(effects, components=["decoder.2.mlp"])
        >>> fig.layout.meta["title"]
        'Forecasts of co2 by chronos-nano without single components'
    """
    view = series_window(ds, series, context_steps)
    if components is None:
        check(ds, "ablation_effects", "spearman_distance")
        components = strongest(ds, view.index)
    if not components:
        reason = "components is empty; "
        if flat_series(ds)[view.index]:
            reason = (
                f"the context of {view.id} is flat, so that no component is the"
                " strongest; "
            )
        example = names(ds, "component")[0]
        raise InputError(f"{reason}name at least one, such as components=[{example!r}]")
    rows = positions(ds, "component", list(components))
    titles: list[tuple[str, ...]] = [(names(ds, "component")[i],) for i in rows]
    if "spearman_distance" in ds:
        distance = array(ds, "spearman_distance", "component", series=view.index)[rows]
        notes = [f"distance {d:.2g}" if np.isfinite(d) else "" for d in distance]
        titles = [(*title, note) for title, note in zip(titles, notes, strict=True)]
    grid = panel_grid(titles, row_height=140)
    baseline = array(ds, "baseline_forecast", "step", series=view.index)
    ablated = array(ds, "forecast", "component", "step", series=view.index)[rows]
    bands = np.array(
        [
            array(ds, name, "component", "step", series=view.index)[rows]
            for name in ("null_low", "null_high")
            if name in ds
        ]
    )
    for index, (panel, values) in enumerate(zip(grid, ablated, strict=True)):
        view.draw(panel)
        if len(bands):
            low, high = bands[:, index]
            panel.band(view.time.at(view.future), low, high, PALE, "draws", legend=True)
        view.forecast(panel, baseline, "unablated forecast", BLUE)
        view.forecast(panel, values, "ablated forecast", VERMILION)
    # A forecast without a strong component may explode. The axis follows it by one
    # range of the other values at most.
    cut_remark = fit(
        grid, np.append(view.observations, baseline), ablated.ravel(), reach=1.0
    )
    grid.y(nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    title = f"Forecasts of {view.id} by {name_model(ds)} without single components"
    about = (
        f"{view.statistic} forecasts; distance: 1 − rank correlation of the ablated"
        " with the unablated one"
    )
    return grid.finalize(title, about, cut_remark, view.time.remark)


@dataclass(frozen=True)
class Measure:
    """Name and format of one ablation measure.

    Attributes:
        word, words: its name, and what it is in a few words.
        relative: whether it is a relative change, written in per cent.
    """

    word: str
    words: str
    relative: bool = False


MEASURES = {
    "spearman_distance": Measure(
        "Spearman distance", "1 − rank correlation with the unablated forecast"
    ),
    "mase_change": Measure(
        "change of MASE", "relative change of the forecast's MASE", True
    ),
    "mae_change": Measure(
        "change of MAE", "relative change of the forecast's MAE", True
    ),
}


OWN = "metric_change"
"""Variable of the change of a metric of the user's own."""


def find_measure(ds: xr.Dataset, metric: str) -> Measure:
    """Return name and format of a measure; that of the user's own has its name."""
    if metric != OWN:
        return MEASURES[metric]
    name = str(ds.attrs.get("metric", "the metric"))
    return Measure(
        f"change of {name}", f"relative change of the forecast's {name}", True
    )


@panels("ablation_effects")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    changes = [
        metric
        for metric in ("mase_change", "mae_change")
        if metric in ds and np.isfinite(ds[metric].values).any()
    ]
    # The first of the two alone, as relative changes of MASE and MAE are equal. MAE
    # also exists where a series has no seasonal error.
    metrics = changes[:1]
    if "spearman_distance" in ds:
        metrics.insert(0, "spearman_distance")
    if OWN in ds:
        metrics.insert(0, OWN)
    for metric in metrics:
        yield FigurePanel(
            ablation_heatmap(ds, metric=metric),
            ablation_table(ds, metric),
            read_ablation(ds, metric),
        )
    if not {"forecast", "baseline_forecast", "spearman_distance"} <= set(ds.data_vars):
        return
    for i in forecast_series(ds, MAX_DRAWN):
        if top := strongest(ds, i):
            fig = ablation_forecasts(ds, components=top, series=i)
            text = read_ablation_forecasts(ds, i, top)
            yield FigurePanel(
                fig,
                ablated_forecast_table(ds, i, top),
                text,
                series=names(ds, "series")[i],
            )
