"""Logit lens as maps: which values each layer holds likely at every forecast step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import Scene, fitted_range, mark_start, scene
from tsfm_lens.viz.select import array, draws, layer_names, model_of, positions
from tsfm_lens.viz.sheet import Look, Panel, Sheet
from tsfm_lens.viz.theme import VERMILION, percent, plain

__all__ = ["logit_map"]

_CELLS = 150_000  # in the whole figure
_LONG = 128  # steps from which on a panel needs half of the width
FLOOR = 1e-3  # probabilities below are drawn as this


@draws("logit_lens", needs=("probability", "value"))
def logit_map(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    context_steps: int | None = None,
    value_range: tuple[float, float] | None = None,
    rows: int = 48,
) -> go.Figure:
    """Draw value bin against forecast step, coloured by the logarithm of the lens probability, for each layer.

    Args:
        ds: of kind "logit_lens" with readout "token": ``probability`` (layer, series, step, bin) and
            ``value`` (series, bin), the centres of the bins in data units.
        series: id, or place counted from 0.
        layers: labels to draw, all unless given.
        context_steps: length of the context's tail beside the map; one horizon (at least 12) unless given.
        value_range: lowest and highest value drawn. Unless given: the drawn context, the truth and the
            central 98 % of the last layer's probability.
        rows: the most rows that a map may have. Adjacent bins are added up, in equal numbers, to keep to
            it; that is for display only.

    Returns:
        Per layer a heat map (``z``: log10 of the row's probability, at least -3; ``customdata``: the
        probability) with the context's tail and the truth over it. All panels share axes and colours. A
        panel's title says which share of the probability lies beyond the axis. Of many steps a column is the mean
        of several, ``meta["steps"]``, which the subtitle then says.

    Example:
        >>> fig = viz.logit_map(results["logit_lens"])
        >>> fig.layout.meta["title"]
        'Logit lens on co2: what each layer of chronos-nano expects'
    """
    places = positions(ds, "layer", layers)
    view = scene(ds, series, max(ds.sizes["step"], 12) if context_steps is None else context_steps)
    grid, words = logit_sheet(ds, view, places, value_range, rows)
    return grid.dress(f"Logit lens on {view.id}: what each layer of {model_of(ds)} expects", *words)


def logit_sheet(
    ds: xr.Dataset, view: Scene, places: list[int], value_range: tuple[float, float] | None, rows: int
) -> tuple[Sheet, list[str]]:
    """Draw the panels of :func:`logit_map`, and write what stands under its title; ``places``: of the layers."""
    probability = array(ds.isel(layer=places), "probability", "layer", "step", "bin", series=view.place)
    centres = array(ds, "value", "bin", series=view.place)
    order = np.argsort(centres)
    bounds = value_range or central_range(centres[order], probability[-1][:, order], view.observations)
    edges, mass, outside = visible_rows(centres[order], probability[..., order], bounds, rows)
    notes = [f"{percent(round(share, 2))} outside" if share >= 0.01 else "" for share in outside]
    long, labels = len(view.future) > _LONG, layer_names(ds, places)
    group = -(-mass.size // _CELLS)
    mass = _average_steps(mass, group)
    grid = panel_grid(list(zip(labels, notes, strict=True)), row_height=150, most=2 if long else 5)
    for panel, one, label in zip(grid, mass, labels, strict=True):
        _map(panel, view, edges, one, label, group)
        _draw_lines(panel, view, 0.7 if long else 1.0)
    grid.y(range=[edges[0], edges[-1]], nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    grid.colours(_colours())
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    words = [
        f"probability of each row of {width:.3g} {view.unit or 'data units'}, truth dashed",
        "outside: probability beyond the axis",
        view.time.remark,
        f"a column: the mean of {group} steps" if group > 1 else "",
    ]
    return grid, words


def visible_rows(
    centres: np.ndarray, probability: np.ndarray, bounds: tuple[float, float], rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut bins to ``bounds`` and add up adjacent ones, in equal numbers, until at most ``rows`` are left.

    Args:
        centres: ascending bin centres, (bin,).
        probability: (layer, step, bin).

    Returns:
        Row edges (row + 1,), row probabilities (layer, step, row), and per layer the mean share of its
        probability that is not drawn.
    """
    middles = (centres[1:] + centres[:-1]) / 2
    if len(centres) > 1:
        ends = (1.5 * centres[0] - 0.5 * centres[1], 1.5 * centres[-1] - 0.5 * centres[-2])
    else:
        ends = (centres[0] - 0.5, centres[0] + 0.5)
    edges = np.concatenate([ends[:1], middles, ends[1:]])
    first = min(int(np.searchsorted(edges[1:], bounds[0])), len(centres) - 1)
    last = max(int(np.searchsorted(edges[:-1], bounds[1])), first + 1)
    group = -(-(last - first) // rows)
    starts = np.arange(first, last, group)
    stop = min(starts[-1] + group, len(centres))
    mass = np.add.reduceat(probability[..., :stop], starts, axis=-1)
    outside = np.clip(1 - mass.sum(-1).mean(-1) / probability.sum(-1).mean(-1), 0, 1)
    return np.append(edges[starts], edges[stop]), mass, outside


def central_range(centres: np.ndarray, probability: np.ndarray, core: np.ndarray) -> tuple[float, float]:
    """Return the range of a series and of the central 98 % of a probability (step, bin) at every step."""
    share = np.cumsum(probability, axis=-1)
    share /= share[:, -1:]
    ends = [centres[np.argmax(share >= level, axis=-1)] for level in (0.01, 0.99)]
    return fitted_range(core, np.concatenate(ends), reach=1.0)[0]


def _average_steps(mass: np.ndarray, group: int) -> np.ndarray:
    """Average every ``group`` steps of (layer, step, row)."""
    starts = np.arange(0, mass.shape[1], group)
    sizes = np.diff(np.append(starts, mass.shape[1]))
    return np.add.reduceat(mass, starts, axis=1) / sizes[:, None]


def _map(panel: Panel, view: Scene, edges: np.ndarray, mass: np.ndarray, layer: str, group: int) -> None:
    columns = view.future if group == 1 else np.append(view.future[::group], view.future[-1] + 1) - 0.5
    panel.cells(
        np.log10(np.maximum(mass.T, FLOOR)).astype(np.float32),
        view.time.at(columns),
        edges,
        f"{plain(layer)}, {view.time.hover}<br>probability %{{customdata:.2%}} of a value near "
        f"%{{y:.4g}} {plain(view.unit)}",
        customdata=mass.T.astype(np.float32),
        meta={"steps": group},
        name=layer,
        xgap=0,
        ygap=0,
    )


def _draw_lines(panel: Panel, view: Scene, weight: float) -> None:
    future = view.time.at(view.future)
    if view.has_truth:
        # a white edge keeps the dashes visible on the map's dark cells
        panel.line(future, view.truth, "edge", colour="rgba(255,255,255,0.7)", width=2.6 * weight, legend=False)
    panel.line(view.time.at(view.past), view.context, "context", view.hover("context"), width=1.2 * weight)
    if view.has_truth:
        look: Look = {"colour": VERMILION, "width": 1.3 * weight, "dash": "4px,2px"}
        panel.line(future, view.truth, "truth", view.hover("truth"), **look)
    mark_start(panel, view.time)


def _colours() -> dict[str, object]:
    ticks = np.arange(round(np.log10(FLOOR)), 1)
    words = [f"{10.0**t:g}" for t in ticks]
    words[0] = f"≤ {words[0]}"
    return colour_scale("probability of the row", low=float(ticks[0]), high=0, tickvals=ticks.tolist(), ticktext=words)
