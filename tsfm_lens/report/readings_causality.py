"""Readings of interventions: patching, paths, causal effects, circuits."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.report.words import capital, listed, measured, num, signed
from tsfm_lens.viz.contrast import way, when
from tsfm_lens.viz.effects import ablation_word, effect_sizes
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.paths import path_values
from tsfm_lens.viz.places import OUTPUT, kind_word, places_in
from tsfm_lens.viz.select import array, names, unit_of
from tsfm_lens.viz.theme import percent

_HALF = 0.5
_NAMED = 3  # places in a sentence


def read_patching(ds: xr.Dataset, series: int) -> list[str]:
    """Where a patch carries most of the forecast over, and how much of the rest does anything."""
    base, source = way(ds)
    share = array(ds, "recovered", "component", "position", series=series)
    gap = array(ds, "clean_forecast", "step", series=series) - array(ds, "corrupted_forecast", "step", series=series)
    amount = measured(unit_of(ds, series))
    most = [f"{_cell(ds, flat)} ({percent(float(share.flat[flat]))})" for flat in _largest(share)]
    half, away = int((share >= _HALF).sum()), int((share < -0.1).sum())
    out = [
        f"The clean and the corrupted forecast of {names(ds, 'series')[series]} are {amount(np.abs(gap).mean())} apart "
        f"on average. Most of the way from the {base} to the {source} one comes along with {listed(most)}.",
        f"{half} of {share.size} patches {'carries' if half == 1 else 'carry'} half of it or more alone.",
    ]
    if away:
        out[-1] += f" {away} {'leads' if away == 1 else 'lead'} away from it by more than a tenth."
    return out


def read_patched_forecasts(ds: xr.Dataset, series: int) -> list[str]:
    """How far the best patched forecast still is from the run it comes from."""
    base, source = way(ds)
    share = array(ds, "recovered", "component", "position", series=series)
    best = int(np.argmax(share))
    component, position = divmod(best, share.shape[1])
    patched = array(ds, "forecast", "step", component=component, position=position, series=series)
    target, start = (array(ds, f"{name}_forecast", "step", series=series) for name in (source, base))
    amount = measured(unit_of(ds, series))
    left, before = float(np.abs(patched - target).mean()), float(np.abs(start - target).mean())
    out = [
        f"Patched at {_cell(ds, best)}, the forecast is {amount(left)} from the {source} one on average; unpatched it "
        f"is {amount(before)} away."
    ]
    if left >= before:
        out.append("It is no nearer than before: the share counts only the part of the change that points that way.")
    return out


def read_attribution_patching(ds: xr.Dataset) -> list[str]:
    """Whether the estimate can stand in for patching."""
    estimate, exact = (array(ds, name, "component", "position", "series") for name in ("first_order", "recovered"))
    error = np.abs(estimate - exact)
    worst = int(error.mean(-1).argmax())
    best = [int(values.mean(-1).argmax()) for values in (estimate, exact)]
    same = (
        f"Both find most at {_cell(ds, best[0])}."
        if best[0] == best[1]
        else f"The estimate finds most at {_cell(ds, best[0])}, patching at {_cell(ds, best[1])}."
    )
    return [
        f"The estimate misses the share that patching recovers by {num(error.mean())} on average, most at "
        f"{_cell(ds, worst)} (by {num(error.mean(-1).flat[worst])}). Its rank correlation with patching is "
        f"{num(float(ds.attrs['rank_correlation']))}.",
        same,
    ]


def read_estimate(ds: xr.Dataset, series: int) -> list[str]:
    """Where the estimated share is largest."""
    estimate = array(ds, "first_order", "component", "position", series=series)
    most = [f"{_cell(ds, flat)} ({signed(estimate.flat[flat])})" for flat in _largest(np.abs(estimate))]
    return [f"The largest estimates for {names(ds, 'series')[series]}, as shares of the way, are at {listed(most)}."]


def read_paths(ds: xr.Dataset) -> list[str]:
    """The strongest direct paths to the output, and the strongest between components."""
    values = path_values(ds, "score" if ds.attrs["kind"] == "edges" else "recovered")
    senders, receivers = names(ds, "sender"), names(ds, "receiver")
    direct = np.array([name == OUTPUT for name in receivers])
    out = []
    for columns, words in ((direct, "straight to the output"), (~direct, "through another component")):
        known = np.isfinite(values) & columns
        size = np.where(known, np.abs(np.nan_to_num(values)), -1.0)
        order = [int(i) for i in np.argsort(-size.ravel(), kind="stable")[:_NAMED] if size.flat[i] > 0]
        parts = []
        for flat in order:
            sender, receiver = divmod(flat, len(receivers))
            end = "" if direct[receiver] else f" to {receivers[receiver]}"
            parts.append(f"{senders[sender]}{end} ({signed(values[sender, receiver])})")
        if parts:
            out.append(f"{capital(words)}, the strongest paths are those of {listed(parts)}, as shares of the way.")
    return out or ["No path changes the forecast."]


def read_effects(ds: xr.Dataset) -> list[str]:
    """Which components act most on the forecast directly."""
    sizes = effect_sizes(ds, list(range(ds.sizes["series"])))
    direct, labels = medians(sizes.direct), names(ds, "component")
    order = np.argsort(-np.nan_to_num(direct), kind="stable")[:_NAMED]
    unit = sizes.unit.replace("share of", "of") if sizes.unit.startswith("share") else sizes.unit
    most = [f"{labels[i]} ({num(direct[i])} {unit})" for i in order]
    none = int((~np.isfinite(array(ds, "self_repair", "component", "series"))).all(-1).sum())
    out = [f"{capital(ablation_word(ds))}, these change the forecast most by themselves: {listed(most)}."]
    if none:
        out.append(f"{none} of {len(labels)} components have no direct effect.")
    return out


def read_self_repair(ds: xr.Dataset) -> list[str]:
    """How many direct effects are undone later, and whose most."""
    repair, labels = medians(array(ds, "self_repair", "component", "series")), names(ds, "component")
    direct = medians(effect_sizes(ds, list(range(ds.sizes["series"]))).direct)
    known = np.flatnonzero(np.isfinite(repair))
    if not len(known):
        return ["No component has a direct effect."]
    strong = known[np.argsort(-direct[known], kind="stable")][:10]
    undone, added = int((repair[strong] > 0.1).sum()), int((repair[strong] < -0.1).sum())
    best = strong[int(np.argmax(repair[strong]))]
    return [
        f"Of the {len(strong)} components with the largest direct effect, later ones undo more than a tenth of it for "
        f"{undone}, and add more than a tenth for {added}.",
        f"Most is undone of {labels[best]}: {percent(float(repair[best]))} of its direct effect.",
    ]


def read_circuit(ds: xr.Dataset) -> list[str]:
    """Size and make-up of the circuit, and how well it does alone."""
    kept, places = np.asarray(ds["in_circuit"].values, dtype=bool), places_in(ds)
    ordered, kinds = kept[places.order], np.array(places.kind)
    counts = {kind: (int(ordered[kinds == kind].sum()), int((kinds == kind).sum())) for kind in places.colours()}
    parts = [f"{inside} of {whole} {_several(kind)}" for kind, (inside, whole) in counts.items()]
    faithful, complete = (float(array(ds, name, "series").mean()) for name in ("faithfulness", "completeness"))
    rest = "" if kept.all() else f" Everything else is {ablation_word(ds)}."
    return [
        f"{int(kept.sum())} of {len(kept)} components are kept: {listed(parts)}.{rest}",
        f"Alone they bring {percent(faithful)} of the way from a model without all components back to the whole model "
        f"(faithfulness). Without them, the rest falls {percent(complete)} of that way back (completeness).",
    ]


def read_circuit_forecasts(ds: xr.Dataset, series: int) -> list[str]:
    """How far each part's forecast is from the whole model's."""
    amount, parts = measured(unit_of(ds, series)), names(ds, "part")
    forecasts = {part: array(ds, "forecast", "step", part=i, series=series) for i, part in enumerate(parts)}
    away = {part: amount(np.abs(values - forecasts["model"]).mean()) for part, values in forecasts.items()}
    return [
        f"On {names(ds, 'series')[series]} the circuit's forecast is {away['circuit']} from the whole model's on "
        f"average, that of the rest {away['complement']}, and that of none of the components {away['nothing']}."
    ]


def read_curve(ds: xr.Dataset) -> list[str]:
    """Where faithfulness is lost."""
    curve, sizes = array(ds, "curve", "size"), np.asarray(ds["size"].values, dtype=int)
    known = np.flatnonzero(np.isfinite(curve))
    size, least = int(ds["in_circuit"].values.sum()), 1 - float(ds.attrs.get("tolerance", 0.0))
    out = [f"{size} components are the smallest number tried that is {num(least)} faithful or more."]
    if len(known) > 1:
        loss = np.diff(curve[known])
        at = int(np.argmax(loss))
        out.append(
            f"The largest step of the curve, {num(loss[at])}, is between {sizes[known[at]]} and "
            f"{sizes[known[at + 1]]} components."
        )
    return out


def _largest(values: np.ndarray) -> list[int]:
    """Flat places of the few largest values, only positive ones where there are any."""
    order = [int(i) for i in np.argsort(-values.ravel(), kind="stable")[:_NAMED]]
    return [i for i in order if values.flat[i] > 0] or order[:1]


def _cell(ds: xr.Dataset, flat: int) -> str:
    """A place and group of positions in words, from a flat index of (component, position)."""
    component, position = divmod(flat, ds.sizes["position"])
    places = places_in(ds)
    place = int(np.flatnonzero(places.order == component)[0])
    label = ("the stream " if places.kind[place] == "stream" else "") + places.labels[place]
    moment = when(ds, position)
    if moment.endswith(" token"):
        moment = f"the {moment}"
    return f"{label}, {moment}" if moment else label


def _several(kind: str) -> str:
    return "MLPs" if kind == "mlp" else f"{kind_word(kind)} heads"
