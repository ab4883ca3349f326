"""Induction circuit of Chronos among decoys, each made to mislead one kind of method."""

from __future__ import annotations

import torch

from tsfm_lens.zoo.planted.chronos import NAME, ONE, START_LENGTH
from tsfm_lens.zoo.planted.chronos_copy import (
    BACKS,
    LOUD,
    MARK,
    SHARE,
    SURE,
    WAVE,
    Canvas,
    Lengths,
    copy_canvas,
    copying,
    period_of,
    plant_copy,
)
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import SeasonalCopy

NOISY = 1.5
"""What a loud decoy writes, in embeddings; the circuit's own heads write 0.7."""

QUIET = 0.05
"""What a sharp head that does next to nothing writes."""

SHIFT = 3.0
"""How much louder than the copy's constant part the head is that raises all logits alike."""


@planter("decoys", NAME)
def decoys(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
    """Plant the seasonal copy, and seven heads and an MLP that do nothing for the forecast."""
    rule = SeasonalCopy(period=period_of(seed))
    last = 1 + WAVE + (WAVE / 2) ** 2 + ONE * ((1 + SHIFT) ** 2 - 1)
    canvas = copy_canvas({"loud": 10, "still": 1}, rule=rule, seed=seed, rotate=rotate, loud=last**0.5)
    key_square = 1 + BACKS * WAVE + MARK**2
    lengths = Lengths(
        key=(key_square + NOISY**2) ** 0.5,
        end=(1 + BACKS * WAVE + NOISY**2) ** 0.5,
        query=(1 + WAVE + NOISY**2) ** 0.5,
    )
    name, heads = plant_copy(canvas, lengths)
    canvas.draft.looks(name, "forecast token", [rule.period], moves=1, weight=SHARE)
    _in_encoder(canvas, heads, key_square**0.5)
    _in_decoder(canvas, lengths)
    return canvas.finish("decoys", weight_noise)


def _in_encoder(canvas: Canvas, heads: dict[str, str], stream_length: float) -> None:
    """Add heads that share the position bias of the circuit's: sharp, one of them loud."""
    of, draft = canvas.basis, canvas.draft
    for task, length, steps in (("back1", NOISY, 1), ("back2", QUIET, 2)):
        name = heads[task].replace("encoder.0", "encoder.1")
        canvas.head(name, moves=[(of["wave"], length * stream_length / WAVE**0.5 * of["loud"])])
        draft.looks(name, "every token", [steps])
        text = "looks sharply and writes loudly" if length == NOISY else "looks sharply and writes next to nothing"
        draft.part(name, "decoy", f"{text}, to where nobody reads")


def _in_decoder(canvas: Canvas, lengths: Lengths) -> None:
    """Add loud, sharp and induction-like heads, one that lifts all logits alike, and an MLP."""
    of, draft = canvas.basis, canvas.draft
    own = canvas.head(
        canvas.free_head("decoder.1.self_attn"),
        moves=[(of["wave"], NOISY / WAVE**0.5 * of["loud"])],
        bias={0: 2 * SURE},
    )
    draft.part(own, "decoy", "writes the token's own value loudly, to where nobody reads")
    draft.looks(own, "every token", [0])
    still = canvas.free_head("decoder.0.cross_attn")
    moves = [(of["eos"], 2 * QUIET * lengths.end * of["still"])]
    canvas.head(still, match=[(SURE * canvas.always(START_LENGTH), lengths.end * of["eos"])], moves=moves)
    draft.part(still, "decoy", "looks at the end token and writes the same into every token")
    draft.looks(still, "forecast token", [0])
    like = canvas.free_head("decoder.1.cross_attn")
    copying(canvas, like, lengths, moves=[(of["wave"], LOUD * lengths.key * of["loud"])])
    draft.part(like, "decoy", "looks where the copying head looks, and writes as loudly to where nobody reads")
    draft.looks(like, "forecast token", [canvas.draft.rule.period], moves=1, weight=SHARE)
    shift = canvas.head(
        canvas.free_head("decoder.1.cross_attn"), moves=[(of["one"], SHIFT * LOUD * lengths.key * of["one"])]
    )
    draft.part(shift, "decoy", "attends to all alike and lifts the logits of all values by the same")
    signs = torch.cat([of["wave"], -of["wave"]])
    loud = 0.5 * LOUD * torch.cat([of["loud"], -of["loud"]])
    mlp = canvas.mlp("decoder.1.mlp", signs, loud)
    draft.part(mlp, "decoy", "writes the copied value loudly, to where nobody reads")
