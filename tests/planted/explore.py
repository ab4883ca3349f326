"""A planted linked view."""

from __future__ import annotations

import numpy as np
import xarray as xr

from planted.series import THREE, described


def explore(on: xr.Dataset = THREE) -> xr.Dataset:
    """2 × 3 heads: without head h of layer l the median is 10 l + h higher; it writes as much, and looks h back."""
    about = {"stack": "decoder", "attention": "cross_attn", "samples": 4, "write_to": "expected value"}
    ds = described(on.isel(series=[0]), "explore", **about).assign_coords(layer=["0", "1"], head=[0, 1, 2])
    ds = ds.assign_coords(product=["QK", "OV"], quantile=[0.1, 0.5, 0.9])
    size = np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
    plain = ds["truth"].values[:, None] + np.array([-1.0, 0.0, 1.0])[:, None]
    attention = np.zeros((2, 3, ds.sizes["time"]))
    attention[:, range(3), [-1, -2, -3]] = 0.75
    values = {
        "quantile_forecast": (("series", "quantile", "step"), plain),
        "ablated_forecast": (("layer", "head", "series", "quantile", "step"), plain + size[..., None, None, None]),
        "write": (("layer", "head", "step"), np.repeat(size[..., None], ds.sizes["step"], axis=-1)),
        "attention": (("layer", "head", "time"), attention),
        "stable_rank": (("product", "layer", "head"), np.stack([1 + size, 2 + size])),
        "singular_value": (("product", "layer", "head", "mode"), np.ones((2, 2, 3, 4)) / (1 + np.arange(4))),
    }
    by_head = {
        "write_size": size,
        "write_share": size / 100,
        "mean_shift": size,
        "mean_shift_acts": (size > 0).astype(int),
        "entropy": 1 + size / 10,
        "attention_forecast": np.zeros((2, 3)),
        "attention_other": np.full((2, 3), 0.25),
    }
    names = [[f"decoder.{layer}.cross_attn.{head}" for head in range(3)] for layer in range(2)]
    ds = ds.assign(values).assign({name: (("layer", "head"), each) for name, each in by_head.items()})
    return ds.assign_coords(component=(("layer", "head"), names))
