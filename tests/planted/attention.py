"""Planted attention: patterns and what is made of them, entropies, kernels, lags,
patches.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from planted.series import THREE, described, tokens

Tokens = Mapping[str, tuple[str, list]]
GRID = ("layer", "head")


def make_pattern(
    time: int = THREE.sizes["time"], horizon: int = THREE.sizes["step"]
) -> np.ndarray:
    """(layer, head, query, key): layer 0: head 0 looks 7 back, head 1 is uniform. Layer
    1: both rest on EOS.
    """
    q = np.arange(horizon)
    pattern = np.zeros((2, 2, horizon, time + 1))
    pattern[0, 0, q, time - 7 + q] = 1.0
    pattern[0, 1] = 1 / (time + 1)
    pattern[1, :, :, -1] = 0.9
    pattern[1, :, :, 0] = 0.1
    return pattern


def _entropy(pattern: np.ndarray) -> np.ndarray:
    return (
        -np.where(pattern > 0, pattern * np.log(np.where(pattern > 0, pattern, 1)), 0)
        .sum(-1)
        .mean(-1)
    )


def _maps(
    on: xr.Dataset,
    kind: str,
    shape: tuple[int, ...],
    places: Tokens | None,
    **attrs: object,
) -> xr.Dataset:
    """Without values: layers, heads and tokens, by default one a step, and EOS behind
    the keys.
    """
    first = on.isel(series=[0])
    time = on.sizes["time"]
    about = {
        "stack": "decoder",
        "attention": "cross_attn",
        "series": str(first["series"].values[0]),
        **attrs,
    }
    if places is None:
        places = tokens("key", range(-time, 0), special="EOS") | tokens(
            "query", range(on.sizes["step"])
        )
    ds = described(first if kind == "attention_patterns" else None, kind, **about)
    return ds.assign_coords(layer=range(shape[0]), head=range(shape[1]), **places)


def attention(
    on: xr.Dataset = THREE,
    pattern: np.ndarray | None = None,
    places: Tokens | None = None,
) -> xr.Dataset:
    """Layer 0: head 0 looks 7 back, head 1 is uniform. Layer 1: both rest on EOS."""
    if pattern is None:
        pattern = make_pattern()
    ds = _maps(on, "attention_patterns", pattern.shape, places)
    ds["pattern"], ds["entropy"] = (
        ((*GRID, "query", "key"), pattern),
        (GRID, _entropy(pattern)),
    )
    return ds


def rollout(
    on: xr.Dataset = THREE,
    pattern: np.ndarray | None = None,
    places: Tokens | None = None,
) -> xr.Dataset:
    """The patterns of ``attention``: head 0 of layer 0 reads 7 back, those of layer 1
    rest on EOS.
    """
    if pattern is None:
        pattern = make_pattern()
    ds = _maps(on, "autoregressive_attention", pattern.shape, places)
    entropy = _entropy(pattern)
    rank = np.argsort(
        np.argsort(entropy.ravel(), kind="stable"), kind="stable"
    ).reshape(entropy.shape)
    ds["attention"] = ((*GRID, "key", "query"), pattern.swapaxes(-1, -2))
    ds["entropy"], ds["sharpness_rank"] = (GRID, entropy), (GRID, rank)
    return ds


def norm_weighted(
    on: xr.Dataset = THREE,
    pattern: np.ndarray | None = None,
    places: Tokens | None = None,
) -> xr.Dataset:
    """Contributions are twice the weights of the pattern, those of EOS, the last key of
    ``attention``, a twentieth.
    """
    norm = 2 * (make_pattern() if pattern is None else pattern)
    if pattern is None:
        norm[..., -1] /= 40
    ds = _maps(on, "norm_weighted_attention", norm.shape, places)
    ds["norm"] = ((*GRID, "query", "key"), norm)
    return ds


def attention_rollout(on: xr.Dataset = THREE) -> xr.Dataset:
    """Two layers over four tokens; at the end every token has 0.7 of the first and 0.3
    of itself.
    """
    late = 0.3 * np.eye(4)
    late[:, 0] += 0.7
    positions = tokens("query", range(-4, 0)) | tokens("key", range(-4, 0))
    ds = described(
        None, "attention_rollout", stack="encoder", series=str(on["series"].values[0])
    )
    ds["flow"] = (("layer", "query", "key"), np.stack([np.eye(4), late]))
    return ds.assign_coords(layer=[0, 1], **positions)


def head_entropy() -> xr.Dataset:
    """0, 1 and 2, 4 nats; below 0.38 of the range are the two of layer 0."""
    entropy = np.array([[0.0, 1.0], [2.0, 4.0]])
    ds = described(None, "head_entropy", attention="cross_attn", sharp_below=0.38)
    ds = ds.assign_coords(layer=[0, 1], head=[0, 1])
    parts = {"entropy": entropy, "normalised": entropy / 4, "sharp": entropy / 4 < 0.38}
    return ds.assign({name: (GRID, values) for name, values in parts.items()})


def kernel_regression(on: xr.Dataset = THREE) -> xr.Dataset:
    """Bandwidths 1 to 4; tilt 2 in one head of four; two of eight bounds below 1, twice
    what is measured.
    """
    missing = np.full((2, 2, 2), 0.9)
    bound = np.full((2, 2, 2), 10.0)
    applicable = np.ones((2, 2, 2), dtype=bool)
    missing[1, 1] = [0.01, 0.2]
    bound[1, 1] = [0.02, 0.4]
    applicable[0, 0, 0] = False
    bound[0, 0, 0] = np.nan
    bandwidth = np.tile(np.array([1.0, 2.0, 4.0]), (2, 2, 1))
    bandwidth[0, 1, 0] = 0.5
    ds = described(None, "kernel_regression", series=str(on["series"].values[0]))
    by_query = {"missing": missing, "bound": bound, "applicable": applicable}
    return ds.assign_coords(layer=[0, 1], head=[0, 1]).assign(
        bandwidth=((*GRID, "mode"), bandwidth),
        tilt_share=(GRID, np.array([[0.25, 0.5], [2.0, 0.75]])),
        identity_error=(GRID, np.full((2, 2), 1e-7)),
        **{name: ((*GRID, "query"), values) for name, values in by_query.items()},
    )


def lag_attention(on: xr.Dataset = THREE) -> xr.Dataset:
    """Head 1 of layer 1 has 0.9 on the band, the others 0.1, which an even spread would
    pay.
    """
    ds = described(
        None, "lag_attention", lag=12, width=1, series=str(on["series"].values[0])
    )
    ds["mass"], ds["chance"] = (GRID, np.array([[0.1, 0.1], [0.1, 0.9]])), ((), 0.1)
    return ds.assign_coords(layer=[0, 1], head=[0, 1])


def patch_attention(on: xr.Dataset = THREE) -> xr.Dataset:
    """Two layers of two heads over 3 patches and REG; head h of layer l reads key (l +
    h) % 3 most, head 1 more so.
    """
    levels = [0.1, 0.5, 0.9]
    time = on.sizes["time"]
    most = np.add.outer(np.arange(2), np.arange(2)) % 3
    weights = np.full((2, 2, 4, 4), 0.1)
    for layer, head in np.ndindex(2, 2):
        weights[layer, head, :, most[layer, head]] = 0.6 + 0.1 * head
    pattern = weights / weights.sum(-1, keepdims=True)
    starts = np.arange(-time, 0, time // 3)
    ds = described(
        on.isel(series=[0]), "patch_attention", stack="decoder", attention="cross_attn"
    )
    ds = ds.assign_coords(quantile=levels, layer=[0, 1], head=[0, 1])
    ds["quantile_forecast"] = (
        ("series", "quantile", "step"),
        ds["truth"].values[:, None] + np.arange(3.0)[:, None],
    )
    ds["attention"] = ((*GRID, "query", "key"), pattern)
    ds["stable_rank"] = (GRID, np.array([[1.5, 2.5], [3.5, 4.5]]))
    ds["entropy"] = (GRID, _entropy(pattern))
    ds["argmax_key"], ds["argmax_weight"] = (
        (GRID, most),
        (GRID, pattern.max(-1).mean(-1)),
    )
    ds["argmax_start"] = (GRID, starts[most])
    return ds.assign_coords(
        key_start=("key", [*starts, 0]),
        key_stop=("key", [*(starts + time // 3), 0]),
        key_special=("key", ["", "", "", "REG"]),
        query_start=("query", np.arange(4)),
        query_stop=("query", np.arange(1, 5)),
        query_special=("query", [""] * 4),
    )
