"""Checkpoints that ship with the package, by name.

They are folders of ``tsfm_lens/zoo``; :func:`tsfm_lens.load` opens their weights.
"""

from __future__ import annotations

from pathlib import Path

from tsfm_lens.core.errors import unknown_name

_ZOO = Path(__file__).parents[1] / "zoo"

__all__ = ["checkpoint_names", "checkpoint_path", "has_training_record"]

RECORD = "training.nc"


def checkpoint_names() -> tuple[str, ...]:
    """List the checkpoints that ship with the package.

    Returns:
        Names, sorted.

    Example:
        >>> zoo.checkpoint_names()
        ('bolt-nano', 'chronos-nano', 'chronos2-nano')
    """
    # by their weights: the folder also has packages, such as `planted`
    return tuple(sorted(path.parent.name for path in _ZOO.glob("*/model.safetensors")))


def checkpoint_path(name: str) -> Path:
    """Return the folder of an embedded checkpoint.

    Args:
        name: of the checkpoint, such as "bolt-nano".

    Returns:
        The folder, which :func:`tsfm_lens.load` opens.

    Raises:
        UnknownNameError: No checkpoint has this name; the message names the nearest
            one.

    Example:
        >>> zoo.checkpoint_path("bolt-nano").name
        'bolt-nano'
    """
    if name not in checkpoint_names():
        raise unknown_name("embedded checkpoint", name, checkpoint_names())
    return _ZOO / name


def has_training_record(name: str) -> bool:
    """Test if a record of its training ships with an embedded checkpoint.

    Args:
        name: of a checkpoint, or anything that :func:`tsfm_lens.load` takes.

    Returns:
        True if it does.

    Example:
        >>> zoo.has_training_record("amazon/chronos-bolt-base")
        False
    """
    return name in checkpoint_names() and (checkpoint_path(name) / RECORD).exists()
