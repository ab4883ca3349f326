"""A planted model in three lines: random weights, and all but a head and an MLP write
nothing.
"""

from __future__ import annotations

from edited_weights import silenced
from tiny_lenses import fresh
from tsfm_lens.zoo.planted import Card, LocalMean, Planted, PlantedPart

ALIVE = ("decoder.0.cross_attn.2", "decoder.1.mlp")


def stub(architecture: str = "chronos-bolt", seed: int = 0) -> Planted:
    """One head writes, and one MLP behind it."""
    lens = fresh(architecture)
    parts = lens.components("*.*.*.*", "*.*.mlp")
    silent = silenced(lens, [part for part in parts if str(part) not in ALIVE])
    card = Card(
        name=f"stand-in-{seed}",
        mechanism="stand-in",
        architecture=architecture,
        seed=seed,
        rotated=False,
        weight_noise=0,
        attends=(),
        context=(64, 64),
        horizon=8,
        error=0,
        rule=LocalMean(width=16),
        parts=tuple(
            PlantedPart(component=name, role="mechanism", does="writes")
            for name in ALIVE
        ),
        edges=((ALIVE[0], ALIVE[1]), (ALIVE[0], "output"), (ALIVE[1], "output")),
    )
    return Planted(silent.model, card)
