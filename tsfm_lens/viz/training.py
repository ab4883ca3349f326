"""Trainings: measures over the optimiser steps, attention and norms of attention.

:func:`training_measures` draws lines over the steps, :func:`attention_snapshots`
attention at a few of them. What is drawn was measured by :mod:`tsfm_lens.training`;
heads over the checkpoints of a training are in :mod:`tsfm_lens.viz.repeated_motif`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import FigurePanel, figure, measurement, panels
from tsfm_lens.viz.generic import generic_figure, with_range
from tsfm_lens.viz.grid import LOG_AXIS
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, name_model, names, positions
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, mixed, percent, plain
from tsfm_lens.viz.words import capital

__all__ = ["attention_snapshots", "training_measures"]


# Pixels of a row of the figure, and between two rows.
_ROW = 130
_GAP = 26
STEEP = 30  # ratio of largest and smallest value above which an axis is logarithmic


@dataclass(frozen=True)
class _Measure:
    """One measure of a training, and how figures and sentences name it.

    Attributes:
        name: of the variable.
        title, word, phrase: on its axis, in hover boxes and in sentences.
    """

    name: str
    title: str
    word: str
    phrase: str


_MEASURES = (
    _Measure("loss", "training loss", "training loss", "the training loss"),
    _Measure(
        "watched_loss",
        "loss of the\nwatched data",
        "loss",
        "the loss of the watched data",
    ),
    _Measure("sharpness", "sharpness\nλ max", "largest eigenvalue", "the sharpness"),
    _Measure(
        "noise_scale",
        "gradient noise\nscale (batches)",
        "noise scale",
        "the gradient noise scale",
    ),
    _Measure(
        "entropy", "entropy of\nattention (nats)", "entropy", "the entropy of attention"
    ),
    _Measure(
        "nuclear_norm",
        "nuclear norm\nof attention",
        "nuclear norm",
        "its nuclear norm",
    ),
    _Measure(
        "diagonal_mass",
        "diagonal mass\nof attention",
        "diagonal mass",
        "its diagonal mass",
    ),
    _Measure(
        "numerical_rank", "numerical rank\nof attention", "rank", "its numerical rank"
    ),
)
_MAX_ROWS = 16  # of attention maps in a figure
_MAX_COLUMNS = 6  # snapshots side by side
_HOVER = "query %{y}, key %{x}<br>attention %{z:.3f}"

measurement(
    "training_watch",
    title="Training measures",
    theme="Training",
    summary="sharpness, gradient noise and attention over the steps of a training",
    description=(
        "Sharpness is the largest eigenvalue of the loss's Hessian. Collapsed "
        "attention has a low entropy. Uniform attention has a nuclear norm of 1."
    ),
    source=(
        "SAMformer, figures 3, 5, 6 and 12; Zhai et al. 2023; McCandlish et al. 2018"
    ),
    maker="made while a model is trained: `tsfm_lens.training` makes it",
    subject=lambda ds: str(ds.attrs.get("model", "")),
)


def name_runs(ds: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield each run with its name, "" for a single one."""
    if "run" not in ds.dims:
        yield "", ds
        return
    for position, name in enumerate(names(ds, "run")):
        yield name, ds.isel(run=position)


def read_watch(ds: xr.Dataset) -> list[str]:
    """State first and last value of each measure, and the error of the sharpness."""
    out = []
    for run, one in name_runs(ds):
        for measure in _MEASURES:
            name = measure.name
            if name not in one or (name == "watched_loss" and "loss" in one):
                continue
            # the mean over heads and seeds, without steps at which the run has no value
            rest = [dim for dim in one[name].dims if dim != "step"]
            out += summarize(
                one,
                "{measure} went from {mean:ends}.",
                measure=capital(f"{run}: {measure.phrase}".removeprefix(": ")),
                mean=one[name].mean(rest).dropna("step"),
            )
    if "sharpness_residual" in ds:
        share = abs(ds["sharpness_residual"] / ds["sharpness"]).max()
        # the residual of an estimate bounds its distance from some eigenvalue, since
        # the Hessian is symmetric
        out.append(
            f"Each sharpness is within {percent(float(share))} of an eigenvalue."
        )
    return out or ["Nothing was measured."]


def watch_table(ds: xr.Dataset, *dims: str) -> pd.DataFrame:
    """Return the variables over runs, seeds and ``dims``, a row for each combination.

    Variables with any other dimension are left out.
    """
    variables = [
        name for name in ds.data_vars if set(ds[name].dims) <= {"run", "seed", *dims}
    ]
    return ds[variables].reset_coords(drop=True).to_dataframe().reset_index()


@figure(
    "training_watch", "Loss, sharpness, gradient noise and attention over training."
)
def training_measures(ds: xr.Dataset) -> go.Figure:
    """Draw what was measured over a training, measure by measure.

    Args:
        ds: result of kind "training_watch".

    Returns:
        A panel for each measure, in its own unit, over the training steps.

    Example:
        >>> watch = training.Watch(torch.nn.Linear(2, 1), every=1)
        >>> for step in range(4):
        ...     _ = watch(step, loss=2.0**-step)
        >>> viz.training_measures(watch.dataset()).layout.meta["title"]
        'Training measures of Linear'
    """
    rows = [
        row
        for row in _MEASURES
        if row.name in ds and bool(np.isfinite(ds[row.name].values).any())
    ]
    # the loss of the watched data is drawn only where the training loss is unknown
    if "loss" in [row.name for row in rows]:
        rows = [row for row in rows if row.name != "watched_loss"]
    # at least one panel, which stays empty where nothing was measured
    canvas = sheet(
        [_ROW] * max(len(rows), 1), row_gap=_GAP, min_width=420, shared_xaxes="all"
    )
    steps = np.asarray(ds["step"].values, dtype=float)
    for panel, row in zip(canvas, rows, strict=False):
        for line in _lines(ds, row.name):
            # steps without a value are left out, or plotly would break the line there
            finite = np.isfinite(line.middle)
            x = steps[finite]
            if (line.high > line.low).any():
                low = line.low[finite]
                high = line.high[finite]
                panel.band(x, low, high, mixed(line.colour, 0.25), line.name)
            member = f"{plain(line.name)}, " if line.name else ""
            panel.line(
                x,
                line.middle[finite],
                line.name,
                f"step %{{x:,}}<br>{member}{row.word} %{{y:.4g}}",
                colour=line.colour,
                width=1.4,
                dots=3,
            )
        values = np.asarray(ds[row.name].values, dtype=float)
        values = values[np.isfinite(values)]
        # a logarithmic axis shows positive values only
        steep = values.min() > 0 and values.max() > STEEP * values.min()
        is_logarithmic = steep and row.name in ("loss", "watched_loss", "sharpness")
        panel.y(row.title, **(LOG_AXIS if is_logarithmic else {}))
        _draw_references(panel, ds, row.name)
    canvas.x(showticklabels=False)
    canvas.panel(*canvas.positions[-1]).x("optimiser step", showticklabels=True)
    mean = ""
    if "run" in ds.dims and "layer" in ds.dims:
        mean = "attention: mean over layers and heads"
    bands = ""
    if "sharpness" in ds:
        bands = "band: residual of the eigenvalue"
    if "seed" in ds.dims:
        bands = "bands: all seeds"
    return canvas.finalize(
        f"Training measures of {name_model(ds)}",
        f"{len(steps)} measurements",
        mean,
        bands,
    )


@dataclass(frozen=True)
class _RunLine:
    """One line of a measure, with the band around it, (step,) each."""

    name: str
    colour: str
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _lines(ds: xr.Dataset, name: str) -> Iterator[_RunLine]:
    """Yield the lines of a measure: one for each run, for each head, or a single one.

    The band of a run is the range over seeds, that of a single line the residual.
    """
    value = ds[name]
    if "run" in ds.dims:
        value = value.mean([dim for dim in ("layer", "head") if dim in value.dims])
        for position, run in enumerate(names(ds, "run")):
            one = value.isel(run=position)
            colour = CATEGORICAL[position % len(CATEGORICAL)]
            # values without seeds become those of a single seed, so the band is empty
            if "seed" not in one.dims:
                one = one.expand_dims("seed")
            middle, low, high = (
                np.asarray(item, float)
                for item in (one.mean("seed"), one.min("seed"), one.max("seed"))
            )
            yield _RunLine(run, colour, middle, low, high)
    elif "layer" in value.dims:
        values = array(ds, name, "layer", "head", "step")
        for layer, label in enumerate(names(ds, "layer")):
            for one in values[layer]:
                if np.isfinite(one).any():
                    colour = CATEGORICAL[layer % len(CATEGORICAL)]
                    yield _RunLine(layer_name(label), colour, one, one, one)
    else:
        values = array(ds, name, "step")
        residual = np.zeros(1)
        if f"{name}_residual" in ds:
            residual = array(ds, f"{name}_residual", "step")
        yield _RunLine("", INK, values, values - residual, values + residual)


def _draw_references(panel: Panel, ds: xr.Dataset, name: str) -> None:
    """Draw the values of uniform attention and of the identity as dotted lines.

    They depend on the number of keys, so all layers must have the same.
    """
    if "n_keys" in ds.coords:
        keys = {int(value) for value in ds["n_keys"].values}
    else:
        keys = set()
    if len(keys) != 1 or name not in ("entropy", "nuclear_norm", "diagonal_mass"):
        return
    # Over d keys uniform attention has the entropy log d, 1/d on its diagonal, and one
    # singular value, √d · √(1/d) = 1. The identity has d singular values of 1.
    d = keys.pop()
    levels = {
        "entropy": [(np.log(d), f"log {d}")],
        "nuclear_norm": [(1.0, "one row for all"), (float(d), "identity")],
        "diagonal_mass": [(1 / d, "even")],
    }
    for level, text in levels[name]:
        panel.hline(level, dash="dot")
        panel.note(
            text,
            1,
            level,
            xref="domain",
            xanchor="right",
            yanchor="bottom",
            size=10,
            colour=GREY,
        )


@figure(
    "training_watch",
    "Attention at several steps.",
    variables=("pattern",),
)
def attention_snapshots(
    ds: xr.Dataset,
    *,
    layer: str | int | None = None,
    head: int | None = None,
    row: int = 0,
    snapshots: Sequence[int] | None = None,
) -> go.Figure:
    """Draw attention at several steps side by side.

    There is a row for each head, or, of several runs, a row for each run.

    Args:
        ds: result of kind "training_watch".
        layer: label, or a negative integer from the last. If None all layers, up to 16
            rows.
        head: number. If None all heads.
        row: position of the input whose attention is drawn.
        snapshots: steps to draw, all if None; of more than six, six are drawn at even
            distances.

    Returns:
        A column of maps for each step, and a row for each head or run. A map is query ×
        key, and all share a colour scale.

    Example:
        >>> pattern = {"0": torch.eye(4)[None]}
        >>> model = torch.nn.Linear(1, 1)
        >>> watch = training.Watch(model, [], patterns=lambda: pattern, snapshots=1)
        >>> for step in range(3):
        ...     _ = watch(step)
        >>> len(viz.attention_snapshots(watch.dataset()).data)
        3
    """
    if not 0 <= row < ds.sizes["input"]:
        raise InputError(
            f"row is {row}, expected an input from 0 to {ds.sizes['input'] - 1}"
        )
    if snapshots is None:
        labels = None
    else:
        labels = [str(step) for step in snapshots]
    at = positions(ds, "snapshot", labels)
    # a set below, as positions that are rounded may name a snapshot twice
    order = np.linspace(0, len(at) - 1, min(len(at), _MAX_COLUMNS)).round().astype(int)
    indices = sorted({at[position] for position in order})
    pattern = ds["pattern"].isel(input=row, snapshot=indices)
    rows = _select_rows(pattern, layer, head)
    row_titles = [_name_row(rows, index) for index in range(rows.sizes["row"])]
    columns = len(indices)
    titles = [f"step {int(step):,}" for step in pattern["snapshot"].values]
    canvas = sheet(
        [110] * len(row_titles),
        [1] * columns,
        titles=titles + [""] * (columns * (len(row_titles) - 1)),
        row_gap=14,
        column_gap=0.02,
        min_width=120 + 95 * columns,
    )
    for panel, (line, column) in zip(canvas, np.ndindex(rows.shape[:2]), strict=True):
        cells = rows.values[line, column]
        panel.cells(cells, hover=_HOVER, name=row_titles[line])
        panel.y(row_titles[line] if column == 0 else None)
    canvas.colours(colour_scale("attention", low=0.0, high=float(rows.max())))
    canvas.x(showticklabels=False, ticks="", constrain="domain")
    canvas.y(showticklabels=False, ticks="", autorange="reversed")
    about = (
        f"input {row}; {ds.sizes['snapshot']} snapshots; rows are queries, columns keys"
    )
    return canvas.finalize(f"Attention of {name_model(ds)} over training", about)


def _select_rows(
    pattern: xr.DataArray, layer: str | int | None, head: int | None
) -> xr.DataArray:
    """Return maps (row, snapshot, query, key), a row for each run, layer and head."""
    ds = pattern.to_dataset()
    pattern = pattern.isel(
        layer=positions(ds, "layer", None if layer is None else [layer]),
        head=positions(ds, "head", None if head is None else [head]),
    )
    if "seed" in pattern.dims:
        pattern = pattern.isel(seed=0)
    dims = [dim for dim in ("run", "layer", "head") if dim in pattern.dims]
    rows = pattern.stack(row=dims).transpose("row", "snapshot", "query", "key")
    # layers with fewer heads or tokens than others were filled up with NaN
    for dim in ("row", "query", "key"):
        rows = rows.dropna(dim, how="all")
    return rows[:_MAX_ROWS].astype(float)


def _name_row(rows: xr.DataArray, index: int) -> str:
    """Name the run, or the layer and head, of a row of maps."""
    if "run" in rows.coords:
        return str(rows["run"].values[index])
    head = rows["head"].values[index]
    return f"{layer_name(str(rows['layer'].values[index]))}, head {head}"


@panels("training_watch")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    if "step" in ds.dims and ds.sizes["step"]:
        table = watch_table(ds, "step")
    else:
        table = pd.DataFrame()
    if table.columns.size:
        yield FigurePanel(training_measures(ds), table, read_watch(ds), "measures")
    if "pattern" in ds:
        steps = pd.DataFrame({"snapshot": ds["snapshot"].values})
        count = len(steps)
        first = steps["snapshot"].min()
        last = steps["snapshot"].max()
        noun = "step" if count == 1 else "steps"
        text = f"Attention was kept at {count} {noun}, {first:,} to {last:,}."
        yield FigurePanel(attention_snapshots(ds), steps, [text], "attention")


measurement(
    "attention_norms",
    title="Nuclear norms of attention",
    theme="Training",
    summary="nuclear norms of attention input by input",
    description=(
        "The sum of the singular values of an attention pattern. It is 1 for "
        "uniform attention, and the number of keys for the identity."
    ),
    source="SAMformer, figure 7",
    maker="made while a model is trained: `tsfm_lens.training` makes it",
    subject=lambda ds: str(ds.attrs.get("model", "")),
)


def _norms(ds: xr.Dataset) -> xr.DataArray:
    """Return the norms of attention by run, with all other dimensions as one.

    Where there are no runs, all norms are of one run.
    """
    norms = ds["nuclear_norm"]
    if "run" not in norms.dims:
        norms = norms.expand_dims(run=["all inputs"])
    # called "series", since with_range() takes medians over a dimension of this name
    rest = [dim for dim in norms.dims if dim != "run"]
    return norms.stack(series=rest).reset_index("series", drop=True)


generic_figure(
    "attention_norms",
    "nuclear_norm",
    "Nuclear norms of attention: median and range over inputs and heads.",
    prepare=lambda ds: with_range(ds, _norms(ds)),
    table=lambda ds: watch_table(ds, "layer", "head", "input"),
    sentences=summary(
        "Median nuclear norm of attention, from 1 for uniform attention to the number"
        " of keys for the identity: {norms:each}.",
        norms=lambda ds: _norms(ds).median("series"),
    ),
)
