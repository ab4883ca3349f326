"""Checks of a command's arguments before a model is opened."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models.architecture import Architecture


def check_steps(series: SeriesBatch, horizon: int | None, holdout: bool | None) -> None:
    """Refuse a horizon that leaves a series no context, or no series a truth.

    Raises:
        InputError: the message names the series and its length, or the missing values at its end.
    """
    if holdout and horizon is not None:
        from tsfm_lens.data.ends import held_out

        held_out(series, horizon)


def check_out(folder: Path) -> None:
    """Refuse a folder that results cannot be written to.

    Raises:
        InputError: it is a file, lies in one, or does not let files be made.
    """
    from tsfm_lens.places import refuse_unwritable

    refuse_unwritable(folder)


def check_sampling(model: str, samples: int | None) -> Architecture | None:
    """Return the architecture of a model by its name, where that is known without its weights.

    Raises:
        CheckpointError, UnknownNameError: there is no such model.
        InputError: it emits quantiles, and samples are asked for.
    """
    from tsfm_lens.errors import InputError
    from tsfm_lens.models.opening import architecture_named

    architecture = architecture_named(model)
    if architecture is not None and architecture.readout == "quantile" and samples is not None:
        raise InputError(f"{model} forecasts quantiles and draws no samples; leave --samples out")
    return architecture


def check_kinds(model: str, kinds: Iterable[str], samples: int | None = None) -> None:
    """Refuse measurements if the model's architecture allows none of them.

    Raises:
        CheckpointError, UnknownNameError: there is no such model or measurement.
        InputError: as :func:`tsfm_lens.report.pipeline.checked_sections` says; no measurement is defined for the model.
    """
    from tsfm_lens.errors import InputError
    from tsfm_lens.report.pipeline import checked_sections

    measurements = checked_sections(tuple(kinds))
    architecture = check_sampling(model, samples)
    if architecture is None:
        return
    reasons = []
    for measurement in measurements:
        try:
            if measurement.needs is not None:
                measurement.needs.check_architecture(architecture, model, f"{measurement.kind!r}")
        except InputError as error:
            reasons.append(str(error))
    if len(reasons) == len(measurements):
        raise InputError("; ".join(reasons))
