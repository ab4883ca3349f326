"""Labelled results with planted answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from tsfm_lens.probes.findings import judge
from tsfm_lens.report import build_report

TIME, HORIZON = 24, 5
EVIL = '<script>window.hacked=1</script>"\'&<img src=x onerror="window.hacked=1">'


def base(kind: str, ids: tuple[str, ...] = ("a", "b", "c")) -> xr.Dataset:
    """Context 10 + t, truth 10 + h, dated by day, in metres."""
    stamps = pd.date_range("2001-01-01", periods=TIME + HORIZON, freq="D").values
    n, time, step = len(ids), np.arange(-TIME, 0), np.arange(HORIZON)
    return xr.Dataset(
        {
            "context": (("series", "time"), np.tile(10.0 + time, (n, 1))),
            "truth": (("series", "step"), np.tile(10.0 + step, (n, 1))),
        },
        coords={
            "series": list(ids),
            "time": time,
            "step": step,
            "units": ("series", ["m"] * n),
            "forecast_timestamp": (("series", "step"), np.tile(stamps[TIME:], (n, 1))),
            "context_timestamp": (("series", "time"), np.tile(stamps[:TIME], (n, 1))),
        },
        attrs={"kind": kind, "model": "toy", "units": "", "title": "", "seed": 3},
    )


def with_components(ds: xr.Dataset, heads: int = 3) -> xr.Dataset:
    rows = [("embed", "decoder", "embed", -1, -1)]
    for layer in range(2):
        rows += [(f"decoder.{layer}.cross_attn.{h}", "decoder", "cross_attn", layer, h) for h in range(heads)]
        rows += [
            (f"decoder.{layer}.mlp", "decoder", "mlp", layer, -1),
            (f"decoder.{layer}", "decoder", "layer", layer, -1),
        ]
    name, stack, kind, layer, head = (list(c) for c in zip(*rows, strict=True))
    return ds.assign_coords(
        component=name,
        stack=("component", stack),
        kind=("component", kind),
        layer_index=("component", layer),
        head=("component", head),
    )


def make_forecast(ids=("a", "b", "c")) -> xr.Dataset:
    """The median misses the truth by 1 at every step; the 80 % band holds it at the first three steps."""
    ds = base("forecast", ids).assign_coords(quantile=[0.1, 0.5, 0.9])
    median = ds["truth"].values + 1
    reach = np.array([2.0, 2.0, 2.0, 0.5, 0.5])
    ds["quantile_forecast"] = (
        ("series", "quantile", "step"),
        np.stack([median - reach, median, median + reach], axis=1),
    )
    return ds


def make_lens(ids=("a", "b", "c")) -> xr.Dataset:
    """Entropies 6, 5, 1 nats; the mode is the truth's bin from layer 0 on, at the embedding it is bin 0."""
    ds = base("logit_lens", ids).assign_coords(layer=["embed", "0", "1"])
    ds.attrs["readout"] = "token"
    n, bins = len(ids), 30
    value = np.tile(np.arange(bins, dtype=float), (n, 1))
    at_truth = np.eye(bins)[np.tile(10 + np.arange(HORIZON), (n, 1))]
    at_zero = np.zeros_like(at_truth)
    at_zero[..., 0] = 1.0
    ds["probability"] = (("layer", "series", "step", "bin"), np.stack([at_zero, at_truth, at_truth]))
    ds["value"] = (("series", "bin"), value)
    ds["entropy"] = (
        ("layer", "series", "step"),
        np.broadcast_to(np.array([6.0, 5.0, 1.0])[:, None, None], (3, n, HORIZON)).copy(),
    )
    return ds


def make_patch_lens(ids=("a",)) -> xr.Dataset:
    """Layer medians are 8, 2 and 0 metres above the truth."""
    ds = base("logit_lens", ids).assign_coords(layer=["embed", "0", "1"], quantile=[0.1, 0.5, 0.9])
    ds.attrs["readout"] = "quantile"
    median = ds["truth"].values + np.array([8.0, 2.0, 0.0])[:, None, None]
    ds["quantile_forecast"] = (
        ("layer", "series", "quantile", "step"),
        median[:, :, None] + np.array([-1.0, 0.0, 1.0])[:, None],
    )
    return ds


def make_gain(ids=("a", "b", "c")) -> xr.Dataset:
    """MAE: layer 0 changes by -30, -20, -10 %, layer 1 by +5 %; RMSE: nothing helps."""
    ds = base("layer_gain", ids).assign_coords(metric=["MAE", "RMSE"], layer=["embed", "0", "1"])
    n = len(ids)
    gain = np.full((2, 3, n), np.nan)
    gain[0, 1] = np.resize([-30.0, -20.0, -10.0], n)
    gain[0, 2] = 5.0
    gain[1, 1:] = 2.0
    ds["gain"] = (("metric", "layer", "series"), gain)
    ds["error"] = (("metric", "layer", "series"), np.ones_like(gain) / 3)
    return judge(ds, "gain", floor=0.0, signed=True, groups="metric")


def make_ablation(ids=("a", "b", "c")) -> xr.Dataset:
    """cross_attn.1 of layer 1 has distance 0.8, all other heads 0.1; the MLPs 0.3 and 0.2."""
    ds = with_components(base("ablation", ids))
    names = list(ds["component"].values)
    effect = np.full(len(names), 0.1)
    effect[names.index("decoder.1.cross_attn.1")] = 0.8
    effect[names.index("decoder.0.mlp")], effect[names.index("decoder.1.mlp")] = 0.3, 0.2
    ds["spearman_distance"] = (("component", "series"), np.repeat(effect[:, None], len(ids), axis=1))
    ds["mase_change"] = (("component", "series"), ds["spearman_distance"].values - 0.15)
    kinds = ["head" if head >= 0 else kind for kind, head in zip(ds["kind"].values, ds["head"].values, strict=True)]
    for name, signed in (("spearman_distance", False), ("mase_change", True)):
        ds = judge(ds, name, floor=0.05, signed=signed, groups=kinds)
    ds["baseline_forecast"] = (("series", "step"), ds["truth"].values.copy())
    ds["forecast"] = (
        ("component", "series", "step"),
        ds["truth"].values[None] + 4 * effect[:, None, None],
    )
    return ds


def make_attribution(ids=("a", "b", "c")) -> xr.Dataset:
    """decoder.0.mlp adds 3 m at every step, decoder.1.cross_attn.0 takes 1 m, more and more; others nothing."""
    ds = with_components(base("attribution", ids))
    ds = ds.assign_coords(decomposition=["logit", "expected_value"], unit=("decomposition", ["logit", "data units"]))
    names = list(ds["component"].values)
    values = np.zeros((2, len(names), len(ids), HORIZON))
    values[:, names.index("decoder.0.mlp")] = 3.0
    values[:, names.index("decoder.1.cross_attn.0")] = -0.5 * np.arange(HORIZON)
    ds["attribution"] = (("decomposition", "component", "series", "step"), values)
    ds["completeness_error"] = (("decomposition", "series"), np.tile([[0.0], [0.25]], (1, len(ids))))
    ds["mean_attribution"] = ds["attribution"].mean("step")
    return judge(ds, "mean_attribution", floor=0.1, signed=True, groups="decomposition")


def make_attention(series: str = "a") -> xr.Dataset:
    """Layer 0: head 0 looks 7 back, head 1 is uniform. Layer 1: both rest on EOS."""
    keys = TIME + 1
    q = np.arange(HORIZON)
    pattern = np.zeros((2, 2, HORIZON, keys))
    pattern[0, 0, q, TIME - 7 + q] = 1.0
    pattern[0, 1] = 1 / keys
    pattern[1, :, :, -1] = 0.9
    pattern[1, :, :, 0] = 0.1
    start = np.append(np.arange(-TIME, 0), -1)
    return xr.Dataset(
        {
            "pattern": (("layer", "head", "query", "key"), pattern),
            "context": (("time",), 10.0 + np.arange(-TIME, 0)),
        },
        coords={
            "layer": ["0", "1"],
            "head": [0, 1],
            "time": np.arange(-TIME, 0),
            "key_start": ("key", start),
            "key_stop": ("key", np.append(start[:-1] + 1, -1)),
            "key_special": ("key", [""] * TIME + ["EOS"]),
            "query_start": ("query", q),
            "query_stop": ("query", q + 1),
            "query_special": ("query", [""] * HORIZON),
        },
        attrs={
            "kind": "attention",
            "model": "toy",
            "stack": "decoder",
            "attention": "cross_attn",
            "series": series,
            "title": "",
        },
    )


def make_spectra() -> xr.Dataset:
    """Stable ranks 1, 2 and 3, 4 of at most 4 for QK; all 4 for OV."""
    flat = np.ones(4)
    first, second = np.array([1.0, 0, 0, 0]), np.array([1.0, 1, 0, 0])
    third = np.array([1.0, 1, 1, 0])
    values = np.stack([np.stack([[first, second], [third, flat]]), np.ones((2, 2, 4))])
    ranks = np.array([[[1.0, 2], [3, 4]], [[4, 4], [4, 4]]])
    return xr.Dataset(
        {
            "singular_value": (("product", "layer", "head", "mode"), values),
            "stable_rank": (("product", "layer", "head"), ranks),
            "order": (("product", "layer", "head"), np.broadcast_to([0, 1], (2, 2, 2))),
        },
        coords={"product": ["QK", "OV"], "layer": ["0", "1"], "head": [0, 1]},
        attrs={"kind": "spectra", "model": "toy", "attention": "cross_attn", "stack": "decoder", "title": ""},
    )


def make_entropic_rank(ids=("a", "b", "c")) -> xr.Dataset:
    """Rank 2 at layer 0, the same for all series; 3 at layer 1, from 2 to 4.5."""
    spread = np.log(np.array([2.0, 3.0, 4.5]))[: len(ids)]
    entropy = np.stack([np.full(len(ids), np.log(2.0)), spread])
    return xr.Dataset(
        {"entropy": (("layer", "series"), entropy), "rank": (("layer",), np.exp(entropy.mean(axis=1)))},
        coords={"layer": ["0", "1"], "series": list(ids)},
        attrs={"kind": "entropic_rank", "model": "toy", "attention": "cross_attn", "heads": 5, "title": ""},
    )


def make_layer_similarity() -> xr.Dataset:
    """The stream changes most between layers 0 and 1 (0.25); updates of layers 0 and 1 are opposed."""
    streams = ["embed", "0", "1"]
    cka = np.array([[1, 0.75, 0.2], [0.75, 1, 0.25], [0.2, 0.25, 1]])
    return xr.Dataset(
        {
            "cka": (("stream", "other_stream"), cka),
            "update_cosine": (("layer", "other_layer"), np.array([[1.0, -0.5], [-0.5, 1.0]])),
        },
        coords={"stream": streams, "other_stream": streams, "layer": streams[1:], "other_layer": streams[1:]},
        attrs={"kind": "layer_similarity", "model": "toy", "title": ""},
    )


def make_head_similarity() -> xr.Dataset:
    """Heads 0 and 2 of layer 1 are alike (0.75), 0 and 1 of layer 0 opposed (-0.25)."""
    cosine = np.tile(np.eye(3), (2, 1, 1))
    cosine[1, 0, 2] = cosine[1, 2, 0] = 0.75
    cosine[0, 0, 1] = cosine[0, 1, 0] = -0.25
    return xr.Dataset(
        {"cosine": (("layer", "head", "other_head"), cosine)},
        coords={"layer": ["0", "1"], "head": [0, 1, 2], "other_head": [0, 1, 2]},
        attrs={"kind": "head_similarity", "model": "toy", "attention": "cross_attn", "title": ""},
    )


def make_kernel(series: str = "a") -> xr.Dataset:
    """Bandwidths 1 to 4; tilt 2 in one head of four; two of eight bounds below 1, twice what is measured."""
    missing = np.full((2, 2, 2), 0.9)
    bound = np.full((2, 2, 2), 10.0)
    missing[1, 1], bound[1, 1] = [0.01, 0.2], [0.02, 0.4]
    applicable = np.ones((2, 2, 2), dtype=bool)
    applicable[0, 0, 0], bound[0, 0, 0] = False, np.nan
    width = np.tile(np.array([1.0, 2.0, 4.0]), (2, 2, 1))
    width[0, 1, 0] = 0.5
    return xr.Dataset(
        {
            "bandwidth": (("layer", "head", "mode"), width),
            "tilt_share": (("layer", "head"), np.array([[0.25, 0.5], [2.0, 0.75]])),
            "missing": (("layer", "head", "query"), missing),
            "bound": (("layer", "head", "query"), bound),
            "applicable": (("layer", "head", "query"), applicable),
            "identity_error": (("layer", "head"), np.full((2, 2), 1e-7)),
        },
        coords={"layer": ["0", "1"], "head": [0, 1]},
        attrs={"kind": "kernel_regression", "model": "toy", "series": series, "title": ""},
    )


def make_head_entropy() -> xr.Dataset:
    """0, 1 and 2, 4 nats; below 0.38 of the range are the two of layer 0."""
    entropy = np.array([[0.0, 1.0], [2.0, 4.0]])
    return xr.Dataset(
        {
            "entropy": (("layer", "head"), entropy),
            "normalised": (("layer", "head"), entropy / 4),
            "sharp": (("layer", "head"), entropy / 4 < 0.38),
        },
        coords={"layer": ["0", "1"], "head": [0, 1]},
        attrs={"kind": "head_entropy", "model": "toy", "attention": "cross_attn", "sharp_below": 0.38, "title": ""},
    )


def make_rollout(series: str = "a") -> xr.Dataset:
    """The patterns of ``make_attention``: head 0 of layer 0 reads 7 back, those of layer 1 rest on EOS."""
    ds = make_attention(series)
    entropy = np.array([[0.0, np.log(TIME + 1)], [0.325, 0.325]])
    return xr.Dataset(
        {
            "attention": ds["pattern"].transpose("layer", "head", "key", "query"),
            "entropy": (("layer", "head"), entropy),
            "sharpness_rank": (("layer", "head"), np.array([[0, 3], [1, 2]])),
        },
        attrs=ds.attrs | {"kind": "rollout"},
    ).drop_vars("time", errors="ignore")


def make_flow(series: str = "a") -> xr.Dataset:
    """Two layers over four tokens; at the end every token has 0.7 of the first and 0.3 of itself."""
    late = 0.3 * np.eye(4)
    late[:, 0] += 0.7
    start = np.arange(-4, 0)
    places = {
        f"{side}_{part}": (side, values)
        for side in ("query", "key")
        for part, values in (("start", start), ("stop", start + 1), ("special", [""] * 4))
    }
    return xr.Dataset(
        {"flow": (("layer", "query", "key"), np.stack([np.eye(4), late]))},
        coords={"layer": ["0", "1"], **places},
        attrs={"kind": "attention_flow", "model": "toy", "stack": "encoder", "series": series, "title": ""},
    )


def make_norm_weighted(series: str = "a") -> xr.Dataset:
    """Contributions are twice the attention of ``make_attention``, those of EOS a twentieth of it."""
    ds = make_attention(series)
    norm = 2 * ds["pattern"].values
    norm[..., -1] = ds["pattern"].values[..., -1] / 20
    return xr.Dataset(
        {"norm": (("layer", "head", "query", "key"), norm)},
        coords={name: ds[name] for name in ds.coords if name != "time"},
        attrs=ds.attrs | {"kind": "norm_weighted"},
    )


def make_parroting(ids=("a", "b", "c")) -> xr.Dataset:
    """The forecast is the context 7 back; the truth is further away; the last context is constant."""
    ds = base("parroting", ids)
    n, lag = len(ids), np.arange(1, TIME)
    error = np.tile(np.abs(lag - 7) / 10.0, (n, 1))
    error[-1] = np.nan
    best = np.full(n, 7.0)
    best[-1] = np.nan
    forecast = ds["context"].values[:, TIME - 7 : TIME - 7 + HORIZON]
    ds = ds.assign_coords(lag=lag)
    ds["forecast"], ds["parrot"] = (("series", "step"), forecast), (("series", "step"), forecast + 1.0)
    ds["lag_error"], ds["best_lag"] = (("series", "lag"), error), (("series",), best)
    ds["copy_error"], ds["parrot_error"] = (
        (("series",), np.where(best > 0, 0.0, np.nan)),
        (("series",), np.full(n, 0.5)),
    )
    ds["parrot_match"] = (("series",), np.full(n, 9.0))
    ds.attrs |= {"motif": 4}
    return ds


def make_lag(series: str = "a") -> xr.Dataset:
    """Head 1 of layer 1 has 0.9 on the band, the others 0.1, which an even spread would pay."""
    return xr.Dataset(
        {"mass": (("layer", "head"), np.array([[0.1, 0.1], [0.1, 0.9]])), "chance": ((), 0.1)},
        coords={"layer": ["0", "1"], "head": [0, 1]},
        attrs={"kind": "lag_attention", "model": "toy", "lag": 12, "width": 1, "series": series, "title": ""},
    )


def make_seasonality(ids=("a", "b", "c")) -> xr.Dataset:
    """The forecast has half of the context's amplitude at period 4; the truth keeps it."""
    ds = base("seasonality", ids)
    n, trial = len(ids), np.array([3.0, 4.0, 5.0])
    ds = ds.assign_coords(part=["context", "forecast", "truth"], trial_period=trial)
    curve = np.array([0.1, 1.0, 0.2])
    ds["amplitude"] = (
        ("part", "series", "trial_period"),
        np.stack([np.tile(factor * curve, (n, 1)) for factor in (1.0, 0.5, 1.0)]),
    )
    for name, value in (("period", 4.0), ("context_amplitude", 2.0), ("forecast_amplitude", 1.0)):
        ds[name] = (("series",), np.full(n, value))
    for name, value in (("truth_amplitude", 2.0), ("amplitude_ratio", 0.5), ("spread_ratio", 0.5)):
        ds[name] = (("series",), np.full(n, value))
    ds["spread_ratio"][0] = 0.1
    pull = np.zeros(n)
    pull[0] = 0.5
    ds["patch_pull"] = (("series",), pull)
    ds.attrs |= {"patch": 3}
    return ds


def make_contrast(kind: str, ids=("a", "b", "c")) -> xr.Dataset:
    """The corrupted forecast is the clean one and 4; contexts differ in the last 8 steps."""
    ds = base(kind, ids)
    ds["corrupted_context"] = ds["context"].where(ds["time"] < -8, 0.0)
    ds["clean_forecast"], ds["corrupted_forecast"] = ds["truth"], ds["truth"] + 4.0
    ds.attrs |= {"direction": "denoise", "statistic": "median"}
    return ds


def make_patching(ids=("a", "b", "c")) -> xr.Dataset:
    """Nothing is recovered but 0.75 before layer 1 at the last 12 steps, and all after layer 1 at EOS."""
    ds = make_contrast("patching", ids).assign_coords(
        component=["blocks.0.hook_resid_pre", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post"],
        stack=("component", ["decoder"] * 3),
        kind=("component", ["stream"] * 3),
        layer_index=("component", [0, 1, 1]),
        head=("component", [-1] * 3),
        position=[0, 12, 24],
        position_start=("position", [-TIME, -12, 0]),
        position_stop=("position", [-12, 0, 0]),
        position_special=("position", ["", "", "EOS"]),
    )
    recovered = np.zeros((3, 3, len(ids)))
    recovered[1, 1], recovered[2, 2] = 0.75, 1.0
    ds["recovered"] = (("component", "position", "series"), recovered)
    ds["effect"] = 4 * ds["recovered"]
    ds["forecast"] = ds["corrupted_forecast"] - 4 * ds["recovered"]
    ds.attrs |= {"positions": "None"}
    return judge(ds, "recovered", floor=0.01, signed=True)


def make_attribution_patching(ids=("a", "b", "c")) -> xr.Dataset:
    """The estimate is the exact share, but 0.5 too large before layer 1 at the last 12 steps."""
    ds = make_patching(ids).drop_vars(["forecast", "effect"])
    error = np.zeros(ds["recovered"].shape)
    error[1, 1] = 0.5
    ds["first_order"], ds["error"] = ds["recovered"] + error, (ds["recovered"].dims, error)
    ds.attrs |= {"kind": "attribution_patching", "mean_absolute_error": 0.5 / 9, "rank_correlation": 0.9}
    return judge(ds, "first_order", floor=0.01, signed=True)


def make_paths(ids=("a", "b", "c"), kind: str = "paths") -> xr.Dataset:
    """Head 0 reaches the output by 0.5 and the MLP of layer 1 by -0.25; no path leads back."""
    senders = [("decoder.0.cross_attn.0", "cross_attn", 0, 0), ("decoder.1.mlp", "mlp", 1, -1)]
    name, kinds, layer, head = (list(c) for c in zip(*senders, strict=True))
    ds = make_contrast(kind, ids).assign_coords(
        sender=name,
        stack=("sender", ["decoder"] * 2),
        kind=("sender", kinds),
        layer_index=("sender", layer),
        head=("sender", head),
        receiver=[*name, "output"],
    )
    values = np.array([[np.nan, -0.25, 0.5], [np.nan, np.nan, 0.125]])[..., None] * np.ones(len(ids))
    axes = ("sender", "receiver", "series")
    if kind == "edges":
        ds["score"] = (axes, np.nan_to_num(values))
        return judge(ds, "score", floor=0.01, signed=True)
    ds["recovered"], ds["effect"] = (axes, values), (axes, 4 * np.abs(values))
    ds.attrs |= {"via": "all"}
    return judge(ds, "recovered", floor=0.01, signed=True)


def make_effects(ids=("a", "b", "c")) -> xr.Dataset:
    """Component c of nine has a direct effect of c m; half is undone, of the last all, of the first there is none."""
    ds = with_components(base("effects", ids)).isel(component=slice(1, None))
    ds = ds.isel(component=[c for c, kind in enumerate(ds["kind"].values) if kind != "layer"])
    n = ds.sizes["component"]
    axes = ("component", "series", "step")
    direct = np.arange(float(n))[:, None, None] * np.ones((1, len(ids), HORIZON))
    left = np.full(n, 0.5)
    left[-1] = 0.0
    ds["direct"], ds["total"] = (axes, direct), (axes, direct * left[:, None, None])
    ds["indirect"] = ds["total"] - ds["direct"]
    repair = np.tile(1 - left[:, None], (1, len(ids)))
    repair[0] = np.nan
    ds["self_repair"] = (axes[:2], repair)
    ds["plain_forecast"] = (axes[1:], ds["truth"].values)
    ds["direct_share"] = abs(ds["direct"]).mean("step") / 10
    ds.attrs |= {"how": "zero", "statistic": "median"}
    ds = judge(ds, "direct_share", floor=0.01)
    return judge(ds, "self_repair", floor=0.01, signed=True)


def make_circuit(ids=("a", "b", "c")) -> xr.Dataset:
    """Two heads and an MLP of eight are kept; without any the forecast is 10 higher, with them alone 1."""
    ds = make_effects(ids)[["context", "truth"]].assign_coords(make_effects(ids).coords)
    n = ds.sizes["component"]
    ds = ds.assign_coords(size=range(n + 1), part=["model", "circuit", "complement", "nothing"])
    taken = np.where(np.arange(n) < n - 3, np.arange(n), -1)
    ds["in_circuit"], ds["taken"] = ("component", taken < 0), ("component", taken)
    curve = np.full(n + 1, np.nan)
    curve[[n - 5, n - 4, n - 3, n]] = [0.9, 0.9, 0.9, 1.0]
    curve[:3] = np.nan
    ds["curve"] = ("size", curve)
    for name, value in (("faithfulness", 0.9), ("completeness", 0.8)):
        ds[name] = ("series", np.full(len(ids), value))
        ds = judge(ds, name, floor=0.0)
    ds["refused"] = ("series", np.zeros(len(ids), dtype=bool))
    shift = np.array([0.0, 1.0, 8.0, 10.0])[:, None, None]
    ds["forecast"] = (("part", "series", "step"), ds["truth"].values + shift)
    ds.attrs |= {
        "kind": "circuit",
        "how": "zero",
        "ranking": "greedy",
        "tolerance": 0.1,
        "behaviour": "forecast",
        "smallest": 0.01,
    }
    return ds


# how many figures the report draws of each planted result below
COUNTS = {
    "forecast": 3,
    "lens": 1 + 3,
    "gain": 1,
    "ablation": 2 + 2,
    "attribution": 2 * 3 + 1,
    "attention": 1 + 2,
    "patches": 1,
    "spectra": 2 * 2,
    "entropic_rank": 1,
    "layer_similarity": 2,
    "head_similarity": 1,
    "kernel": 3,
    "head_entropy": 1,
    "rollout": 2,
    "flow": 1,
    "norm_weighted": 1,
    "parroting": 3,
    "lag": 1,
    "seasonality": 1,
    "explore": 1,
    "patching": 2 * 3,
    "attribution_patching": 1 + 3,
    "paths": 1,
    "edges": 1,
    "effects": 2,
    "circuit": 1 + 3 + 1,
    "layers": 3 + 1 + 1,
    "curves": 1 + 2,
    "heads_at": 1,
    "datasets": 2,
    "recipes": 2,
    "selection": 1,
}


def make_explore(series: str = "a") -> xr.Dataset:
    """2 × 3 heads: without head h of layer l the median is 10 l + h higher; it writes as much, and looks h back."""
    ds = base("explore", (series,)).assign_coords(layer=["0", "1"], head=[0, 1, 2], quantile=[0.1, 0.5, 0.9])
    ds = ds.assign_coords(product=["QK", "OV"])
    size = np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
    plain = ds["truth"].values[:, None] + np.array([-1.0, 0.0, 1.0])[:, None]
    attention = np.zeros((2, 3, TIME))
    attention[:, range(3), [-1, -2, -3]] = 0.75
    values = {
        "quantile_forecast": (("series", "quantile", "step"), plain),
        "ablated_forecast": (("layer", "head", "series", "quantile", "step"), plain + size[..., None, None, None]),
        "write": (("layer", "head", "step"), np.repeat(size[..., None], HORIZON, axis=-1)),
        "write_size": (("layer", "head"), size),
        "write_share": (("layer", "head"), size / 100),
        "mean_shift": (("layer", "head"), size),
        "mean_shift_stands_out": (("layer", "head"), size > 0),
        "mean_shift_leads": (("layer", "head"), size == size.max()),
        "entropy": (("layer", "head"), 1 + size / 10),
        "attention": (("layer", "head", "time"), attention),
        "attention_forecast": (("layer", "head"), np.zeros((2, 3))),
        "attention_other": (("layer", "head"), np.full((2, 3), 0.25)),
        "stable_rank": (("product", "layer", "head"), np.stack([1 + size, 2 + size])),
        "singular_value": (("product", "layer", "head", "mode"), np.ones((2, 2, 3, 4)) / (1 + np.arange(4))),
    }
    names = [[f"decoder.{layer}.cross_attn.{head}" for head in range(3)] for layer in range(2)]
    ds = ds.assign(values).assign_coords(component=(("layer", "head"), names))
    ds.attrs |= {"stack": "decoder", "attention": "cross_attn", "samples": 4, "write_to": "expected value"}
    return ds


def everything(ids: tuple[str, ...] = ("a", "b", "c")) -> dict[str, xr.Dataset]:
    return {
        "forecast": make_forecast(ids),
        "lens": make_lens(ids),
        "gain": make_gain(ids),
        "ablation": make_ablation(ids),
        "attribution": make_attribution(ids),
        "attention": make_attention(ids[0]),
        "patches": make_patch_lens(ids[:1]),
        "spectra": make_spectra(),
        "entropic_rank": make_entropic_rank(ids),
        "layer_similarity": make_layer_similarity(),
        "head_similarity": make_head_similarity(),
        "kernel": make_kernel(ids[0]),
        "head_entropy": make_head_entropy(),
        "rollout": make_rollout(ids[0]),
        "flow": make_flow(ids[0]),
        "norm_weighted": make_norm_weighted(ids[0]),
        "parroting": make_parroting(ids),
        "lag": make_lag(ids[0]),
        "seasonality": make_seasonality(ids),
        "explore": make_explore(ids[0]),
        "patching": make_patching(ids),
        "attribution_patching": make_attribution_patching(ids),
        "paths": make_paths(ids),
        "edges": make_paths(ids, "edges"),
        "effects": make_effects(ids),
        "circuit": make_circuit(ids),
    }


@pytest.fixture(scope="session")
def counts() -> dict[str, int]:
    return COUNTS


@pytest.fixture(scope="session")
def swept(planted_sweep: Callable[..., dict[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """Results of a small sweep; to be copied before they are changed."""
    return planted_sweep(layers=(4, 3), heads=(3, 2))


@pytest.fixture
def results(swept: dict[str, pd.DataFrame]) -> dict[str, xr.Dataset | pd.DataFrame]:
    return everything() | {name: table.copy() for name, table in swept.items()}


@pytest.fixture(scope="session")
def whole(tmp_path_factory, swept) -> Path:
    """The report of everything, built once."""
    folder = tmp_path_factory.mktemp("whole")
    return build_report(everything() | swept, folder, title="T", provenance={"model": "toy", "hash": "x" * 200})


@pytest.fixture(scope="session")
def explored(tmp_path_factory) -> Path:
    """A report of the linked view alone."""
    folder = tmp_path_factory.mktemp("explored")
    return build_report({"explore": make_explore()}, folder, title="T", provenance={"model": "toy"})


@pytest.fixture(scope="session")
def evil_whole(tmp_path_factory, evil_swept) -> Path:
    """The report with markup in every string a user can set."""
    return build_report(
        evil_everything() | evil_swept,
        tmp_path_factory.mktemp("evil"),
        title=EVIL,
        provenance={EVIL: EVIL},
        readings={"gain": EVIL},
    )


@pytest.fixture(scope="session")
def evil_swept(planted_sweep: Callable[..., dict[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """The same of a sweep."""
    found = planted_sweep((EVIL, "b</script>"), layers=(4, 3), heads=(3, 2), name=lambda i: f"{EVIL} {i}")
    for table in found.values():
        table.attrs["sweep"] = EVIL
    return found


def evil_everything() -> dict[str, xr.Dataset]:
    """The same with markup in every string a user can set."""
    found = everything((EVIL, "b</script>", "c%{x}"))
    for ds in found.values():
        ds.attrs["model"] = EVIL
        ds.attrs["remark"] = EVIL
        if "units" in ds.coords:
            ds.coords["units"] = ("series", [EVIL] * ds.sizes["series"])
    return found


@pytest.fixture
def evil() -> str:
    return EVIL
