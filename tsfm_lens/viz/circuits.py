"""Minimal circuit: its map, its faithfulness by size, and its forecasts.

:func:`circuit_map` draws the components by layer; the others are drawn by
:func:`generic_figure`. The circuit is found in
:mod:`tsfm_lens.probes.circuits`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.effects import ablation_word
from tsfm_lens.viz.findings import find_estimate
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    forecast_series,
    name_model,
    names,
    shown,
)
from tsfm_lens.viz.sites import by_layer, find_positions
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.words import num

__all__ = ["circuit_map"]

_WORTH_NAMING = 0.01  # cost in faithfulness below which a component is not named


def read_circuit(ds: xr.Dataset) -> list[str]:
    """State what the circuit is made of, and how well it does without the rest."""
    sites = find_positions(ds)
    # in the order of sites, which are sorted by depth
    inside = np.asarray(ds["in_circuit"].values, dtype=bool)[sites.order]
    kinds = xr.DataArray(inside, {"kind": ("component", sites.kind)}, ["component"])
    refused = np.asarray(ds["refused"].values, dtype=bool)
    cost = ds["cost"]
    tested = None
    if "minimal" not in ds.attrs:
        tested = "single components"
    return summarize(
        ds,
        "Components that are kept: {in_circuit:count}, namely {kinds:each whole}; "
        "everything else is {ablation}.",
        "Faithfulness {faithfulness:percent}: the circuit alone recovers this share "
        "of the way from no components to the whole model.",
        "Completeness {completeness:percent}: this share of that way is lost without "
        "the circuit.",
        "The circuit is minimal {minimal}: none of these can go as well.",
        "Only {tested} were removed, and no pairs: two components that cancel each"
        " other may be among these.",
        "Largest costs in faithfulness of components that the tolerance of "
        "{tolerance:percent} let go: {dropped:largest percent}.",
        "No verdict on {refusals}: ablating all components changes the forecast by "
        "less than the noise, or by less than {smallest:percent} of the range.",
        kinds=kinds.groupby("kind").sum(),
        ablation=ablation_word(ds),
        tested=tested,
        dropped=cost.where(cost >= _WORTH_NAMING),
        refusals=shown(np.array(names(ds, "series"))[refused].tolist()) or None,
    )


def read_circuit_forecasts(ds: xr.Dataset, series: int) -> list[str]:
    """State how far the forecast of each part is from that of the whole model."""
    forecast = ds["forecast"].isel(series=series)
    away = abs(forecast - forecast.sel(part="model")).mean("step")
    return summarize(
        ds.isel(series=[series]),
        "Mean distance from the whole model's forecast on {series}: {away:each unit}.",
        away=away.drop_sel(part="model"),
    )


@figure("minimal_circuit", "A minimal circuit among the components of the model.")
def circuit_map(ds: xr.Dataset) -> go.Figure:
    """Draw the model's heads and MLPs by layer, those of the circuit outlined.

    Args:
        ds: result of kind "minimal_circuit".

    Returns:
        One map, layer × component, of what each removed component costs in
        faithfulness, a share without unit. Cells of the circuit are outlined.

    Example:
        >>> ds = probes.minimal_circuit(run, nodes=["decoder.*.mlp"], ranking="effects")
        >>> viz.circuit_map(ds).layout.meta["title"]
        'Circuit of chronos-nano for the forecast of co2: 1 of 3 components'
    """
    drawn = by_layer(ds[["cost", "in_circuit"]])
    drawn["cost"].attrs["long_name"] = "cost in faithfulness"
    count = int(ds["in_circuit"].sum())
    return draw_variable(
        drawn,
        "cost",
        title=f"Circuit of {name_model(ds)} for {_behaviour(ds)} of"
        f" {shown(names(ds, 'series'))}: {count} of {ds.sizes['component']} components",
        remarks=[
            _quality(ds),
            str(ds.attrs.get("refused", "")),
            f"outlined: the circuit; numbers: cost of what is {ablation_word(ds)}",
        ],
        outlined="in_circuit",
    )


def _quality(ds: xr.Dataset) -> str:
    """Write faithfulness and completeness as medians over series, with ranges."""
    parts = []
    for name in ("faithfulness", "completeness"):
        effect = find_estimate(ds, name)
        size = float(ds[name].median())
        if not np.isfinite(size):
            parts.append(f"no verdict on {name}")
        elif effect is None:
            parts.append(f"{name} {num(size)}")
        else:
            parts.append(f"{name} {effect.told(0, over=True)}")
    return ", ".join(parts)


def _behaviour(ds: xr.Dataset) -> str:
    """Write in words what the circuit is for."""
    word = str(ds.attrs.get("behaviour", "forecast"))
    if word == "forecast":
        return "the forecast"
    return f"{word!r}"


@panels("minimal_circuit")
def _circuit(ds: xr.Dataset) -> Iterator[FigurePanel]:
    yield FigurePanel(
        circuit_map(ds), frame(ds, "in_circuit", "taken", "cost"), read_circuit(ds)
    )
    for i in forecast_series(ds, MAX_DRAWN):
        table = frame(ds.isel(series=[i]), "forecast")
        text = read_circuit_forecasts(ds, i)
        label = names(ds, "series")[i]
        forecasts = draw_variable(ds, "forecast", series=i)
        yield FigurePanel(forecasts, table, text, series=label)
    curve = frame(ds, "curve").dropna(ignore_index=True)
    yield FigurePanel(draw_variable(ds, "curve"), curve)


generic_figure("minimal_circuit", "curve", "Faithfulness of circuits by size.")
generic_figure(
    "minimal_circuit",
    "forecast",
    "Forecasts of a minimal circuit and of its complement.",
    options={"series": 0},
)
