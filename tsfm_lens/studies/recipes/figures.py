"""Training at low rank: figures of skill, ranks and spectra, with their measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, measurement
from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.findings import finding
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.select import array, layer_name, names
from tsfm_lens.viz.sheet import Look, sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, mixed, plain
from tsfm_lens.viz.words import listed, num, signed

__all__ = ["low_rank_skill", "training_spectra", "vocabulary_ranks"]

_SCORES = {"mase": "MASE", "wql": "WQL", "log_perplexity": "log-perplexity"}
_PALEST = 0.25  # colour of the first step's line, the last one has 1


def read_training(ds: xr.Dataset) -> list[str]:
    """Describe each arm's change of skill, its size beside the variation over seeds, and its change of time."""
    out, arms = [], names(ds, "arm")
    verdict = finding(ds, "mase_rise", "arm")
    assert verdict is not None
    share, time = array(ds, "stored_ratio", "arm"), array(ds, "step_time", "arm")
    for row, arm in enumerate(arms):
        estimate, low, high = (
            100 * float(each[row]) for each in (verdict.size, verdict.low, verdict.high)
        )
        if estimate or low != high:
            units, needed = int(verdict.facts["units"]), int(verdict.facts["needed"])
            unsure = (
                f"{units} seeds cannot decide, {needed} could"
                if units < needed
                else "not significant over seeds"
            )
            comparison = (
                "significant over seeds" if verdict.significant[row] else unsure
            )
            out.append(
                f"{arm!r}, with {num(100 * share[row])} % of the numbers in attention, moves MASE by "
                f"{signed(estimate)} % ({signed(low)} to {signed(high)}), {comparison}."
            )
    out.append(
        f"A step of training takes {num(time.min())} to {num(time.max())} of the dense one's CPU time at width "
        f"{ds.attrs['width']}, where products of matrices are not what takes the time."
    )
    out.append(
        f"These are models of {int(array(ds, 'parameters', 'arm').max()):,} numbers after {ds.attrs['steps']} steps; "
        "of large ones they say nothing."
    )
    return out


def read_vocabulary(ds: xr.Dataset) -> list[str]:
    """Describe the ranks at the end by the vocabulary's, in W_Q and in its change."""
    numbers, out = names(ds, "vocabulary"), []
    at = len(names(ds, "epsilon")) // 2 - 1
    epsilon = float(ds["epsilon"].values[at])
    for name, words in (
        ("moved_rank", "what training added to W_Q"),
        ("rank", "W_Q itself"),
    ):
        ranks = array(
            ds, name, "vocabulary", "seed", "training_step", "layer", "epsilon"
        )[:, :, -1, :, at]
        means = ranks.mean(axis=1)
        of_first = listed([num(value) for value in means[:, 0]])
        out.append(
            f"At ε = {epsilon:g} {words} has {of_first} directions in the first layer for vocabularies of rank "
            f"{listed(list(numbers))}, and {num(means[0].mean())} to {num(means[-1].mean())} on average over layers."
        )
    loss = array(ds, "log_perplexity", "vocabulary", "seed").mean(axis=1)
    out.append(
        f"The loss of held-out tokens goes from {num(loss[0])} to {num(loss[-1])} nats."
    )
    return out


def read_spectra(ds: xr.Dataset) -> list[str]:
    """Describe the change of the largest and the middle singular value of each layer."""
    values = array(
        ds, "singular_value", "training_step", "layer", "seed", "index"
    ).mean(axis=2)
    steps = names(ds, "training_step")
    largest, middle = values[..., 0], np.median(values, axis=-1)
    return [
        f"From step {steps[0]} to step {steps[-1]} the largest singular value of W_Q grows "
        f"{listed([f'{num(factor)} times' for factor in largest[-1] / largest[0]])} in the layers of the encoder, the "
        f"middle one {listed([f'{num(factor)} times' for factor in middle[-1] / middle[0]])}."
    ]


measurement(
    "low_rank_training",
    title="Training at low rank",
    theme="Training",
    summary=(
        "skill, size and time of models that were trained at low rank, beside the "
        "dense one"
    ),
    description=(
        "Matrices of attention are products of two factors from the first step on. "
        "Arms of one seed begin with the same weights elsewhere and see the same "
        "series, so their errors are compared seed by seed."
    ),
    source="after Flow of ranks, section 5, figure 7, tables 3 and 4",
    paper=(
        "S0-F7",
        "S0-LR",
        "S0-T3",
        "S0-T4",
    ),
    maker=(
        "made by training many models: `python -m "
        "tsfm_lens.studies.recipes.lowrank` makes it, `tsfm_lens.studies.recipes` "
        "ships one"
    ),
    subject="{model}, {steps} steps of {rows} rows",
)


@figure(
    "low_rank_training",
    ("Skill of models trained at low rank over their size and time."),
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
    sentences=read_training,
)
def low_rank_skill(ds: xr.Dataset, *, score: str = "mase") -> go.Figure:
    """Draw the loss of skill with attention of low rank, with 95 % intervals, beside the dense arm at 0.

    Args:
        score: "mase", "wql" (rises in percent) or "log_perplexity" (in nats); an unknown one is an UnknownNameError.

    Example:
        >>> figures.low_rank_skill(recipes.low_rank_record("attention")).layout.meta["title"]
        'Skill of models trained at low rank, beside the dense one'
    """
    if score not in _SCORES:
        raise unknown_name("score", score, _SCORES)
    of_errors = score != "log_perplexity"
    times, unit = (100.0, "%") if of_errors else (1.0, "nats")
    raw = finding(ds, f"{score}_rise", "arm", unit=unit)
    assert raw is not None
    rise, low, high = (times * each for each in (raw.size, raw.low, raw.high))
    verdict = replace(raw, size=rise, low=low, high=high)
    times_of = [array(ds, f"step_time{end}", "arm") for end in ("", "_low", "_high")]
    figure = sheet([300], [0.5, 0.5], column_gap=0.06, shared_yaxes=True)
    left, right = figure
    for panel, places in (
        (left, 100 * array(ds, "stored_ratio", "arm")),
        (right, times_of[0]),
    ):
        panel.level(0.0, colour=GREY, dash="dot")
        for row, arm in enumerate(names(ds, "arm")):
            hover = f"{plain(arm)}<br>%{{x:.3g}}, {_SCORES[score]} %{{y:+.3g}} {unit}"
            colour = CATEGORICAL[row % len(CATEGORICAL)]
            reach = {
                "array": [times_of[2][row] - places[row]],
                "arrayminus": [places[row] - times_of[1][row]],
            }
            along = {
                "error_x": {
                    "type": "data",
                    "color": GREY,
                    "thickness": 1,
                    "width": 3,
                    **reach,
                }
            }
            # the dense one is at 0 by definition, and nothing to be judged
            noise = verdict.at([row]) if rise[row] or low[row] != high[row] else None
            more: Look = along if panel is right and noise is not None else {}
            panel.dots(
                [places[row]],
                rise[[row]],
                arm,
                hover,
                colour=colour,
                size=8,
                noise=noise,
                **more,
            )
    left.x("numbers in attention (% of the dense)")
    right.x("CPU time of a training step (of the dense)")
    left.y(f"{_SCORES[score]}: rise over the dense ({unit})")
    return figure.dress(
        "Skill of models trained at low rank, beside the dense one",
        f"{ds.attrs['steps']} steps each, mean over {ds.sizes['seed']} seeds",
        "95 % intervals over seeds, of the time over rounds",
    )


measurement(
    "vocabulary_ranks",
    title="Ranks that a vocabulary brings about",
    theme="Training",
    summary=("ranks of W_Q after training with a fixed vocabulary of low rank"),
    description=(
        "The embedding of the tokens is fixed, made of as many polynomials as its "
        "rank is to be; all else is trained. A W_Q of random entries has nearly "
        "full rank, so what training added to it is shown beside it."
    ),
    source="after Flow of ranks, figure 4c, appendix I",
    paper=("S0-F4C",),
    maker=(
        "made by training many models: `python -m "
        "tsfm_lens.studies.recipes.lowrank` makes it, `tsfm_lens.studies.recipes` "
        "ships one"
    ),
    subject="{model}, {steps} steps of {rows} rows",
)


@figure(
    "vocabulary_ranks",
    "Ranks of W_Q over the rank of a fixed vocabulary.",
    variables=(
        "rank",
        "moved_rank",
    ),
    table=(
        "rank",
        "moved_rank",
    ),
    sentences=read_vocabulary,
)
def vocabulary_ranks(ds: xr.Dataset) -> go.Figure:
    """Draw the number of directions of W_Q after training, and of its change, over the rank of the vocabulary.

    Example:
        >>> figures.vocabulary_ranks(recipes.low_rank_record("vocabulary")).layout.meta["title"]
        'Ranks of W_Q by the rank of a fixed vocabulary'
    """
    whole, change = (
        array(ds, name, "training_step", "vocabulary", "seed", "layer", "epsilon")
        for name in ("rank", "moved_rank")
    )
    numbers = array(ds, "vocabulary", "vocabulary")
    titles = ["W_Q", "what training added to it"] + [""] * (2 * whole.shape[3] - 2)
    figure = sheet(
        [150] * whole.shape[3],
        [0.5, 0.5],
        titles=titles,
        row_gap=26,
        column_gap=0.06,
        shared_yaxes=True,
    )
    for place, panel in enumerate(figure):
        layer, values = place // 2, (whole, change)[place % 2]
        for row, epsilon in enumerate(names(ds, "epsilon")):
            colour, name = (
                CATEGORICAL[row % len(CATEGORICAL)],
                f"ε = {float(epsilon):g}",
            )
            last = values[-1, :, :, layer, row]
            hover = f"{name}<br>vocabulary of rank %{{x}}: %{{y:.3g}} directions"
            panel.line(numbers, last.mean(axis=1), name, hover, colour=colour, dots=5)
            if values is whole:
                panel.level(
                    float(whole[0, :, :, layer, row].mean()),
                    colour=mixed(colour, 0.6),
                    dash="dot",
                )
        panel.line(
            numbers,
            numbers,
            "rank of the vocabulary",
            "",
            colour=GREY,
            dash="dash",
            width=1,
        )
        panel.x(
            type="log",
            tickvals=numbers,
            ticktext=[f"{number:.0f}" for number in numbers],
        )
        if not place % 2:
            panel.y(layer_name(str(layer)))
    for panel in list(figure)[-2:]:
        panel.x("rank of the vocabulary")
    return figure.dress(
        "Ranks of W_Q by the rank of a fixed vocabulary",
        f"width {ds.attrs['width']}, {ds.attrs['steps']} steps, mean over {ds.sizes['seed']} seeds"
        if ds.sizes["seed"] > 1
        else f"width {ds.attrs['width']}, {ds.attrs['steps']} steps, one seed",
        "singular values above ε of the largest; dotted: before training",
    )


measurement(
    "training_spectra",
    title="Spectra over training",
    theme="Training",
    summary="singular values of W_Q over training",
    description=(
        "Absolute singular values: a few directions grow large while the others "
        "stay near what they began as."
    ),
    source="after Flow of ranks, appendix G, figure 11",
    paper=("S0-F11",),
    maker=(
        "made by training many models: `python -m "
        "tsfm_lens.studies.recipes.lowrank` makes it, `tsfm_lens.studies.recipes` "
        "ships one"
    ),
    subject="{model}, {steps} steps of {rows} rows",
)


@figure(
    "training_spectra",
    "Singular values of W_Q at several steps of training.",
    variables=("singular_value",),
    table=("singular_value",),
    sentences=read_spectra,
)
def training_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw singular values of W_Q at several steps of training, means over seeds, a panel per layer.

    Example:
        >>> figures.training_spectra(recipes.low_rank_record("spectra")).layout.meta["title"]
        'Singular values of W_Q over training'
    """
    values = array(
        ds, "singular_value", "training_step", "layer", "seed", "index"
    ).mean(axis=2)
    steps = array(ds, "training_step", "training_step")
    places = np.arange(1, values.shape[-1] + 1)
    grid = panel_grid(
        [[layer_name(str(layer))] for layer in range(values.shape[1])], row_height=180
    )
    for layer, panel in enumerate(grid):
        for at, step in enumerate(steps):
            strength = _PALEST + (1 - _PALEST) * at / max(len(steps) - 1, 1)
            hover = f"step {step:.0f}<br>σ<sub>%{{x}}</sub> = %{{y:.3g}}"
            panel.line(
                places,
                values[at, layer],
                f"step {step:.0f}",
                hover,
                colour=mixed(CATEGORICAL[0], strength),
            )
    grid.y(rangemode="tozero")
    title_axes(grid, "index", "singular value")
    return grid.dress(
        "Singular values of W_Q over training",
        f"encoder, {ds.attrs['heads']} heads of {ds.attrs['head_size']}, mean over {ds.sizes['seed']} seeds",
        "absolute, not relative to the largest; the later the step the darker",
    )
