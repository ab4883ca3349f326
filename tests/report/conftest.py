"""Labelled results with planted answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

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
    """MAE: layer 0 changes by -30, -20, +10 %, layer 1 by +5 %; RMSE: nothing helps."""
    ds = base("layer_gain", ids).assign_coords(metric=["MAE", "RMSE"], layer=["embed", "0", "1"])
    n = len(ids)
    gain = np.full((2, 3, n), np.nan)
    gain[0, 1] = np.resize([-30.0, -20.0, 10.0], n)
    gain[0, 2] = 5.0
    gain[1, 1:] = 2.0
    ds["gain"] = (("metric", "layer", "series"), gain)
    ds["error"] = (("metric", "layer", "series"), np.ones_like(gain) / 3)
    return ds


def make_ablation(ids=("a", "b", "c")) -> xr.Dataset:
    """cross_attn.1 of layer 1 has distance 0.8, all other heads 0.1; the MLPs 0.3 and 0.2."""
    ds = with_components(base("ablation", ids))
    names = list(ds["component"].values)
    effect = np.full(len(names), 0.1)
    effect[names.index("decoder.1.cross_attn.1")] = 0.8
    effect[names.index("decoder.0.mlp")], effect[names.index("decoder.1.mlp")] = 0.3, 0.2
    ds["spearman_distance"] = (("component", "series"), np.repeat(effect[:, None], len(ids), axis=1))
    ds["mase_change"] = (("component", "series"), ds["spearman_distance"].values - 0.15)
    ds["baseline_forecast"] = (("series", "step"), ds["truth"].values.copy())
    ds["forecast"] = (
        ("component", "series", "step"),
        ds["truth"].values[None] + 4 * effect[:, None, None],
    )
    return ds


def make_attribution(ids=("a", "b", "c")) -> xr.Dataset:
    """decoder.0.mlp adds 3 m at every step, decoder.1.cross_attn.0 takes 1 m, more and more; others nothing."""
    ds = with_components(base("attribution", ids))
    ds = ds.assign_coords(method=["logit", "expected_value"], unit=("method", ["logit", "data units"]))
    names = list(ds["component"].values)
    values = np.zeros((2, len(names), len(ids), HORIZON))
    values[:, names.index("decoder.0.mlp")] = 3.0
    values[:, names.index("decoder.1.cross_attn.0")] = -0.5 * np.arange(HORIZON)
    ds["attribution"] = (("method", "component", "series", "step"), values)
    ds["completeness_error"] = (("method", "series"), np.tile([[0.0], [0.25]], (1, len(ids))))
    return ds


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


def everything(ids: tuple[str, ...] = ("a", "b", "c")) -> dict[str, xr.Dataset]:
    return {
        "forecast": make_forecast(ids),
        "lens": make_lens(ids),
        "gain": make_gain(ids),
        "ablation": make_ablation(ids),
        "attribution": make_attribution(ids),
        "attention": make_attention(ids[0]),
        "patches": make_patch_lens(ids[:1]),
    }


@pytest.fixture
def results() -> dict[str, xr.Dataset]:
    return everything()


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """The report of everything, built once."""
    folder = tmp_path_factory.mktemp("whole")
    return build_report(everything(), folder, title="T", provenance={"model": "toy", "hash": "x" * 200})


@pytest.fixture(scope="session")
def evil_whole(tmp_path_factory) -> Path:
    """The report with markup in every string a user can set."""
    return build_report(
        evil_everything(),
        tmp_path_factory.mktemp("evil"),
        title=EVIL,
        provenance={EVIL: EVIL},
        readings={"gain": EVIL},
    )


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
