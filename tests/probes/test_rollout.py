"""Autoregressive attention, attention rollout and norm-weighted attention against known
answers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from tiny_lenses import ATTENDING, archetypes, lens_of
from tiny_series import make_reader, make_series
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


def test_a_planted_lag_is_a_band() -> None:
    lens = lens_of("chronos")

    with lens.edit(EditPattern("decoder.0.cross_attn", make_reader(12))):
        found = autoregressive_attention(lens.run(make_series(lens), 6)).sel(layer=0)
    for query in range(6):
        column = found["attention"].isel(head=0, query=query).values
        key = int(column.argmax())
        assert column[key] == pytest.approx(1)
        assert int(found["query_start"][query]) - int(found["key_start"][key]) == 12
    close_in_float32(found["entropy"], 0, depth=16, magnitude=1.0)


@pytest.mark.parametrize(
    "name",
    archetypes(["chronos", "chronos-2", "chronos-bolt", "moirai-2", "timestral"]),
)
def test_long_maps_begin_with_short_ones(name: str) -> None:
    lens = lens_of(name)
    width = lens.adapter.longest_pass
    forced_path = bundled("co2").values[0][None, -(2 * width + 3) :].copy()
    short, found = (
        autoregressive_attention(
            lens.run(make_series(lens), steps, forced_path=forced_path[:, :steps])
        )
        for steps in (width, 2 * width + 3)
    )
    close_in_float32(found["attention"].sum("key"), 1)
    assert found.attrs["passes"] == 3
    first = found.isel(query=found["pass_start"].values == 0)["attention"]
    positions = [
        list(zip(item["key_start"].values, item["key_special"].values, strict=True))
        for item in (short, found)
    ]
    rows = [positions[1].index(position) for position in positions[0]]
    ours = first.isel(key=rows)
    close_in_float32(ours, short["attention"], depth=16, magnitude=1.0)
    # what a pass does not read has no attention
    assert not first.drop_isel(key=rows).any()
    # columns of later passes follow on without gap
    ahead = found["query_start"].values >= 0
    starts, stops = (found[f"query_{edge}"].values[ahead] for edge in ("start", "stop"))
    assert_array_equal(starts[1:], stops[:-1])


def test_long_maps_match_the_library_rollout() -> None:
    lens = load("chronos-nano")
    series = bundled("co2").tail(100)
    width = lens.adapter.prediction_length
    options = {"horizon": width + 5, "num_samples": 1, "seed": 4}
    run = lens.run(series, **options)
    found, window = (
        autoregressive_attention(run, keys=keys)["attention"].sel(layer=1)
        for keys in ("time", "window")
    )
    point = "decoder_blocks.1.cross_attn.hook_pattern"
    _, activations = lens.run_with_cache(
        series, rollout=True, names_filter=point, **options
    )
    calls = activations.calls(point)
    assert len(calls) == width + 5
    for step, call in enumerate(calls):
        native = call.value[0, :, -1].numpy()
        known = step // width * width
        for keys, newest in ((found, known), (window, 0)):
            column = keys.isel(query=step)
            is_read = (column["key_special"] == "") & (column["key_start"] < newest)
            read = column.where(
                is_read & (column["key_start"] >= newest - 100 - known), drop=True
            )
            close_in_float32(read.values, native[:, :-1], magnitude=1.0)
        end = found.isel(query=step, key=-1)
        close_in_float32(end, native[:, -1], magnitude=1.0)


def test_flow_of_known_patterns() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    # (E + I)/2 has eigenvalue 1 along the mean and 1/2 elsewhere, E being the
    # projection on the mean
    even = torch.full((2, 4, 4), 0.25, dtype=torch.float64)
    thrice = even[0] + (eye - even[0]) / 8
    for patterns, expected in (
        ([eye[None]] * 3, eye),
        ([even] * 3, thrice),
        ([0 * eye[None]], eye),
    ):
        assert_close(rolled(patterns)[-1], expected, depth=100, magnitude=1.0)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_contributions_sum_to_the_head_write(name: str) -> None:
    """Contributions of the keys sum to what the head writes."""
    lens = lens_of(name)
    run = lens.run(make_series(lens), 4)
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
def test_one_hot_patterns_contribute_the_write(name: str, at: str) -> None:
    lens = lens_of(name)
    point = f"{lens.wiring.output_stack.prefix}.1.{at.split('.')[-1]}.hook_result"

    def first_key(pattern: torch.Tensor) -> torch.Tensor:
        return torch.eye(pattern.shape[-1])[0].expand_as(pattern)

    with lens.edit(EditPattern(at, first_key)):
        run = lens.run(make_series(lens), 4)
        norms = norm_weighted_attention(run, kind=at.split(".")[-1])["norm"].sel(
            layer=1
        )
        written = run.record([point])[point][0].norm(dim=-1).T.numpy()
    close_in_float32(norms.sum("key"), written)


def test_flow_needs_several_tokens() -> None:
    """Bolt's decoder is one token; Chronos's has one a step."""
    for name, asked, stack, keys in (
        ("chronos-bolt", None, "encoder", 11),
        ("chronos-bolt", "decoder", "decoder", 1),
        ("chronos", None, "decoder", 4),
    ):
        found = attention_rollout(
            lens_of(name).run(make_series(lens_of(name)), 4), stack=asked
        )
        assert (found.attrs["stack"], found.sizes["key"]) == (stack, keys)
