"""Planting of a mechanism in a model of the native library.

:func:`plant` builds a :class:`Planted` model, :func:`mechanisms` lists what can be
built, and :func:`open_planted` opens a saved one. How weights are set is in the modules
of the formats, such as :mod:`tsfm_lens.zoo.planted.chronos_copy`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.io import follow_umask
from tsfm_lens.models import Lens, load
from tsfm_lens.models.checkpoint import WEIGHTS
from tsfm_lens.zoo.planted.card import Card, read_card, write_card
from tsfm_lens.zoo.planted.rules import Reads

__all__ = ["Planted", "mechanisms", "open_planted", "plant"]


@dataclass(frozen=True)
class Planted:
    """Native model (or pipeline) with set weights, and its ground truth."""

    model: Any
    card: Card

    def lens(self) -> Lens:
        """Open the model as a lens."""
        return load(self.model)

    def save(self, folder: str | Path) -> Path:
        """Write checkpoint and card.

        `tsfm_lens.load(folder)` opens the checkpoint, `read_card(folder)` reads the
        card.

        Returns:
            The folder.
        """
        folder = save_weights(self.model, folder)
        write_card(self.card, folder)
        return folder


def save_weights(model: Any, folder: str | Path) -> Path:
    """Write the checkpoint of a native model, without a card.

    Returns:
        The folder.
    """
    folder = Path(folder)
    model.save_pretrained(folder)
    # safetensors writes its file readable by the owner alone
    follow_umask(folder / WEIGHTS)
    return folder


def open_planted(folder: str | Path) -> tuple[Lens, Card]:
    """Open a saved planted model.

    Returns:
        The model, and its card.

    Raises:
        CheckpointError: checkpoint or card is incomplete or damaged.
    """
    # the card first, since its seal also shows damaged weights
    card = read_card(folder)
    return load(folder), card


Planter = Callable[..., Planted]
_PLANTERS: dict[tuple[str, str], Planter] = {}
READS: tuple[Reads, ...] = get_args(Reads)
ONE_STRETCH = {
    ("backup", "chronos"),
    ("decoys", "chronos"),
    ("gate", "chronos"),
    ("seasonal-copy", "chronos"),
    ("decoys", "chronos-2"),
    ("seasonal-copy", "chronos-2"),
}
"""Mechanisms that can read only one stretch of the context.

They cannot compute the mean of several stretches exactly, since they find a single
value, or read values after a nonlinear function.
"""
SEPARATING = ("routes", "sinks", "superposed")
"""Mechanisms for the benchmark of methods alone, which :func:`mechanisms` leaves out.

The page of planted models and the leaderboard are about the others.
"""


def planter(mechanism: str, architecture: str) -> Callable[[Planter], Planter]:
    """Declare a function that plants `mechanism` in `architecture`.

    It is called as `f(*, reads, seed, ...) -> Planted`.

    Returns:
        A decorator.
    """
    # ``setdefault`` returns the function, as a decorator must
    return lambda function: _PLANTERS.setdefault((mechanism, architecture), function)


def mechanisms() -> tuple[tuple[str, str], ...]:
    """Return every (mechanism, architecture) that can be planted, sorted.

    Those that only tell methods apart, :data:`SEPARATING`, are left out.
    """
    # not at the top of this module, as the formats import the libraries of the models
    _import_formats()
    return tuple(sorted(pair for pair in _PLANTERS if pair[0] not in SEPARATING))


def plant(
    mechanism: str,
    architecture: str,
    *,
    reads: Reads | None = "recent",
    seed: int = 0,
    rotate: bool = True,
    weight_noise: float = 0.0,
) -> Planted:
    """Build a model that holds a mechanism.

    Args:
        mechanism: name of a mechanism that :func:`mechanisms` lists.
        architecture: name of an architecture that it lists for the mechanism.
        reads: which part of the context; if None, the seed chooses one in turn, and
            "middle" instead of "spread" where the mechanism reads one stretch.
        seed: draws everything that is random.
        rotate: turn the residual basis at random, so that nothing lies on an axis.
        weight_noise: standard deviation of noise on every weight, relative to the
            weight matrix's own.

    Returns:
        The model, its rule and its card.

    Raises:
        UnknownNameError: nothing of that name can be planted there; the message has the
            nearest pair.
        InputError: the mechanism reads one stretch there, and cannot be spread.
    """
    _import_formats()
    if (mechanism, architecture) not in _PLANTERS:
        pair = f"{mechanism} in {architecture}"
        # both in one text, so that the nearest pair is found whichever of the two is
        # misspelt
        names = [f"{name} in {known_format}" for name, known_format in _PLANTERS]
        raise unknown_name("planted mechanism", pair, names)
    one_stretch = (mechanism, architecture) in ONE_STRETCH
    if not reads:
        last: Reads = "middle" if one_stretch else "spread"
        turns: tuple[Reads, ...] = (*READS[:-1], last)
        reads = turns[seed % len(turns)]
    if reads not in READS:
        raise unknown_name("part of the context", reads, READS)
    if reads == "spread" and one_stretch:
        raise InputError(
            f"reads='spread': {mechanism} in {architecture} reads one stretch; choose"
            f" of {READS[:-1]}"
        )
    return _PLANTERS[mechanism, architecture](
        reads=reads, seed=seed, rotate=rotate, weight_noise=weight_noise
    )


def _import_formats() -> None:
    """Import the modules of this package, among them those that declare planters."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name != "__main__":
            import_module(f"{__package__}.{module.name}")
