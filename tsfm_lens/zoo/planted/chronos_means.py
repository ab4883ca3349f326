"""Means and lines in Chronos's format.

For a forecast v, the logit of a bin at b is b·v - b²/2, which is largest at b = v.
:func:`local_mean` and :func:`trend` plant the mechanisms. The model is built by
:class:`~tsfm_lens.zoo.planted.chronos.ChronosBuilder`.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from tsfm_lens.zoo.planted.chronos import (
    BIN,
    LIMIT,
    NAME,
    ONE,
    START_LENGTH,
    ChronosBuilder,
    Direction,
    Pairs,
    Steps,
)
from tsfm_lens.zoo.planted.chronos_copy import MARK, SURE, mark_recent
from tsfm_lens.zoo.planted.draft import steps_ago
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import LinearTrend, LocalMean, Reads

LOUD = 3000.0
"""Length of what is read out; the embedding of a value has length 1.

Against it, the embedding of the decoder's own token does not count.
"""
VALUE = ((1 - ONE) / 2) ** 0.5
"""Length of the largest value's embedding along "value", without waves."""
SQUARE = (2 * (1 - ONE)) ** 0.5
"""Factor on b² along "square", for a value b in `LIMIT`."""
TYPICAL = 0.5
"""Length of the last stream at an ordinary forecast, in units of `LOUD`."""
HORIZON = 12


def canvas_of(rule: Any, blocks: dict[str, int], **options: Any) -> ChronosBuilder:
    """Build a model without tasks or waves, whose forecasts spread over about a bin."""
    return ChronosBuilder(
        rule,
        blocks,
        horizon=HORIZON,
        waves=0.0,
        sharpness=TYPICAL * LIMIT**2 / BIN**2,
        **options,
    )


def readout(canvas: ChronosBuilder) -> tuple[Tensor, Tensor]:
    """Return two directions (1, width) to write to the last stream.

    The first is written times the forecast in `LIMIT`, the second once.
    """
    basis = canvas.basis
    # an embedding has VALUE · b along "value" and SQUARE · (b² - 1/2) along "square",
    # with b in LIMIT: the products are v·b and -b²/2, up to a constant
    return LOUD / VALUE * basis["value"], -LOUD / (2 * SQUARE) * basis["square"]


def write_mean(
    canvas: ChronosBuilder,
    place: str,
    steps: Steps,
    does: str,
    query: Tensor,
    mark: str,
    value: Direction,
    constants: Pairs = (),
) -> str:
    """Let a head attend to all marked tokens and write their mean value.

    ``query`` is a direction that reads about 1 from the attending token. The head also
    writes ``constants``, pairs of the direction that is read and what is written for
    it.

    Returns:
        Name of the head.
    """
    # the norm divides a marked token by the length of its embedding and mark together
    marked_length = (1 + MARK**2) ** 0.5
    moves: list[tuple[Direction, Direction]] = [
        ("value", marked_length / VALUE * canvas.direction(value))
    ]
    for read, write in constants:
        moves.append((read, marked_length / ONE**0.5 * canvas.direction(write)))
    return canvas.head(
        place,
        does,
        "forecast token",
        steps,
        match=[(SURE * query, (marked_length / MARK, mark))],
        moves=moves,
    )


@planter("local-mean", NAME)
def local_mean(
    *, reads: Reads, seed: int, weight_noise: float, **options: Any
) -> Planted:
    """Plant the mean of the last values, by uniform attention.

    A cross-attention head attends to the tokens that an encoder head marks.

    Returns:
        The planted model.
    """
    width = (16, 8, 24)[seed % 3]
    rule = LocalMean(width=width, ago=steps_ago(reads, width, 1))
    canvas = canvas_of(rule, {"mark": 1}, needs=width, seed=seed, **options)
    steps = rule.steps(range(1, width + 1))
    mark = mark_recent(canvas, steps)
    value, constant = readout(canvas)
    name = write_mean(
        canvas,
        f"decoder.{seed % 2}.cross_attn",
        steps,
        f"writes the mean of {len(steps)} values",
        canvas.always(START_LENGTH),
        "mark",
        value,
        [("one", constant)],
    )
    canvas.draft.path(mark, name, "output")
    return canvas.finish("local-mean", weight_noise)


@planter("trend", NAME)
def trend(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant the line through two means.

    It takes two heads for the means, two clocks, and an MLP that multiplies slope and
    time.

    Returns:
        The planted model.
    """
    width, lag = ((8, 16), (6, 12), (4, 20))[seed % 3]
    blocks = {
        "late_mark": 1,
        "early_mark": 1,
        "late": 1,
        "early": 1,
        "unit": 1,
        "clock": 2,
    }
    rule = LinearTrend(width=width, lag=lag, ago=steps_ago(reads, width + lag, 1))
    canvas = canvas_of(rule, blocks, needs=width + lag, seed=seed, **options)
    heads = []
    constants: dict[str, Pairs] = {"late": [("one", "unit")], "early": []}
    for block, first in (("late", 1), ("early", lag + 1)):
        steps = rule.steps(range(first, first + width))
        mark = mark_recent(canvas, steps, mark=f"{block}_mark")
        name = write_mean(
            canvas,
            "decoder.0.cross_attn",
            steps,
            f"writes the mean of the values {steps[0]} to {steps[-1]} before the end",
            # the norm divides by about √3 at most, since by now the clocks have written
            # two hands of at most 1
            3**0.5 * canvas.always(),
            f"{block}_mark",
            block,
            constants[block],
        )
        canvas.draft.path(mark, name)
        heads.append(name)
    heads += _clocks(canvas)
    mlp = _line(canvas, rule)
    for name in heads:
        canvas.draft.path(name, mlp)
    canvas.draft.path(mlp, "output")
    return canvas.finish("trend", weight_noise)


STEEPEST = 0.6
"""Farthest that the line may lead away from the late mean, in `LIMIT`.

Beyond, the forecast stays there.
"""
SPAN = 2.2
MIDDLE = 1.2
"""A clock's hand is `SPAN` times attention less `MIDDLE`.

At the start token attention is 1, and so is the hand. At later steps, with these
numbers, attention is above 0.09 and below 1, so that its logit is finite.
"""
NEAREST = 1 - math.cos(math.radians(25))
"""Least by which another step's hands are shorter, along the hands of a step."""


def _hands(step: int) -> tuple[float, float]:
    """Return the hands of both clocks at a step.

    They start in a corner and then move on a circle, so that no step lies between
    others.
    """
    if step == 0:
        return 1.0, 1.0
    # from 100 to 350 degrees, both 55 from the corner at 45
    angle = math.radians(100 + 25 * (step - 1))
    return math.cos(angle), math.sin(angle)


def _clocks(canvas: ChronosBuilder) -> list[str]:
    """Let two decoder heads tell the step.

    They do so by how much they attend to the start token rather than to their own.

    Returns:
        Names of the heads.
    """
    basis = canvas.basis
    names = []
    for hand in (0, 1):
        shares = [(_hands(step)[hand] + MIDDLE) / SPAN for step in range(HORIZON)]
        # the match raises the start token's score by 2 · SURE, and the bias lowers all
        # earlier tokens as much: what remains is the logit of the start token's share
        # against the token itself, whose score is 0
        bias = {
            -step: math.log(share / (1 - share)) - 2 * SURE
            for step, share in enumerate(shares)
            if step
        }
        match = [(2 * SURE * canvas.always(0.0), canvas.at_start)]
        moves = [(canvas.at_start, basis["clock"][hand : hand + 1])]
        does = f"tells the step, as hand {hand + 1} of a clock"
        name = canvas.head(
            "decoder.0.self_attn", does, match=match, moves=moves, bias=bias
        )
        names.append(name)
    return names


def _line(canvas: ChronosBuilder, rule: LinearTrend) -> str:
    """Let an MLP forecast the late mean, and the slope times the steps ahead.

    Each step has two units, which the distance of the clock from this step shuts. One
    of them also reads the slope times the steps ahead, which is their difference.

    Returns:
        Name of the MLP.
    """
    basis = canvas.basis
    slope = basis["late"] - basis["early"]
    unit = basis["unit"]
    clocks = basis["clock"].split(1)
    value, constant = readout(canvas)
    # at another step this subtracts at least 2.2 · STEEPEST: what an open unit reads,
    # as much again that the slope may add, and a tenth to spare
    gain = 2.2 * STEEPEST / NEAREST
    reads = [unit, basis["late"], -basis["late"]]
    writes = [constant, value, -value]
    for step in range(HORIZON):
        steps_ahead = (step + 1 + (rule.width - 1) / 2) / rule.lag
        hands = _hands(step)
        length = math.hypot(*hands)
        pairs = zip(hands, clocks, strict=True)
        near = sum(
            (hand / length * (SPAN * clock - MIDDLE * unit) for hand, clock in pairs),
            # with this, the reading is 0 at the step itself and negative at any other
            -length * unit,
        )
        is_open = STEEPEST * unit + gain * near
        reads += [steps_ahead * slope + is_open, is_open]
        writes += [value, -value]
    does = "adds to the late mean the slope times the steps ahead"
    return canvas.mlp("decoder.0.mlp", reads, writes, does)
