"""Patching: what a forecast depends on, shown by putting one run into another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import between
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.needs import GRADIENTS
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import capital, listed, measured, num, signed
from tsfm_lens.viz import attribution_patching_scatter, patched_forecasts, patching_map, path_map
from tsfm_lens.viz.contrast import way, when
from tsfm_lens.viz.places import OUTPUT, places_in
from tsfm_lens.viz.select import array, forecast_series, names, unit_of
from tsfm_lens.viz.theme import percent

_HALF = 0.5
_MAX_NAMES = 3  # places in a sentence
_MAX_SERIES = 3  # series with figures of their own
_POSITION = ("position_start", "position_stop", "position_special")


def read_patching(ds: xr.Dataset, series: int) -> list[str]:
    """Describe where a patch carries most of the forecast over, and how much of the rest does anything."""
    base, source = way(ds)
    gap = array(ds, "clean_forecast", "step", series=series) - array(ds, "corrupted_forecast", "step", series=series)
    amount, recovered = measured(unit_of(ds, series)), Standing(ds, "recovered", "component", "position")
    apart = (
        f"The clean and the corrupted forecast of {names(ds, 'series')[series]} are {amount(np.abs(gap).mean())} apart "
        "on average."
    )
    most = [f"{_cell(ds, flat)} ({recovered.told(flat, percent)})" for flat in recovered.named(_MAX_NAMES)]
    if not most:
        return [apart, "No single patch stands out of the noise on the way from one to the other."]
    share = array(ds, "recovered", "component", "position", series=series)
    half, away = int((share >= _HALF).sum()), int((recovered.stands_out & (share < -0.1)).sum())
    out = [
        f"{apart} Most of the way from the {base} to the {source} one comes along with {listed(most)}.",
        f"{half} of {share.size} patches {'carries' if half == 1 else 'carry'} half of it or more alone.",
    ]
    if away:
        out[-1] += f" {away} {'leads' if away == 1 else 'lead'} away from it by more than a tenth."
    return out


def read_patched_forecasts(ds: xr.Dataset, series: int) -> list[str]:
    """State how far the best patched forecast still is from the run it comes from."""
    base, source = way(ds)
    recovered = Standing(ds, "recovered", "component", "position")
    best = next(iter(recovered.named(1, recovered.estimate > 0)), None)
    if best is None:
        return [f"No patch brings the forecast nearer to the {source} one by more than the noise."]
    component, position = divmod(best, ds.sizes["position"])
    patched = array(ds, "forecast", "step", component=component, position=position, series=series)
    target, start = (array(ds, f"{name}_forecast", "step", series=series) for name in (source, base))
    amount = measured(unit_of(ds, series))
    after, before = float(np.abs(patched - target).mean()), float(np.abs(start - target).mean())
    out = [
        f"Patched at {_cell(ds, best)}, the forecast is {amount(after)} from the {source} one on average; unpatched it "
        f"is {amount(before)} away."
    ]
    if after >= before:
        out.append("It is no nearer than before: the share counts only the part of the change that points that way.")
    return out


def read_attribution_patching(ds: xr.Dataset) -> list[str]:
    """State whether the estimate can stand in for patching."""
    estimate, exact = (array(ds, name, "component", "position", "series") for name in ("first_order", "recovered"))
    error = np.abs(estimate - exact)
    both = [Standing(ds, name, "component", "position").leader() for name in ("first_order", "recovered")]
    if None in both:
        same = "No single place leads in both, so that they cannot be compared by it."
    elif both[0] == both[1]:
        same = f"Both find most at {_cell(ds, both[0] or 0)}."
    else:
        same = f"The estimate finds most at {_cell(ds, both[0] or 0)}, patching at {_cell(ds, both[1] or 0)}."
    return [
        f"The estimate misses the share that patching recovers by {num(error.mean())} on average and by up to "
        f"{num(error.mean(-1).max())} at a place. Its rank correlation with patching is "
        f"{num(float(ds.attrs['rank_correlation']))}.",
        same,
    ]


def read_estimate(ds: xr.Dataset, series: int) -> list[str]:
    """Describe where the estimated share is largest."""
    estimate = array(ds, "first_order", "component", "position", series=series)
    places = Standing(ds, "first_order", "component", "position").named(_MAX_NAMES)
    name = names(ds, "series")[series]
    if not places:
        return [f"No estimate for {name} stands out of the noise."]
    most = [f"{_cell(ds, flat)} ({signed(estimate.flat[flat])})" for flat in places]
    return [f"The largest estimates for {name}, as shares of the way, are at {listed(most)}."]


def read_paths(ds: xr.Dataset) -> list[str]:
    """Describe the strongest direct paths to the output, and the strongest between components."""
    paths = Standing(ds, "score" if ds.attrs["kind"] == "edges" else "recovered", "sender", "receiver")
    senders, receivers = names(ds, "sender"), names(ds, "receiver")
    direct = np.array([name == OUTPUT for name in receivers])
    out = []
    for columns, words in ((direct, "straight to the output"), (~direct, "through another component")):
        parts = []
        for flat in paths.named(_MAX_NAMES, np.broadcast_to(columns, paths.estimate.shape)):
            sender, receiver = divmod(flat, len(receivers))
            end = "" if direct[receiver] else f" to {receivers[receiver]}"
            parts.append(f"{senders[sender]}{end} ({signed(paths.estimate.flat[flat])})")
        if parts:
            out.append(f"{capital(words)}, the strongest paths are those of {listed(parts)}, as shares of the way.")
    return out or ["No path changes the forecast by more than the noise."]


def _cell(ds: xr.Dataset, flat: int) -> str:
    """Write a place and group of positions in words, from a flat index of (component, position)."""
    component, position = divmod(flat, ds.sizes["position"])
    places = places_in(ds)
    place = int(np.flatnonzero(places.order == component)[0])
    label = ("the stream " if places.kind[place] == "stream" else "") + places.labels[place]
    moment = when(ds, position)
    if moment.endswith(" token"):
        moment = f"the {moment}"
    return f"{label}, {moment}" if moment else label


def _patching(ds: xr.Dataset) -> Iterator[Plate]:
    for i in forecast_series(ds, _MAX_SERIES):
        table = _cells(ds.isel(series=[i]), "recovered", "effect")
        yield Plate(patching_map(ds, series=i), table, read_patching(ds, i))
        yield Plate(patched_forecasts(ds, series=i), table, read_patched_forecasts(ds, i))


def _attribution(ds: xr.Dataset) -> Iterator[Plate]:
    variables = [name for name in ("first_order", "recovered", "error") if name in ds]
    if "recovered" in variables:
        words = read_attribution_patching(ds)
        yield Plate(attribution_patching_scatter(ds), _cells(ds, *variables), words)
    for i in forecast_series(ds, _MAX_SERIES):
        table = _cells(ds.isel(series=[i]), *variables)
        yield Plate(patching_map(ds, value="first_order", series=i), table, read_estimate(ds, i))


def _paths(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(path_map(ds), frame(ds, "recovered", "effect").dropna(ignore_index=True), read_paths(ds))


def _edges(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(path_map(ds), frame(ds, "score").query("score != 0"), read_paths(ds))


def _cells(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """Tabulate variables with the steps that they cover, a row per place, group of positions and series."""
    steps = frame(ds.reset_coords(list(_POSITION)), *_POSITION)
    return frame(ds, *variables).merge(steps, on="position")


MEASUREMENTS = (
    Measurement(
        kind="patching",
        theme="Causes",
        about="activation patching: layer × position × component, also in rollouts",
        heading="Activation patching",
        guide="The model runs on two versions of a series, one with something taken away. Activations of one run are "
        "put into the other, place by place; where the forecast follows, what was taken away is carried.",
        compute=between("activation_patching"),
        plates=_patching,
        figures=(
            Figure("patching_map", "Where the season is: what a patched stream brings back."),
            Figure("patched_forecasts", "Forecasts after single patches."),
        ),
        source="Meng et al. 2022; Heimersheim and Nanda 2024",
    ),
    Measurement(
        kind="attribution_patching",
        theme="Causes",
        about="attribution patching, with its error",
        heading="Attribution patching",
        guide="The same to first order, from one gradient: an estimate for all places at once, held against patching "
        "itself where that was done.",
        compute=between("attribution_patching"),
        plates=_attribution,
        figures=(
            Figure("attribution_patching_scatter", "Gradient estimates of patching against the exact values."),
            Figure("patching_map", "Gradient estimates, place by place.", options={"value": "first_order"}),
        ),
        source="Nanda 2023; Syed et al. 2023",
        needs=GRADIENTS,
    ),
    Measurement(
        kind="paths",
        theme="Causes",
        about="path patching between components, through all inputs or through q, k or v",
        heading="Path patching",
        guide="What one component does through one other, with every other path held: who reads what from whom.",
        compute=between("path_patching"),
        plates=_paths,
        figures=(Figure("path_map", "What flows between single components."),),
        source="Wang et al. 2022; Goldowsky-Dill et al. 2023",
    ),
    Measurement(
        kind="edges",
        theme="Causes",
        about="edge attribution",
        heading="Edge attribution",
        guide="The same for every pair of components, with what the forecast makes of a change taken from its "
        "gradient.",
        compute=between("edge_attribution"),
        plates=_edges,
        figures=(Figure("path_map", "Gradient estimates of what flows between single components."),),
        source="Syed et al. 2023; Hanna et al. 2024",
        needs=GRADIENTS,
    ),
)
