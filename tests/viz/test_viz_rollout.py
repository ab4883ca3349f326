"""Maps of where heads look: rollouts, flow, norms, entropy; and what becomes of them
when they are long.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import planted
from tsfm_lens import viz
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.tokens import Ruler, ruler, token_axis


def long_map(kind: str, keys: int, queries: int, lag: int) -> xr.Dataset:
    """One head that reads at a lag, with a weight of 1."""
    pattern = np.zeros((1, 1, queries, keys), dtype=np.float32)
    query = np.arange(queries)
    pattern[0, 0, query, keys - lag + query % lag] = 1.0
    positions = planted.tokens("key", range(-keys, 0)) | planted.tokens(
        "query", range(queries)
    )
    make = {
        "autoregressive_attention": planted.rollout,
        "norm_weighted_attention": planted.norm_weighted,
    }.get(kind, planted.attention)
    made = make(
        planted.series(("s",), time=keys, horizon=queries, dated=False),
        pattern,
        positions,
    )
    if kind == "norm_weighted_attention":
        return made.assign(norm=made["norm"] / 2)
    return made


def test_rollout_panels_hold_weights_by_entropy() -> None:
    """Panels of a rollout are sorted by entropy and hold its weights."""
    ds = planted.rollout()
    sharp, diffuse = (
        viz.autoregressive_attention_map(ds, heads=word, count=3)
        for word in ("sharp", "diffuse")
    )
    assert len(sharp.data) == len(diffuse.data) == 3
    entropy = ds["entropy"].values
    for fig, flat in ((sharp, int(entropy.argmin())), (diffuse, int(entropy.argmax()))):
        layer, head = np.unravel_index(flat, entropy.shape)
        ordinary = [not word for word in ds["key_special"].values]
        weights = ds["attention"].values[layer, head]
        z = np.asarray(fig.data[0].z)
        assert_close(z[: sum(ordinary)], weights[ordinary], depth=16, dtype=np.float32)
        # above a gap stands the end token
        assert np.isnan(z[-2]).all()
        assert_close(z[-1], weights[-1], depth=16, dtype=np.float32)
        assert fig.data[0].name == f"layer {layer}, head {head}"
    assert "above the dotted line: EOS" in sharp.layout.meta["subtitle"]
    assert sharp.layout.coloraxis.cmax >= 0.1
    # of few heads none is among both
    few = [
        viz.autoregressive_attention_map(ds, heads=word).data
        for word in ("sharp", "diffuse")
    ]
    assert [len({trace.name for trace in item}) for item in (*few, sum(few, ()))] == [
        2,
        2,
        4,
    ]


def test_flow_has_one_panel_per_layer() -> None:
    """The flow has a panel for each layer and keeps the rest visible."""
    ds = planted.attention_rollout()
    fig = viz.attention_rollout_map(ds)
    assert len(fig.data) == ds.sizes["layer"]
    for layer, trace in enumerate(fig.data):
        assert_close(trace.z, ds["flow"].values[layer], depth=16, dtype=np.float32)
    # the colours end where the others' shares do, not the diagonal's
    assert fig.layout.coloraxis.cmax == pytest.approx(0.7)
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1]
    assert "Attention rollout through the encoder of toy" in fig.layout.meta["title"]
    assert len(viz.attention_rollout_map(ds, layers=[-1]).data) == 1


@pytest.mark.parametrize(
    "name",
    [
        "autoregressive_attention_map",
        "attention_map",
        "attention_grid",
    ],
)
def test_long_maps_stay_small_with_band(name: str) -> None:
    """Long maps stay small and keep the band of weights."""
    kinds = {"autoregressive_attention_map": "autoregressive_attention"}
    fig = getattr(viz, name)(
        long_map(kinds.get(name, "attention_patterns"), 2048, 512, 24)
    )
    (trace,) = (one for one in fig.data if one.type == "heatmap")
    z = np.asarray(
        trace.z if name != "autoregressive_attention_map" else np.asarray(trace.z).T
    )
    assert z.size <= 110_000
    assert len(fig.to_json()) < 1_200_000
    # every query reads one key with a weight of 1: so does every row of cells
    np.testing.assert_array_equal(z.max(axis=1), 1.0)
    assert "a cell: the largest value of" in fig.layout.meta["subtitle"]
    ticks = [
        axis.tickvals
        for axis in (*fig.select_xaxes(), *fig.select_yaxes())
        if axis.tickvals is not None
    ]
    assert all(len(values) <= 9 for values in ticks)


def test_long_logit_map_averages_steps() -> None:
    """A long logit map takes the mean of steps."""
    steps = 2048
    bins = 48
    layers = 3
    rng = np.random.default_rng(0)
    probability = rng.dirichlet(np.ones(bins), size=(layers, 1, steps))
    on = planted.series(("s",), time=8, horizon=steps, level=0.0, dated=False)
    ds = planted.token_lens(on, probability, np.arange(bins, dtype=float))
    fig = viz.logit_map(ds, value_range=(-0.5, bins - 0.5))
    trace = fig.data[0]
    group = trace.meta["steps"]
    assert group == 2
    mean = probability[0, 0].reshape(steps // group, group, bins).mean(axis=1)
    assert_close(np.asarray(trace.customdata).T, mean, depth=16, dtype=np.float32)
    np.testing.assert_array_equal(np.diff(trace.x), group)
    assert "the mean of 2 steps" in fig.layout.meta["subtitle"]
    # long panels get half of the width each
    assert len({axis.domain for axis in fig.select_xaxes()}) == 2


@pytest.mark.parametrize(
    ("low", "high"), [(-512, 0), (-60, 12), (0, 3), (-2048, 512), (-3, 5)]
)
def test_ticks_are_few_round_and_inside(low: int, high: int) -> None:
    """Ticks are few, at round numbers and inside the axis."""
    ds = xr.Dataset(coords=planted.tokens("key", range(low, high), special="EOS"))
    side: Ruler = ruler(token_axis(ds, "key"))
    for most in (4, 8):
        ticks = side.ticks(most)
        assert 1 <= len(ticks) <= most + 1
        assert (ticks >= low - 0.5).all()
        # a context may name where it ends, which is step 0
        assert (ticks <= (high - 0.5 if high else 0)).all()
        assert (ticks == np.round(ticks)).all()
