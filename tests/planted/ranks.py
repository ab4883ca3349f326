"""Planted ranks of weights, embedded series and streams."""

from __future__ import annotations

import numpy as np
import xarray as xr

from planted.series import described
from tsfm_lens.core.axes import depth_coords
from tsfm_lens.core.estimates import add_estimates

LEVELS = [0.1, 0.01]


def measures(dim: str, *values: float) -> dict[str, tuple[str, np.ndarray]]:
    """The measures without a threshold, all the same."""
    return {
        name: (dim, np.array(values))
        for name in ("stable_rank", "effective_rank", "participation_ratio")
    }


def weight_ranks() -> xr.Dataset:
    """Of 4 directions W_Q of layer 0 uses 1, that of layer 1 uses 3, and both W_in use
    all; ε = 0.01 is not told.
    """
    values = np.array(
        [[1, 1e-3, 1e-3, 1e-3], [1, 0.5, 0.2, 1e-3], [1, 1, 1, 1], [1, 1, 1, 1]]
    )
    ranks = np.array([[1, 3, 4, 4], [1, 3, 4, 4]])
    ds = described(None, "weight_ranks", precision="bfloat16", per_head=0)
    ds = ds.assign(
        singular_value=(("matrix", "mode"), values),
        epsilon_rank=(("epsilon", "matrix"), ranks),
        rank_share=(("epsilon", "matrix"), ranks / 4),
        told=(("epsilon", "matrix"), [[True] * 4, [False] * 4]),
        decade_count=(
            ("matrix", "decade"),
            [[1, 0, 0], [3, 0, 0], [4, 0, 0], [4, 0, 0]],
        ),
        rounding_floor=("matrix", np.full(4, 0.05)),
        **measures("matrix", 1.0, 2.0, 4.0, 4.0),
    )
    parts = ["W_Q", "W_Q", "W_in", "W_in"]
    kinds = ["self_attn", "self_attn", "mlp", "mlp"]
    layers = [0, 1, 0, 1]
    return ds.assign_coords(
        matrix=[
            f"encoder.{layer}.{kind}.{part}"
            for layer, kind, part in zip(layers, kinds, parts, strict=True)
        ],
        stack=("matrix", ["encoder"] * 4),
        layer=("matrix", layers),
        layer_kind=("matrix", kinds),
        part=("matrix", parts),
        head=("matrix", [""] * 4),
        rows=("matrix", [4] * 4),
        columns=("matrix", [4, 4, 8, 8]),
        full=("matrix", [4] * 4),
        epsilon=LEVELS,
        decade=[1.0, 0.1, 0.01],
    )


def row_angles() -> xr.Dataset:
    """Two heads of two rows: of layer 0 the rows of a head lie 10° apart, 80° from the
    others'; all 80° in layer 1.
    """
    close = np.array(
        [[0, 10, 80, 80], [10, 0, 80, 80], [80, 80, 0, 10], [80, 80, 10, 0.0]]
    )
    separate = 80.0 * (1 - np.eye(4))
    about = {
        "stack": "encoder",
        "attention": "self_attn",
        "part": "W_Q",
        "permutations": 99,
        "seed": 0,
    }
    ds = described(None, "row_angles", random_angle=60.0, **about)
    ds = ds.assign(
        angle=(("layer", "row", "other_row"), np.stack([close, separate])),
        block_angle=(
            ("layer", "head", "other_head"),
            [[[10.0, 80], [80, 10]], [[80, 80], [80, 80]]],
        ),
        within=("layer", [10.0, 80.0]),
        between=("layer", [80.0, 80.0]),
        closer=("layer", [70.0, 0.0]),
        closer_floor=("layer", [20.0, 5.0]),
        closer_significant=("layer", [True, False]),
    )
    heads = {"head": [0, 1], "other_head": [0, 1], "row_head": ("row", [0, 0, 1, 1])}
    return ds.assign_coords(layer=[0, 1], row_dimension=("row", [0, 1, 0, 1]), **heads)


def embedding_ranks() -> xr.Dataset:
    """A single signal of noise uses 3, 3 or 3.3 directions, one of "own series" 1, 1 or
    1.3, and zeros 1.
    """
    values = np.array([[1, 0.2, 0.002], [1, 1, 0.5], [1, 0, 0]])
    ranks = np.array([[2, 3, 1], [2, 3, 1]])
    signals = np.array([[1.0, 1.0, 1.3], [3.0, 3.0, 3.3], [1.0, np.nan, np.nan]])
    low = np.array([0.7, 2.7, 1.0])
    middle = np.array([1.1, 3.1, 1.0])
    high = np.array([1.5, 3.5, 1.0])
    ds = described(
        None,
        "embedding_ranks",
        stack="encoder",
        random_angle=60.0,
        d_model=3,
        signal_seed=0,
    )
    ds = ds.assign(
        singular_value=(("family", "mode"), values),
        epsilon_rank=(("epsilon", "family"), ranks),
        told=(("epsilon", "family"), np.ones((2, 3), dtype=bool)),
        signal_rank=(("epsilon", "family", "signal"), np.stack([signals] * 2)),
        signal_rank_estimate=(("epsilon", "family"), np.stack([middle] * 2)),
        signal_rank_low=(("epsilon", "family"), np.stack([low] * 2)),
        signal_rank_high=(("epsilon", "family"), np.stack([high] * 2)),
        angle=(
            ("family", "token", "other_token"),
            np.stack([10 * (1 - np.eye(3)), 60 * (1 - np.eye(3)), np.zeros((3, 3))]),
        ),
        mean_angle=("family", [10.0, 60.0, 0.0]),
        tokens=("family", [30, 30, 10]),
        full=("family", [3, 3, 3]),
        rounding_floor=("family", np.full(3, 1e-8)),
        **measures("family", 1.1, 2.5, 1.0),
    )
    return ds.assign_coords(
        family=["own series", "white noise", "zero"], epsilon=LEVELS
    )


def flow_of_ranks() -> xr.Dataset:
    """The stream uses 1, 2 and 4 of 4 directions and W_Q 2 and 3; of three series the
    rank rises by 2 or 3 at ε 0.1.
    """
    values = np.array([[8, 0.004, 0.004, 0.004], [8, 4, 0.008, 0.008], [8, 8, 8, 8.0]])
    ranks = np.array([[1, 2, 4]] * 2)
    rise = np.array(
        [[[0.0, 0, 0], [2, 2, 3], [2, 3, 3]], [[0, 0, 0], [1, -1, 0], [-1, 1, 0]]]
    )
    ds = described(
        None, "flow_of_ranks", stack="encoder", tokens=90, heads=2, least_depth=874
    )
    ds = ds.assign(
        singular_value=(("stream", "mode"), values),
        epsilon_rank=(("epsilon", "stream"), ranks),
        rank_share=(("epsilon", "stream"), ranks / 4),
        told=(("epsilon", "stream"), np.ones((2, 3), dtype=bool)),
        rounding_floor=("stream", np.full(3, 1e-6)),
        series_rank=(("epsilon", "stream", "series"), 1 + rise),
        rank_rise=(("epsilon", "stream", "series"), rise),
        weight_singular_value=(
            ("layer", "weight_mode"),
            [[1, 1, 0.001], [1, 0.5, 0.2]],
        ),
        weight_rank=(("epsilon", "layer"), np.array([[2, 3]] * 2)),
        query_key_norm=("layer", [3.0, 2.0]),
        value_norm=("layer", [0.5, 5.0]),
        bound=(("layer", "mode"), np.full((2, 4), np.nan)),
        **measures("stream", 1.0, 2.0, 4.0),
    )
    ds = ds.assign_coords(
        **depth_coords("stream", 2),
        layer=[0, 1],
        series=["a", "b", "c"],
        epsilon=LEVELS,
    )
    return add_estimates(ds, "rank_rise", floor=0.0, signed=True, groups="epsilon")
