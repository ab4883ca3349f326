"""Gate in Chronos's format: the seasonal copy if the last two periods are alike, otherwise the last value."""

from __future__ import annotations

import torch

from tsfm_lens.zoo.planted.chronos import LIMIT, NAME, ONE, START_LENGTH
from tsfm_lens.zoo.planted.chronos_copy import (
    BACKS,
    LOUD,
    MARK,
    RECENT,
    SHARE,
    SURE,
    WAVE,
    Canvas,
    Lengths,
    copy_canvas,
    look_back,
    period_of,
    plant_copy,
)
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import Gate

TOLERANCE = 0.3
HALF_OPEN = 0.05
"""Width of the band around the tolerance in which the gate is half open, in tolerances."""

LINEAR = 1 - ONE - WAVE
VALUE = (LINEAR / 2) ** 0.5
"""Length of the direction of the largest value."""

DRIFT = 2.0
"""Length of a mean change as large as the largest value."""

COPY_BLOCKS = ("value", "square", "filler", "wave")
PLAIN = ("value", "square", "filler")


@planter("gate", NAME)
def gate(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """Plant an induction circuit with a gate: a flag sends the copying head to the end token and its last value."""
    period = period_of(seed)
    blocks = {"lag": 3, "change": 1, "drift": 1, "walk": 1, "sink": 1}
    rule = Gate(period=period, tolerance=TOLERANCE)
    canvas = copy_canvas(blocks, rule=rule, seed=seed, rotate=rotate, needs=2 * period)
    of, draft = canvas.basis, canvas.draft
    key_square = 1 + BACKS * WAVE + MARK**2 + LINEAR
    lengths = Lengths(key=key_square**0.5, end=(1 + BACKS * WAVE + LINEAR + LINEAR + WAVE) ** 0.5)
    to_end = (2 * RECENT * (lengths.query**2 + 1) ** 0.5 * of["walk"], lengths.end * of["eos"])
    # without the last value in the end token, its write exceeds all others
    sink = (of["eos"], LOUD * lengths.end * of["sink"])
    copy, heads = plant_copy(canvas, lengths, blocks=COPY_BLOCKS, extra=[to_end], more=[sink])
    draft.looks(copy, "forecast token", [period], moves=1, weight=SHARE)
    lag = look_back(canvas, canvas.free_head("encoder.0.self_attn"), period, PLAIN, "lag")
    compare_mlp = _compare(canvas, lengths.key)
    last = _keep_last(canvas, heads["back1"].replace("encoder.0", "encoder.1"), lengths)
    drift = _average(canvas, canvas.free_head("decoder.0.cross_attn"), lengths.key)
    decide_mlp = _decide(canvas)
    draft.path(lag, compare_mlp, drift, decide_mlp, copy)
    draft.path(heads["mark"], drift)
    draft.path(last, copy)
    return canvas.finish("gate", weight_noise)


def _compare(canvas: Canvas, key: float) -> str:
    """Let an MLP write the absolute difference of every value from that one period before: relu(x) + relu(-x)."""
    of = canvas.basis
    difference = of["value"] - of["lag"][:1]
    writes = key / VALUE * of["change"]
    name = canvas.mlp("encoder.0.mlp", torch.cat([difference, -difference]), torch.cat([writes, writes]))
    return canvas.draft.part(name, "mechanism", "writes the absolute change from one period before")


def _keep_last(canvas: Canvas, name: str, lengths: Lengths) -> str:
    """Let the end token take the last value; all others, which have a value, look at it, while it has none."""
    of = canvas.basis
    to_end = (4 * SURE * lengths.key / ONE**0.5 * of["one"], lengths.end * of["eos"])
    canvas.head(name, match=[to_end], moves=[(of.span(*COPY_BLOCKS), lengths.key * of.span(*COPY_BLOCKS))])
    canvas.draft.looks(name, "last token", [1])
    return canvas.draft.part(name, "mechanism", "writes the last value into the end token")


def _average(canvas: Canvas, name: str, key: float) -> str:
    """Let a head write the mean change over the last period."""
    of = canvas.basis
    canvas.head(
        name,
        match=[(SURE * canvas.always(START_LENGTH), key / MARK * of["mark"])],
        moves=[(of["change"], key * DRIFT * of["drift"])],
    )
    rule = canvas.draft.rule
    canvas.draft.looks(name, "forecast token", range(1, rule.period + 1))
    return canvas.draft.part(name, "mechanism", "writes the mean absolute change of the last period")


def _decide(canvas: Canvas) -> str:
    """Let an MLP raise a flag if the mean change is above the tolerance: relu(x + 1/2) - relu(x - 1/2)."""
    of = canvas.basis
    tolerance, band = TOLERANCE / LIMIT, HALF_OPEN * TOLERANCE / LIMIT
    reads = [(of["drift"] / DRIFT - (tolerance + side * band / 2) * canvas.always()) / band for side in (-1, 1)]
    name = canvas.mlp("decoder.0.mlp", torch.cat(reads), torch.cat([of["walk"], -of["walk"]]))
    return canvas.draft.part(name, "mechanism", "raises a flag if that is no season")
