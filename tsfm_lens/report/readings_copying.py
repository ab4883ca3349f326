"""Readings of what a forecast takes over from its context: copies, lags, seasons."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.report.words import head_at, listed, num, signed
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.theme import percent


def read_parroting(ds: xr.Dataset, series: int) -> list[str]:
    """How near the forecast is to its copies, against how near it is to the truth."""
    name = names(ds, "series")[series]
    best, copy, parrot = (float(ds[v].values[series]) for v in ("best_lag", "copy_error", "parrot_error"))
    if not np.isfinite(best):
        return [f"The context of {name} is too short or constant, so there is nothing to copy."]
    out = [
        f"The forecast of {name} is nearest to its context repeated at lag {int(best)}, from which it is "
        f"{num(copy)} standard deviations of the context away on average."
    ]
    if np.isfinite(parrot):
        back, motif = int(ds["parrot_match"].values[series]), ds.attrs.get("motif", "")
        out.append(
            f"What followed the best earlier match of the last {motif} steps, {back} steps back, is {num(parrot)} away."
        )
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(ds.sizes["step"], np.nan)
    known, spread = np.isfinite(truth), float(np.nanstd(array(ds, "context", "time", series=series)))
    if known.any() and spread > 0:
        gap = array(ds, "forecast", "step", series=series) - truth
        error = float(np.abs(gap[known]).mean()) / spread
        nearest = min(copy, parrot) if np.isfinite(parrot) else copy
        out.append(
            f"From the truth it is {num(error)} away: it is nearer to "
            f"{'a copy of its context than to the truth' if nearest < error else 'the truth than to either copy'}."
        )
    return out


def read_lag(ds: xr.Dataset) -> list[str]:
    """Which heads read at the lag more than an even spread would."""
    mass, chance = array(ds, "mass", "layer", "head"), float(ds["chance"])
    if chance > 0.9:
        return [
            f"The tokens of the forecast cover so many steps that {percent(chance)} of the context lies at this lag "
            "from one of them: the share tells nothing about the lag."
        ]
    order = np.argsort(-mass.ravel())
    above = int((mass > 2 * chance).sum())
    top = [f"{head_at(ds, flat)} ({percent(float(mass.flat[flat]))})" for flat in order[:3]]
    return [
        f"The heads with most attention at lag {ds.attrs.get('lag', '?')} are {listed(top)}; spread evenly it would be "
        f"{percent(chance)}.",
        f"{above} of {mass.size} heads pay more than twice that.",
    ]


def read_seasons(ds: xr.Dataset) -> list[str]:
    """Which series keep their season, which lose it, and what the patch length adds."""
    ids = names(ds, "series")
    ratio, spread = (array(ds, v, "series") for v in ("amplitude_ratio", "spread_ratio"))
    known = np.flatnonzero(np.isfinite(ratio))
    out = []
    if len(known):
        parts = [
            f"{ids[i]} {percent(float(ratio[i]))} (period {num(float(ds['period'].values[i]))})" for i in known[:6]
        ]
        out.append(f"At the context's strongest period the forecast has this share of its amplitude: {listed(parts)}.")
    else:
        out.append("No horizon is as long as the strongest period of its context, so no season can be compared.")
    if "truth_amplitude" in ds and len(known):
        truth, own = array(ds, "truth_amplitude", "series"), array(ds, "forecast_amplitude", "series")
        both = known[np.isfinite(truth[known])]
        weaker = int((own[both] < truth[both]).sum())
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
