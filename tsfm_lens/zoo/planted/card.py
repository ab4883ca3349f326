"""Card of a planted model: its true parts, paths, positions and inputs.

:class:`Card` is the ground truth; :func:`write_card` and :func:`read_card` keep it as a
file in the folder of the weights, sealed with them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open

from tsfm_lens.core.errors import CheckpointError
from tsfm_lens.core.io import replacing
from tsfm_lens.data.checked import Strict
from tsfm_lens.zoo.planted.rules import Rule

__all__ = ["Attends", "Card", "PlantedPart", "read_card", "write_card"]

CARD = "mechanism.json"
"""Name of the card's file, in the folder of the checkpoint."""
SEAL = "seal"
"""Entry of the card with the digest of its other fields and of the weights."""

Role = Literal["mechanism", "backup", "decoy", "cancelling", "constant"]
Query = Literal[
    "every token",
    "last token",
    "last value",
    "forecast token",
    "first forecast token",
    "later forecast tokens",
]


class PlantedPart(Strict):
    """Head or MLP that has a task.

    Attributes:
        component: as :class:`tsfm_lens.hooks.Component` prints it, like
            "encoder.0.self_attn.2".
        role: says when ablating the part changes the forecast. "mechanism": always, or
            if the backup that stands in for it is ablated, too; "backup": only together
            with the part that it stands in for; "decoy": never; "cancelling": unless
            its partner is ablated, too; "constant": by the same for every series, so
            that it carries nothing of them.
        stands_in_for: of a backup, the component whose task it takes over.
        cancels: of a cancelling part, the partner that takes away what it writes.
    """

    component: str
    role: Role
    does: str
    stands_in_for: str | None = None
    cancels: str | None = None


class Attends(Strict):
    """Attention of a head from some queries to keys at fixed distances.

    Attributes:
        query: tokens that attend; "every token" means each that has such keys.
        back: distances in tokens from a query back to its keys; a negative one leads to
            a later key. In cross-attention, they are those from the encoder's last
            token back to the keys of the first query.
        moves: in cross-attention, tokens by which the keys move on from one query to
            the next.
        weight: sum of the attention to these keys.
        series: series that the keys belong to: the query's own or, in attention over a
            group, the known covariate.
    """

    component: str
    query: Query
    back: tuple[int, ...]
    moves: int = 0
    weight: float = Field(gt=0, le=1)
    series: Literal["own", "known covariate"] = "own"


class Card(Strict):
    """Ground truth of a planted model.

    Attributes:
        seed: of everything drawn: the basis of the stream, noise of the weights,
            decoys.
        rotated: whether the residual basis was turned at random, so that nothing lies
            on an axis.
        weight_noise: standard deviation of the noise that was added to every weight,
            relative to the weight's own.
        rule: the computation, in closed form.
        parts: every head and MLP with a task; every other component writes nothing, or
            noise.
        edges: (sender, receiver) of each connection; the last receiver is "output".
        context: observed values that the mechanism needs and takes, at least and at
            most.
        error: largest difference between the model's median forecast and the rule, in
            mean absolute values of the context, over the series that the builder tries.
    """

    name: str
    mechanism: str
    architecture: str
    seed: int
    rotated: bool
    weight_noise: float = Field(ge=0)
    rule: Rule
    parts: tuple[PlantedPart, ...]
    edges: tuple[tuple[str, str], ...]
    attends: tuple[Attends, ...]
    context: tuple[int, int]
    horizon: int = Field(gt=0)
    error: float = Field(ge=0)

    def components(self, role: Role) -> tuple[str, ...]:
        """Return components of the parts with this role."""
        return tuple(part.component for part in self.parts if part.role == role)


def write_card(card: Card, folder: str | Path) -> None:
    """Write the card into the folder of the weights, with a seal over card and weights.

    An old card is replaced only once the new one is complete.
    """
    path = Path(folder) / CARD
    content = card.model_dump(mode="json")
    # the seal reads the weights, which must be there already
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps({**content, SEAL: seal_of(content, path.parent)}, indent=2)
        )


def read_card(folder: str | Path) -> Card:
    """Read the card of a planted model.

    Returns:
        The card.

    Raises:
        CheckpointError: there is none, it is damaged, or it is not that of the weights
            beside it.
    """
    path = Path(folder) / CARD
    if not path.is_file():
        raise CheckpointError(
            f"no {CARD} in {folder}: the folder holds no planted model"
        )
    try:
        content = json.loads(path.read_text())
        seal = None
        if isinstance(content, dict):
            seal = content.pop(SEAL, None)
        card = Card.model_validate_json(json.dumps(content))
    # before ``ValueError``, of which pydantic's error is a subclass
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "the card"
        raise CheckpointError(f"{path}: {location}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no JSON text: {error}") from error
    # of the card as read and not of the text, so that spaces and the order of fields do
    # not matter
    if seal != seal_of(card.model_dump(mode="json"), path.parent):
        raise CheckpointError(
            f"{path} is not the card of the weights beside it: one of the two was"
            f" changed after they were saved. Plant {card.mechanism} in"
            f" {card.architecture} again (seed {card.seed}), or write the card by"
            " write_card"
        )
    return card


def seal_of(content: dict[str, Any], folder: Path) -> str:
    """Compute the digest of a card's fields and of every tensor in its folder."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as tensors:
                # the order of tensors in a file is no property of the weights
                for name in sorted(tensors.keys()):
                    values = tensors.get_tensor(name)
                    # bytes alone would not tell where one tensor ends
                    digest.update(f"{name} {values.dtype} {values.shape}".encode())
                    digest.update(values.tobytes())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} holds no weights: {error}") from error
    return digest.hexdigest()
