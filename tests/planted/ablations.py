"""Planted effects of components: ablated, attributed, written, repaired, kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from planted.series import (
    EMBED,
    THREE,
    Row,
    components,
    described,
    heads_or_kinds,
    with_components,
)
from tsfm_lens.core.estimates import add_estimates


def ablation(
    on: xr.Dataset = THREE,
    rows: Sequence[Row] | None = None,
    distance: np.ndarray | None = None,
    *,
    moved: np.ndarray | None = None,
    baseline: float = 0.0,
    free: float = 0.15,
    floor: float = 0.05,
) -> xr.Dataset:
    """cross_attn.1 of layer 1 has distance 0.8, all other heads 0.1; the MLPs 0.3 and
    0.2.
    """
    ds = with_components(
        described(on, "ablation_effects"), components() if rows is None else rows
    )
    if distance is None:
        known = {
            "decoder.1.cross_attn.1": 0.8,
            "decoder.0.mlp": 0.3,
            "decoder.1.mlp": 0.2,
        }
        effect = np.array(
            [known.get(str(name), 0.1) for name in ds["component"].values]
        )
        distance = np.repeat(effect[:, None], ds.sizes["series"], axis=1)
    if moved is None:
        moved = 4 * distance[:, 0]
    truth = ds["truth"].values
    ds["baseline_forecast"] = (("series", "step"), truth + baseline)
    ds["forecast"] = (
        ("component", "series", "step"),
        truth[None] + moved[:, None, None],
    )
    ds["mean_shift"] = abs(ds["forecast"] - ds["baseline_forecast"]).mean("step")
    ds["spearman_distance"] = (("component", "series"), distance)
    for name in ("mae_change", "mase_change"):
        ds[name] = ds["spearman_distance"] - free
    for name in ("spearman_distance", "mean_shift", "mae_change", "mase_change"):
        ds = add_estimates(
            ds,
            name,
            floor=floor,
            signed=name.endswith("change"),
            groups=heads_or_kinds(ds),
        )
    return ds


def attribution(
    on: xr.Dataset = THREE,
    rows: Sequence[Row] | None = None,
    values: np.ndarray | None = None,
    gap: np.ndarray | float = 0.25,
) -> xr.Dataset:
    """decoder.0.mlp adds 3 m at every step, decoder.1.cross_attn.0 takes 1 m, more and
    more; others nothing.
    """
    ds = with_components(
        described(on, "attribution"), [EMBED, *components()] if rows is None else rows
    )
    ds = ds.assign_coords(
        decomposition=["logit", "expected_value"],
        quantile=[0.5],
        unit=("decomposition", ["logit", "data units"]),
    )
    if values is None:
        names = list(ds["component"].values)
        values = np.zeros((2, len(names), ds.sizes["step"]))
        values[:, names.index("decoder.0.mlp")] = 3.0
        values[:, names.index("decoder.1.cross_attn.0")] = -0.5 * ds["step"].values
    every = np.repeat(values[:, :, None], ds.sizes["series"], axis=2)
    axes = ("decomposition", "component", "series", "quantile", "step")
    ds["attribution"] = (axes, every[..., None, :])
    gaps = np.broadcast_to(gap, ds.sizes["series"])
    ds["completeness_error"] = (
        ("decomposition", "series"),
        np.stack([np.zeros_like(gaps, dtype=float), gaps]),
    )
    ds["mean_attribution"] = ds["attribution"].mean(["quantile", "step"])
    ds["mean_absolute"] = abs(ds["attribution"]).mean(["quantile", "step"])
    ds["size_share"] = ds["mean_absolute"] / ds["mean_absolute"].sum("component")
    ds["series_agreement"] = (
        np.sign(ds["mean_attribution"]) == np.sign(ds["mean_attribution"][..., :1])
    ).mean("series")
    floor = xr.DataArray(
        np.full((2, ds.sizes["series"]), 0.01), dims=("decomposition", "series")
    )
    members = xr.DataArray(heads_or_kinds(ds), dims="component").astype(object)
    groups = ds["decomposition"].astype(object) + " " + members
    return add_estimates(ds, "size_share", floor=floor, groups=groups)


def effects(
    on: xr.Dataset = THREE,
    rows: Sequence[Row] | None = None,
    direct: np.ndarray | None = None,
    repair: np.ndarray | None = None,
) -> xr.Dataset:
    """Component c of eight has a direct effect of c m; half is undone, of the last all,
    of the first there is none.
    """
    ds = with_components(
        described(on, "causal_effects"),
        components(whole=False) if rows is None else rows,
    )
    ds = ds.assign_attrs(how="zero", statistic="median")
    n = ds.sizes["component"]
    axes = ("component", "series", "step")
    if direct is None:
        direct = np.arange(float(n))
    if repair is None:
        repair = np.full((n, ds.sizes["series"]), 0.5)
        repair[-1] = 1.0
    ds["direct"] = (
        axes,
        direct[:, None, None] * np.ones((1, ds.sizes["series"], ds.sizes["step"])),
    )
    ds["total"] = (axes, ds["direct"].values * (1 - repair[..., None]))
    ds["indirect"] = ds["total"] - ds["direct"]
    ds["plain_forecast"] = (axes[1:], ds["truth"].values)
    ds["self_repair"] = (axes[:2], np.where(direct[:, None] == 0, np.nan, repair))
    for part in ("direct", "total"):
        ds[f"{part}_share"] = abs(ds[part]).mean("step") / 10
        ds = add_estimates(ds, f"{part}_share", floor=0.01, groups=heads_or_kinds(ds))
    floor = xr.DataArray(np.full((n, ds.sizes["series"]), 0.01), dims=axes[:2])
    return add_estimates(
        ds, "self_repair", floor=floor, signed=True, groups=heads_or_kinds(ds)
    )


def circuit(on: xr.Dataset = THREE) -> xr.Dataset:
    """Two heads and an MLP of eight are kept; without any the forecast is 10 higher,
    with them alone 1.
    """
    ds = described(
        on.drop_vars("truth"),
        "minimal_circuit",
        how="zero",
        ranking="greedy",
        tolerance=0.1,
    )
    ds = with_components(
        ds.assign_attrs(behaviour="forecast", smallest=0.01, minimal="up to pairs"),
        components(whole=False),
    )
    n = ds.sizes["component"]
    ds = ds.assign_coords(
        size=range(n + 1), part=["model", "circuit", "complement", "nothing"]
    )
    taken = np.where(np.arange(n) < n - 3, np.arange(n), -1)
    ds["in_circuit"], ds["taken"] = ("component", taken < 0), ("component", taken)
    ds["cost"] = (
        "component",
        np.where(taken < 0, np.nan, np.where(taken == 1, 0.08, 0.005)),
    )
    curve = np.full(n + 1, np.nan)
    curve[[n - 5, n - 4, n - 3, n]] = [0.9, 0.9, 0.9, 1.0]
    curve[:3] = np.nan
    ds["curve"] = ("size", curve)
    for name, value in (("faithfulness", 0.9), ("completeness", 0.8)):
        ds[name] = ("series", np.full(ds.sizes["series"], value))
        ds = add_estimates(ds, name, floor=0.0, signed=True)
    ds["gap"], ds["gap_floor"] = (
        ("series", np.full(ds.sizes["series"], gap)) for gap in (10.0, 0.1)
    )
    ds["refused"] = ("series", np.zeros(ds.sizes["series"], dtype=bool))
    shift = np.array([0.0, 1.0, 8.0, 10.0])[:, None, None]
    ds["forecast"] = (("part", "series", "step"), on["truth"].values + shift)
    return ds


def stream_shares(on: xr.Dataset = THREE) -> xr.Dataset:
    """An eighth of the stream is the embedding's, three are of one layer's two heads,
    and half is its MLP's.
    """
    n = on.sizes["series"]
    size = np.array([1.0, 3.0, 4.0])[:, None] * np.ones(n)
    heads = np.array([[np.nan, np.nan], [2.0, 3.0], [np.nan, np.nan]])[
        ..., None
    ] * np.ones(n)
    ds = described(
        on[["series", "units"]],
        "stream_shares",
        decomposition="logit",
        horizon=on.sizes["step"],
    )
    ds = ds.assign(
        size=(("writer", "series"), size),
        share=(("writer", "series"), size / 8),
        head_size=(("writer", "head", "series"), heads),
    ).assign_coords(
        writer=["embed", "decoder.0.cross_attn", "decoder.0.mlp"],
        layer=("writer", [-1, 0, 0]),
        kind=("writer", ["embed", "cross_attn", "mlp"]),
        keys_from=("writer", ["", "encoder", ""]),
        head=[0, 1],
    )
    return add_estimates(ds, "share", floor=0.001)
