"""A planted model in three lines: random weights, and all but a head and an MLP write nothing."""

from __future__ import annotations

import torch

from tiny_lenses import fresh
from tsfm_lens.zoo.planted import Card, LocalMean, Planted, PlantedPart

ALIVE = ("decoder.0.cross_attn.2", "decoder.1.mlp")


def stand_in(architecture: str = "chronos-bolt", seed: int = 0) -> Planted:
    """One head writes, and one MLP behind it."""
    lens = fresh(architecture)
    with torch.no_grad():
        for component in lens.components("*.*.*.*", "*.*.mlp"):
            if str(component) in ALIVE:
                continue
            block = lens.adapter.model.get_submodule(
                lens.wiring.stack(component.stack).block(component.layer)
            )
            row = lens.wiring.stack(component.stack).writer(
                component.kind, component.layer
            )
            if component.head is None:
                block.get_submodule(row.o).weight.zero_()
            else:
                width = lens.wiring.stack(component.stack).d_head
                block.get_submodule(row.o.module).weight[
                    :, component.head * width : (component.head + 1) * width
                ] = 0
    parts = tuple(
        PlantedPart(component=name, role="mechanism", does="writes") for name in ALIVE
    )
    edges = ((ALIVE[0], ALIVE[1]), (ALIVE[0], "output"), (ALIVE[1], "output"))
    rule = LocalMean(width=16)
    about = {
        "name": f"stand-in-{seed}",
        "mechanism": "stand-in",
        "architecture": architecture,
        "seed": seed,
    }
    about |= {
        "rotated": False,
        "weight_noise": 0,
        "attends": (),
        "context": (64, 64),
        "horizon": 8,
        "error": 0,
    }
    card = Card(**about, rule=rule, parts=parts, edges=edges)
    return Planted(lens.model, card)
