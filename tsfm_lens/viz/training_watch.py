"""Training that was watched: its loss, sharpness and attention over steps, one run or several over each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.select import array, draws, layer_name, model_of, names
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, mixed, plain

__all__ = ["nuclear_norms", "training_measures"]

_ROW, _GAP = 130, 26  # pixels
_STEEP = 30  # times the smallest value from which on an axis is logarithmic
_BINS = 24
_ROWS = (
    ("loss", "training loss", "training loss"),
    ("watched_loss", "loss of the\nwatched data", "loss"),
    ("sharpness", "sharpness\nλ max", "largest eigenvalue"),
    ("noise_scale", "gradient noise\nscale (batches)", "noise scale"),
    ("entropy", "entropy of\nattention (nats)", "entropy"),
    ("nuclear_norm", "nuclear norm\nof attention", "nuclear norm"),
    ("diagonal_mass", "diagonal mass\nof attention", "diagonal mass"),
    ("numerical_rank", "numerical rank\nof attention", "rank"),
)


@dataclass(frozen=True)
class _Line:
    """Measure over steps, and the ends of what it stands for."""

    name: str
    colour: str
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


@draws("training_watch")
def training_measures(ds: xr.Dataset) -> go.Figure:
    """Draw what was measured over a training, measure by measure.

    Args:
        ds: of kind "training_watch", of one run, or of several of ``training.together``.

    Returns:
        Panels over optimiser steps: the loss, the sharpness with a band of its residual, the gradient noise, and of
        attention entropy, nuclear norm, diagonal mass and numerical rank, with dotted lines for even attention and for
        the identity where all layers have the same keys. Of one run a line for each head in its layer's colour; of
        several runs a line for each, the mean over layers and heads, with a band from the lowest to the highest seed.

    Example:
        >>> watch = training.Watch(torch.nn.Linear(2, 1), every=1)
        >>> for step in range(4):
        ...     _ = watch(step, loss=2.0**-step)
        >>> viz.training_measures(watch.dataset()).layout.meta["title"]
        'Training of Linear, watched'
    """
    rows = [row for row in _ROWS if row[0] in ds and bool(np.isfinite(ds[row[0]].values).any())]
    if "loss" in [row[0] for row in rows]:
        rows = [row for row in rows if row[0] != "watched_loss"]
    canvas = sheet([_ROW] * max(len(rows), 1), row_gap=_GAP, min_width=480, shared_xaxes="all")
    steps = np.asarray(ds["step"].values, dtype=float)
    for panel, (name, title, word) in zip(canvas, rows, strict=False):
        for line in _lines(ds, name):
            finite = np.isfinite(line.middle)
            if (line.high > line.low).any():
                panel.band(steps[finite], line.low[finite], line.high[finite], mixed(line.colour, 0.25), line.name)
            hover = f"step %{{x:,}}<br>{plain(line.name)}{', ' * bool(line.name)}{word} %{{y:.4g}}"
            panel.line(steps[finite], line.middle[finite], line.name, hover, colour=line.colour, width=1.4, dots=3)
        numbers = np.asarray(ds[name].values, dtype=float)
        values = numbers[np.isfinite(numbers)]
        steep = (
            name in ("loss", "watched_loss", "sharpness") and values.min() > 0 and values.max() > _STEEP * values.min()
        )
        panel.y(title, **(log_axis(values) if steep else {}))
        _references(panel, ds, name)
    canvas.x(showticklabels=False)
    canvas.panel(*canvas.places[-1]).x("optimiser step", showticklabels=True)
    several = "run" in ds.dims
    return canvas.dress(
        f"Training of {model_of(ds)}, watched",
        f"{len(steps)} looks",
        "attention: mean over layers and heads" if several and "layer" in ds.dims else "",
        "bands: all seeds" if "seed" in ds.dims else "band: residual of the eigenvalue" * ("sharpness" in ds),
    )


def _lines(ds: xr.Dataset, name: str) -> Iterator[_Line]:
    """Yield the lines of a measure: runs, heads, or one."""
    value = ds[name]
    if "run" in ds.dims:
        value = value.mean([dim for dim in ("layer", "head") if dim in value.dims])
        for place, run in enumerate(names(ds, "run")):
            one = value.isel(run=place)
            ends = [one.min("seed"), one.max("seed")] if "seed" in one.dims else [one, one]
            middle = one.mean("seed") if "seed" in one.dims else one
            yield _Line(run, CATEGORICAL[place % len(CATEGORICAL)], *(np.asarray(e, float) for e in (middle, *ends)))
    elif "layer" in value.dims:
        values = array(ds, name, "layer", "head", "step")
        for layer, label in enumerate(names(ds, "layer")):
            for one in values[layer]:
                if np.isfinite(one).any():
                    yield _Line(layer_name(label), CATEGORICAL[layer % len(CATEGORICAL)], one, one, one)
    else:
        values = array(ds, name, "step")
        residual = array(ds, f"{name}_residual", "step") if f"{name}_residual" in ds else 0.0
        yield _Line("", INK, values, values - residual, values + residual)


def _references(panel: Panel, ds: xr.Dataset, name: str) -> None:
    """Draw even attention and the identity, where all layers have as many keys."""
    keys = {int(value) for value in ds["n_keys"].values} if "n_keys" in ds.coords else set()
    if len(keys) != 1 or name not in ("entropy", "nuclear_norm", "diagonal_mass"):
        return
    d = keys.pop()
    levels = {
        "entropy": [(np.log(d), f"log {d}")],
        "nuclear_norm": [(1.0, "one row for all"), (float(d), "identity")],
        "diagonal_mass": [(1 / d, "even")],
    }
    for level, words in levels[name]:
        panel.level(level, dash="dot")
        panel.note(words, 1, level, xref="domain", xanchor="right", yanchor="bottom", size=10, colour=GREY)


@draws("attention_norms", needs=("nuclear_norm",))
def nuclear_norms(ds: xr.Dataset) -> go.Figure:
    """Draw how nuclear norms of attention spread over inputs, runs or layers over each other.

    Args:
        ds: of kind "attention_norms", of one run, or of several of ``training.together``.

    Returns:
        An outline of the histogram for each run, or for each layer of a single one, over all heads and inputs; dotted
        lines at 1, one row for all queries, and at the number of keys, the identity.

    Example:
        >>> even, sharp = (dict(a=torch.eye(3)[None, None] * s + (1 - s) / 3) for s in (0.0, 0.9))
        >>> norms = {name: training.attention_norms(each) for name, each in (("even", even), ("sharp", sharp))}
        >>> viz.nuclear_norms(training.together(norms)).layout.meta["title"]
        'Nuclear norms of the attention of even, sharp'
    """
    over = "run" if "run" in ds.dims else "layer"
    words = names(ds, over) if over == "run" else [layer_name(label) for label in names(ds, over)]
    groups = [ds["nuclear_norm"].isel({over: place}).values.ravel() for place in range(ds.sizes[over])]
    groups = [group[np.isfinite(group)] for group in groups]
    low, high = (float(np.concatenate(groups).min()), float(np.concatenate(groups).max()))
    edges = np.linspace(low, high if high > low else low + 1e-3, _BINS + 1)
    canvas = sheet([260], min_width=360)
    panel = next(iter(canvas))
    for place, (word, group) in enumerate(zip(words, groups, strict=True)):
        share = 100 * np.histogram(group, edges)[0] / max(len(group), 1)
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        outline = {"color": colour, "width": 1.8, "shape": "hv"}
        hover = f"{plain(word)}<br>from %{{x:.3g}}: %{{y:.3g}} % of {len(group)} patterns"
        panel.line(edges, [*share, 0.0], f"{word}: median {np.median(group):.3g}", hover, line=outline, colour=colour)
    keys = {int(value) for value in ds["n_keys"].values}
    for level, text in ((1.0, "one row for all"), *(((float(max(keys)), "identity"),) if len(keys) == 1 else ())):
        panel.upright(level, dash="dot")
        panel.note(text, level, 1, yref="domain", yanchor="bottom", size=10, colour=GREY)
    panel.x("nuclear norm of attention")
    panel.y("share of patterns (%)", rangemode="tozero")
    inputs = ds.sizes["input"]
    return canvas.dress(
        f"Nuclear norms of the attention of {model_of(ds)}", f"every head on {inputs} input{'s' * (inputs != 1)}"
    )
