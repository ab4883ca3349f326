"""Embedded checkpoints: small real models in their native formats, and planted ones.

:func:`checkpoint_names` lists them and :func:`training_record` reads how heads emerged
in the training of one. Planted models are in :mod:`tsfm_lens.zoo.planted`. This module
does not import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsfm_lens.core.embedded import (
    RECORD,
    checkpoint_names,
    checkpoint_path,
    has_training_record,
)
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import measurement

if TYPE_CHECKING:
    from tsfm_lens.core.estimates import Result

_FOLDER = Path(__file__).parent

__all__ = [
    "checkpoint_names",
    "checkpoint_path",
    "has_training_record",
    "training_record",
]


def training_record(name: str) -> Result:
    """Read the record of the heads over the training of an embedded checkpoint.

    Args:
        name: of an embedded checkpoint.

    Returns:
        Result over training steps, layers and heads.

    Raises:
        InputError: no record ships with the checkpoint.

    Example:
        >>> "amazon/chronos-bolt-base" in zoo.checkpoint_names()
        False
    """
    if not has_training_record(name):
        recorded = [entry for entry in checkpoint_names() if has_training_record(entry)]
        if recorded:
            advice = f"there is one of {', '.join(recorded)}"
        else:
            advice = "tsfm_lens.studies.recipes.history measures a run"
        raise InputError(f"no record of the training of {name} is at hand; {advice}")
    # the help of the command line reads this module, and xarray takes long to import
    import xarray as xr

    from tsfm_lens.core.estimates import Result

    with xr.open_dataset(_FOLDER / name / RECORD, engine="scipy") as data:
        data.load()
        return Result(data.data_vars, data.coords, data.attrs)


measurement(
    "training_history",
    title="Emergence of heads in training",
    theme="Behaviour",
    summary=(
        "heads over the checkpoints of a training: prefix matching, copying, "
        "sharpness, loss"
    ),
    description=(
        "Checkpoints of a training, each tested on the same repeated motifs. "
        "Induction heads emerge where prefix matching and copying rise together."
    ),
    source="after Olsson et al. 2022",
    needs="training_record",
    function=training_record,
    takes=lambda results: (results.run.lens.model_id,),
    computes="training_history of the checkpoints that were kept",
    cost="weights",
)


def __dir__() -> list[str]:
    return __all__
