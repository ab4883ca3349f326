"""Copying of the context by a forecast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import Compute, on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import count_of, head_at, listed, num, signed, verb
from tsfm_lens.viz import head_parroting_map, lag_attention_map, parroting_forecast, season_amplitudes
from tsfm_lens.viz.select import array, forecast_series, names
from tsfm_lens.viz.theme import percent

_MAX_SERIES = 6  # series with a figure of their own


def read_parroting(ds: xr.Dataset, series: int) -> list[str]:
    """Compare how near the forecast is to its copies and to the truth."""
    name = names(ds, "series")[series]
    best, copy, parrot = (float(ds[v].values[series]) for v in ("best_lag", "copy_error", "parrot_error"))
    if not np.isfinite(best):
        return [f"The context of {name} is too short or constant, so there is nothing to copy."]
    out = [
        f"From its context repeated at lag {int(best)} the forecast of {name} is {num(copy)} standard deviations of "
        f"the context away on average{_other_lags(ds, series, copy)}."
    ]
    if np.isfinite(parrot):
        back, motif = int(ds["parrot_match"].values[series]), ds.attrs.get("motif", "")
        out.append(
            f"What followed the best earlier match of the last {motif} steps, {back} steps back, is {num(parrot)} away."
        )
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(ds.sizes["step"], np.nan)
    finite, spread = np.isfinite(truth), float(np.nanstd(array(ds, "context", "time", series=series)))
    if finite.any() and spread > 0:
        gap = array(ds, "forecast", "step", series=series) - truth
        error = float(np.abs(gap[finite]).mean()) / spread
        nearest = min(copy, parrot) if np.isfinite(parrot) else copy
        out.append(
            f"From the truth it is {num(error)} away: it is nearer to "
            f"{'a copy of its context than to the truth' if nearest < error else 'the truth than to either copy'}."
        )
    return out


def _other_lags(ds: xr.Dataset, series: int, copy: float) -> str:
    """Compare the error at the chosen lag with the least of all."""
    errors = array(ds, "lag_error", "lag", series=series)
    at, least = int(np.nanargmin(errors)), float(np.nanmin(errors))
    if num(least) == num(copy):
        return ", less than from any other lag's"
    return (
        f" (the least of all lags is {num(least)}, at lag {int(ds['lag'].values[at])}; taken is the shortest that "
        "chance does not rule out)"
    )


def read_lag(ds: xr.Dataset) -> list[str]:
    """Name the heads that read at the lag more than an even spread would."""
    mass, chance = array(ds, "mass", "layer", "head"), float(ds["chance"])
    if chance > 0.9:
        return [
            f"The tokens of the forecast cover so many steps that {percent(chance)} of the context lies at this lag "
            "from one of them: the share tells nothing about the lag."
        ]
    above = [flat for flat in np.argsort(-mass.ravel(), kind="stable") if mass.flat[flat] > 2 * chance]
    even = f"Spread evenly, {percent(chance)} of the attention would be at lag {ds.attrs.get('lag', '?')}"
    if not above:
        return [f"{even}; no head pays more than twice that."]
    top = [f"{head_at(ds, flat)} ({percent(float(mass.flat[flat]))})" for flat in above[:3]]
    return [f"{even}; {len(above)} of {mass.size} heads pay more than twice that, most of all {listed(top)}."]


def read_seasons(ds: xr.Dataset) -> list[str]:
    """Describe which series keep their season, which lose it, and what the patch length adds."""
    ids = names(ds, "series")
    ratio, spread = (array(ds, v, "series") for v in ("amplitude_ratio", "spread_ratio"))
    rows = np.flatnonzero(np.isfinite(ratio))
    out = []
    if len(rows):
        parts = [f"{ids[i]} {percent(float(ratio[i]))} (period {num(float(ds['period'].values[i]))})" for i in rows[:6]]
        out.append(f"At the context's strongest period the forecast has this share of its amplitude: {listed(parts)}.")
    else:
        out.append("No horizon is as long as the strongest period of its context, so no season can be compared.")
    if "truth_amplitude" in ds and len(rows):
        truth, forecast = array(ds, "truth_amplitude", "series"), array(ds, "forecast_amplitude", "series")
        both = rows[np.isfinite(truth[rows])]
        weaker = int((forecast[both] < truth[both]).sum())
        if len(both):
            out.append(f"It is weaker than the truth's in {weaker} of {len(both)} series.")
    flat = [ids[i] for i in np.flatnonzero(spread < 0.25)]
    if flat:
        out.append(f"The forecast varies less than a quarter as much as the context in {listed(flat[:6])}.")
    if "patch_pull" in ds and np.isfinite(ds["patch_pull"].values).any():
        pull = array(ds, "patch_pull", "series")
        at = int(np.nanargmax(np.abs(pull)))
        out.append(
            f"At the patch length of {ds.attrs.get('patch', '?')} steps it differs most from the context in {ids[at]}, "
            f"by {signed(pull[at])} standard deviations."
        )
    return out


def _parroting(ds: xr.Dataset) -> Iterator[Plate]:
    for i in forecast_series(ds, _MAX_SERIES):
        one = ds.isel(series=[i])
        steps = frame(one, *(name for name in ("forecast", "parrot", "truth") if name in ds))
        table = pd.concat([steps, frame(one, "lag_error")], ignore_index=True)
        yield Plate(parroting_forecast(ds, series=i), table, read_parroting(ds, i))


def _lag(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(lag_attention_map(ds), frame(ds, "mass"), read_lag(ds))


def _seasons(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(season_amplitudes(ds), frame(ds, "amplitude"), read_seasons(ds))


def read_heads(ds: xr.Dataset) -> list[str]:
    """Count the heads that look at the copied lag, and those that the copy needs."""
    mass, change = (Standing(ds, name, "layer", "head") for name in ("mass", "copy_error_change"))
    essential = change.stands_out & (change.estimate > 0)
    n_attending, n_essential, whole = int(mass.stands_out.sum()), int(essential.sum()), mass.estimate.size
    out = [
        f"{count_of(n_attending, whole, 'heads')} {verb(n_attending, 'give')} the copied lag more of "
        f"{verb(n_attending, 'their', 'its')} attention than an even spread would, beyond the noise.",
        f"{count_of(n_essential, whole, 'heads')} {verb(n_essential, 'are', 'is')} needed for the copy: without "
        f"{verb(n_essential, 'each of them', 'it')} the forecast is further from it, beyond the noise.",
    ]
    first = change.leader(essential)
    if first is not None:
        out.append(f"The copy needs {head_at(ds, first)} most.")
    if "vacuous" in ds and ds["vacuous"].values.any():
        out.append("For some series the tokens of the forecast cover so many steps that the share tells nothing.")
    return out


def _heads(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "mass", "copy_error_change", "parrot_error_change")
    yield Plate(head_parroting_map(ds), table, read_heads(ds))


MEASUREMENTS = (
    Measurement(
        kind="parroting",
        theme="Behaviour",
        about="how much of a forecast is a shifted copy",
        heading="Context parroting",
        guide="Whether the forecast repeats its context: it is compared with the context shifted by every lag, and "
        "with a naive parrot, which repeats what followed the most similar earlier stretch.",
        compute=on_all("context_parroting"),
        plates=_parroting,
        figures=(Figure("parroting_forecast", "The forecast beside the best shifted copy of its context."),),
        source="tsfm-lens, sections 4 and 5",
    ),
    Measurement(
        kind="lag_attention",
        theme="Behaviour",
        about="attention at a lag",
        heading="Attention at a lag",
        guide="How much of its attention each head gives to the tokens a whole number of lags before the step that is "
        "forecast. A head that copies a season reads there.",
        compute=Compute(
            "lag_attention",
            "lag_attention at the season of the first series",
            lambda work, options: work.call("lag_attention", work.first, **{"lag": work.season, **options}),
        ),
        plates=_lag,
        figures=(Figure("lag_attention_map", "Attention one season before each step."),),
    ),
    Measurement(
        kind="head_parroting",
        theme="Behaviour",
        about="which heads look at the copied lag, and which the copy needs",
        heading="Heads that copy",
        guide="How much attention each head gives to the lag that the forecast copies, and how much further from the "
        "copy the forecast is without the head.",
        compute=on_all("head_parroting"),
        plates=_heads,
        figures=(Figure("head_parroting_map", "What every head adds to the copy of the context."),),
        source="tsfm-lens, section 4",
    ),
    Measurement(
        kind="seasonality",
        theme="Behaviour",
        about="power at the season, mean regression, pull towards the patch length",
        heading="Seasons",
        guide="How strong each period is in the forecast, against the end of the context and the truth: seasons that "
        "are kept, flattened or brought in.",
        compute=on_all("seasonality_bias"),
        plates=_seasons,
        figures=(Figure("season_amplitudes", "Seasonal amplitude of the forecast against that of context and truth."),),
        source="tsfm-lens, section 5",
    ),
)
