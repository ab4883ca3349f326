"""Map of ablation effects: what zeroing each head, MLP and layer does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.noise import Finding, finding
from tsfm_lens.viz.panels import means
from tsfm_lens.viz.places import Places, coordinate, places_in
from tsfm_lens.viz.select import array, draws, kind_word, model_of, names, over_series, unit_of
from tsfm_lens.viz.sheet import Sheet, sheet
from tsfm_lens.viz.theme import number, percent, plain

__all__ = ["ablation_heatmap"]


@dataclass(frozen=True)
class Measure:
    """Name and format of one ablation measure; ``relative`` ones are shares centred on 0."""

    word: str
    words: str
    relative: bool = False

    def write(self, value: float) -> str:
        """Write a value for its cell."""
        if not self.relative:
            return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.1g}"
        text = f"{100 * value:+.0f} %"
        return "0 %" if text in ("+0 %", "-0 %") else text.replace("-", "−")

    def tell(self, value: float) -> str:
        """Write a value for a hover box."""
        return percent(value) if self.relative else number(value)


MEASURES = {
    "spearman_distance": Measure("Spearman distance", "1 − rank correlation with the unablated forecast"),
    "mase": Measure("MASE", "MASE of the ablated forecast"),
    "mae": Measure("MAE", "MAE of the ablated forecast"),
    "mase_change": Measure("change of MASE", "relative change of the forecast's MASE", True),
    "mae_change": Measure("change of MAE", "relative change of the forecast's MAE", True),
}
_MAX_SERIES = 12  # series named in a hover box


def _blocks(places: Places) -> list[tuple[str, int]]:
    """List kinds with their number of heads, 0 for a single column: heads, single columns, whole layers last."""
    kind = np.array(places.kind)
    kinds = [k for k in dict.fromkeys(places.kind) if k not in ("mlp", "layer", "embed")]
    head_blocks = [(k, int(places.head[kind == k].max()) + 1) for k in kinds]
    single = [k for k in kinds if (places.head[kind == k] < 0).any()]
    single += [k for k in ("mlp", "layer") if (kind == k).any()]
    return [block for block in head_blocks if block[1]] + [(k, 0) for k in single]


def _title(kind: str, heads: int) -> str:
    return f"{kind_word(kind)} heads" if heads else {"mlp": "MLP", "layer": "layer"}.get(kind, "all heads")


def _grid(places: Places, layers: list[int], stack: str, kind: str, heads: int) -> np.ndarray:
    """Locate the component at (layer, column) of a block in the result; -1 where there is none."""
    grid = np.full((len(layers), max(heads, 1)), -1)
    for at, *where, layer, head in zip(places.order, places.stack, places.kind, places.layer, places.head, strict=True):
        if where == [stack, kind] and layer >= 0 and (head >= 0) == bool(heads):
            grid[layers.index(layer), max(head, 0)] = at
    return grid


@draws("ablation")
def ablation_heatmap(ds: xr.Dataset, *, metric: str = "spearman_distance") -> go.Figure:
    """Draw what zeroing each head, MLP and layer does, layer × component, as the mean over series.

    Args:
        ds: of kind "ablation" with ``metric`` (component, series).
        metric: "spearman_distance", "mase", "mae" (sizes) or "mase_change", "mae_change" (relative).

    Returns:
        One heat map per stack and kind of component: heads side by side, MLP and whole layer in columns
        of their own with the numbers written in. The colours end at the largest head effect.
        What does not stand out of the noise is drawn as such, where the result knows it.

    Example:
        >>> fig = viz.ablation_heatmap(results["ablation"])
        >>> fig.layout.meta["title"]
        'Ablation of every component of chronos-nano: Spearman distance'
    """
    available = [name for name in MEASURES if name in ds]
    if metric not in available:
        raise unknown_name("metric", metric, available)
    measure = MEASURES[metric]
    heads = coordinate(ds, "head").astype(int) >= 0
    effect = array(ds, metric, "component", "series")
    middle = means(effect)
    several = effect.shape[1] > 1
    unit = f" ({unit_of(ds, None if several else 0) or 'data units'})" if metric == "mae" else ""
    # an error itself is no effect, its change is
    noise = finding(ds, f"{metric}_change" if metric in ("mae", "mase") else metric, "component")
    canvas = _draw(ds, middle, effect, measure, noise)
    canvas.colours(_scale(middle[heads] if heads.any() else middle, measure))
    return canvas.dress(
        f"Ablation of every component of {model_of(ds)}: {measure.word}",
        f"{measure.words}{unit}, {over_series(ds, range(effect.shape[1]))}",
        "zeroed one at a time",
        "colours up to the largest head" if heads.any() else "",
    )


def _draw(ds: xr.Dataset, middle: np.ndarray, effect: np.ndarray, measure: Measure, noise: Finding | None) -> Sheet:
    """Draw all blocks, a row per stack and a column per kind of component."""
    places = places_in(ds)
    rows = {stack: _layers(places, stack) for stack in dict.fromkeys(places.stack)}
    rows = {stack: layers for stack, layers in rows.items() if layers}
    blocks, deep = _blocks(places), sum(map(len, rows.values()))
    heads = sum(count for _, count in blocks)
    height = max(int(np.clip(330 / deep, 20, 46)), -(-120 // deep))
    grids = [(stack, block, _grid(places, rows[stack], stack, *block)) for stack in rows for block in blocks]
    wide = sum(max(count * (42 if heads <= 8 else 21), 130) if count else 50 for _, count in blocks)
    canvas = sheet(
        [len(layers) * height for layers in rows.values()],
        [count or max(1.0, 0.09 * heads) for _, count in blocks],
        titles=[_title(*block) if (grid >= 0).any() else "" for _, block, grid in grids],
        row_gap=70,
        column_gap=min(0.014, 0.5 / len(blocks)),
        min_width=170 + wide,
        above=34,
        below=46,
    )
    words = [_describe(ds, i, effect, middle, measure, noise) for i in range(len(middle))]
    stacks: set[str] = set()
    for (stack, (_, count), grid), panel in zip(grids, canvas, strict=True):
        there = grid >= 0
        if not there.any():
            panel.x(visible=False)
            panel.y(visible=False)
            continue
        layers, first = rows[stack], stack not in stacks
        stacks.add(stack)
        panel.cells(
            np.where(there, middle[grid], np.nan),
            np.arange(grid.shape[1]),
            layers,
            "%{customdata}",
            write=measure.write if heads <= 8 or not count else None,
            noise=None if noise is None else noise.at(grid),
            customdata=[[words[i] if i >= 0 else "" for i in row] for row in grid],
        )
        panel.y(
            (f"{stack} layer" if len(rows) > 1 else "layer") if first else "",
            autorange="reversed",
            showticklabels=first,
            tickvals=layers[:: -(-len(layers) // 12)],
            showline=False,
            ticks="outside" if first else "",
        )
        columns = np.arange(count)
        ticks = columns[:: -(-max(len(columns), 1) // 12)]
        panel.x("head" if count else "", tickvals=ticks, showline=False)
    return canvas


def _layers(places: Places, stack: str) -> list[int]:
    """List the layer numbers of a stack, ascending."""
    return sorted({int(at) for at, place in zip(places.layer, places.stack, strict=True) if place == stack and at >= 0})


def _describe(
    ds: xr.Dataset, i: int, effect: np.ndarray, middle: np.ndarray, measure: Measure, noise: Finding | None
) -> str:
    """Describe a component, with the value of every series, strongest first."""
    ids = names(ds, "series")
    head = f"without <b>{plain(names(ds, 'component')[i])}</b><br>{measure.word} {measure.tell(middle[i])}"
    tail = [] if noise is None else [noise.told(i)]
    if len(ids) == 1:
        return "<br>".join([head, plain(ids[0]), *tail])
    order = np.argsort(-np.abs(np.nan_to_num(effect[i])))
    lines = [f"{plain(ids[s])}: {measure.tell(effect[i, s])}" for s in order[:_MAX_SERIES]]
    more = [f"and {len(ids) - _MAX_SERIES} more"] if len(ids) > _MAX_SERIES else []
    return "<br>".join([f"{head} (mean)", *tail, *lines, *more])


def _scale(heads: np.ndarray, measure: Measure) -> dict[str, Any]:
    """Scale colours up to the largest head effect; symmetric about 0 for relative measures."""
    if measure.relative:
        scale = colour_scale(measure.word, heads, diverging=True, tickformat=".2~%")
        power = 10.0 ** np.floor(np.log10(scale["cmax"] / 2))
        ticks = max(digit * power for digit in (1, 2, 5) if digit * power <= scale["cmax"] / 2) * np.arange(-2.0, 3.0)
        if power >= 0.01:
            # written as in the cells
            scale["colorbar"] |= {"tickvals": ticks, "ticktext": [measure.write(tick) for tick in ticks]}
        return scale
    sizes = measure.word in ("MASE", "MAE")
    return colour_scale(measure.word, heads, low=None if sizes else 0.0)
