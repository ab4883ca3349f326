"""A planted linked view."""

from __future__ import annotations

import numpy as np
import xarray as xr

from planted.series import THREE, described


def explore(on: xr.Dataset = THREE) -> xr.Dataset:
    """2 × 3 heads and 2 MLPs: on series s, without head h of layer l the forecast is
    (10 l + h) (s + 1) higher.

    Without the MLP of layer l it is 5 (l + 1) (s + 1) higher, and a head writes as much
    as it moves. Three quarters of the attention of head 0 of layer 1 are 7 + s steps
    back from each step, those of another h + s + 1 steps before the forecast's start,
    whatever the step.
    """
    about = {
        "stack": "decoder",
        "attention": "cross_attn",
        "statistic": "expected value",
        "write_to": "expected value",
    }
    ds = described(on, "head_states", **about).assign_coords(
        layer=[0, 1], head=[0, 1, 2]
    )
    n_series, n_steps, width = (ds.sizes[name] for name in ("series", "step", "time"))
    ds = ds.assign_coords(
        product=["QK", "OV"], quantile=[0.1, 0.5, 0.9], key=np.arange(-width, 0)
    )
    names = [
        [f"decoder.{layer}.cross_attn.{head}" for head in range(3)]
        for layer in range(2)
    ]
    components = [
        name for layer in range(2) for name in (*names[layer], f"decoder.{layer}.mlp")
    ]
    moves = np.array([0.0, 1.0, 2.0, 5.0, 10.0, 11.0, 12.0, 10.0])[:, None] * (
        1 + np.arange(n_series)
    )
    sizes = moves[[0, 1, 2, 4, 5, 6]].T.reshape(n_series, 2, 3)
    steps = np.arange(n_steps)
    plain = ds["truth"].values
    rows = np.zeros((n_series, 2, 3, n_steps, width))
    position = np.zeros((n_series, 2, 3), dtype=int)
    for s, layer, head in np.ndindex(n_series, 2, 3):
        copies = (layer, head) == (1, 0)
        position[s, layer, head] = -7 - s if copies else -1 - head - s
        rows[
            s, layer, head, steps, width + position[s, layer, head] + steps * copies
        ] = 0.75
    # of what stays at one place every step has another lag, and the reverse
    lag_share = np.full(position.shape, 0.75 / n_steps)
    place_share = np.full(position.shape, 0.75)
    lag_share[:, 1, 0] = 0.75
    place_share[:, 1, 0] = 0.75 / n_steps
    of_heads = ("series", "layer", "head")
    of_components = ("component", "series")
    size = sizes[0]
    values = {
        "quantile_forecast": (
            ("series", "quantile", "step"),
            plain[:, None] + np.array([-1.0, 0.0, 1.0])[:, None],
        ),
        "baseline_forecast": (("series", "step"), plain),
        "forecast": ((*of_components, "step"), plain + moves[..., None]),
        "mean_shift": (of_components, moves),
        "mean_shift_acts": ("component", np.where(moves[:, 0] > 0, n_series, 0)),
        "mean_shift_floor": ("series", np.full(n_series, 0.001)),
        "write": ((*of_heads, "step"), np.repeat(sizes[..., None], n_steps, axis=-1)),
        "attention": ((*of_heads, "query", "key"), rows.astype(np.float32)),
        "key_start": (("series", "key"), np.tile(np.arange(-width, 0), (n_series, 1))),
        "key_stop": (
            ("series", "key"),
            np.tile(np.arange(1 - width, 1), (n_series, 1)),
        ),
        "query_start": ("query", steps),
        "step_query": ("step", steps),
        "stable_rank": (("product", "layer", "head"), np.stack([1 + size, 2 + size])),
        "singular_value": (
            ("product", "layer", "head", "mode"),
            np.ones((2, 2, 3, 4)) / (1 + np.arange(4)),
        ),
    }
    by_head = {
        "write_size": sizes,
        "write_share": sizes / 100,
        "entropy": 1 + sizes / 10,
        "lag": -position,
        "lag_share": lag_share,
        "place": position,
        "place_share": place_share,
        "attention_forecast": np.zeros_like(sizes),
        "attention_other": np.full_like(sizes, 0.25),
    }
    ds = ds.assign(values).assign(
        {name: (of_heads, item) for name, item in by_head.items()}
    )
    parts = [name.split(".") for name in components]
    return ds.assign_coords(
        name=(("layer", "head"), names),
        component=components,
        component_kind=("component", [part[2] for part in parts]),
        component_layer=("component", [int(part[1]) for part in parts]),
        component_head=(
            "component",
            [int(part[3]) if len(part) > 3 else -1 for part in parts],
        ),
    )
