"""Which components matter: a map of what zeroing each head, MLP and layer does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.noise import Finding, finding
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.places import coordinate
from tsfm_lens.viz.select import array, draws, kind_word, model_of, names, over_series, unit_of
from tsfm_lens.viz.sheet import Sheet, sheet
from tsfm_lens.viz.theme import number, percent, plain

__all__ = ["ablation_heatmap"]


@dataclass(frozen=True)
class Measure:
    """How one ablation measure is named and drawn; ``relative`` ones are shares centred on 0."""

    word: str
    words: str
    relative: bool = False

    def write(self, value: float) -> str:
        """A value in its cell."""
        if not self.relative:
            return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.1g}"
        text = f"{100 * value:+.0f} %"
        return "0 %" if text in ("+0 %", "-0 %") else text.replace("-", "−")

    def tell(self, value: float) -> str:
        """A value in a hover box."""
        return percent(value) if self.relative else number(value)


MEASURES = {
    "spearman_distance": Measure("Spearman distance", "1 − rank correlation with the unablated forecast"),
    "mase": Measure("MASE", "MASE of the ablated forecast"),
    "mae": Measure("MAE", "MAE of the ablated forecast"),
    "mase_change": Measure("change of MASE", "relative change of the forecast's MASE", True),
    "mae_change": Measure("change of MAE", "relative change of the forecast's MAE", True),
}
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
            return f"{kind_word(self.kind)} heads"
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


@draws("ablation")
def ablation_heatmap(ds: xr.Dataset, *, metric: str = "spearman_distance") -> go.Figure:
    """Layer × component map of what zeroing each head, MLP and layer does, as the median over series.

    Args:
        ds: of kind "ablation" with ``metric`` (component, series).
        metric: "spearman_distance", "mase", "mae" (sizes) or "mase_change", "mae_change" (relative).

    Returns:
        One heat map per stack and kind of component: heads side by side, MLP and whole layer in columns
        of their own with the numbers written in. The colours end at the largest head effect.
        What does not stand out of the noise is drawn as such, where the result knows it.
    """
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
    heads = cells.head >= 0
    several = effect.shape[1] > 1
    unit = f" ({unit_of(ds, None if several else 0) or 'data units'})" if metric == "mae" else ""
    # an error itself is no effect, its change is
    judged = finding(ds, f"{metric}_change" if metric in ("mae", "mase") else metric, "component")
    made = _draw(ds, cells, middle, effect, measure, judged)
    made.colours(_scale(middle[heads] if heads.any() else middle, measure))
    return made.dress(
        f"Ablation of every component of {model_of(ds)}: {measure.word}",
        f"{measure.words}{unit}, {over_series(ds, range(effect.shape[1]))}",
        "zeroed one at a time",
        "colours up to the largest head" if heads.any() else "",
    )


def _draw(
    ds: xr.Dataset,
    cells: _Cells,
    middle: np.ndarray,
    effect: np.ndarray,
    measure: Measure,
    judged: Finding | None,
) -> Sheet:
    """All blocks, a row per stack and a column per kind of component."""
    stacks = [s for s in dict.fromkeys(cells.stack.tolist()) if len(cells.layers(s))]
    blocks = cells.blocks()
    heads = sum(b.heads for b in blocks)
    rows = [len(cells.layers(stack)) for stack in stacks]
    height = max(int(np.clip(330 / sum(rows), 20, 46)), -(-120 // sum(rows)))
    grids = [(stack, block, cells.grid(block, stack)) for stack in stacks for block in blocks]
    wide = sum(max(b.heads * (42 if heads <= 8 else 21), 130) if b.heads else 50 for b in blocks)
    made = sheet(
        [count * height for count in rows],
        [b.heads or max(1.0, 0.09 * heads) for b in blocks],
        titles=[block.title if (grid >= 0).any() else "" for _, block, grid in grids],
        row_gap=70,
        column_gap=min(0.014, 0.5 / len(blocks)),
        min_width=170 + wide,
        above=34,
        below=46,
    )
    words = [_told(ds, i, effect, middle, measure, judged) for i in range(len(middle))]
    labelled: set[str] = set()
    for (stack, block, grid), panel in zip(grids, made, strict=True):
        there = grid >= 0
        if not there.any():
            panel.x(visible=False)
            panel.y(visible=False)
            continue
        layers, first = cells.layers(stack), stack not in labelled
        labelled.add(stack)
        panel.cells(
            np.where(there, middle[grid], np.nan),
            np.arange(grid.shape[1]),
            layers,
            "%{customdata}",
            write=measure.write if heads <= 8 or not block.heads else None,
            noise=None if judged is None else judged.at(grid),
            customdata=[[words[i] if i >= 0 else "" for i in row] for row in grid],
        )
        panel.y(
            (f"{stack} layer" if len(stacks) > 1 else "layer") if first else "",
            autorange="reversed",
            showticklabels=first,
            tickvals=layers[:: -(-len(layers) // 12)],
            showline=False,
            ticks="outside" if first else "",
        )
        columns = np.arange(block.heads)
        ticks = columns[:: -(-max(len(columns), 1) // 12)]
        panel.x("head" if block.heads else "", tickvals=ticks, showline=False)
    return made


def _told(
    ds: xr.Dataset, i: int, effect: np.ndarray, middle: np.ndarray, measure: Measure, judged: Finding | None
) -> str:
    """A component in words, with the value of every series, strongest first."""
    ids = names(ds, "series")
    head = f"without <b>{plain(names(ds, 'component')[i])}</b><br>{measure.word} {measure.tell(middle[i])}"
    tail = [] if judged is None else [judged.told(i)]
    if len(ids) == 1:
        return "<br>".join([head, plain(ids[0]), *tail])
    order = np.argsort(-np.abs(np.nan_to_num(effect[i])))
    lines = [f"{plain(ids[s])}: {measure.tell(effect[i, s])}" for s in order[:_LISTED]]
    more = [f"and {len(ids) - _LISTED} more"] if len(ids) > _LISTED else []
    return "<br>".join([f"{head} (median)", *tail, *lines, *more])


def _scale(heads: np.ndarray, measure: Measure) -> dict[str, Any]:
    """Colours up to the largest head effect; symmetric about 0 for relative measures."""
    if measure.relative:
        return colour_scale(measure.word, heads, diverging=True, tickformat="+.0%")
    sizes = measure.word in ("MASE", "MAE")
    return colour_scale(measure.word, heads, low=None if sizes else 0.0)
