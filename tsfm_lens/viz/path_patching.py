"""Path patching, and edge attribution, its estimate."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.findings import finding, middle_of
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.patching import path_word, way
from tsfm_lens.viz.places import OUTPUT, places_in, places_named
from tsfm_lens.viz.select import (
    array,
    model_of,
    names,
    series_position,
    series_rows,
    unit_of,
)
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import PALE, plain
from tsfm_lens.viz.words import over_series

__all__ = ["path_map"]


KINDS = {"path_patching": "Path patching", "edge_attribution": "Edge attribution"}
WORDS = {
    "recovered": "share recovered",
    "effect": "mean change",
    "score": "estimated share recovered",
}
_CROWD = 0.99  # where the colours end if the largest values are far above the rest


def read_paths(ds: xr.Dataset) -> list[str]:
    """Describe the strongest direct paths to the output, and the strongest between components."""
    effect = "score" if ds.attrs["kind"] == "edge_attribution" else "recovered"
    direct = (ds["receiver"] == OUTPUT).values
    largest = f"as shares of the way{{{effect}:basis}}: {{{effect}:largest signed}}."
    return [
        *summarize(
            ds.isel(receiver=direct),
            f"Strongest paths straight to the output, {largest}",
        ),
        *summarize(
            ds.isel(receiver=~direct),
            f"Strongest paths through another component, {largest}",
        ),
        *summarize(ds, effect=effect, noun="paths"),
    ]


@figure(
    "path_patching",
    "Effect of each component through each later one.",
    table=lambda ds: frame(ds, "recovered", "effect").dropna(ignore_index=True),
    sentences=read_paths,
)
def path_map(
    ds: xr.Dataset, *, value: str | None = None, series: str | int | None = None
) -> go.Figure:
    """Draw the sender × receiver matrix of direct effects of one component through another on the forecast.

    Args:
        value: "recovered" or "effect" of paths, "score" of edges; the first if None.
    """
    kind = str(ds.attrs["kind"])
    available = [
        name
        for name in WORDS
        if name in ds and (name == "score") == (kind == "edge_attribution")
    ]
    variable = available[0] if value is None and available else value
    if variable is None or variable not in available:
        raise unknown_name("value", str(variable), available)
    senders, receivers = places_in(ds, "sender"), places_named(names(ds, "receiver"))
    cells = np.ix_(senders.order, receivers.order)
    z = path_values(ds, variable, series)[cells]
    rows = series_rows(ds, series)
    unit = unit_of(ds, rows[0] if len(rows) == 1 else None)
    noise = finding(
        ds, variable, "sender", "receiver", unit=unit if variable == "effect" else ""
    )
    limit, beyond = _limit(z)
    height = int(np.clip(17 * len(senders.names), 220, 620))
    options: Look = {
        "below": 50 + 6 * max(len(label) for label in receivers.ticks()["ticktext"])
    }
    sheet = blank(
        height, min_width=140 + max(height, 16 * len(receivers.names)), **options
    )
    panel, gap = sheet.panel(), 1 if max(z.shape) <= 60 else 0
    words = [
        [f"{plain(a)} → {plain(b)}" for b in receivers.names] for a in senders.names
    ]
    x, y, hover = (
        np.arange(z.shape[1]),
        np.arange(z.shape[0]),
        f"%{{text}}<br>{WORDS[variable]} %{{z:.3g}}",
    )
    panel.cells(
        z, x, y, hover, noise=noise and noise.at(cells), text=words, xgap=gap, ygap=gap
    )
    panel.partings(senders.breaks)
    panel.partings(receivers.breaks, across=False)
    panel.x("receiver", tickangle=-90, showline=False, **receivers.ticks())
    panel.y("sender", autorange="reversed", showline=False, **senders.ticks())
    title = (
        f"{WORDS[variable]} ({unit or 'data units'})"
        if variable == "effect"
        else WORDS[variable]
    )
    sheet.colours(
        colour_scale(
            title, low=0.0, high=limit, diverging=variable != "effect", nticks=7
        )
    )
    # lines between cells alone: where there is no path there is nothing
    sheet.fig.update_layout(plot_bgcolor=PALE)
    panel.cover(np.isnan(z), "#FFFFFF", name="no path", x=x, y=y)
    base, source = way(ds)
    return sheet.dress(
        f"{KINDS[kind]} of {model_of(ds)}: effect of each component through later ones",
        f"{over_series(ds, rows)}, {source} activations in the {base} run{path_word(ds)}",
        f"the column {OUTPUT!r}: the direct path" if OUTPUT in receivers.names else "",
        f"empty: no path{', or no effect' if kind == 'edge_attribution' else ''}",
        beyond,
    )


def path_values(
    ds: xr.Dataset, value: str, series: str | int | None = None
) -> np.ndarray:
    """Return (sender, receiver) of one series, or the mean over all; NaN where there is no path."""
    values = array(ds, value, "sender", "receiver", "series")
    if ds.attrs.get("kind") == "edge_attribution":
        values = np.where((values == 0).all(-1, keepdims=True), np.nan, values)
    if series is not None:
        return np.asarray(values[..., series_position(ds, series)])
    sizes = middle_of(finding(ds, value, "sender", "receiver"), values)
    return np.where(np.isnan(values).all(-1), np.nan, sizes)


def _limit(z: np.ndarray) -> tuple[float, str]:
    """Return where the colours end, and what the subtitle says where single values lie beyond."""
    sizes = np.abs(z[np.isfinite(z)])
    if not len(sizes) or not sizes.max():
        return 1.0, ""
    largest, most = float(sizes.max()), float(np.quantile(sizes, _CROWD))
    if largest <= 2 * most or not most:
        return largest, ""
    count = int((sizes > most).sum())
    return (
        most,
        f"{count} {'value reaches' if count == 1 else 'values reach'} beyond the colours, to {largest:.2g}",
    )


figure(
    "edge_attribution",
    ("Gradient estimates of the effect of each component through each later one."),
    table=lambda ds: frame(ds, "score").query("score != 0"),
    sentences=read_paths,
)(path_map)
