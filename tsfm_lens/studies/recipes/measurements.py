"""Measurements of training at low rank: models trained once, with their results in the package."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.studies._shim import shown_alone
from tsfm_lens.studies.recipes.figures import low_rank_skill, training_spectra, vocabulary_ranks
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.words import listed, num, signed

_RISES = tuple(
    f"{score}_rise_{end}" for score in ("mase", "wql", "log_perplexity") for end in ("estimate", "low", "high")
)
_OF_ARMS = ("parameters", "attention_parameters", "rank_ratio", "stored_ratio", "step_time", "forward_time")


def read_training(ds: xr.Dataset) -> list[str]:
    """Describe each arm's change of skill, its size beside the variation over seeds, and its change of time."""
    out, arms = [], names(ds, "arm")
    verdict = finding(ds, "mase_rise", "arm")
    assert verdict is not None
    share, time = array(ds, "stored_ratio", "arm"), array(ds, "step_time", "arm")
    for row, arm in enumerate(arms):
        estimate, low, high = (100 * float(each[row]) for each in (verdict.estimate, verdict.low, verdict.high))
        if estimate or low != high:
            comparison = "more than seeds differ by" if verdict.stands[row] else "no more than seeds differ by"
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
    for name, words in (("moved_rank", "what training added to W_Q"), ("rank", "W_Q itself")):
        ranks = array(ds, name, "vocabulary", "seed", "training_step", "layer", "epsilon")[:, :, -1, :, at]
        means = ranks.mean(axis=1)
        of_first = listed([num(value) for value in means[:, 0]])
        out.append(
            f"At ε = {epsilon:g} {words} has {of_first} directions in the first layer for vocabularies of rank "
            f"{listed(list(numbers))}, and {num(means[0].mean())} to {num(means[-1].mean())} on average over layers."
        )
    loss = array(ds, "log_perplexity", "vocabulary", "seed").mean(axis=1)
    out.append(f"The loss of held-out tokens goes from {num(loss[0])} to {num(loss[-1])} nats.")
    return out


def read_spectra(ds: xr.Dataset) -> list[str]:
    """Describe the change of the largest and the middle singular value of each layer."""
    values = array(ds, "singular_value", "training_step", "layer", "seed", "index").mean(axis=2)
    steps = names(ds, "training_step")
    largest, middle = values[..., 0], np.median(values, axis=-1)
    return [
        f"From step {steps[0]} to step {steps[-1]} the largest singular value of W_Q grows "
        f"{listed([f'{num(factor)} times' for factor in largest[-1] / largest[0]])} in the layers of the encoder, the "
        f"middle one {listed([f'{num(factor)} times' for factor in middle[-1] / middle[0]])}."
    ]


_entry = partial(
    shown_alone,
    theme="Training",
    maker="made by training many models: `python -m tsfm_lens.studies.recipes.lowrank` makes it, "
    "`tsfm_lens.studies.recipes` ships one",
    source="after Flow of ranks",
    subject=lambda ds: f"{ds.attrs['model']}, {ds.attrs['steps']} steps of {ds.attrs['rows']} rows",
)
MEASUREMENTS = (
    _entry(
        "low_rank_training",
        low_rank_skill,
        read_training,
        (*_RISES, *_OF_ARMS),
        "skill, size and time of models that were trained at low rank, beside the dense one",
        "Training at low rank",
        "Matrices of attention are products of two factors from the first step on. Arms of one seed begin with "
        "the same weights elsewhere and see the same series, so their errors are compared seed by seed.",
        "section 5, figure 7, tables 3 and 4",
        "Skill of models trained at low rank over their size and time.",
        ("S0-F7", "S0-LR", "S0-T3", "S0-T4"),
    ),
    _entry(
        "vocabulary_ranks",
        vocabulary_ranks,
        read_vocabulary,
        ("rank", "moved_rank"),
        "ranks of W_Q after training with a fixed vocabulary of low rank",
        "Ranks that a vocabulary brings about",
        "The embedding of the tokens is fixed, made of as many polynomials as its rank is to be; all else is trained. "
        "A W_Q of random entries has nearly full rank, so what training added to it is shown beside it.",
        "figure 4c, appendix I",
        "Ranks of W_Q over the rank of a fixed vocabulary.",
        ("S0-F4C",),
    ),
    _entry(
        "training_spectra",
        training_spectra,
        read_spectra,
        ("singular_value",),
        "singular values of W_Q over training",
        "Spectra over training",
        "Absolute singular values: a few directions grow large while the others stay near what they began as.",
        "appendix G, figure 11",
        "Singular values of W_Q at several steps of training.",
        ("S0-F11",),
    ),
)
