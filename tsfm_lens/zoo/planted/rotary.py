"""Mechanisms in models with rotary positions: heads that attend a fixed number of tokens back."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tsfm_lens.zoo.planted.draft import Draft, drawn
from tsfm_lens.zoo.planted.patches import LOUD, SHARP, Head, Stream


class Rotary(Protocol):
    """Model under construction.

    Attributes:
        stream: with directions "values" (of the patch) and "found" (the forecast).
        numbers: head numbers in random order, four of them.
        layers: how many.
    """

    stream: Stream
    numbers: list[int]
    layers: int

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a head that attends, from every token, so many tokens back."""

    def named(self, layer: int, number: int) -> str:
        """Name such a head as a component."""


def rotary_query_and_key(frequencies: Tensor, lag: int, far: int) -> tuple[Tensor, Tensor]:
    """Return a constant query and key whose rotated product is largest `lag` tokens back, by :data:`SHARP` logits.

    Args:
        frequencies: angle per token of every pair of channels, (pair,).
        lag: tokens between query and key.
        far: largest distance of two tokens, to either side.

    Returns:
        Query and key, both (pair, 2): what the first channel and what the second channel of every pair holds.
    """
    distance = torch.arange(-far, far + 1, dtype=torch.float64)
    apart = distance[distance != lag] - lag
    gap = (1 - torch.cos(apart[:, None] * frequencies.double())).sum(1).min()
    size = float((SHARP / gap) ** 0.5)
    phase = lag * frequencies.double()
    # rotating the query by its position and the key by its own leaves cos(frequency · (distance - lag))
    query = size * torch.stack([torch.cos(phase), -torch.sin(phase)], dim=1)
    key = size * torch.stack([torch.ones_like(phase), torch.zeros_like(phase)], dim=1)
    return query, key


def plant_copy(model: Rotary, draft: Draft, tokens: int) -> str:
    """Plant a head that copies the patch so many tokens back to the forecast; return its component."""
    layer, number = drawn(*range(model.layers)), model.numbers[0]
    model.back(layer, number, tokens).carry(model.stream["values"], model.stream["found"])
    head = draft.part(model.named(layer, number), "mechanism", f"copies the patch {tokens} tokens back")
    draft.looks(head, "every token", [tokens])
    draft.path(head, "output")
    return head


def plant_decoys(model: Rotary, draft: Draft, tokens: int) -> None:
    """Plant heads that look right, write much, or look sharply, without effect."""
    values = model.stream["values"]
    rest = model.stream.rest("values")
    like, loud, sharp = ((drawn(*range(model.layers)), number) for number in model.numbers[1:])
    model.back(*like, tokens).carry(values, rest)
    model.back(*loud, 1).carry(values, rest, gain=LOUD)
    model.back(*sharp, 0).whisper(model.stream)
    stories = (
        (like, tokens, "looks where the copying head looks and copies, to where nobody reads"),
        (loud, 1, f"writes {LOUD} times the patch before to where nobody reads"),
        (sharp, 0, "looks at its own token alone and writes noise"),
    )
    for place, back, task in stories:
        head = draft.part(model.named(*place), "decoy", task)
        draft.looks(head, "every token", [back])
