"""Planted structure of weights and streams."""

from __future__ import annotations

import numpy as np
import xarray as xr

from planted.series import THREE, described
from tsfm_lens.core.axes import depth_coords


def spectra() -> xr.Dataset:
    """Stable ranks 1, 2 and 3, 4 of at most 4 for QK; all 4 for OV."""
    first, second, third, flat = (
        np.array([1.0] * n + [0.0] * (4 - n)) for n in (1, 2, 3, 4)
    )
    values = np.stack([np.stack([[first, second], [third, flat]]), np.ones((2, 2, 4))])
    ranks = np.array([[[1.0, 2], [3, 4]], [[4, 4], [4, 4]]])
    axes = ("product", "layer", "head")
    ds = described(None, "head_spectra", attention="cross_attn", stack="decoder")
    return ds.assign(
        singular_value=((*axes, "mode"), values),
        stable_rank=(axes, ranks),
        order=(axes, np.broadcast_to([0, 1], (2, 2, 2))),
    ).assign_coords(product=["QK", "OV"], layer=[0, 1], head=[0, 1])


def entropic_rank(on: xr.Dataset = THREE) -> xr.Dataset:
    """Rank 2 at layer 0, the same for all series; 3 at layer 1, from 2 to 4.5."""
    spread = np.log(np.resize([2.0, 3.0, 4.5], on.sizes["series"]))
    entropy = np.stack([np.full(len(spread), np.log(2.0)), spread])
    ds = described(None, "entropic_rank", attention="cross_attn", heads=5)
    ds["entropy"], ds["rank"] = (
        (("layer", "series"), entropy),
        ("layer", np.exp(entropy.mean(axis=1))),
    )
    return ds.assign_coords(layer=[0, 1], series=on["series"].values)


def layer_similarity() -> xr.Dataset:
    """The stream changes most between layers 0 and 1 (0.25); updates of layers 0 and 1
    are opposed.
    """
    streams = depth_coords("stream", 2) | depth_coords("other_stream", 2)
    ds = described(None, "layer_similarity")
    ds["cka"] = (
        ("stream", "other_stream"),
        [[1, 0.75, 0.2], [0.75, 1, 0.25], [0.2, 0.25, 1]],
    )
    ds["update_cosine"] = (
        ("layer", "other_layer"),
        [[1.0, -0.5], [-0.5, 1.0]],
    )
    return ds.assign_coords(streams | {"layer": [0, 1], "other_layer": [0, 1]})
