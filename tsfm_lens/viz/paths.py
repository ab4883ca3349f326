"""Paths between components: a matrix of senders and receivers in order of depth."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.contrast import way
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.places import OUTPUT, Places, places_in, places_named, separate
from tsfm_lens.viz.select import array, check, model_of, names, series_position, shown, unit_of
from tsfm_lens.viz.theme import DIVERGING, PALE, SEQUENTIAL, dress, plain

__all__ = ["path_map"]

KINDS = {"paths": "Path patching", "edges": "Edge attribution"}
WORDS = {"recovered": "share recovered", "effect": "mean change", "score": "estimated share recovered"}
_CROWD = 0.99  # where the colours end if the largest values are far above the rest


def path_map(ds: xr.Dataset, *, value: str | None = None, series: str | int | None = None) -> go.Figure:
    """Sender × receiver matrix of what travels from one component straight to another, and on to the forecast.

    Args:
        ds: of kind "paths" or "edges".
        value: "recovered" or "effect" of paths, "score" of edges; the first if None.
        series: id, or place counted from 0; the median over all unless given.

    Returns:
        One heat map, senders downwards and receivers to the right by depth, layers parted by lines, the output last.
        Grey where there is no path; of edges also where the score is exactly 0.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such value or series.
    """
    kind = paths_kind(ds)
    known = [name for name in WORDS if name in ds and (name == "score") == (kind == "edges")]
    chosen = known[0] if value is None and known else value
    if chosen is None or chosen not in known:
        raise unknown_name("value", str(chosen), known)
    senders, receivers = places_in(ds, "sender"), places_named(names(ds, "receiver"))
    z = path_values(ds, chosen, series)[np.ix_(senders.order, receivers.order)]
    limit, beyond = _limit(z)
    fig = go.Figure(_matrix(z, senders, receivers, chosen))
    separate(fig, senders.breaks)
    separate(fig, receivers.breaks, across=False)
    fig.update_xaxes(title_text="receiver", tickangle=-90, showline=False, **receivers.ticks())
    fig.update_yaxes(title_text="sender", autorange="reversed", showline=False, **senders.ticks())
    ids = names(ds, "series")
    one = series_position(ds, series) if series is not None else 0 if len(ids) == 1 else None
    unit = unit_of(ds, one)
    title = f"{WORDS[chosen]} ({unit or 'data units'})" if chosen == "effect" else WORDS[chosen]
    fig.update_layout(
        plot_bgcolor=PALE,
        coloraxis={
            "colorscale": SEQUENTIAL if chosen == "effect" else DIVERGING,
            "cmin": 0.0 if chosen == "effect" else -limit,
            "cmax": limit,
            "colorbar": {"title": {"text": plain(title), "side": "right"}, "nticks": 7},
        },
    )
    base, source = way(ds)
    on = f"median over {shown(ids)}" if one is None else ids[one]
    via = str(ds.attrs.get("via", "all"))
    fig = dress(
        fig,
        f"{KINDS[kind]} of {model_of(ds)}: what each component passes on to later ones",
        "; ".join(
            [
                f"{on}, {source} activations in the {base} run",
                *([f"via the receiver's {via}"] if via != "all" else []),
                *([f"the column {OUTPUT!r}: the direct path"] if OUTPUT in receivers.names else []),
                f"grey: no path{', or no effect' if kind == 'edges' else ''}",
                *([beyond] if beyond else []),
            ]
        ),
        plot_height=_height(senders),
        below=50 + 6 * max(len(label) for label in receivers.ticks()["ticktext"]),
        min_width=140 + max(_height(senders), 10 * len(receivers.names)),
    )
    return fig.update_layout(margin_r=100)


def paths_kind(ds: xr.Dataset) -> str:
    """The kind of a result over paths.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    kind = ds.attrs.get("kind") if isinstance(ds, xr.Dataset) else None
    check(ds, "edges" if kind == "edges" else "paths")
    return str(kind)


def path_values(ds: xr.Dataset, value: str, series: str | int | None = None) -> np.ndarray:
    """(sender, receiver) of one series, or the median over all; NaN where there is no path.

    Raises:
        UnknownNameError: no such series.
        InputError: the values have other dimensions.
    """
    values = array(ds, value, "sender", "receiver", "series")
    if ds.attrs.get("kind") == "edges":
        values = np.where((values == 0).all(-1, keepdims=True), np.nan, values)
    if series is not None:
        return np.asarray(values[..., series_position(ds, series)])
    return medians(values.reshape(-1, values.shape[-1])).reshape(values.shape[:2])


def _matrix(z: np.ndarray, senders: Places, receivers: Places, value: str) -> go.Heatmap:
    gap = 1 if max(z.shape) <= 60 else 0
    return go.Heatmap(
        x=np.arange(z.shape[1]),
        y=np.arange(z.shape[0]),
        z=z,
        coloraxis="coloraxis",
        xgap=gap,
        ygap=gap,
        hoverongaps=False,
        text=[[f"{plain(a)} → {plain(b)}" for b in receivers.names] for a in senders.names],
        hovertemplate=f"%{{text}}<br>{WORDS[value]} %{{z:.3g}}<extra></extra>",
    )


def _limit(z: np.ndarray) -> tuple[float, str]:
    """Where the colours end, and what the subtitle says where single values lie beyond."""
    sizes = np.abs(z[np.isfinite(z)])
    if not len(sizes) or not sizes.max():
        return 1.0, ""
    largest, most = float(sizes.max()), float(np.quantile(sizes, _CROWD))
    if largest <= 2 * most or not most:
        return largest, ""
    count = int((sizes > most).sum())
    return most, f"{count} {'value reaches' if count == 1 else 'values reach'} beyond the colours, to {largest:.2g}"


def _height(senders: Places) -> int:
    return int(np.clip(17 * len(senders.names), 220, 620))
