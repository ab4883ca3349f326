"""Mechanisms in Chronos-Bolt's format that tell methods apart.

Two routes of which the level of the series chooses one, features in superposition, and
three attention sinks of which one matters. They are built as those of
:mod:`tsfm_lens.zoo.planted.bolt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.zoo.planted.bolt import (
    SIDE,
    WITHOUT_OFFSET,
    Bolt,
    copying,
    cross_head,
    declare,
    open_by,
)
from tsfm_lens.zoo.planted.card import Role
from tsfm_lens.zoo.planted.draft import HALF_OPEN, draw_choice, steps_ago
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

OFFSET = 3.0
"""What the bias sink adds to the forecast, in standard deviations of the context.

It is more than what the copy moves.
"""
SLOPE = 0.1
"""Share of a height that each step adds, as flat forecasts have no range."""


@declare("routes")
def _routes(reads: Reads) -> Bolt:
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
        {"level": 1, "flag": 1, **blocks},
        {"flag": 1, **blocks, "copy": PATCH},
        rule,
        needed,
    )
    mlp_layer = draw_choice(0, 1, 2)
    layer = draw_choice(*range(mlp_layer + 1))
    level = bolt.plant_back(layer, 0, [1], "level", "averages")
    flag = bolt.plant_mlp(
        "encoder",
        mlp_layer,
        "writes a flag for a high level",
        _find_steps([0.0]),
        {"flag": torch.tensor([[FLAG], [-FLAG]], dtype=torch.float64)},
    )
    bolt.draft.path(level, flag)
    heads = {"flag": flag}
    for index, (name, lag) in enumerate(lags.items(), 1):
        heads[name] = bolt.plant_back(
            draw_choice(0, 1, 2), index, bolt.lags([lag]), name, "copies"
        )
    layer = draw_choice(0, 1)
    # the flag opens the units of one route and shuts those of the other
    high, low = open_by("flag", 1.0), open_by("flag", -1.0)
    route = torch.eye(PATCH + 1, PATCH)
    shut = torch.zeros_like(route)
    gates = {block: torch.cat([high[block], low[block]]) for block in high}
    mlp = bolt.plant_mlp(
        "decoder",
        layer,
        "lets one copy through, by the flag",
        {"high": torch.cat([route, shut]), "low": torch.cat([shut, route]), **gates},
        {"copy": torch.cat([WITHOUT_OFFSET, WITHOUT_OFFSET])},
    )
    for index, (name, head) in enumerate(heads.items()):
        cross = bolt.plant_fetch(draw_choice(*range(layer + 1)), index, **{name: name})
        bolt.draft.path(head, cross, mlp, "output")
    bolt.read_out(copy=torch.eye(PATCH))
    return bolt


def _find_steps(edges: Sequence[float]) -> dict[str, Tensor]:
    """Return what two units for each edge read: their difference is 1 above its level.

    Below the edge it is 0.
    """
    # relu(x + 1/2) - relu(x - 1/2), for a distance of x times HALF_OPEN from the edge
    gain = 1 / (HALF_OPEN * SIGNAL)
    thresholds = [
        [-gain * (edge + side * HALF_OPEN) * SIGNAL / SIDE]
        for edge in edges
        for side in (-0.5, 0.5)
    ]
    one = torch.tensor(thresholds, dtype=torch.float64)
    return {"level": torch.full_like(one, gain), "one": one}


@declare("superposed")
def _superposed(reads: Reads) -> Bolt:
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
    mlp_layer = draw_choice(0, 1, 2)
    layer = draw_choice(*range(mlp_layer + 1))
    lags = bolt.lags(range(1, n_patches + 1))
    head = bolt.plant_back(layer, 0, lags, "level", "averages")
    changes = FLAG * features.diff(dim=0)
    steps = torch.stack([changes, -changes], dim=1).flatten(0, 1)
    reads_ = _find_steps(rule.edges)
    # the first feature is written by a unit that reads the constant alone
    reads_["one"] = torch.cat([reads_["one"], torch.ones(1, 1)])
    writer = bolt.plant_mlp(
        "encoder",
        mlp_layer,
        f"writes one of {len(features)} features into {DIMENSIONS} dimensions",
        reads_,
        {"code": torch.cat([steps, FLAG / SIDE * features[:1]])},
    )
    layer = draw_choice(0, 1)
    cross = bolt.plant_fetch(draw_choice(*range(layer + 1)), code="code")
    # 0 for a feature that is absent, and for the one that is present the distance of
    # both thresholds, whatever its exact length
    thresholds = torch.tensor([0.75, 0.9], dtype=torch.float64).repeat(len(features))
    heights = torch.tensor(rule.heights, dtype=torch.float64).repeat_interleave(2)
    heights[1::2] *= -1
    reader = bolt.plant_mlp(
        "decoder",
        layer,
        "writes the forecast of each feature",
        {
            "code": SIGNAL / FLAG * features.repeat_interleave(2, dim=0),
            "one": -thresholds[:, None] * SIGNAL / WIDTH**0.5,
        },
        {"height": heights[:, None] / (thresholds[1] - thresholds[0])},
    )
    bolt.read_out(height=1.0 + SLOPE * torch.arange(PATCH)[:, None])
    bolt.draft.path(head, writer, cross, reader, "output")
    return bolt


@declare("sinks")
def _sinks(reads: Reads) -> Bolt:
    """Build a seasonal copy, which one of three heads with the same pattern fetches."""
    bolt, lags = copying(reads, draw_choice(2, 3, 4))
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
        bolt.draft.part(cross_head(*place), role, does, "forecast token", [0])
    bolt.draft.path(head, cross, "output")
    return bolt
