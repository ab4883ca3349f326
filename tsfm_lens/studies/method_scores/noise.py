"""Noise on the weights of a planted model: the largest level that leaves its card true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.studies.method_scores.series import Bench, bench
from tsfm_lens.zoo.planted.planting import Planted

TOLERATED = 0.1
"""Largest tolerated error of a forecast, in mean absolute values of the context."""

Array = NDArray[np.float64]


def forecast_error(on: Bench) -> float:
    """Compute the largest distance of the median forecast from the rule, in mean absolute values of the context."""
    return float(_errors(on).max())


def as_noisy_as_it_bears(
    plant: Callable[[float], Planted], levels: Sequence[float], *, series: int, seed: int
) -> Planted | None:
    """Plant with the first level of noise on the weights that leaves the card true; None if none does.

    Series that the model does not forecast by its rule without noise either are left out.

    Args:
        plant: from a level to the model.
        levels: to try, the largest first.
        series, seed: of the series on which it is tried.
    """
    clean = plant(0.0)
    valid = _errors(bench(clean.lens(), clean.card, series=series, seed=seed)) <= TOLERATED
    for level in levels:
        planted = plant(level)
        on = bench(planted.lens(), planted.card, series=series, seed=seed)
        if valid.any() and _errors(on)[valid].max() <= TOLERATED and keeps_its_roles(on, valid):
            return planted
    return None


def keeps_its_roles(on: Bench, valid: NDArray[np.bool_]) -> bool:
    """Check that no decoy moves the forecast, and that backups do so only without the part they stand in for.

    A backup need not make up for all of its part: at least twice as much is lost with both of them.

    Args:
        on: the model.
        valid: (series,) whether the series tells, because the model forecasts it by its rule without noise.
    """

    def shift(*components: str) -> float:
        return float(_shift(on, components)[valid].max(initial=0.0))

    if any(shift(decoy) > TOLERATED for decoy in on.card.components("decoy")):
        return False
    for part in on.card.parts:
        if part.role == "backup":
            own = str(part.stands_in_for)
            if shift(part.component) > TOLERATED or shift(part.component, own) < 2 * shift(own):
                return False
    return True


def _errors(on: Bench) -> Array:
    """Compute (series,) the distance of the median forecast from the rule, in mean absolute values of the context."""
    assert on.clean.truth is not None
    return _largest(on, on.clean.forecast.median - on.clean.truth)


def _shift(on: Bench, components: Sequence[str]) -> Array:
    """Compute (series,) the change of the median forecast without components, in mean absolute context values."""
    run = on.clean
    with on.lens.ablate(*components) as lens:
        without = lens.forecast(run.batch, run.horizon, num_samples=run.num_samples, seed=run.seed)
    return _largest(on, without.median - run.forecast.median)


def _largest(on: Bench, difference: Array) -> Array:
    scales = np.array([np.abs(on.clean.batch.values[row]).mean() for row in on.targets])
    return np.asarray(np.abs(difference[on.targets]).max(-1) / scales)
