"""Models of one stream with rotary positions, in which heads attend a fixed number of tokens back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.zoo.planted.basis import orthogonal
from tsfm_lens.zoo.planted.draft import Build, Draft, draw_choice
from tsfm_lens.zoo.planted.patches import (
    DECILES,
    LOUD,
    PATCH,
    SHARP,
    SIGNAL,
    Head,
    Stream,
    deviates,
    fill_with_noise,
    head_of,
    read_by,
    straighten,
    turn,
    written_by,
)

HEADS = 4


class RotaryModel:
    """Model whose every head and MLP writes noise that nobody reads, until it gets a task.

    Args:
        model: the native one, in double precision.
        stream: with directions "one" (constant), "values" (of the patch) and "found" (the forecast).

    Attributes:
        numbers: head numbers in random order.
        layers: how many.
        channels: of a head.
        projections: names of the projections of an attention, the output last.
    """

    layers: int
    channels: int
    projections: tuple[str, str, str, str] = ("q", "k", "v", "o")

    def __init__(self, model: Any, stream: Stream) -> None:
        self.model, self.stream = model, stream
        self.numbers: list[int] = torch.randperm(HEADS).tolist()
        heads = [self.head_of(attention, number) for attention in self.attentions() for number in range(HEADS)]
        fill_with_noise(heads, self.mlps(), stream)
        into, out = self.blocks()
        straighten(into)
        straighten(out)
        into.residual_layer.bias[stream["one"]] = stream.width**0.5
        out.residual_layer.weight[:, stream["found"]] = torch.eye(PATCH).double().repeat(len(DECILES), 1) / SIGNAL
        out.residual_layer.bias.copy_(deviates().repeat_interleave(PATCH))

    def attentions(self) -> list[Any]:
        """Return the native attentions."""
        raise NotImplementedError

    def mlps(self) -> list[tuple[list[Tensor], Tensor]]:
        """Return reading weights and writing weight of each MLP."""
        raise NotImplementedError

    def blocks(self) -> tuple[Any, Any]:
        """Return the residual blocks of patches to the stream, and of the stream to a forecast."""
        raise NotImplementedError

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a head that attends, from every token, so many tokens back."""
        raise NotImplementedError

    def named(self, layer: int, number: int) -> str:
        """Name such a head as a component."""
        raise NotImplementedError

    def head_of(self, attention: Any, number: int) -> Head:
        """View the weights of a head."""
        return head_of(attention, number, self.channels, self.projections)

    def finish(self, *, rotate: bool) -> Any:
        """Turn the stream at random, and return the model in single precision."""
        if rotate:
            into, out = self.blocks()
            embeddings = [self.model.shared.weight] if hasattr(self.model, "shared") else []
            in_weights, out_weights = [*embeddings, *read_by(out)], written_by(into)
            for attention in self.attentions():
                *reading, writing = (getattr(attention, name).weight for name in self.projections)
                in_weights += reading
                out_weights.append(writing)
            for reading, writing in self.mlps():
                in_weights += reading
                out_weights.append(writing)
            turn(in_weights, out_weights, orthogonal(self.stream.width, int(torch.randint(2**31, ()))))
        return self.model.float()


def rotary_query_and_key(frequencies: Tensor, lag: int, far: int) -> tuple[Tensor, Tensor]:
    """Return a constant query and key whose rotated product is largest `lag` tokens back, by :data:`SHARP` logits.

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


def plant_copy(model: RotaryModel, draft: Draft, tokens: int) -> str:
    """Plant a head that copies the patch so many tokens back to the forecast; return its component."""
    layer, number = draw_choice(*range(model.layers)), model.numbers[0]
    model.back(layer, number, tokens).carry(model.stream["values"], model.stream["found"])
    head = draft.part(model.named(layer, number), "mechanism", f"copies the patch {tokens} tokens back")
    draft.looks(head, "every token", [tokens])
    draft.path(head, "output")
    return head


def plant_decoys(model: RotaryModel, draft: Draft, tokens: int) -> None:
    """Plant heads that look right, write much, or look sharply, without effect."""
    values = model.stream["values"]
    rest = model.stream.rest("values")
    like, loud, sharp = ((draw_choice(*range(model.layers)), number) for number in model.numbers[1:])
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


def declare_copies(
    declare: Callable[[str], Callable[[Build], Build]],
    build: Callable[[], tuple[Any, Draft, int]],
    more: Callable[[Any, Draft], None] | None = None,
) -> None:
    """Declare the seasonal copy in a format, and the copy among decoys."""

    def copy_alone() -> tuple[Any, Draft]:
        model, draft, _ = build()
        return model, draft

    def among_decoys() -> tuple[Any, Draft]:
        model, draft, tokens = build()
        plant_decoys(model, draft, tokens)
        if more is not None:
            more(model, draft)
        return model, draft

    declare("seasonal-copy")(copy_alone)
    declare("decoys")(among_decoys)
