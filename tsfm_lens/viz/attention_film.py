"""Attention over training: a film with a slider, and the same side by side for print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.grid import columns_for
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import draws, layer_name, model_of, names, position, positions
from tsfm_lens.viz.sheet import Sheet, sheet

__all__ = ["attention_film", "attention_snapshots"]

_PANEL = 170  # pixels: a side of a map
_MOST = 16  # maps of a film
_COLUMNS = 6  # snapshots or inputs side by side
_SLIDER = 96  # pixels under the maps
_TICKS = 12  # tokens that still have room for a number each


@draws("training_watch", needs=("pattern",))
def attention_film(
    ds: xr.Dataset, *, layer: str | int | None = None, head: int | None = None, row: int = 0
) -> go.Figure:
    """Draw the attention of heads from snapshot to snapshot, with a slider and a button that plays it.

    Args:
        ds: of kind "training_watch" with ``pattern``, of one run or of several of ``training.together``.
        layer: label; a negative integer counts from the last; all layers that have room if None.
        head: number; all heads if None, of several runs the first.
        row: of the inputs.

    Returns:
        A map of queries and keys for each head, or for each run, on one scale of colours for all snapshots.

    Example:
        >>> pattern = {"0": torch.eye(4)[None]}
        >>> watch = training.Watch(torch.nn.Linear(1, 1), [], patterns=lambda: pattern, snapshots=1)
        >>> for step in range(3):
        ...     _ = watch(step)
        >>> len(viz.attention_film(watch.dataset()).frames)
        3
    """
    words, values = _maps(ds, layer, head, row)
    steps = [int(step) for step in ds["snapshot"].values]
    columns = columns_for(len(words))
    rows = -(-len(words) // columns)
    canvas = sheet(
        [_PANEL] * rows,
        [1] * columns,
        titles=words,
        row_gap=44,
        column_gap=0.03,
        min_width=max(420, columns * 150),
        below=52 + _SLIDER,
    )
    panels = [canvas.panel(*place) for place in canvas.places[: len(words)]]
    for row_of, column in canvas.places:
        canvas.panel(row_of, column).y(showticklabels=column == 1)
    for panel, value, word in zip(panels, values, words, strict=True):
        panel.cells(value[0], hover=_HOVER, name=word)
    _dress_maps(canvas, values, len(words))
    canvas.fig.frames = [
        go.Frame(name=f"{step:,}", data=[go.Heatmap(z=value[place]) for value in values], traces=[*range(len(values))])
        for place, step in enumerate(steps)
    ]
    canvas.fig.update_layout(**_controls([f"{step:,}" for step in steps], canvas.plot_height))
    fig = canvas.dress(f"Attention of {model_of(ds)} over training", _subtitle(ds, row), "slide to another step")
    fig.layout.meta = {**fig.layout.meta, "controls": _SLIDER}
    return fig


@draws("training_watch", needs=("pattern",))
def attention_snapshots(
    ds: xr.Dataset,
    *,
    layer: str | int | None = None,
    head: int | None = None,
    across: str = "snapshot",
    row: int = 0,
    snapshots: Sequence[int] | None = None,
) -> go.Figure:
    """Draw the attention of heads or runs at several steps, or of several inputs at the last one, side by side.

    Args:
        ds, layer, head: see :func:`attention_film`.
        across: "snapshot" for a column a step, "input" for a column an input at the last of the steps.
        row: of the inputs, where columns are steps.
        snapshots: steps to draw; up to six, evenly taken, if None.

    Returns:
        A row of maps for each head or run, on one scale of colours.

    Example:
        >>> pattern = {"0": torch.eye(4)[None]}
        >>> watch = training.Watch(torch.nn.Linear(1, 1), [], patterns=lambda: pattern, snapshots=1)
        >>> for step in range(3):
        ...     _ = watch(step)
        >>> len(viz.attention_snapshots(watch.dataset()).data)
        3
    """
    if across not in ("snapshot", "input"):
        raise InputError(f"across={across!r} is not known, choose 'snapshot' or 'input'")
    at = positions(ds, "snapshot", None if snapshots is None else [str(step) for step in snapshots])
    if across == "input":
        count = min(ds.sizes["input"], _COLUMNS)
        maps = [_maps(ds.isel(snapshot=[at[-1]]), layer, head, one) for one in range(count)]
        words, titles = maps[0][0], [f"input {one}" for one in range(count)]
        values = np.stack([value[:, 0] for _, value in maps], axis=1)
    else:
        places = sorted(
            {at[place] for place in np.linspace(0, len(at) - 1, min(len(at), _COLUMNS)).round().astype(int)}
        )
        words, values = _maps(ds.isel(snapshot=places), layer, head, row)
        titles = [f"step {int(step):,}" for step in ds["snapshot"].values[places]]
    columns = len(titles)
    canvas = sheet(
        [110] * len(words),
        [1] * columns,
        titles=titles + [""] * (columns * (len(words) - 1)),
        row_gap=14,
        column_gap=0.02,
        min_width=120 + 95 * columns,
    )
    for place, (line, column) in enumerate(np.ndindex(len(words), columns)):
        panel = canvas.panel(*canvas.places[place])
        panel.cells(values[line, column], hover=_HOVER, name=words[line])
        panel.y(words[line] if column == 0 else None)
    _dress_maps(canvas, values, len(words) * columns)
    canvas.x(showticklabels=False)
    canvas.y(showticklabels=False)
    where = f"at step {int(ds['snapshot'].values[at[-1]]):,}" if across == "input" else "over training"
    return canvas.dress(f"Attention of {model_of(ds)} {where}", _subtitle(ds, row if across == "snapshot" else None))


_HOVER = "query %{y}, key %{x}<br>attention %{z:.3f}"


def _maps(ds: xr.Dataset, layer: str | int | None, head: int | None, row: int) -> tuple[list[str], np.ndarray]:
    """Return titles and (map, snapshot, query, key): heads of a run, or one head of several runs."""
    if not 0 <= row < ds.sizes["input"]:
        raise InputError(f"row={row}; the patterns of inputs 0 to {ds.sizes['input'] - 1} were kept")
    pattern = ds["pattern"].isel(input=row)
    if "seed" in pattern.dims:
        pattern = pattern.isel(seed=0)
    layers = range(ds.sizes["layer"]) if layer is None else [position(ds, "layer", layer)]
    heads = range(ds.sizes["head"]) if head is None else [position(ds, "head", head)]
    words, values = [], []
    if "run" in ds.dims:
        for place, run in enumerate(names(ds, "run")):
            words.append(run)
            values.append(pattern.isel(run=place, layer=layers[0], head=heads[0]))
    else:
        for at, index in ((at, index) for at in layers for index in heads):
            one = pattern.isel(layer=at, head=index)
            if bool(np.isfinite(one.values).any()):
                words.append(f"{layer_name(names(ds, 'layer')[at])}, head {names(ds, 'head')[index]}")
                values.append(one)
    maps = np.stack([one.transpose("snapshot", "query", "key").values for one in values[:_MOST]]).astype(float)
    # layers with fewer tokens than others were filled up
    finite = np.isfinite(maps)
    return words[:_MOST], maps[:, :, finite.any((0, 1, 3))][..., finite.any((0, 1, 2))]


def _dress_maps(canvas: Sheet, values: np.ndarray, n_maps: int) -> None:
    tokens = max(values.shape[-2:])
    canvas.colours(colour_scale("attention", low=0.0, high=float(np.nanmax(values))))
    canvas.x(ticks="", dtick=1 if tokens <= _TICKS else None, constrain="domain")
    canvas.y(ticks="", dtick=1 if tokens <= _TICKS else None, autorange="reversed")
    for row, column in canvas.places[n_maps:]:
        canvas.panel(row, column).x(visible=False)
        canvas.panel(row, column).y(visible=False)


def _controls(labels: Sequence[str], height: int) -> dict[str, Any]:
    """Build a slider over the frames and a button that plays them, under the maps."""
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    playing = {"fromcurrent": True, "frame": {"duration": 400, "redraw": True}, "transition": {"duration": 0}}
    steps = [{"label": label, "method": "animate", "args": [[label], still]} for label in labels]
    below = -44 / height
    slider = {"steps": steps, "x": 0.25, "len": 0.75, "y": below, "yanchor": "top", "currentvalue": {"prefix": "step "}}
    button = {"label": "▶ play", "method": "animate", "args": [None, playing]}
    menu = {"type": "buttons", "showactive": False, "buttons": [button], "x": 0, "xanchor": "left"}
    return {"sliders": [slider], "updatemenus": [{**menu, "y": below - 22 / height, "yanchor": "top"}]}


def _subtitle(ds: xr.Dataset, row: int | None) -> str:
    which = "" if row is None else f"input {row}"
    count = ds.sizes["snapshot"]
    return "; ".join(filter(None, [which, f"{count} snapshot{'s' * (count != 1)}", "rows are queries, columns keys"]))
