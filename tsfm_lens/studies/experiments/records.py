"""Results in the package: those of grids of runs, as ``python -m tsfm_lens.studies.experiments`` wrote them."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from tsfm_lens.errors import unknown_name

__all__ = ["record", "record_names"]

_FOLDER = Path(__file__).parent / "results"


def record_names() -> tuple[str, ...]:
    """Return the names of the results in the package, sorted; ``results/README.md`` describes them.

    Example:
        >>> "toy" in experiments.record_names()
        True
    """
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.nc")))


def record(name: str) -> xr.Dataset:
    """Load the results of a grid, see :func:`tsfm_lens.studies.experiments.gathered`.

    Args:
        name: "toy", the toy problem of SAMformer; "optimizers", the same by other optimisers; "benchmarks", rows of
            tables 1, 6, 9 and 10; "in_context", regression in context by the rank of the scores, see
            :func:`tsfm_lens.studies.experiments.in_context_results`, and "in_context_widths" by the width of the
            model; "encoders", ETTh1 by scoring function; "transfer", learning rates across widths, see
            :func:`tsfm_lens.studies.experiments.transfer_results`; "chronos_levels", Chronos with scores by nested
            blocks of tokens, which ``python -m tsfm_lens.studies.recipes.levels`` makes.

    Raises:
        UnknownNameError: no such record.

    Example:
        >>> experiments.record("toy")["curve"].dims
        ('arm', 'seed', 'epoch')
    """
    if name not in record_names():
        raise unknown_name("record of the lab", name, record_names())
    with xr.open_dataset(_FOLDER / f"{name}.nc", engine="scipy") as data:
        return data.load()
