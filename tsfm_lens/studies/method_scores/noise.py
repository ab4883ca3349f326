"""How much noise the weights of a planted model bear: as much as leaves its card true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.studies.method_scores.series import Bench, bench
from tsfm_lens.zoo.planted.planting import Planted

TOLERATED = 0.1
"""What a forecast may be off by, in mean absolute values of the context."""

Array = NDArray[np.float64]


def forecast_error(on: Bench) -> float:
    """Largest distance of the library's median forecast from the rule, in mean absolute values of the context."""
    return float(_errors(on).max())


def as_noisy_as_it_bears(
    plant: Callable[[float], Planted], levels: Sequence[float], *, series: int, seed: int
) -> Planted | None:
    """The model with the first level of noise on its weights that leaves its card true; None if none does.

    Series that it does not forecast by its rule without noise either say nothing.

    Args:
        plant: from a level to the model.
        levels: to try, the largest first.
        series, seed: of the series on which it is tried.
    """
    clean = plant(0.0)
    told = _errors(bench(clean.lens(), clean.card, series=series, seed=seed)) <= TOLERATED
    for level in levels:
        planted = plant(level)
        on = bench(planted.lens(), planted.card, series=series, seed=seed)
        if told.any() and _errors(on)[told].max() <= TOLERATED and keeps_its_roles(on, told):
            return planted
    return None


def keeps_its_roles(on: Bench, told: NDArray[np.bool_]) -> bool:
    """Whether no decoy moves the forecast, and backups do so only without the part that they stand in for.

    A backup need not make up for all of its part: at least twice as much is lost with both of them.

    Args:
        on: the model.
        told: (series,) which of them tell.
    """

    def moved(*components: str) -> float:
        return float(_moved(on, components)[told].max(initial=0.0))

    if any(moved(decoy) > TOLERATED for decoy in on.card.components("decoy")):
        return False
    for part in on.card.parts:
        if part.role == "backup":
            own = str(part.stands_in_for)
            if moved(part.component) > TOLERATED or moved(part.component, own) < 2 * moved(own):
                return False
    return True


def _errors(on: Bench) -> Array:
    """(series,) distance of the median forecast from the rule, in mean absolute values of the context."""
    assert on.clean.truth is not None
    return _largest(on, on.clean.forecast.median - on.clean.truth)


def _moved(on: Bench, components: Sequence[str]) -> Array:
    """(series,) change of the median forecast without components, in mean absolute values of the context."""
    run = on.clean
    with on.lens.ablate(*components) as lens:
        without = lens.forecast(run.batch, run.horizon, num_samples=run.num_samples, seed=run.seed)
    return _largest(on, without.median - run.forecast.median)


def _largest(on: Bench, difference: Array) -> Array:
    scales = np.array([np.abs(on.clean.batch.values[row]).mean() for row in on.targets])
    return np.asarray(np.abs(difference[on.targets]).max(-1) / scales)
