"""What planted results are about: series in closed form, the parts of a toy model,
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

IDS = ("a", "b", "c")
Row = tuple[str, str, str, int, int]
"""Name, stack, kind, layer and head of a part of a model."""


def series(
    ids: Sequence[str] = IDS,
    *,
    time: int = 24,
    horizon: int = 5,
    level: float = 10.0,
    apart: float = 100.0,
    units: Sequence[str] | str = "m",
    dated: bool = True,
) -> xr.Dataset:
    """Context level + apart · s + t and truth level + apart · s + h of series s, by
    day, in metres.
    """
    n = len(ids)
    steps = np.arange(-time, 0)
    ahead = np.arange(horizon)
    levels = level + apart * np.arange(n)[:, None]
    made = xr.Dataset(
        {
            "context": (("series", "time"), levels + steps),
            "truth": (("series", "step"), levels + ahead),
        },
        coords={
            "series": list(ids),
            "time": steps,
            "step": ahead,
            "units": ("series", [units] * n if isinstance(units, str) else list(units)),
        },
    )
    if not dated:
        return made
    stamps = np.tile(
        pd.date_range("2001-01-01", periods=time + horizon, freq="D").values, (n, 1)
    )
    return made.assign_coords(
        context_timestamp=(("series", "time"), stamps[:, :time]),
        forecast_timestamp=(("series", "step"), stamps[:, time:]),
    )


def rivers_and_roads(*, dated: bool = False) -> xr.Dataset:
    """Two series a hundred apart, from t and h, one of them without a unit."""
    sizes = {"time": 30, "horizon": 6}
    values = {"level": 0.0, "apart": 100.0, "units": ("m³/s", "")}
    return series(("rivers", "roads"), **sizes, **values, dated=dated)


THREE = series()


def described(on: xr.Dataset | None, kind: str, **attrs: object) -> xr.Dataset:
    """A result on some series, or on none, with the attributes of every result."""
    if on is None:
        made = xr.Dataset()
    else:
        made = on.copy(deep=True)
    return made.assign_attrs(kind=kind, model="toy", title="", **attrs)


def components(
    layers: int = 2,
    heads: int = 3,
    kinds: Sequence[str] = ("cross_attn",),
    *,
    whole: bool = True,
) -> list[Row]:
    """Heads of every layer, its MLP and, by default, the layer as a whole."""
    rows = []
    for layer in range(layers):
        name = f"decoder.{layer}"
        rows += [
            (f"{name}.{kind}.{h}", "decoder", kind, layer, h)
            for kind in kinds
            for h in range(heads)
        ]
        rows += [(f"{name}.mlp", "decoder", "mlp", layer, -1)]
        rows += [(name, "decoder", "layer", layer, -1)] * whole
    return rows


EMBED = ("embed", "decoder", "embed", -1, -1)


def with_components(
    ds: xr.Dataset, rows: Sequence[Row], axis: str = "component"
) -> xr.Dataset:
    """With the coordinates of parts along an axis."""
    name, stack, kind, layer, head = (
        list(column) for column in zip(*rows, strict=True)
    )
    return ds.assign_coords(
        {
            axis: name,
            "stack": (axis, stack),
            "kind": (axis, kind),
            "layer": (axis, layer),
            "head": (axis, head),
        }
    )


def heads_or_kinds(ds: xr.Dataset) -> list[str]:
    """The groups within which one component may lead."""
    return [
        "head" if head >= 0 else str(kind)
        for kind, head in zip(ds["kind"].values, ds["head"].values, strict=True)
    ]


def tokens(
    side: str,
    start: Sequence[int] | np.ndarray,
    stop: Sequence[int] | np.ndarray | None = None,
    special: str = "",
) -> dict[str, tuple[str, list]]:
    """Coordinates of tokens of one step each unless ``stop`` says more, and of a
    special one behind them.
    """
    first = [int(item) for item in start]
    if stop is None:
        last = [item + 1 for item in first]
    else:
        last = [int(item) for item in stop]
    more = [-1] * bool(special)
    return {
        f"{side}_start": (side, first + more),
        f"{side}_stop": (side, last + more),
        f"{side}_special": (side, [""] * len(first) + [special] * bool(special)),
    }
