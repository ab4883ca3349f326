"""Direct and total effects, and minimal circuits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import between, on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.standing import WORTH_A_WORD, Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import capital, listed, measured, num, verb
from tsfm_lens.viz import circuit_curve, circuit_forecasts, circuit_graph, effects_scatter, self_repair_bars
from tsfm_lens.viz.effects import ablation_word
from tsfm_lens.viz.places import places_in
from tsfm_lens.viz.select import array, forecast_series, kind_word, names, unit_of
from tsfm_lens.viz.theme import percent

_MAX_NAMES = 3  # components in a sentence
_MAX_SERIES = 3  # series with figures of their own


def read_effects(ds: xr.Dataset) -> list[str]:
    """Describe the components that act most on the forecast directly."""
    direct, labels = Standing(ds, "direct_share", "component"), names(ds, "component")
    most = [f"{labels[flat]} ({direct.told(flat, percent)})" for flat in direct.named(_MAX_NAMES)]
    later = _total(ds)
    if not most:
        return [
            f"{capital(ablation_word(ds))}, no component changes the forecast directly by more than the noise.",
            later,
        ]
    out = (
        f"{capital(ablation_word(ds))}, these change the forecast most directly, as shares of the range of the "
        f"series: {listed(most)}."
    )
    standing = f"{int(direct.stands_out.sum())} of {len(labels)} components stand out of the noise directly"
    return [out, f"{standing}, {_large(direct)}.", later]


def _large(share: Standing) -> str:
    """State how many of the significant effects are more than a trifle."""
    count = int((share.stands_out & (share.estimate >= WORTH_A_WORD)).sum())
    whole = count == int(share.stands_out.sum())
    return f"{'all' if whole else count or 'none'} of them by {percent(WORTH_A_WORD)} or more"


def _total(ds: xr.Dataset) -> str:
    """State how many components change the forecast with all that follows, and which most."""
    total, labels = Standing(ds, "total_share", "component"), names(ds, "component")
    most = [f"{labels[flat]} ({total.told(flat, percent)})" for flat in total.named(_MAX_NAMES)]
    if not most:
        return "With all that follows, none changes it by more than the noise either."
    count = int(total.stands_out.sum())
    do = f"{count} of {len(labels)} {verb(count, 'do', 'does')}"
    return f"With all that follows, {do}, {_large(total)}, most of all {listed(most)}."


def read_self_repair(ds: xr.Dataset) -> list[str]:
    """State how many direct effects are undone later, and whose most."""
    repair, labels = Standing(ds, "self_repair", "component"), names(ds, "component")
    count = int(np.isfinite(repair.estimate).sum())
    if not count:
        return ["No component has a direct effect large enough to say what share of it is undone."]
    positive, negative = repair.stands_out & (repair.estimate > 0), repair.stands_out & (repair.estimate < 0)
    out = [
        f"Of {count} components the direct effect is large enough on some series to say what share of it is undone. "
        + (
            f"Later components undo a part of it for {int(positive.sum())}, and add to it for {int(negative.sum())}."
            if positive.any() or negative.any()
            else "No share stands out of the noise."
        )
    ]
    first = repair.leader(positive)
    if first is not None:
        out.append(f"Most is undone of {labels[first]}: {repair.told(first, percent)} of its direct effect.")
    return out


def read_circuit(ds: xr.Dataset) -> list[str]:
    """Describe size and make-up of the circuit, and how well it does alone."""
    mask, places = np.asarray(ds["in_circuit"].values, dtype=bool), places_in(ds)
    by_depth, kinds = mask[places.order], np.array(places.kind)
    counts = {kind: (int(by_depth[kinds == kind].sum()), int((kinds == kind).sum())) for kind in places.colours()}
    parts = [f"{inside} of {whole} {_several(kind)}" for kind, (inside, whole) in counts.items()]
    faithful, complete = (Standing(ds, name).told(0, percent) for name in ("faithfulness", "completeness"))
    rest = "" if mask.all() else f" Everything else is {ablation_word(ds)}."
    out = [
        f"{int(mask.sum())} of {len(mask)} components are kept: {listed(parts)}.{rest}",
        f"Alone they bring {faithful} of the way from a model without all components back to the whole model "
        f"(faithfulness). Without them, the rest falls {complete} of that way back (completeness).",
    ]
    refusals = [name for name, no in zip(names(ds, "series"), ds["refused"].values, strict=True) if no]
    if refusals:
        out.append(
            f"Of {listed(refusals)} nothing is said: taking all components out changes the forecast by less than the "
            f"noise or than {percent(float(ds.attrs['smallest']))} of the range."
        )
    return out


def read_circuit_forecasts(ds: xr.Dataset, series: int) -> list[str]:
    """State how far each part's forecast is from the whole model's."""
    amount, parts = measured(unit_of(ds, series)), names(ds, "part")
    forecasts = {part: array(ds, "forecast", "step", part=i, series=series) for i, part in enumerate(parts)}
    away = {part: amount(np.abs(values - forecasts["model"]).mean()) for part, values in forecasts.items()}
    return [
        f"On {names(ds, 'series')[series]} the circuit's forecast is {away['circuit']} from the whole model's on "
        f"average, that of the rest {away['complement']}, and that of none of the components {away['nothing']}."
    ]


def read_curve(ds: xr.Dataset) -> list[str]:
    """Describe where faithfulness is lost."""
    curve, sizes = array(ds, "curve", "size"), np.asarray(ds["size"].values, dtype=int)
    points = np.flatnonzero(np.isfinite(curve))
    size, least = int(ds["in_circuit"].values.sum()), 1 - float(ds.attrs.get("tolerance", 0.0))
    out = [f"{size} components are the smallest number tried that is {num(least)} faithful or more."]
    if len(points) > 1:
        loss = np.diff(curve[points])
        at = int(np.argmax(loss))
        out.append(
            f"The largest step of the curve, {num(loss[at])}, is between {sizes[points[at]]} and "
            f"{sizes[points[at + 1]]} components."
        )
    return out


def _several(kind: str) -> str:
    return "MLPs" if kind == "mlp" else f"{kind_word(kind)} heads"


def _effects(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(effects_scatter(ds), frame(ds, "direct", "total", "indirect"), read_effects(ds))
    yield Plate(self_repair_bars(ds), frame(ds, "self_repair"), read_self_repair(ds))


def _circuit(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(circuit_graph(ds), frame(ds, "in_circuit", "taken"), read_circuit(ds))
    for i in forecast_series(ds, _MAX_SERIES):
        table = frame(ds.isel(series=[i]), "forecast")
        yield Plate(circuit_forecasts(ds, series=i), table, read_circuit_forecasts(ds, i))
    yield Plate(circuit_curve(ds), frame(ds, "curve").dropna(ignore_index=True), read_curve(ds))


MEASUREMENTS = (
    Measurement(
        kind="effects",
        theme="Causes",
        about="direct, indirect and total effects; self-repair",
        heading="Direct and total effects",
        guide="Each component is taken out twice: with everything behind it held as it was, and with everything free "
        "to respond. Where later components undo part of the loss, the model repairs itself.",
        compute=on_all("causal_effects"),
        plates=_effects,
        figures=(
            Figure("effects_scatter", "Direct against total effect of every component."),
            Figure("self_repair_bars", "What later layers repair after an ablation."),
        ),
        source="Pearl 2001; McGrath et al. 2023",
    ),
    Measurement(
        kind="circuit",
        theme="Causes",
        about="minimal circuits with faithfulness and completeness",
        heading="Minimal circuit",
        guide="As few heads and MLPs as keep the forecast within a tolerance while everything else is taken out.",
        compute=between("minimal_circuit"),
        plates=_circuit,
        figures=(
            Figure("circuit_graph", "A minimal circuit and the edges between its components.", beside=("edges",)),
            Figure("circuit_curve", "What is lost as a circuit gets smaller."),
            Figure("circuit_forecasts", "Forecasts of a minimal circuit and of its complement."),
        ),
        source="Wang et al. 2022; Conmy et al. 2023; Marks et al. 2024",
    ),
)
