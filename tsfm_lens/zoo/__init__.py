"""Embedded reference checkpoints: small real models in the native formats, and the code that trained them.

No torch is imported here; `python -m tsfm_lens.zoo.train NAME --out DIR` trains a checkpoint again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsfm_lens.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray as xr

_ROOM = Path(__file__).parent
_RECORD = "training.nc"
_LOW_RANK = "low-rank"

__all__ = ["checkpoint_names", "checkpoint_path", "has_training_record", "low_rank_record", "training_record"]


def checkpoint_names() -> tuple[str, ...]:
    """Names of the checkpoints that ship with the package, sorted.

    Example:
        >>> zoo.checkpoint_names()
        ('bolt-nano', 'chronos-nano', 'chronos2-nano')
    """
    return tuple(sorted(path.parent.name for path in _ROOM.glob("*/model.safetensors")))


def checkpoint_path(name: str) -> Path:
    """Folder of an embedded checkpoint.

    Raises:
        UnknownNameError: No checkpoint has this name; the message names the nearest one.

    Example:
        >>> zoo.checkpoint_path("bolt-nano").name
        'bolt-nano'
    """
    if name not in checkpoint_names():
        raise unknown_name("embedded checkpoint", name, checkpoint_names())
    return _ROOM / name


def has_training_record(name: str) -> bool:
    """Whether a record of its training ships with an embedded checkpoint.

    Example:
        >>> zoo.has_training_record("amazon/chronos-bolt-base")
        False
    """
    return name in checkpoint_names() and (_ROOM / name / _RECORD).exists()


def training_record(name: str) -> xr.Dataset:
    """What heads did over the training of an embedded checkpoint.

    Returns:
        As :func:`tsfm_lens.probes.training_history` gives it, which was applied to the checkpoints kept in training.

    Raises:
        InputError: no record ships with the checkpoint.

    Example:
        >>> "amazon/chronos-bolt-base" in zoo.checkpoint_names()
        False
    """
    if not has_training_record(name):
        recorded = [each for each in checkpoint_names() if has_training_record(each)]
        raise InputError(
            f"no record of the training of {name} is at hand; "
            + (f"there is one of {', '.join(recorded)}" if recorded else "tsfm_lens.zoo.history measures a run")
        )
    import xarray as xr

    with xr.open_dataset(_ROOM / name / _RECORD, engine="scipy") as data:
        return data.load()


def low_rank_record(name: str) -> xr.Dataset:
    """What training at low rank came to, as ``python -m tsfm_lens.zoo.lowrank`` measured it.

    Args:
        name: "attention", arms of low rank beside the dense one; "vocabulary", ranks of W_Q by the rank of a fixed
            vocabulary; "spectra", singular values of W_Q over training. ``zoo/low-rank/README.md`` is their card.

    Raises:
        UnknownNameError: no such record.

    Example:
        >>> zoo.low_rank_record("attention")["arm"].values.tolist()[0]
        'dense'
    """
    known = sorted(path.stem for path in (_ROOM / _LOW_RANK).glob("*.nc"))
    if name not in known:
        raise unknown_name("record of training at low rank", name, known)
    import xarray as xr

    with xr.open_dataset(_ROOM / _LOW_RANK / f"{name}.nc", engine="scipy") as data:
        return data.load()
