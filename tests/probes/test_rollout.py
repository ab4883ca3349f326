"""Autoregressive attention, attention rollout and norm-weighted attention against known answers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr

from tiny_lenses import ATTENDING, archetypes, lens_of
from tiny_series import reads_at, series_for
from tsfm_lens.data import bundled
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import load
from tsfm_lens.probes import (
    attention_rollout,
    autoregressive_attention,
    norm_weighted_attention,
)
from tsfm_lens.probes.rollout import rolled
from tsfm_lens.testing import assert_close


def test_a_hand_built_lag_is_a_band() -> None:
    lens = lens_of("chronos")

    with lens.edit(EditPattern("decoder.0.cross_attn", reads_at(12))):
        found = autoregressive_attention(lens.run(series_for(lens), 6)).sel(layer="0")
    for query in range(6):
        column = found["attention"].isel(head=0, query=query).values
        key = int(column.argmax())
        assert column[key] == pytest.approx(1)
        assert int(found["query_start"][query]) - int(found["key_start"][key]) == 12
    assert_close(found["entropy"], 0, depth=16, magnitude=1.0, dtype=np.float32)


@pytest.mark.parametrize(
    "name",
    archetypes(["chronos", "chronos-2", "chronos-bolt", "moirai-2", "timestral"]),
)
def test_a_long_map_begins_with_the_short_one(name: str) -> None:
    lens = lens_of(name)
    width = lens.adapter.longest_pass
    forced_path = bundled("co2").values[0][None, -(2 * width + 3) :].copy()
    short = autoregressive_attention(
        lens.run(series_for(lens), width, forced_path=forced_path[:, :width])
    )
    found = autoregressive_attention(
        lens.run(series_for(lens), 2 * width + 3, forced_path=forced_path)
    )
    assert_close(found["attention"].sum("key"), 1, depth=100, dtype=np.float32)
    assert found.attrs["passes"] == 3
    first = found.isel(query=found["pass_start"].values == 0)
    same = {
        (int(key["key_start"]), str(key["key_special"].values)): i
        for i, key in enumerate(_each(first, "key"))
    }
    rows = [
        same[int(key["key_start"]), str(key["key_special"].values)]
        for key in _each(short, "key")
    ]
    assert_close(
        first["attention"].values[:, :, rows],
        short["attention"],
        depth=16,
        magnitude=1.0,
        dtype=np.float32,
    )
    # what a pass does not read has no attention
    left = np.setdiff1d(np.arange(found.sizes["key"]), rows)
    assert not first["attention"].values[:, :, left].any()
    # columns of later passes follow on without gap
    covered = [
        (int(q["query_start"]), int(q["query_stop"]))
        for q in _each(found, "query")
        if q["query_start"] >= 0
    ]
    assert all(after[0] == before[1] for before, after in pairwise(covered))


def _each(data: xr.Dataset, axis: str) -> list[xr.Dataset]:
    return [data.isel({axis: index}) for index in range(data.sizes[axis])]


def test_a_long_map_is_the_rollout_of_the_library() -> None:
    lens = load("chronos-nano")
    series, width = bundled("co2").tail(100), lens.adapter.prediction_length
    steps = width + 5
    found = autoregressive_attention(lens.run(series, steps, num_samples=1, seed=4))
    window = autoregressive_attention(
        lens.run(series, steps, num_samples=1, seed=4), keys="window"
    )
    point = "decoder_blocks.1.cross_attn.hook_pattern"
    _, acts = lens.run_with_cache(
        series, rollout=True, horizon=steps, num_samples=1, seed=4, names_filter=point
    )
    for step, call in enumerate(acts.calls(point)):
        native = call.value[0, :, -1].numpy()
        context = native.shape[-1] - 1
        known = step // width * width
        assert context == 100 + known
        column = found["attention"].sel(layer="1").isel(query=step)
        ordinary = column.where(
            (column["key_special"] == "") & (column["key_start"] < known), drop=True
        )
        np.testing.assert_array_equal(ordinary["key_start"], np.arange(-100, known))
        assert_close(
            ordinary.values, native[:, :-1], depth=100, magnitude=1.0, dtype=np.float32
        )
        assert_close(
            column.isel(key=-1),
            native[:, -1],
            depth=100,
            magnitude=1.0,
            dtype=np.float32,
        )
        moved = window["attention"].sel(layer="1").isel(query=step)
        last = moved.where(
            (moved["key_special"] == "") & (moved["key_start"] >= -context), drop=True
        )
        assert_close(
            last.values, native[:, :-1], depth=100, magnitude=1.0, dtype=np.float32
        )
    assert step == steps - 1


def test_the_second_patch_of_a_long_map_is_the_library_s() -> None:
    lens = lens_of("chronos-bolt")
    series, width = series_for(lens), lens.adapter.prediction_length
    found = autoregressive_attention(lens.run(series, 2 * width))
    point = "decoder_blocks.0.cross_attn.hook_pattern"
    _, acts = lens.run_with_cache(
        series, rollout=True, horizon=2 * width, names_filter=point
    )
    # the library goes on from every quantile; the fifth of nine is the median
    native = acts.calls(point)[1].value[4, :, 0].numpy()
    column = found["attention"].sel(layer="0").isel(query=1)
    assert_close(column.values, native, depth=100, magnitude=1.0, dtype=np.float32)


def test_flow_of_known_patterns() -> None:
    eye = torch.eye(5, dtype=torch.float64)[None]
    assert_close(rolled([eye, eye, eye])[-1], eye[0], depth=100, magnitude=1.0)
    even = torch.full((2, 4, 4), 0.25, dtype=torch.float64)
    # (E + I)/2 has eigenvalue 1 along the mean and 1/2 elsewhere, E being the projection on the mean
    projection = torch.full((4, 4), 0.25, dtype=torch.float64)
    expected = projection + (torch.eye(4, dtype=torch.float64) - projection) / 8
    assert_close(rolled([even, even, even])[-1], expected, depth=100, magnitude=1.0)
    silent = torch.zeros(1, 3, 3, dtype=torch.float64)
    assert_close(
        rolled([silent])[0], torch.eye(3, dtype=torch.float64), depth=100, magnitude=1.0
    )


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_contributions_of_keys_sum_to_the_heads_write(name: str) -> None:
    lens = lens_of(name)
    run = lens.run(series_for(lens), 4)
    found = norm_weighted_attention(run)
    norms = found["norm"]
    assert np.isfinite(norms).all()
    stack = lens.wiring.output_stack
    layer = int(norms["layer"].values[0])
    kind = found.attrs["attention"]
    if stack.attention(kind, layer).post_norm:
        return
    # the triangle inequality: a head's write is no longer than its parts together
    point = f"{stack.prefix}.{layer}.{kind}.hook_result"
    written = run.record([point])[point][0].norm(dim=-1).T.numpy()
    assert (written <= norms.isel(layer=0).sum("key").values * (1 + 1e-4) + 1e-5).all()


@pytest.mark.parametrize(
    ("name", "at"), [("chronos", "decoder.1.cross_attn"), ("timestral", "1.time_attn")]
)
def test_one_hot_patterns_contribute_what_is_written(name: str, at: str) -> None:
    lens = lens_of(name)
    point = f"{lens.wiring.output_stack.prefix}.1.{at.split('.')[-1]}.hook_result"

    def first_key(pattern: torch.Tensor) -> torch.Tensor:
        return torch.eye(pattern.shape[-1])[0].expand_as(pattern)

    with lens.edit(EditPattern(at, first_key)):
        run = lens.run(series_for(lens), 4)
        norms = norm_weighted_attention(run, kind=at.split(".")[-1])["norm"].sel(
            layer="1"
        )
        written = run.record([point])[point][0].norm(dim=-1).T.numpy()
    assert_close(norms.sum("key"), written, depth=100, dtype=np.float32)


def test_flow_takes_a_stack_where_something_flows() -> None:
    """Bolt's decoder is one token; Chronos's has one a step."""
    for name, asked, stack, keys in (
        ("chronos-bolt", None, "encoder", 11),
        ("chronos-bolt", "decoder", "decoder", 1),
        ("chronos", None, "decoder", 4),
    ):
        found = attention_rollout(
            lens_of(name).run(series_for(lens_of(name)), 4), stack=asked
        )
        assert (found.attrs["stack"], found.sizes["key"]) == (stack, keys)
