"""Attention to a repeated motif, and heads over the checkpoints of a training.

:func:`training_history` draws the checkpoints; the map of a repeated motif is a generic
drawing.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import figure
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.grid import LOG_AXIS
from tsfm_lens.viz.select import array, name_model, names
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import CATEGORICAL, GREY, mixed, number

__all__ = ["training_history"]


def read_motif(ds: xr.Dataset) -> list[str]:
    """Return sentences on the heads that attend to the motif's last instance.

    They are compared with the same steps of a series without a motif.
    """
    # side=1, as a head that attends less than in the control seeks no motif
    return summarize(
        ds.isel(target=0),
        "Attention to the motif's last instance, beyond that in a control without "
        "repeats{advantage:basis}: {advantage:largest percent}.",
        effect="advantage",
        noun="heads",
        side=1,
    )


generic_figure(
    "repeated_motif",
    "advantage",
    "Mean attention to the last instance of a repeated motif, beyond a control.",
    options={"target": 0},
    table=("prefix_matching", "control", "advantage"),
    sentences=read_motif,
)
# Pixels of a row of the figure, and between two rows.
_ROW = 130
_GAP = 34
_MAX_DOTS = 40  # most checkpoints whose lines have dots
_OF_HEADS = (
    (
        "prefix_matching",
        "prefix matching\n(attention share)",
        "of its attention on what followed the last match",
    ),
    (
        "advantage",
        "next patch,\nbeyond control",
        "of its attention beyond the control",
    ),
    (
        "copy_score",
        "copy score\n(sd above mean)",
        "standard deviations: logit of the right token",
    ),
    (
        "entropy_share",
        "entropy\n(1 = uniform)",
        "of the entropy of uniform attention",
    ),
)


def read_history(ds: xr.Dataset) -> list[str]:
    """State when copying emerged, and how many heads look for the motif at the end."""
    name = "advantage"
    control = "in the control"
    if "prefix_matching" in ds:
        name = "prefix_matching"
        control = "uniform attention would"
    # a head may also attend significantly less
    significant = ds[f"{name}_significant"].astype(bool) & (ds[name] > 0)
    copied = None
    final = None
    half = None
    if "copying" in ds:
        final = ds["copying"][-1]
        # the last checkpoint reaches its own half, so there is a first one if it copies
        reached = ds["training_step"][ds["copying"] >= final / 2]
        if final > 0:
            half = reached[0]
        # a model of values is measured by its error, a model of tokens by its hits
        copied = "of the distance from the mean to a perfect copy"
        if "copy_score" in ds:
            copied = "of the motif's tokens"
    return summarize(
        ds,
        "At step {last:whole} the model copies {final:percent} {copied}.",
        "Half of that is first reached at step {half:whole}.",
        "Heads that give more attention to what followed the last match than {control},"
        " significantly over motifs: {heads:count}.",
        last=ds["training_step"][-1],
        final=final,
        copied=copied,
        half=half,
        control=control,
        heads=significant[-1],
    )


@figure(
    "training_history",
    "Prefix matching, copying and sharpness of every head over training.",
    table=("prefix_matching", "copy_score", "advantage", "entropy_share"),
    sentences=read_history,
)
def training_history(ds: xr.Dataset) -> go.Figure:
    """Draw the training of a model: its loss, how well it copies, and its heads.

    Every head has a line for what it does.

    Args:
        ds: result of kind "training_history".

    Returns:
        Panels over the training steps, on a logarithmic axis: the loss, how well the
        model copies, and each score of its heads.

    Example:
        >>> checkpoints = {0: lens, 100: lens}
        >>> history = probes.training_history(checkpoints, motif=8, n_sequences=8)
        >>> fig = viz.training_history(history)
        >>> fig.layout.meta["title"]
        'Heads of chronos-nano over its training'
    """
    heads = [row for row in _OF_HEADS if row[0] in ds]
    rows = len(heads) + ("loss" in ds) + ("copying" in ds)
    canvas = sheet([_ROW] * rows, row_gap=_GAP, min_width=420, shared_xaxes="all")
    panels = iter(canvas)
    steps = np.asarray(ds["training_step"].values, dtype=float)
    # a logarithmic axis has no 0, so step 0 stands left of the first one
    start = 1.0
    if (steps > 0).any():
        start = float(steps[steps > 0].min()) / 2
    x = np.maximum(steps, start)
    if "loss" in ds:
        panel = next(panels)
        # the loss is known at steps of its own, between the checkpoints
        at = np.maximum(ds["loss_step"].values.astype(float), start)
        panel.line(
            at,
            array(ds, "loss", "loss_step"),
            "",
            "step %{x:.0f}<br>training loss %{y:.3g}",
            colour=GREY,
        )
        panel.y("training loss")
    if "copying" in ds:
        panel = next(panels)
        panel.line(
            x,
            array(ds, "copying", "training_step"),
            "",
            "step %{x:.0f}<br>copied %{y:.2f}",
            dots=5 if len(x) <= _MAX_DOTS else 0,
        )
        panel.y("share copied" if "copy_score" in ds else "1 − relative\ncopy error")
    for (name, title, meaning), panel in zip(heads, panels, strict=True):
        _draw_head_lines(panel, ds, name, x, meaning)
        panel.y(title)
        if name == "prefix_matching":
            panel.line(
                x,
                array(ds, "prefix_floor", "training_step"),
                "uniform attention",
                colour=GREY,
                dash="dot",
            )
    canvas.x(**LOG_AXIS, showticklabels=False)
    canvas.panel(*canvas.positions[-1]).x(
        "optimiser step (logarithmic)", showticklabels=True
    )
    spread = ""
    if any(f"{name}_low" in ds for name, _, _ in heads):
        spread = ", bands: range over motifs"
    remarks = [
        f"{len(steps)} checkpoints on the same repeated motifs",
        f"step 0 stands at {number(start)}" if (steps == 0).any() else "",
        f"a line per head{spread}",
    ]
    return canvas.finalize(f"Heads of {name_model(ds)} over its training", *remarks)


def _draw_head_lines(
    panel: Panel, ds: xr.Dataset, name: str, x: np.ndarray, meaning: str
) -> None:
    """Draw a line per head in its layer's colour, and its range over motifs.

    The head that stands out at the end, by the highest value or the lowest entropy, is
    named, and its line is wide.
    """
    values = array(ds, name, "layer", "head", "training_step")
    word, sign = ("lowest", -1) if name == "entropy_share" else ("highest", 1)
    final = np.nan_to_num(sign * values[..., -1], nan=-np.inf)
    leader = np.unravel_index(final.argmax(), final.shape)
    # the leader last, over all others
    heads = sorted(np.ndindex(final.shape), key=lambda at: at == leader)
    colours = [CATEGORICAL[at % len(CATEGORICAL)] for at in range(len(values))]
    layers = [layer_name(label) for label in names(ds, "layer")]
    for layer, head in heads if f"{name}_low" in ds else ():
        low, high = (
            array(ds, f"{name}_{end}", "training_step", layer=layer, head=head)
            for end in ("low", "high")
        )
        panel.band(x, low, high, mixed(colours[layer], 0.2), layers[layer])
    for layer, head in heads:
        label = f"{layers[layer]}, head {names(ds, 'head')[head]}"
        panel.line(
            x,
            values[layer, head],
            layers[layer],
            f"step %{{x:.0f}}<br>{label}: %{{y:.2f}} {meaning}",
            colour=colours[layer],
            width=2.4 if (layer, head) == leader else 1,
            dots=3 if len(x) <= _MAX_DOTS else 0,
        )
    panel.note(
        f"{word} at the end: {label}",
        0,
        1,
        xref="domain",
        yref="domain",
        xanchor="left",
        yanchor="bottom",
        colour=colours[leader[0]],
    )
