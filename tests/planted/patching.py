"""Planted contrasts of two runs: patches, their estimates, paths and edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from planted.series import THREE, Row, described, with_components
from tsfm_lens.core.estimates import add_estimates

SENDERS = (
    ("decoder.0.cross_attn.0", "decoder", "cross_attn", 0, 0),
    ("decoder.1.mlp", "decoder", "mlp", 1, -1),
)
PLACES = (
    ("blocks.0.hook_resid_pre", "decoder", "stream", 0, -1),
    ("blocks.1.hook_resid_pre", "decoder", "stream", 1, -1),
    ("blocks.1.hook_resid_post", "decoder", "stream", 1, -1),
)


def contrast(on: xr.Dataset, kind: str, direction: str) -> xr.Dataset:
    """The corrupted forecast is the clean one and 4; contexts differ in the last 8
    steps.
    """
    ds = described(on.drop_vars("truth"), kind, direction=direction, statistic="median")
    ds["corrupted_context"] = ds["context"].where(ds["time"] < -8, 0.0)
    ds["clean_forecast"], ds["corrupted_forecast"] = on["truth"], on["truth"] + 4.0
    return ds


def _patched(on: xr.Dataset, kind: str) -> xr.Dataset:
    """Nothing is recovered but 0.75 before layer 1 at the last 12 steps, and all after
    layer 1 at EOS.
    """
    ds = contrast(on, kind, "denoise").assign_attrs(positions="None").assign_coords(
        position=[0, 12, 24],
        position_start=("position", [-on.sizes["time"], -12, 0]),
        position_stop=("position", [-12, 0, 0]),
        position_special=("position", ["", "", "EOS"]),
    )  # fmt: skip
    recovered = np.zeros((3, 3, on.sizes["series"]))
    recovered[1, 1], recovered[2, 2] = 0.75, 1.0
    ds = with_components(ds, PLACES).assign(
        recovered=(("component", "position", "series"), recovered)
    )
    return add_estimates(ds, "recovered", floor=0.01, signed=True)


def patching(on: xr.Dataset = THREE) -> xr.Dataset:
    """Nothing is recovered but 0.75 before layer 1 at the last 12 steps, and all after
    layer 1 at EOS.
    """
    ds = _patched(on, "activation_patching")
    ds["effect"] = 4 * ds["recovered"]
    ds["forecast"] = ds["corrupted_forecast"] - 4 * ds["recovered"]
    return add_estimates(ds, "effect", floor=0.04)


def attribution_patching(on: xr.Dataset = THREE) -> xr.Dataset:
    """The estimate is the exact share, but 0.5 too large before layer 1 at the last 12
    steps.
    """
    ds = _patched(on, "attribution_patching")
    error = np.zeros(ds["recovered"].shape)
    error[1, 1] = 0.5
    ds["first_order"], ds["error"] = (
        ds["recovered"] + error,
        (ds["recovered"].dims, error),
    )
    ds.attrs |= {"mean_absolute_error": 0.5 / 9, "rank_correlation": 0.9}
    return add_estimates(ds, "first_order", floor=0.01, signed=True)


def _through(
    on: xr.Dataset, kind: str, senders: Sequence[Row], values: np.ndarray | None
) -> tuple[xr.Dataset, np.ndarray]:
    names = [row[0] for row in senders]
    ds = with_components(contrast(on, kind, "noise"), senders, "sender").assign_coords(
        receiver=[*names, "output"]
    )
    if values is None:
        values = np.array([[np.nan, -0.25, 0.5], [np.nan, np.nan, 0.125]])
    return ds, np.repeat(values[..., None], on.sizes["series"], axis=-1)


def paths(
    on: xr.Dataset = THREE,
    senders: Sequence[Row] = SENDERS,
    values: np.ndarray | None = None,
) -> xr.Dataset:
    """Head 0 reaches the output by 0.5 and the MLP of layer 1 by -0.25, that by 0.125;
    no path leads back.
    """
    ds, found = _through(on, "path_patching", senders, values)
    axes = ("sender", "receiver", "series")
    ds["recovered"], ds["effect"] = (axes, found), (axes, 4 * np.abs(found))
    ds = add_estimates(ds, "recovered", floor=0.01, signed=True)
    return add_estimates(ds, "effect", floor=0.04)


def edges(on: xr.Dataset = THREE) -> xr.Dataset:
    """The scores are those of ``paths``, 0 where there is none."""
    ds, found = _through(on, "edge_attribution", SENDERS, None)
    ds["score"] = (("sender", "receiver", "series"), np.nan_to_num(found))
    return add_estimates(ds, "score", floor=0.01, signed=True)
