"""Heads over a training, its loss around the weights, and norms of its attention."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.needs import TRAINING_RECORD
from tsfm_lens.viz.select import array, layer_name, model_of, names
from tsfm_lens.viz.sheet import Look, Panel, Sheet, sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, mixed, percent, plain
from tsfm_lens.viz.training import STEEP, run_words, watch_table
from tsfm_lens.viz.words import count_of, num, verb

__all__ = ["loss_landscape", "nuclear_norms", "training_history"]

_ROW, _GAP = 130, 26  # pixels
_OF_HEADS = (
    ("prefix_matching", "prefix matching\n(share of attention)", "of its attention on what followed the last match"),
    ("advantage", "attention to the\nnext patch (beyond control)", "of its attention beyond the control"),
    ("copy_score", "copy score\n(standard deviations)", "standard deviations: logit of the right token"),
    ("entropy_share", "entropy of attention\n(1 = even)", "of the entropy of even attention"),
)
TRAINING_HISTORY = measurement("training_history", needs=TRAINING_RECORD)


def read_history(ds: xr.Dataset) -> list[str]:
    """State when copying came, and how many heads look for the motif at the end."""
    steps = ds["training_step"].values
    out = []
    if "copying" in ds:
        copying = array(ds, "copying", "training_step")
        half = int(np.argmax(copying >= copying[-1] / 2)) if copying[-1] > 0 else 0
        share = "of the motif's tokens" if "copy_score" in ds else "of the distance from the mean to a perfect copy"
        out.append(f"At step {int(steps[-1]):,} the model copies {percent(float(copying[-1]))} {share}.")
        if half:
            out.append(f"Half of that is reached between steps {int(steps[half - 1]):,} and {int(steps[half]):,}.")
    name = "prefix_matching" if "prefix_matching" in ds else "advantage"
    heads = array(ds, f"{name}_stands_out", "training_step", "layer", "head") > 0
    heads &= array(ds, name, "training_step", "layer", "head") > 0
    counts = heads.reshape(len(steps), -1).sum(axis=1)
    against = "than an even spread would" if name == "prefix_matching" else "than in the control"
    since = len(counts) - int(np.argmin(np.append(counts[::-1] > 0, False)))
    some = f"; some head has since step {int(steps[since]):,}" if 0 < since < len(counts) - 1 else ""
    out.append(
        f"{count_of(int(counts[-1]), heads[0].size, 'heads')} {verb(int(counts[-1]), 'give')} more attention to what "
        f"followed the last match {against}, beyond the noise{some}."
    )
    return out


@TRAINING_HISTORY.figure(table=("prefix_matching", "copy_score", "advantage", "entropy_share"), sentences=read_history)
def training_history(ds: xr.Dataset) -> go.Figure:
    """Draw the training of a model: its loss, how well it copies, and a line per head for what the head does.

    Example:
        >>> fig = viz.training_history(probes.training_history({0: lens, 100: lens}, motif=8, n_sequences=8))
        >>> fig.layout.meta["title"]
        'Heads of chronos-nano over its training'
    """
    heads = [row for row in _OF_HEADS if row[0] in ds]
    rows = len(heads) + ("loss" in ds) + ("copying" in ds)
    canvas = sheet([_ROW] * rows, row_gap=_GAP, min_width=480, shared_xaxes="all")
    panels, steps = iter(canvas), np.asarray(ds["training_step"].values, dtype=float)
    start = _left_end(steps)
    x = np.maximum(steps, start)
    if "loss" in ds:
        panel, at = next(panels), np.maximum(ds["loss_step"].values.astype(float), start)
        panel.line(at, array(ds, "loss", "loss_step"), "", "step %{x:.0f}<br>training loss %{y:.3g}", colour=GREY)
        panel.y("training loss")
    if "copying" in ds:
        panel = next(panels)
        panel.line(x, array(ds, "copying", "training_step"), "", "step %{x:.0f}<br>copied %{y:.2f}", dots=5)
        panel.y("share copied" if "copy_score" in ds else "1 − relative\ncopy error")
    for (name, title, words), panel in zip(heads, panels, strict=True):
        _head_lines(panel, ds, name, x, words)
        panel.y(title)
        if name == "prefix_matching":
            panel.line(x, array(ds, "prefix_floor", "training_step"), "even attention", colour=GREY, dash="dot")
    powers = range(int(np.ceil(np.log10(start))), int(np.floor(np.log10(max(steps.max(), start)))) + 1)
    ticks = {10.0**power: f"{10.0**power:,.0f}" for power in powers if 10.0**power > 1.2 * start}
    if (steps == 0).any():
        ticks = {start: "0", **ticks}
    canvas.x(type="log", tickvals=list(ticks), ticktext=list(ticks.values()), showticklabels=False)
    canvas.panel(*canvas.places[-1]).x("optimiser step (logarithmic)", showticklabels=True)
    spread = ", bands: 95 % intervals over motifs" if any(f"{name}_low" in ds for name, _, _ in heads) else ""
    remarks = [f"{len(steps)} checkpoints on the same repeated motifs", f"a line per head{spread}"]
    return canvas.dress(f"Heads of {model_of(ds)} over its training", *remarks)


def _head_lines(panel: Panel, ds: xr.Dataset, name: str, x: np.ndarray, words: str) -> None:
    """Draw a line per head in its layer's colour, and its interval behind it."""
    for layer, label in enumerate(names(ds, "layer")):
        colour, layer_words = CATEGORICAL[layer % len(CATEGORICAL)], layer_name(label)
        for head, head_label in enumerate(names(ds, "head")):
            at = {"layer": layer, "head": head}
            if f"{name}_low" in ds:
                low, high = (array(ds, f"{name}_{end}", "training_step", **at) for end in ("low", "high"))
                panel.band(x, low, high, mixed(colour, 0.2), layer_words)
            hover = f"step %{{x:.0f}}<br>{layer_words}, head {head_label}: %{{y:.2f}} {words}"
            line = array(ds, name, "training_step", **at)
            panel.line(x, line, layer_words, hover, colour=colour, width=1.2, dots=3)


def _left_end(steps: np.ndarray) -> float:
    """Return where step 0 stands: as far left of the first step as that is of the second, at most a factor of 3."""
    later = np.sort(steps[steps > 0])
    if not len(later):
        return 1.0
    return float(later[0] / min(3.0, later[1] / later[0] if len(later) > 1 else 3.0))


_SIDE = 280  # pixels
LOSS_LANDSCAPE = measurement("loss_landscape", subject=lambda ds: str(ds.attrs.get("model", "")))


def read_landscape(ds: xr.Dataset) -> list[str]:
    """State how far the loss rises within the slice."""
    out = []
    for run, one in run_words(ds):
        values = one["loss"].values[np.isfinite(one["loss"].values)]
        where = f"{run + ': ' if run else ''}"
        out.append(f"{where}Within the slice the loss lies between {num(values.min())} and {num(values.max())}.")
        missing = one["loss"].size - len(values)
        if missing:
            out.append(f"{where}At {missing} of {one['loss'].size} places it is not finite.")
    return out


@LOSS_LANDSCAPE.figure(table=lambda ds: watch_table(ds, "first", "second"), sentences=read_landscape)
def loss_landscape(ds: xr.Dataset) -> go.Figure:
    """Draw the loss along one direction as a line, or over two as contours; several runs together.

    Example:
        >>> w = torch.ones(2, 2, requires_grad=True)
        >>> result = training.loss_landscape(lambda: (w**2).sum(), [w], axes=1, points=5, name="bowl")
        >>> viz.loss_landscape(result).layout.meta["title"]
        'Loss around the weights of bowl'
    """
    data = ds if "run" in ds.dims else ds.expand_dims(run=[""])
    runs = names(data, "run")
    finite = data["loss"].values[np.isfinite(data["loss"].values)]
    steep = bool(len(finite)) and finite.min() > 0 and finite.max() > STEEP * finite.min()
    canvas = (_contours if "second" in ds.dims else _slices)(data, runs, steep)
    kind = str(ds.attrs.get("directions", "random"))
    return canvas.dress(
        f"Loss around the weights of {model_of(ds)}",
        f"directions: {kind}; each filter as long as that of the weights at 1",
    )


def _slices(data: xr.Dataset, runs: list[str], steep: bool) -> Sheet:
    canvas, at = sheet([_SIDE], min_width=360), array(data, "first", "first")
    panel = canvas.panel()
    for place, run in enumerate(runs):
        one, colour = data["loss"].isel(run=place), CATEGORICAL[place % len(CATEGORICAL)]
        if "seed" in one.dims:
            panel.band(at, one.min("seed").values, one.max("seed").values, mixed(colour, 0.25), run)
            one = one.mean("seed")
        hover = f"{plain(run)}{'<br>' * bool(run)}%{{x:.3g}} along: loss %{{y:.4g}}"
        panel.line(at, one.values, run, hover, colour=colour, dots=3)
    panel.x("along the direction (1: as long as the weights)")
    panel.y("loss", **(log_axis(data["loss"].values) if steep else {}))
    return canvas


def _contours(data: xr.Dataset, runs: list[str], steep: bool) -> Sheet:
    options: Look = {"min_width": max(360, 110 + 250 * len(runs)), "shared_yaxes": True}
    canvas = sheet([_SIDE], [1] * len(runs), titles=runs if any(runs) else None, column_gap=0.06, **options)
    losses = array(data, "loss", "run", "second", "first", seed=0)
    levels = np.log10(np.where(losses > 0, losses, np.nan)) if steep else losses
    levels = np.where(np.isfinite(levels), levels, np.nan)
    for panel, z, loss in zip(canvas, levels, losses, strict=True):
        look: Look = {
            "coloraxis": "coloraxis",
            "ncontours": 24,
            "line": {"width": 0.6, "color": INK},
            "customdata": loss,
        }
        hover = "%{x:.3g} and %{y:.3g} along<br>loss %{customdata:.4g}"
        panel.add(go.Contour, "", hover, z=z, x=data["first"].values, y=data["second"].values, **look)
        panel.dots([0], [0], "", "the weights", colour="#FFFFFF", size=8, edge=INK)
        panel.x("along the first direction")
    canvas.panel().y("along the second direction")
    canvas.colours(colour_scale("loss, power of ten" if steep else "loss", levels))
    return canvas


_BINS = 24
ATTENTION_NORMS = measurement("attention_norms", subject=lambda ds: str(ds.attrs.get("model", "")))


def read_norms(ds: xr.Dataset) -> list[str]:
    """State the median of each run beside what one row for all and the identity would have."""
    out = []
    for run, one in run_words(ds):
        norm, keys = float(one["nuclear_norm"].median()), [int(value) for value in np.unique(ds["n_keys"].values)]
        whole = f", {num(norm / keys[0])} of the identity's" if len(keys) == 1 else ""
        out.append(f"{run + ': ' if run else ''}The median nuclear norm is {num(norm)}{whole}; 1 is the least.")
    return out


@ATTENTION_NORMS.figure(table=lambda ds: watch_table(ds, "layer", "head", "input"), sentences=read_norms)
def nuclear_norms(ds: xr.Dataset) -> go.Figure:
    """Draw how nuclear norms of attention spread over inputs, runs or layers over each other.

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
