"""Mechanisms in Chronos's format that tell methods apart.

Two routes of which the level of the series chooses one, features in superposition, and
three attention sinks of which one matters. They are built as the means of
:mod:`tsfm_lens.zoo.planted.chronos_means`.
"""

from __future__ import annotations

from typing import Any

import torch

from tsfm_lens.zoo.planted.card import Role
from tsfm_lens.zoo.planted.chronos import (
    LIMIT,
    NAME,
    ONE,
    START_LENGTH,
    ChronosBuilder,
    Direction,
    Pairs,
)
from tsfm_lens.zoo.planted.chronos_copy import MARK, SURE, mark_recent
from tsfm_lens.zoo.planted.chronos_means import VALUE, canvas_of, readout, write_mean
from tsfm_lens.zoo.planted.draft import HALF_OPEN, steps_ago
from tsfm_lens.zoo.planted.features import (
    DIMENSIONS,
    draw_features,
    draw_staircase,
)
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import LocalMean, Reads, Routes

SWITCH = 200.0
"""Factor on the level that chooses a route.

Against it, what either route carries does not count.
"""
UNIT = 10.0
"""Length of a constant, so large that all tokens have about its length."""
POOL = 0.05
"""Factor on the mean that the end token holds, which so keeps its length."""
OFFSET = 3.0
"""What the bias sink adds to the forecast, in mean absolute values of the context.

It is more than what the mean moves.
"""


def _find_mean(
    canvas: ChronosBuilder, name: str, steps: list[int], unit: float = 0.0
) -> list[str]:
    """Let two heads write the mean of some values into the block of a name.

    With ``unit``, the second also writes a constant of this length.

    Returns:
        Names of the heads.
    """
    marking = mark_recent(canvas, steps, mark=f"{name}_mark")
    constants: Pairs = [("one", (unit, "unit"))] if unit else []
    mean = write_mean(
        canvas,
        "decoder.0.cross_attn",
        steps,
        f"writes the mean of the values {steps[0]} to {steps[-1]} before the end",
        canvas.always(START_LENGTH),
        f"{name}_mark",
        name,
        constants,
    )
    return [marking, mean]


@planter("routes", NAME)
def routes(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant two means of older values, of which the level of the last ones chooses.

    Returns:
        The planted model.
    """
    width = (8, 6, 4)[seed % 3]
    starts = {"high": width, "low": 2 * width}
    (ago, *_) = steps_ago(reads, 3 * width, 1)
    means: dict[str, Any] = {
        name: LocalMean(width=width, ago=(start + ago,))
        for name, start in starts.items()
    }
    rule = Routes(width=width, ago=(ago,), **means)
    names = ("level", *means)
    blocks = {"unit": 1}
    blocks |= {f"{name}{end}": 1 for name in names for end in ("", "_mark")}
    canvas = canvas_of(rule, blocks, needs=3 * width, seed=seed, **options)
    basis = canvas.basis
    paths = [_find_mean(canvas, "level", list(range(1, width + 1)), 1.0)]
    for name, mean in means.items():
        paths.append(_find_mean(canvas, name, list(mean.steps(range(1, width + 1)))))
    value, constant = readout(canvas)
    # relu(x + s) - relu(s) is x for a large s, and 0 for a large -s
    reads_: list[Direction] = ["unit"]
    writes = [constant]
    for name, sign in (("high", 1.0), ("low", -1.0)):
        switch = sign * SWITCH * basis["level"]
        reads_ += [basis[name] + switch, switch]
        writes += [value, -value]
    mlp = canvas.mlp(
        "decoder.0.mlp",
        reads_,
        writes,
        "lets one mean through, by the level",
    )
    for path in paths:
        canvas.draft.path(*path, mlp, "output")
    return canvas.finish("routes", weight_noise)


@planter("superposed", NAME)
def superposed(
    *, reads: Reads, seed: int, weight_noise: float, **options: Any
) -> Planted:
    """Plant a staircase, whose stairs are features in fewer dimensions.

    Returns:
        The planted model.
    """
    width = (16, 8, 24)[seed % 3]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features = draw_features()
        rule = draw_staircase(width=width, ago=steps_ago(reads, width, 1))
    blocks = {"level_mark": 1, "level": 1, "unit": 1, "code": DIMENSIONS}
    canvas = canvas_of(rule, blocks, needs=width, seed=seed, **options)
    basis = canvas.basis
    steps = list(LocalMean(width=width, ago=rule.ago).steps(range(1, width + 1)))
    path = _find_mean(canvas, "level", steps, UNIT)
    unit = basis["unit"] / UNIT
    # the difference of two units on both sides of an edge is 0 below it, and UNIT above
    # once the norm has divided by about UNIT
    gain = UNIT**2 * LIMIT / HALF_OPEN
    reads_: list[Direction] = [UNIT * unit]
    writes = [UNIT * features[:1] @ basis["code"]]
    for edge, change in zip(
        rule.edges, features.diff(dim=0) @ basis["code"], strict=True
    ):
        for side in (-0.5, 0.5):
            level = (edge + side * HALF_OPEN) / LIMIT * unit
            reads_.append(gain * (basis["level"] - level))
            writes.append(-2 * side * change[None])
    path.append(
        canvas.mlp(
            "decoder.0.mlp",
            reads_,
            writes,
            f"writes one of {len(features)} features into {DIMENSIONS} dimensions",
        )
    )
    value, constant = readout(canvas)
    # the feature that is present also writes the constant, so that its length does not
    # count
    reads_, writes = [], []
    for feature, height in zip(features, rule.heights, strict=True):
        reads_.append(feature[None] @ basis["code"] / UNIT - 0.85 * unit)
        writes.append(UNIT * (constant + height / LIMIT * value))
    path.append(
        canvas.mlp(
            "decoder.1.mlp",
            reads_,
            writes,
            "writes the forecast of each feature",
        )
    )
    canvas.draft.path(*path, "output")
    return canvas.finish("superposed", weight_noise)


@planter("sinks", NAME)
def sinks(*, reads: Reads, seed: int, weight_noise: float, **options: Any) -> Planted:
    """Plant a mean that the end token holds, and three heads that look there alone.

    One of them broadcasts the mean, one adds a constant, and one writes nothing.

    Returns:
        The planted model.
    """
    width = (16, 8, 24)[seed % 3]
    rule = LocalMean(width=width, ago=steps_ago(reads, width, 1))
    canvas = canvas_of(rule, {"mark": 1, "pool": 1}, needs=width, seed=seed, **options)
    steps = rule.steps(range(1, width + 1))
    mark = mark_recent(canvas, steps)
    marked_length = (1 + MARK**2) ** 0.5
    pool = canvas.head(
        "encoder.1.self_attn",
        f"writes the mean of {len(steps)} values into the end token",
        match=[
            ((SURE, "eos"), (marked_length / MARK, "mark")),
            # all others look at the end token, which has no value
            ((SURE * marked_length / ONE**0.5, "one"), "eos"),
        ],
        moves=[("value", (POOL * marked_length / VALUE, "pool"))],
    )
    value, constant = readout(canvas)
    offset = OFFSET / LIMIT * value
    match: Pairs = [(SURE * canvas.always(START_LENGTH), "eos")]
    names = []
    heads: tuple[tuple[Role, str, Pairs], ...] = (
        (
            "mechanism",
            "writes what the end token holds",
            [("pool", value / POOL), ("eos", constant - offset)],
        ),
        ("constant", "adds the same always", [("eos", offset)]),
        (
            "decoy",
            "rests on the end token, which has no value",
            [("value", value / VALUE)],
        ),
    )
    for role, does, moves in heads:
        name = canvas.head(
            f"decoder.{seed % 2}.cross_attn",
            does,
            "forecast token",
            [0],
            match=match,
            moves=moves,
            role=role,
        )
        names.append(name)
    canvas.draft.path(mark, pool, names[0], "output")
    return canvas.finish("sinks", weight_noise)
