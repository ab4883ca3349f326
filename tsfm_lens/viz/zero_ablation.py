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
from tsfm_lens.viz.findings import (
    EffectEstimate,
    central_sizes,
    describe_units,
    find_estimate,
    read_estimate,
)
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.nulls import describe_nulls
from tsfm_lens.viz.panels import fit, series_window
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    flat_series,
    forecast_series,
    kind_word,
    medians,
    name_model,
    name_statistic,
    names,
    positions,
    varying,
)
from tsfm_lens.viz.sheet import Sheet, Style, sheet
from tsfm_lens.viz.sites import Sites, coordinate, find_positions
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.tables import steps_table
from tsfm_lens.viz.theme import BLUE, PALE, VERMILION, number, percent, plain
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


def strongest(ds: xr.Dataset, series: int, count: int = 6) -> list[str]:
    """Return the heads and MLPs of the largest Spearman distance on a series.

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
        names(ds, "component")[i]
        for i in sorted(single, key=lambda i: -effect[i])[:count]
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
    effect = array(ds, metric, "component", "series")
    noise = find_estimate(ds, metric, "component")
    sizes = central_sizes(noise, effect)
    canvas = _draw_blocks(ds, sizes, measure, noise)
    # colours go by the root, since effects of layers are far larger than those of heads
    scale: Style = (
        {"diverging": True, "tickformat": ".2~%"} if measure.relative else {"low": 0.0}
    )
    canvas.colours(colour_scale(measure.word, sizes, root=True, **scale))
    stacks = " and ".join(dict.fromkeys(coordinate(ds, "stack").astype(str)))
    title = (
        "Ablation of single components of"
        f" {stacks and f'the {stacks} of '}{name_model(ds)}: {measure.word}"
    )
    about = f"{measure.words}, {describe_units(ds, noise, range(effect.shape[1]))}"
    return canvas.finalize(title, about, "zeroed one at a time")


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

    def write(self, value: float) -> str:
        """Write a value for its cell."""
        if not self.relative:
            # two decimals show two digits from here on; smaller values show one digit
            if abs(value) >= 0.095:
                return f"{value:.2f}"
            return f"{value:.1g}"
        text = f"{100 * value:+.0f} %"
        if text in ("+0 %", "-0 %"):
            return "0 %"
        return text.replace("-", "−")

    def tell(self, value: float) -> str:
        """Write a value for a hover box."""
        if self.relative:
            return percent(value)
        return number(value)


def _blocks(sites: Sites) -> list[tuple[str, int]]:
    """Return the blocks of the map: a kind of component and its number of heads.

    Blocks of heads come first. Then come those of a single column (0 heads): attention
    as a whole, MLPs, and whole layers.
    """
    kind = np.array(sites.kind)
    attentions = [
        k for k in dict.fromkeys(sites.kind) if k not in ("mlp", "layer", "embed")
    ]
    # a kind that has no heads has the number -1, and so a count of 0
    n_heads = {k: int(sites.head[kind == k].max()) + 1 for k in attentions}
    single = [k for k in attentions if (sites.head[kind == k] < 0).any()]
    single += [k for k in ("mlp", "layer") if (kind == k).any()]
    return [(k, count) for k, count in n_heads.items() if count] + [
        (k, 0) for k in single
    ]


def _grid(
    sites: Sites, layers: list[int], stack: str, kind: str, heads: int
) -> np.ndarray:
    """Return the index of the component in each cell of a block, (layer, column).

    Indices are those of the result, -1 where there is no component.
    """
    grid = np.full((len(layers), max(heads, 1)), -1)
    for at, *stack_and_kind, layer, head in zip(
        sites.order, sites.stack, sites.kind, sites.layer, sites.head, strict=True
    ):
        in_block = stack_and_kind == [stack, kind] and (head >= 0) == bool(heads)
        if in_block and layer >= 0:
            grid[layers.index(layer), max(head, 0)] = at
    return grid


def _draw_blocks(
    ds: xr.Dataset, middle: np.ndarray, measure: Measure, noise: EffectEstimate | None
) -> Sheet:
    """Draw all blocks, a row per stack and a column per kind of component.

    ``middle`` are the effects that are drawn, (component,).

    Returns:
        The sheet.
    """
    sites = find_positions(ds)
    with_heads = {
        kind for kind, head in zip(sites.kind, sites.head, strict=True) if head >= 0
    }

    def title(kind: str, heads: int) -> str:
        if heads:
            return kind_word(kind).replace("-", "-\n")
        # beside the block of single heads: all heads of the attention, ablated at once
        if kind not in ("mlp", "layer") and kind in with_heads:
            return "all\nheads"
        return kind_word(kind)

    rows: dict[str, list[int]] = {}
    for stack, layer in zip(sites.stack, sites.layer, strict=True):
        if layer >= 0 and int(layer) not in rows.setdefault(stack, []):
            rows[stack].append(int(layer))
    rows = {stack: sorted(layers) for stack, layers in rows.items()}
    blocks = _blocks(sites)
    n_rows = sum(map(len, rows.values()))
    n_heads = sum(count for _, count in blocks)
    # -(-a // b) rounds up, so that all rows together have 120 pixels or more
    height = max(int(np.clip(330 / n_rows, 20, 46)), -(-120 // n_rows))
    grids = [
        (stack, block, _grid(sites, rows[stack], stack, *block))
        for stack in rows
        for block in blocks
    ]
    width = sum(max(21 * count, 90) if count else 40 for _, count in blocks)
    canvas = sheet(
        [len(layers) * height for layers in rows.values()],
        [count or max(1.0, 0.19 * n_heads) for _, count in blocks],
        titles=[title(*block) if (grid >= 0).any() else "" for _, block, grid in grids],
        row_gap=70,
        column_gap=min(0.014, 0.5 / len(blocks)),
        min_width=160 + width,
        above=46,
        below=46,
    )
    texts = [
        _describe_component(ds, i, middle, measure, noise) for i in range(len(middle))
    ]
    stacks: set[str] = set()
    for (stack, (_, count), grid), panel in zip(grids, canvas, strict=True):
        exists = grid >= 0
        if not exists.any():
            panel.x(visible=False)
            panel.y(visible=False)
            continue
        layers = rows[stack]
        # A stack may have no component in the first block, so its layer axis is on the
        # first panel that is drawn.
        first = stack not in stacks
        stacks.add(stack)
        # few heads have room for numbers, and single columns always
        panel.cells(
            np.where(exists, middle[grid], np.nan),
            np.arange(grid.shape[1]),
            layers,
            "%{customdata}",
            write=measure.write if n_heads <= 8 or not count else None,
            # -1 picks the last component, but the cell is empty there
            noise=noise and noise.at(grid),
            customdata=[[texts[i] if i >= 0 else "" for i in row] for row in grid],
        )
        # up to twelve ticks on either axis
        ticks: Style = {
            "tickvals": layers[:: -(-len(layers) // 12)],
            "ticks": "outside" if first else "",
        }
        y_title = ""
        if first:
            y_title = f"{stack} layer" if len(rows) > 1 else "layer"
        panel.y(
            y_title,
            autorange="reversed",
            showline=False,
            showticklabels=first,
            **ticks,
        )
        panel.x(
            "head" if count else "",
            tickvals=np.arange(0, count, -(-max(count, 1) // 12)),
            showline=False,
        )
    return canvas


def _describe_component(
    ds: xr.Dataset,
    i: int,
    middle: np.ndarray,
    measure: Measure,
    noise: EffectEstimate | None,
) -> str:
    """Describe a component for a hover box."""
    name = plain(names(ds, "component")[i])
    lines = [f"without <b>{name}</b>", f"{measure.word} {measure.tell(middle[i])}"]
    if noise is not None:
        lines.append(noise.hover(i))
    return "<br>".join(lines)


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
