"""Use of covariates in forecasts of one's own series."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Needs, Plate
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import listed, num
from tsfm_lens.models import Lens
from tsfm_lens.viz import covariate_dots
from tsfm_lens.viz.select import array, names, shown

THEME = "Inputs"
FEWEST = 3  # series without which nothing is said of others
_WORDS = {"removed": "removed", "constant": "at its mean", "shuffled": "in random order"}


def _takes_covariates(lens: Lens) -> bool:
    return bool(getattr(lens.adapter, "covariates", ()))


TAKES_COVARIATES = Needs(
    "covariates",
    "models that take covariates (`tsfm-lens models`)",
    _takes_covariates,
    lambda arch: bool(arch.covariates),
)


def read_use(ds: xr.Dataset) -> list[str]:
    """Describe whether each covariate moves the forecast and, with a truth, helps; what moves it most first."""
    size = array(ds, "moved_estimate", "covariate", "way").max(1)
    order = [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")]
    return [_describe(ds, place, names(ds, "covariate")[place]) + _silent(ds, place) for place in order]


def _silent(ds: xr.Dataset, place: int) -> str:
    """Name the series of which nothing can be said."""
    nothing = np.isnan(array(ds, "moved", "way", "series", covariate=place)).all(0)
    silent = [name for name, empty in zip(names(ds, "series"), nothing, strict=True) if empty]
    return f" Nothing can be said of {shown(silent)}, where it or the series never changes." if silent else ""


def _size(ds: xr.Dataset, place: int) -> str:
    """Write how far the forecasts move without a covariate; "" if none of them moves by more than rounding."""
    change = array(ds, "moved", "way", "series", covariate=place)
    above = change > array(ds, "moved_floor", "series")
    if not above.any():
        return ""
    ways = names(ds, "way")
    way = max(range(len(ways)), key=lambda i: (above[i].any(), ways[i] == "shuffled"))
    standing = Standing(ds, "moved", "way", covariate=place)
    if standing.stands_out[way]:
        return f"{_WORDS[ways[way]]} it moves the forecast by {standing.told(way, _mase)}"
    # the size of a change is never below 0: that its mean is uncertain does not make it none
    sizes = change[way][above[way]]
    span = f"by {_mase(sizes.min())}" + (f" to {_mase(sizes.max())}" if len(sizes) > 1 else "")
    return f"{_WORDS[ways[way]]} it moves {len(sizes)} of {standing.series} forecasts, {span}"


def _describe(ds: xr.Dataset, place: int, name: str) -> str:
    ways = names(ds, "way")
    size = _size(ds, place)
    if not size:
        return f"{name}: forecasts without it are the same up to the noise; the model does not use it."
    shuffled = ways.index("shuffled")
    if "worth_estimate" not in ds:
        return f"{name}: {size}."
    worth = Standing(ds, "worth", "way", covariate=place)
    if worth.series < FEWEST:
        change = float(worth.estimate[shuffled])
        outcome = f"the error is {'larger' if change > 0 else 'smaller'} by {_mase(abs(change))} there"
        return f"{name}: {size}, and {outcome}; whether that is so in general takes {FEWEST} series or more."
    helps = [i for i in range(len(ways)) if worth.stands_out[i] and worth.estimate[i] > 0]
    harms = [i for i in range(len(ways)) if worth.stands_out[i] and worth.estimate[i] < 0]
    if helps and not harms:
        best = max(helps, key=lambda i: float(worth.low[i]))
        return (
            f"{name}: {size}, and the error is larger by {worth.told(best, _mase)} when it is {ways[best]}: it helps."
        )
    if harms and not helps:
        worst = min(harms, key=lambda i: float(worth.high[i]))
        return (
            f"{name}: {size}, and the error is smaller by {num(-float(worth.estimate[worst]))} MASE when it is "
            f"{ways[worst]}: forecasts are better without it."
        )
    if helps:
        both = [f"{'helps' if i in helps else 'harms'} against {ways[i]}" for i in sorted([*helps, *harms])]
        return f"{name}: {size}; it {listed(both)}."
    return f"{name}: {size}; whether that helps cannot be told from these series."


def _mase(value: float) -> str:
    return f"{num(value)} MASE"


def _use(ds: xr.Dataset) -> Iterator[Plate]:
    variables = ["moved", *(name for name in ("error_without", "worth") if name in ds)]
    yield Plate(covariate_dots(ds), frame(ds, *variables), read_use(ds))


MEASUREMENTS = (
    Measurement(
        kind="covariate_use",
        theme=THEME,
        about="change of the forecast, and of its error, without each covariate, with its mean, and in random order",
        heading="Use of covariates",
        guide="Every item is forecast again without a covariate, with it at its mean, and with its values in random "
        "order. A model that does not use it forecasts the same. Where the end is held out as the truth "
        "(--holdout, in Python holdout=True), the change of the error tells whether using it helps. All in MASE: "
        "multiples of the mean absolute seasonal difference.",
        compute=on_all("explain.covariate_use"),
        plates=_use,
        figures=(Figure("covariate_dots", "What forecasts and their errors are without each covariate."),),
        source="permutation importance (Breiman 2001) of whole series",
        needs=TAKES_COVARIATES,
    ),
)
