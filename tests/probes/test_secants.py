"""Path integrals of readouts: exact with one hidden layer, within the tolerance elsewhere; the default is the best."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny_lenses import SUMMING, archetypes, lens_of
from tsfm_lens.probes import attribution
from tsfm_lens.probes.attribution import writes_and_stream
from tsfm_lens.probes.secants import push_forward
from tsfm_lens.testing import assert_close, example_case

TOLERANCE = 1e-3


def test_one_hidden_layer_is_integrated_by_the_share_of_the_path_on_which_each_unit_is_active() -> (
    None
):
    lens = lens_of("chronos-bolt")
    run = lens.run(example_case(lens).encoded.batch, 3)
    found = attribution(run)
    _, writes, last = writes_and_stream(run)
    model = lens.adapter.model
    norm, block = model.decoder.final_layer_norm, model.output_patch_embedding
    layers = (block.hidden_layer, block.output_layer, block.residual_layer)
    (w1, w2, w3), b = (
        ([each.weight.detach().double().numpy() for each in layers]),
        layers[0].bias.detach().double(),
    )
    scale = (
        norm.weight.double()
        * (
            last.double().square().mean(-1, keepdim=True) + norm.variance_epsilon
        ).rsqrt()
    )
    parts, whole = (
        (each.double() * scale)[..., 0, :].detach().numpy() for each in (writes, last)
    )
    start, stop = b.numpy(), whole @ w1.T + b.numpy()
    crossing = np.divide(
        start, start - stop, out=np.ones_like(stop), where=start != stop
    )
    active = np.where(
        (start > 0) & (stop > 0),
        1.0,
        np.where(start > 0, crossing, np.where(stop > 0, 1 - crossing, 0)),
    )
    flat = ((parts @ w1.T) * active) @ w2.T + parts @ w3.T
    expected = (
        flat.reshape(*flat.shape[:-1], len(lens.levels), -1)[..., :3]
        * run.encoded.scale.numpy()[:, None, None]
    )
    assert found["nodes"].values.tolist() == [1]
    assert_close(found["attribution"].values[0], expected, depth=1000, dtype=np.float32)


@pytest.mark.parametrize(
    "name",
    archetypes(["chronos-2", "toto-1", "moirai-1.1", "timesfm-2.5", "timestral"]),
)
def test_path_integrals_are_those_of_many_points_within_the_tolerance(
    name: str,
) -> None:
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
    gap = np.abs(found["attribution"].values[0][few] - expected.numpy()).max(
        (0, -1, -2)
    )
    assert (gap <= 2 * TOLERANCE * np.abs(found["total"].values[0]).max((-1, -2))).all()
    assert float(found["path_error"].max()) <= TOLERANCE


@pytest.mark.parametrize(
    "name",
    archetypes([name for name in SUMMING if name not in ("chronos", "t5", "tirex")]),
)
def test_positions_that_are_not_read_are_not_needed(name: str) -> None:
    lens = lens_of(name)
    run = lens.run(example_case(lens).encoded.batch, 3)
    found = attribution(run, decompositions="lens_difference")["attribution"].values[0]
    _, writes, last = writes_and_stream(run)
    with torch.no_grad():
        sums = [torch.zeros_like(last), *writes.cumsum(0)]
        expected = torch.stack(
            [lens.readout(stream, run.encoded)[..., : run.horizon] for stream in sums]
        )
    level = float(expected.nan_to_num().abs().max())
    assert_close(
        found / level,
        expected.diff(dim=0).double().numpy() / level,
        depth=1000,
        dtype=np.float32,
    )
