"""Figures of training at low rank: skill, ranks and spectra, with their measurements.

Read :func:`low_rank_skill` first. The records are made in
:mod:`tsfm_lens.studies.recipes.lowrank`.
"""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import declare_measurements, figure, frame
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.studies.curves import curve_sheet
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, plain

__all__ = ["low_rank_skill", "training_spectra"]


_MAKER = (
    "made by training many models: `python -m tsfm_lens.studies.recipes.lowrank` "
    "makes it, `tsfm_lens.studies.recipes` ships one"
)
declare_measurements(
    Path(__file__).with_name("measurements.yaml"),
    theme="Training",
    maker=_MAKER,
    subject="{model}, {steps} steps of {rows} rows",
)


@figure(
    "low_rank_training",
    "Skill of models trained at low rank over their size and time.",
    variables=(
        "mase_rise_size",
        "stored_ratio",
        "step_time",
    ),
    table=(
        "mase_rise_size",
        "mase_rise_low",
        "mase_rise_high",
        "wql_rise_size",
        "wql_rise_low",
        "wql_rise_high",
        "log_perplexity_rise_size",
        "log_perplexity_rise_low",
        "log_perplexity_rise_high",
        "parameters",
        "attention_parameters",
        "rank_ratio",
        "stored_ratio",
        "step_time",
        "forward_time",
    ),
)
def low_rank_skill(ds: xr.Dataset) -> go.Figure:
    """Draw the loss of skill with attention of low rank, the dense arm being at 0.

    Intervals are 95 %.

    Example:
        >>> record = recipes.low_rank_record("attention")
        >>> figures.low_rank_skill(record).layout.meta["title"]
        'Skill of models trained at low rank, beside the dense one'
    """
    table = frame(ds, "mase_rise_size", "mase_rise_low", "mase_rise_high")
    rise, low, high = (
        100 * table[f"mase_rise_{part}"] for part in ("size", "low", "high")
    )
    drawn = sheet([300], [0.5, 0.5], column_gap=0.06, shared_yaxes=True)
    left, right = drawn
    share = 100 * ds["stored_ratio"].values
    time = ds["step_time"].values
    for panel, x_values in ((left, share), (right, time)):
        panel.hline(0.0, colour=GREY, dash="dot")
        for row, arm in enumerate(table["arm"]):
            at = slice(row, row + 1)
            whiskers = {
                "type": "data",
                "symmetric": False,
                "array": (high - rise)[at],
                "arrayminus": (rise - low)[at],
            }
            hover = f"{plain(arm)}<br>%{{x:.3g}}, MASE %{{y:+.3g}} %"
            colour = CATEGORICAL[row % len(CATEGORICAL)]
            panel.dots(
                x_values[at], rise[at], arm, hover, colour=colour, error_y=whiskers
            )
    left.x("numbers in attention (% of the dense)")
    right.x("CPU time of a training step (of the dense)")
    left.y("MASE: rise over the dense (%)")
    return drawn.finalize(
        "Skill of models trained at low rank, beside the dense one",
        f"{ds.attrs['steps']} steps each, mean over {ds.sizes['seed']} seeds",
        f"{CONFIDENCE_TEXT} intervals over seeds",
    )


@figure(
    "training_spectra",
    "Singular values of W_Q at several steps of training.",
    variables=("singular_value",),
    table=("singular_value",),
)
def training_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw singular values of W_Q at several steps of training.

    They are means over seeds, a panel per layer.

    Example:
        >>> record = recipes.low_rank_record("spectra")
        >>> figures.training_spectra(record).layout.meta["title"]
        'Singular values of W_Q over training'
    """
    drawn = curve_sheet(
        frame(ds.mean("seed"), "singular_value"),
        "index",
        "singular_value",
        "training_step",
        panel="layer",
        axes=("index", "singular value"),
        width=1.2,
    )
    drawn.y(rangemode="tozero")
    return drawn.finalize(
        "Singular values of W_Q over training",
        f"encoder, {ds.attrs['heads']} heads of {ds.attrs['head_size']}, mean over"
        f" {ds.sizes['seed']} seeds",
        "absolute, not relative to the largest",
    )
