"""Heads over the checkpoints of a training."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.needs import TRAINING_RECORD
from tsfm_lens.viz.select import array, layer_name, model_of, names
from tsfm_lens.viz.sheet import Panel, Sheet, sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, mixed, percent
from tsfm_lens.viz.words import count_of, verb

__all__ = ["training_history"]
_ROW, _GAP = 130, 26  # pixels
_OF_HEADS = (
    ("prefix_matching", "prefix matching\n(share of attention)", "of its attention on what followed the last match"),
    ("advantage", "attention to the\nnext patch (beyond control)", "of its attention beyond the control"),
    ("copy_score", "copy score\n(standard deviations)", "standard deviations: logit of the right token"),
    ("entropy_share", "entropy of attention\n(1 = even)", "of the entropy of even attention"),
)

TRAINING_HISTORY = measurement(
    "training_history",
    theme="Behaviour",
    title="How the heads came about",
    summary="heads over the checkpoints of a training: prefix matching, copying, sharpness, loss",
    description="Checkpoints that were kept during training, each tested on the same repeated motifs. Induction heads "
    "show where prefix matching rises and copying with it.",
    source="after Olsson et al. 2022",
    needs=TRAINING_RECORD,
)


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


@TRAINING_HISTORY.figure(
    "Prefix matching, copying and sharpness of every head over training.",
    variables=("entropy_share",),
    table=("prefix_matching", "copy_score", "advantage", "entropy_share"),
    sentences=read_history,
)
def training_history(ds: xr.Dataset) -> go.Figure:
    """Draw the training of a model: its loss, how well it copies, and a line per head for what the head does.

    Args:
        ds: of kind "training_history".

    Returns:
        Rows of panels over optimiser steps on a logarithmic axis, step 0 at its left end: training loss and share
        copied, where known; prefix matching (an even spread dotted) and copy scores of token models, of others the
        attention to what followed the last match beyond the control; entropy of attention. Heads have the colour of
        their layer; bands are 95 % intervals over motifs.

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
    _steps_axis(canvas, steps, start)
    spread = ", bands: 95 % intervals over motifs" if any(f"{name}_low" in ds for name, _, _ in heads) else ""
    return canvas.dress(
        f"Heads of {model_of(ds)} over its training",
        f"{len(steps)} checkpoints on the same repeated motifs",
        f"a line per head{spread}",
    )


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


def _steps_axis(canvas: Sheet, steps: np.ndarray, start: float) -> None:
    """Set a logarithmic axis whose left end is step 0."""
    powers = range(int(np.ceil(np.log10(start))), int(np.floor(np.log10(max(steps.max(), start)))) + 1)
    ticks = {10.0**power: f"{10.0**power:,.0f}" for power in powers if 10.0**power > 1.2 * start}
    if (steps == 0).any():
        ticks = {start: "0", **ticks}
    canvas.x(type="log", tickvals=list(ticks), ticktext=list(ticks.values()), showticklabels=False)
    canvas.panel(*canvas.places[-1]).x("optimiser step (logarithmic)", showticklabels=True)
