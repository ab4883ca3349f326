"""Which components matter: a map of what zeroing each head, MLP and layer does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, check, model_of, names, shown, unit_of
from tsfm_lens.viz.theme import DIVERGING, SEQUENTIAL, dress, number, percent, plain

__all__ = ["ablation_heatmap"]


@dataclass(frozen=True)
class Measure:
    """How one ablation measure is named and drawn; ``relative`` ones are shares centred on 0."""

    word: str
    words: str
    relative: bool = False


MEASURES = {
    "spearman_distance": Measure("Spearman distance", "1 − rank correlation with the unablated forecast"),
    "mase": Measure("MASE", "MASE of the ablated forecast"),
    "mae": Measure("MAE", "MAE of the ablated forecast"),
    "mase_change": Measure("change of MASE", "relative change of the forecast's MASE", True),
    "mae_change": Measure("change of MAE", "relative change of the forecast's MAE", True),
}
_KIND_WORDS = {"self_attn": "self-attention", "cross_attn": "cross-attention", "attn": "attention"}
_LISTED = 12  # series named in a hover box


@dataclass(frozen=True)
class _Block:
    """The columns of one kind of component: its heads, or a single column."""

    kind: str
    heads: int  # 0: a single column

    @property
    def title(self) -> str:
        """Panel title."""
        if self.heads:
            return f"{_KIND_WORDS.get(self.kind, self.kind)} heads"
        return {"mlp": "MLP", "layer": "layer"}.get(self.kind, "all heads")


@dataclass(frozen=True)
class _Cells:
    """The components of a Dataset as places in the map."""

    stack: np.ndarray
    kind: np.ndarray
    layer: np.ndarray
    head: np.ndarray

    def blocks(self) -> list[_Block]:
        """Heads of every attention kind first, then the single columns, the whole layer last."""
        kinds = [k for k in dict.fromkeys(self.kind.tolist()) if k not in ("mlp", "layer", "embed")]
        heads = [(k, int(self.head[self.kind == k].max()) + 1) for k in kinds]
        found = [_Block(k, n) for k, n in heads if n]
        found += [_Block(k, 0) for k in kinds if (self.head[self.kind == k] < 0).any()]
        return found + [_Block(k, 0) for k in ("mlp", "layer") if (self.kind == k).any()]

    def layers(self, stack: str) -> np.ndarray:
        """The layer numbers of a stack, ascending."""
        return np.unique(self.layer[(self.stack == stack) & (self.layer >= 0)])

    def grid(self, block: _Block, stack: str) -> np.ndarray:
        """Index of the component at (layer, column) of a block; -1 where there is none."""
        layers = self.layers(stack)
        grid = np.full((len(layers), max(block.heads, 1)), -1)
        mine = (self.stack == stack) & (self.kind == block.kind) & (self.layer >= 0)
        mine &= (self.head >= 0) if block.heads else (self.head < 0)
        for i in np.flatnonzero(mine):
            grid[np.searchsorted(layers, self.layer[i]), max(self.head[i], 0)] = i
        return grid


def coordinate(ds: xr.Dataset, name: str) -> np.ndarray:
    """A coordinate of the components.

    Raises:
        InputError: the Dataset has none of this name.
    """
    if name not in ds.coords:
        raise InputError(f"the components need the coordinate {name!r} (stack, kind, layer_index and head).")
    return np.asarray(ds[name].values)


def ablation_heatmap(ds: xr.Dataset, *, metric: str = "spearman_distance") -> go.Figure:
    """Layer × component map of what zeroing each head, MLP and layer does, as the median over series.

    Args:
        ds: of kind "ablation" with ``metric`` (component, series).
        metric: "spearman_distance", "mase", "mae" (sizes) or "mase_change", "mae_change" (relative).

    Returns:
        One heat map per stack and kind of component: heads side by side, MLP and whole layer in columns
        of their own with the numbers written in. The colours end at the largest head effect.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such metric.
    """
    check(ds, "ablation")
    known = [name for name in MEASURES if name in ds]
    if metric not in known:
        raise unknown_name("metric", metric, known)
    measure = MEASURES[metric]
    cells = _Cells(
        *(coordinate(ds, name) for name in ("stack", "kind")),
        *(coordinate(ds, name).astype(int) for name in ("layer_index", "head")),
    )
    effect = array(ds, metric, "component", "series")
    middle = medians(effect)
    stacks = [s for s in dict.fromkeys(cells.stack.tolist()) if len(cells.layers(s))]
    fig, total, width = _draw(ds, cells, stacks, middle, effect, measure)
    heads = cells.head >= 0
    fig.update_layout(coloraxis=_scale(middle, middle[heads] if heads.any() else middle, measure))
    ids = names(ds, "series")
    unit = f" ({unit_of(ds, 0 if len(ids) == 1 else None) or 'data units'})" if metric == "mae" else ""
    fig = dress(
        fig,
        f"Ablation of every component of {model_of(ds)}: {measure.word}",
        f"{measure.words}{unit}, {'median over ' if len(ids) > 1 else ''}{shown(ids)}; zeroed one at a time"
        f"{'; colours up to the largest head' if heads.any() else ''}",
        plot_height=total,
        above=34,
        below=46,
        min_width=width,
    )
    return fig.update_layout(margin_r=96)


def _draw(
    ds: xr.Dataset,
    cells: _Cells,
    stacks: list[str],
    middle: np.ndarray,
    effect: np.ndarray,
    measure: Measure,
) -> tuple[go.Figure, int, int]:
    """Draw all blocks; the figure, the height of its panels and the least width in pixels."""
    blocks = cells.blocks()
    heads = sum(b.heads for b in blocks)
    heights = [len(cells.layers(stack)) for stack in stacks]
    gap, row_height = 70, int(np.clip(330 / sum(heights), 20, 46))
    row_height = max(row_height, -(-120 // sum(heights)))
    total = sum(heights) * row_height + gap * (len(stacks) - 1)
    grids = {(s, b): cells.grid(b, s) for s in stacks for b in blocks}
    fig = make_subplots(
        rows=len(stacks),
        cols=len(blocks),
        column_widths=[b.heads or max(1.0, 0.09 * heads) for b in blocks],
        row_heights=heights,
        horizontal_spacing=min(0.014, 0.5 / len(blocks)),
        vertical_spacing=gap / total if len(stacks) > 1 else 0,
        subplot_titles=[b.title if (grids[s, b] >= 0).any() else "" for s in stacks for b in blocks],
    )
    fig.update_annotations(font={"size": 12})
    for row, stack in enumerate(stacks, start=1):
        first = True
        for col, block in enumerate(blocks, start=1):
            where = {"row": row, "col": col}
            grid = grids[stack, block]
            if not (grid >= 0).any():
                fig.update_xaxes(visible=False, **where)
                fig.update_yaxes(visible=False, **where)
                continue
            layers = cells.layers(stack)
            texts = heads <= 8 or not block.heads
            fig.add_trace(_block_map(ds, grid, layers, middle, effect, measure, texts), **where)
            y_title = (f"{stack} layer" if len(stacks) > 1 else "layer") if first else ""
            step = -(-len(layers) // 12)
            fig.update_yaxes(
                autorange="reversed",
                title_text=plain(y_title),
                showticklabels=first,
                tickvals=layers[::step],
                showline=False,
                ticks="outside" if first else "",
                **where,
            )
            columns = np.arange(block.heads)
            fig.update_xaxes(
                title_text="head" if block.heads else "",
                tickvals=columns[:: -(-max(len(columns), 1) // 12)],
                showline=False,
                **where,
            )
            first = False
    wide = sum(max(b.heads * (42 if heads <= 8 else 21), 130) if b.heads else 50 for b in blocks)
    return fig, total, 170 + wide


def _block_map(
    ds: xr.Dataset,
    grid: np.ndarray,
    layers: np.ndarray,
    middle: np.ndarray,
    effect: np.ndarray,
    measure: Measure,
    texts: bool,
) -> go.Heatmap:
    """One block as a heat map: rows are layers, the hover box lists all series."""
    show = _short if not measure.relative else _signed
    ids = names(ds, "series")
    components = names(ds, "component")
    there = grid >= 0
    return go.Heatmap(
        z=np.where(there, middle[grid], np.nan),
        x=np.arange(grid.shape[1]),
        y=layers,
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        text=[[show(middle[i]) if texts and i >= 0 and np.isfinite(middle[i]) else "" for i in r] for r in grid],
        texttemplate="%{text}",
        textfont={"size": 11},
        customdata=[
            [_hover(components[i], ids, effect[i], middle[i], measure) if i >= 0 else "" for i in r] for r in grid
        ],
        hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False,
    )


def _signed(share: float) -> str:
    text = f"{100 * share:+.0f} %"
    return "0 %" if text in ("+0 %", "-0 %") else text.replace("-", "−")


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.1g}"


def _hover(component: str, ids: list[str], effect: np.ndarray, middle: float, measure: Measure) -> str:
    """The component in words, with the value of every series, strongest first."""
    show: Callable[[float], str] = percent if measure.relative else number
    head = f"without <b>{plain(component)}</b><br>{measure.word} {show(middle)}"
    if len(ids) == 1:
        return f"{head}<br>{plain(ids[0])}"
    order = np.argsort(-np.abs(np.nan_to_num(effect)))
    lines = [f"{plain(ids[i])}: {show(effect[i])}" for i in order[:_LISTED]]
    more = [f"and {len(ids) - _LISTED} more"] if len(ids) > _LISTED else []
    return "<br>".join([f"{head} (median)", *lines, *more])


def _scale(middle: np.ndarray, heads: np.ndarray, measure: Measure) -> dict[str, Any]:
    """Colour axis up to the largest head effect; symmetric about 0 for relative measures."""
    finite = heads[np.isfinite(heads)]
    title = {"text": f"{measure.word}", "side": "right"}
    if not measure.relative:
        sizes = measure.word in ("MASE", "MAE")
        low = float(finite.min()) if sizes and len(finite) else 0.0
        high = float(finite.max()) if len(finite) else 1.0
        return {
            "colorscale": SEQUENTIAL,
            "cmin": low,
            "cmax": high if high > low else low + 1.0,
            "colorbar": {"title": title, "nticks": 6},
        }
    limit = float(np.abs(finite).max()) if len(finite) else 1.0
    limit = limit or 1.0
    return {
        "colorscale": DIVERGING,
        "cmin": -limit,
        "cmax": limit,
        "cmid": 0.0,
        "colorbar": {"title": title, "tickformat": "+.0%"},
    }
