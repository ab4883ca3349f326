"""Recipes that trained the embedded checkpoints, and records of low-rank training.

The package itself holds :func:`low_rank_record`, which loads a shipped record. Recipes
are in ``recipes.yaml`` and :mod:`tsfm_lens.studies.recipes.recipe`, training in
:mod:`tsfm_lens.studies.recipes.train`; neither is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsfm_lens.core.errors import unknown_name

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["low_rank_record"]

_LOW_RANK = Path(__file__).parent / "low-rank"


def low_rank_record(name: str) -> xr.Dataset:
    """Load results of training at low rank.

    ``python -m tsfm_lens.studies.recipes.lowrank`` measured them.

    Args:
        name: "attention" for arms of low rank and the dense one; "spectra" for singular
            values of W_Q over training. ``low-rank/README.md`` describes the files.

    Raises:
        UnknownNameError: no such record.

    Example:
        >>> recipes.low_rank_record("attention")["arm"].values.tolist()[0]
        'dense'
    """
    names = sorted(path.stem for path in (_LOW_RANK).glob("*.nc"))
    if name not in names:
        raise unknown_name("record of training at low rank", name, names)
    import xarray as xr

    with xr.open_dataset(_LOW_RANK / f"{name}.nc", engine="scipy") as data:
        return data.load()
