"""Path integrals of readouts: exact with one hidden layer, within the tolerance
elsewhere; the default is the best.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from closeness import close_in_float32
from tiny_lenses import SUMMING, archetypes, lens_of
from tsfm_lens.probes import attribution
from tsfm_lens.probes.attribution import writes_and_stream
from tsfm_lens.probes.secants import push_forward
from tsfm_lens.testing import example_case

TOLERANCE = 1e-3


def test_hidden_units_count_while_active() -> None:
    """A unit of one hidden layer counts by the share of the path where it is active."""
    lens = lens_of("chronos-bolt")
    run = lens.run(example_case(lens).encoded.batch, 3)
    found = attribution(run)
    writes, last = (item.double() for item in writes_and_stream(run)[1:])
    model = lens.adapter.model
    norm = model.decoder.final_layer_norm
    block = model.output_patch_embedding
    w1, w2, w3 = (
        layer.weight.detach().double().numpy()
        for layer in (block.hidden_layer, block.output_layer, block.residual_layer)
    )
    power = last.square().mean(-1, keepdim=True) + norm.variance_epsilon
    scale = norm.weight.double() * power.rsqrt()
    parts, full = (
        (item * scale)[..., 0, :].detach().numpy() for item in (writes, last)
    )
    start = block.hidden_layer.bias.detach().double().numpy()
    stop = full @ w1.T + start
    # the share of the way from start to stop that is above 0
    above = np.maximum(start, 0) - np.maximum(stop, 0)
    active = np.divide(
        above, start - stop, out=(stop > 0).astype(float), where=start != stop
    )
    flat = ((parts @ w1.T) * active) @ w2.T + parts @ w3.T
    values = flat.reshape(*flat.shape[:-1], len(lens.levels), -1)[..., :3]
    expected = values * run.encoded.scale.numpy()[:, None, None]
    assert int(found["nodes"]) == 1
    close_in_float32(found["attribution"].values, expected, depth=1000)


@pytest.mark.parametrize(
    "name",
    archetypes(["chronos-2", "toto-1", "moirai-1.1", "timesfm-2.5", "timestral"]),
)
def test_path_integrals_keep_their_tolerance(
    name: str,
) -> None:
    """Path integrals are those of many points, within the tolerance."""
    lens = lens_of(name)
    run = lens.run(example_case(lens).encoded.batch, 3)
    found = attribution(run, tolerance=TOLERANCE)
    _, writes, last = writes_and_stream(run)
    few = [0, len(writes) // 2, len(writes) - 1]
    with torch.no_grad():
        expected = torch.zeros(())
        for share in ((torch.arange(64) + 0.5) / 64).tolist():
            slopes = push_forward(
                lambda x: lens.frozen_readout(x, run.encoded, last),
                share * last,
                writes[few],
                3,
            )
            expected = expected + slopes[..., : run.horizon].double() / 64
    gap = np.abs(found["attribution"].values[few] - expected.numpy()).max((0, -1, -2))
    assert (gap <= 2 * TOLERANCE * np.abs(found["total"].values).max((-1, -2))).all()
    assert float(found["path_error"].max()) <= TOLERANCE


@pytest.mark.parametrize("level", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("name", archetypes([name for name in SUMMING if name != "t5"]))
def test_parts_add_up_whatever_the_level(name: str, level: float) -> None:
    """Parts add up where the level is far above the effects, over several patches."""
    lens = lens_of(name)
    season = 20 * np.sin(np.arange(96) / 3)
    horizon = min(48, lens.longest_pass)
    found = attribution(lens.run(level + season, horizon), tolerance=TOLERANCE)
    assert float(found["completeness_error"].max()) <= 2 * TOLERANCE


@pytest.mark.parametrize(
    "name",
    archetypes([name for name in SUMMING if name not in ("chronos", "t5", "tirex")]),
)
def test_unread_positions_are_not_needed(name: str) -> None:
    lens = lens_of(name)
    run = lens.run(example_case(lens).encoded.batch, 3)
    found = attribution(run, decompositions="lens_difference")["attribution"].values
    _, writes, last = writes_and_stream(run)
    with torch.no_grad():
        sums = [torch.zeros_like(last), *writes.cumsum(0)]
        expected = torch.stack(
            [lens.readout(stream, run.encoded)[..., : run.horizon] for stream in sums]
        )
    level = float(expected.nan_to_num().abs().max())
    close_in_float32(
        found / level, expected.diff(dim=0).double().numpy() / level, depth=1000
    )
