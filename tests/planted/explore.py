"""A planted linked view."""

from __future__ import annotations

import numpy as np
import xarray as xr

from planted.series import THREE, described


def explore(on: xr.Dataset = THREE) -> xr.Dataset:
    """2 × 3 heads: on series s, without head h of layer l the median is (10 l + h) (s + 1) higher; it writes as much.

    It looks h + s + 1 steps back from the forecast start; head 0 of layer 1 one further with every step.
    """
    about = {"stack": "decoder", "attention": "cross_attn", "samples": 4, "write_to": "expected value"}
    ds = described(on, "explore", **about).assign_coords(layer=["0", "1"], head=[0, 1, 2])
    ds = ds.assign_coords(product=["QK", "OV"], quantile=[0.1, 0.5, 0.9])
    n_series, n_steps, width = (ds.sizes[name] for name in ("series", "step", "time"))
    size = np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
    sizes = size * (1 + np.arange(n_series))[:, None, None]
    plain = ds["truth"].values[:, None] + np.array([-1.0, 0.0, 1.0])[:, None]
    rows = np.zeros((n_series, 2, 3, n_steps, width))
    for s, layer, head, step in np.ndindex(n_series, 2, 3, n_steps):
        rows[s, layer, head, step, -1 - head - s - step * ((layer, head) == (1, 0))] = 0.75
    values = {
        "quantile_forecast": (("series", "quantile", "step"), plain),
        "ablated_forecast": (
            ("layer", "head", "series", "quantile", "step"),
            plain + np.moveaxis(sizes, 0, -1)[..., None, None],
        ),
        "write": (("series", "layer", "head", "step"), np.repeat(sizes[..., None], n_steps, axis=-1)),
        "attention": (("series", "layer", "head", "time"), rows.mean(axis=-2)),
        "attention_row": (("series", "layer", "head", "row", "bin"), rows.astype(np.float32), {"bin_steps": 1}),
        "step_row": (("series", "step"), np.tile(np.arange(n_steps), (n_series, 1))),
        "stable_rank": (("product", "layer", "head"), np.stack([1 + size, 2 + size])),
        "singular_value": (("product", "layer", "head", "mode"), np.ones((2, 2, 3, 4)) / (1 + np.arange(4))),
    }
    by_head = {
        "write_size": sizes,
        "write_share": sizes / 100,
        "mean_shift": sizes,
        "entropy": 1 + sizes / 10,
        "attention_forecast": np.zeros_like(sizes),
        "attention_other": np.full_like(sizes, 0.25),
    }
    names = [[f"decoder.{layer}.cross_attn.{head}" for head in range(3)] for layer in range(2)]
    ds = ds.assign(values).assign({name: (("series", "layer", "head"), each) for name, each in by_head.items()})
    ds["mean_shift_acts"] = (("layer", "head"), np.where(size > 0, n_series, 0))
    return ds.assign_coords(component=(("layer", "head"), names))
