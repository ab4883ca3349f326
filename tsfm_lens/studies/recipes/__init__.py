"""Recipes that trained the embedded checkpoints, and what training at low rank came to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsfm_lens.errors import unknown_name

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["low_rank_record"]

_LOW_RANK = Path(__file__).parent / "low-rank"


def low_rank_record(name: str) -> xr.Dataset:
    """What training at low rank came to, as ``python -m tsfm_lens.studies.recipes.lowrank`` measured it.

    Args:
        name: "attention", arms of low rank beside the dense one; "vocabulary", ranks of W_Q by the rank of a fixed
            vocabulary; "spectra", singular values of W_Q over training. ``low-rank/README.md`` is their card.

    Raises:
        UnknownNameError: no such record.

    Example:
        >>> recipes.low_rank_record("attention")["arm"].values.tolist()[0]
        'dense'
    """
    known = sorted(path.stem for path in (_LOW_RANK).glob("*.nc"))
    if name not in known:
        raise unknown_name("record of training at low rank", name, known)
    import xarray as xr

    with xr.open_dataset(_LOW_RANK / f"{name}.nc", engine="scipy") as data:
        return data.load()
