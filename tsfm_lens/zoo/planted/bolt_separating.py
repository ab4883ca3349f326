"""Mechanisms in Chronos-Bolt's format that tell methods apart.

Two routes of which the level of the series chooses one, features in superposition, and
three attention sinks of which one matters. They are built as those of
:mod:`tsfm_lens.zoo.planted.bolt`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsfm_lens.zoo.planted.bolt import (
    LARGEST,
    SIDE,
    Bolt,
    copying,
    cross_head,
    declare,
)
from tsfm_lens.zoo.planted.card import Role
from tsfm_lens.zoo.planted.draft import HALF_OPEN, Draft, draw_choice, steps_ago
from tsfm_lens.zoo.planted.features import (
    DIMENSIONS,
    draw_features,
    draw_staircase,
)
from tsfm_lens.zoo.planted.patches import FLAG, PATCH, SIGNAL, WIDTH
from tsfm_lens.zoo.planted.rules import (
    Reads,
    Routes,
    SeasonalCopy,
)

STEP = torch.tensor([1.0, -1.0], dtype=torch.float64)
"""What the two units of a step are written with."""
OFFSET = 3.0
"""What the bias sink adds to the forecast, in standard deviations of the context.

It is more than what the copy moves.
"""
SLOPE = 0.1
"""Share of a height that each step adds, as flat forecasts have no range."""


@declare("routes")
def _routes(reads: Reads) -> tuple[Bolt, Draft]:
    """Build copies of two patches, of which the level of the last one chooses."""
    lags = {"high": draw_choice(2, 3)}
    lags["low"] = lags["high"] + draw_choice(1, 2)
    needed = max(lags.values()) * PATCH
    ago = steps_ago(reads, needed, PATCH)
    copies: dict[str, Any] = {
        name: SeasonalCopy(period=lag * PATCH, ago=ago) for name, lag in lags.items()
    }
    rule = Routes(width=PATCH, ago=ago, unit="standard deviation", **copies)
    blocks = dict.fromkeys(lags, PATCH)
    bolt = Bolt(
        {"level": 1, "flag": 1, **blocks}, {"flag": 1, **blocks, "copy": PATCH}, rule, 0
    )
    draft = bolt.draft
    draft.context = (needed + max(ago), draft.context[1])
    mlp_layer = draw_choice(0, 1, 2)
    layer = draw_choice(*range(mlp_layer + 1))
    level = bolt.plant_back(layer, 0, [1], "level", "averages")
    task = "writes a flag for a high level"
    in_weights, out_weights, flag = bolt.mlp("encoder", mlp_layer, task)
    _find_step(bolt, in_weights[:2], 0.0)
    out_weights[bolt.encoder["flag"], :2] = FLAG * STEP
    heads = {"flag": flag}
    draft.path(level, flag)
    for index, (name, lag) in enumerate(lags.items(), 1):
        heads[name] = bolt.plant_back(
            draw_choice(0, 1, 2), index, bolt.lags([lag]), name, "copies"
        )
    layer = draw_choice(0, 1)
    task = "lets one copy through, by the flag"
    in_weights, out_weights, mlp = bolt.mlp("decoder", layer, task)
    stream = bolt.decoder
    identity = torch.eye(PATCH)
    # the flag adds LARGEST to the units of one route and -LARGEST to those of the
    # other; the last unit of each reads that alone, and subtracts it
    for index, (name, sign) in enumerate((("high", 1.0), ("low", -1.0))):
        units = slice(index * (PATCH + 1), (index + 1) * (PATCH + 1))
        copying = slice(units.start, units.stop - 1)
        in_weights[units, stream["flag"]] = 2 * sign * LARGEST * SIGNAL / FLAG
        in_weights[units, stream["one"]] = -sign * LARGEST * SIGNAL / WIDTH**0.5
        in_weights[copying, stream[name]] = identity
        out_weights[stream["copy"], copying] = identity
        out_weights[stream["copy"], copying.stop] = -1.0
    for index, (name, head) in enumerate(heads.items()):
        cross = bolt.plant_fetch(draw_choice(*range(layer + 1)), index, **{name: name})
        draft.path(head, cross, mlp, "output")
    bolt.read_out(copy=identity)
    return bolt, draft


def _find_step(bolt: Bolt, in_weights: Tensor, edge: float) -> None:
    """Let the difference of two units (unit, stream) be 1 above a level, 0 below it."""
    # relu(x + 1/2) - relu(x - 1/2), for a distance of x times HALF_OPEN from the edge
    gain = 1 / (HALF_OPEN * SIGNAL)
    stream = bolt.encoder
    in_weights[:, stream["level"]] = gain
    for unit, side in enumerate((-0.5, 0.5)):
        threshold = (edge + side * HALF_OPEN) * SIGNAL
        in_weights[unit, stream["one"]] = -gain * threshold / SIDE


@declare("superposed")
def _superposed(reads: Reads) -> tuple[Bolt, Draft]:
    """Build a staircase, whose stairs are features in fewer dimensions."""
    n_patches = draw_choice(2, 3, 4)
    distance = n_patches * PATCH
    features = draw_features()
    rule = draw_staircase(
        width=distance,
        slope=SLOPE,
        ago=steps_ago(reads, distance, PATCH),
        unit="standard deviation",
    )
    bolt = Bolt(
        {"level": 1, "code": DIMENSIONS},
        {"code": DIMENSIONS, "height": 1},
        rule,
        distance,
    )
    draft = bolt.draft
    mlp_layer = draw_choice(0, 1, 2)
    layer = draw_choice(*range(mlp_layer + 1))
    lags = bolt.lags(range(1, n_patches + 1))
    head = bolt.plant_back(layer, 0, lags, "level", "averages")
    task = f"writes one of {len(features)} features into {DIMENSIONS} dimensions"
    in_weights, out_weights, writer = bolt.mlp("encoder", mlp_layer, task)
    stream = bolt.encoder
    changes = features.diff(dim=0)
    for index, edge in enumerate(rule.edges):
        units = slice(2 * index, 2 * index + 2)
        _find_step(bolt, in_weights[units], edge)
        out_weights[stream["code"], units] = FLAG * torch.outer(changes[index], STEP)
    constant = 2 * len(rule.edges)
    in_weights[constant, stream["one"]] = 1.0
    out_weights[stream["code"], constant] = FLAG / SIDE * features[0]
    layer = draw_choice(0, 1)
    cross = bolt.plant_fetch(draw_choice(*range(layer + 1)), code="code")
    task = "writes the forecast of each feature"
    in_weights, out_weights, reader = bolt.mlp("decoder", layer, task)
    stream = bolt.decoder
    # 0 for a feature that is absent, and for the one that is present the distance of
    # both thresholds, whatever its exact length
    thresholds = (0.75, 0.9)
    for index, (feature, height) in enumerate(zip(features, rule.heights, strict=True)):
        for side, threshold in enumerate(thresholds):
            unit = 2 * index + side
            in_weights[unit, stream["code"]] = SIGNAL / FLAG * feature
            in_weights[unit, stream["one"]] = -threshold * SIGNAL / WIDTH**0.5
            out_weights[stream["height"], unit] = (
                height * (1 - 2 * side) / (thresholds[1] - thresholds[0])
            )
    bolt.read_out(height=1.0 + SLOPE * torch.arange(PATCH)[:, None])
    draft.path(head, writer, cross, reader, "output")
    return bolt, draft


@declare("sinks")
def _sinks(reads: Reads) -> tuple[Bolt, Draft]:
    """Build a seasonal copy, which one of three heads with the same pattern fetches."""
    bolt, lags = copying(reads, draw_choice(2, 3, 4))
    draft = bolt.draft
    head = bolt.plant_back(draw_choice(0, 1, 2), 0, lags, "copy", "copies")
    cross = bolt.plant_fetch(draw_choice(0, 1), copy="copy")
    copy = bolt.decoder["copy"]
    others: tuple[tuple[str, Role, str], ...] = (
        ("values", "decoy", "rests on the REG token, which has no values"),
        ("mark", "constant", "adds the same always"),
    )
    for index, (source, role, does) in enumerate(others, 1):
        place = (draw_choice(0, 1), bolt.numbers["decoder"][index])
        sink = bolt.fetch(*place).carry(bolt.encoder[source], copy)
        if role == "constant":
            # its one channel is written to all steps
            sink.o[copy] = 0.0
            sink.o[copy, 0] = OFFSET * SIGNAL / SIDE
        draft.part(cross_head(*place), role, does, "forecast token", [0])
    draft.path(head, cross, "output")
    return bolt, draft
