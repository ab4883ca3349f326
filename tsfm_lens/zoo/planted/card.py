"""The card of a planted model: its true parts, paths, positions and inputs, as a file beside the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tsfm_lens.errors import CheckpointError
from tsfm_lens.zoo.planted.rules import Rule

__all__ = ["CARD", "Attends", "Card", "Part", "read_card", "write_card"]

CARD = "mechanism.json"
"""File of the card, in the folder of the checkpoint."""

Role = Literal["mechanism", "backup", "decoy"]
Query = Literal[
    "every token", "last token", "last value", "forecast token", "first forecast token", "later forecast tokens"
]


class Part(BaseModel):
    """A head or an MLP that was given something to do.

    Attributes:
        component: as :class:`tsfm_lens.hooks.Component` prints it, like "encoder.0.self_attn.2".
        role: "mechanism": the forecast changes without it, or without it and what stands in for it; "backup": only
            without the part that it stands in for too; "decoy": never.
        does: one sentence.
        stands_in_for: the component that a backup stands in for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    component: str
    role: Role
    does: str
    stands_in_for: str | None = None


class Attends(BaseModel):
    """Where a head looks: from queries of one kind to keys so many tokens before them.

    Attributes:
        component: the head.
        query: "every token" that has such keys, the "last token" of the stack, the "last value" of the context,
            every "forecast token", the "first forecast token", or the "later forecast tokens".
        back: tokens between query and key, the key being earlier (later where negative); in cross-attention, between
            the encoder's last token and the key of the first query.
        moves: tokens by which the keys move on from one query to the next, in cross-attention.
        weight: attention that falls on these keys, together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    component: str
    query: Query
    back: tuple[int, ...]
    moves: int = 0
    weight: float = Field(gt=0, le=1)


class Card(BaseModel):
    """What is true of a planted model.

    Attributes:
        name: like "seasonal-copy-chronos-0".
        mechanism: like "seasonal-copy".
        architecture: like "chronos".
        seed: of everything drawn: the basis of the stream, noise of the weights, decoys.
        rotated: whether the residual basis was turned at random, so that nothing lies on an axis.
        weight_noise: standard deviation of the noise that was added to every weight, relative to the weight's own.
        rule: what is computed, in closed form.
        parts: every head and MLP with a task; every other component writes nothing, or noise.
        edges: (sender, receiver) of what is passed on; the last receiver is "output".
        attends: where heads look.
        context: observed values that the mechanism needs and takes, at least and at most.
        horizon: steps that it forecasts.
        error: largest difference between the model's median forecast and the rule, in mean absolute values of the
            context, over the series that the builder tries.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    mechanism: str
    architecture: str
    seed: int
    rotated: bool
    weight_noise: float = Field(ge=0)
    rule: Rule
    parts: tuple[Part, ...]
    edges: tuple[tuple[str, str], ...]
    attends: tuple[Attends, ...]
    context: tuple[int, int]
    horizon: int = Field(gt=0)
    error: float = Field(ge=0)

    @model_validator(mode="after")
    def _speaks_of_its_parts(self) -> Card:
        known = {part.component for part in self.parts}
        named = {part.stands_in_for for part in self.parts if part.stands_in_for}
        named |= {end for edge in self.edges for end in edge} - {"output"}
        named |= {look.component for look in self.attends}
        if named - known:
            raise ValueError(f"{', '.join(sorted(named - known))}: named on the card, but no part of it")
        if not any(part.role == "mechanism" for part in self.parts):
            raise ValueError("no part with the role 'mechanism'")
        return self

    def components(self, role: Role) -> tuple[str, ...]:
        """Components of the parts with this role."""
        return tuple(part.component for part in self.parts if part.role == role)

    def stands_in(self, component: str) -> tuple[str, ...]:
        """Backups of a component: what must be ablated with it to change the forecast."""
        return tuple(part.component for part in self.parts if part.stands_in_for == component)


def write_card(card: Card, folder: Path) -> None:
    """Write the card into the folder of its checkpoint; the old one is replaced only once the new one is whole."""
    part = folder / f"{CARD}.part"
    part.write_text(card.model_dump_json(indent=2))
    part.replace(folder / CARD)


def read_card(folder: str | Path) -> Card:
    """Read the card of a planted model.

    Raises:
        CheckpointError: there is none, or it is not whole; the message says what is wrong.
    """
    path = Path(folder) / CARD
    if not path.exists():
        raise CheckpointError(f"no {CARD} in {folder}: the folder holds no planted model")
    try:
        return Card.model_validate_json(path.read_text())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the card"
        raise CheckpointError(f"{path}: {place}: {first['msg']}") from error
