"""Data and tasks: parts, standardisation, batches by seed and step, and runs of the
training loop.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusals import expect_error
from tsfm_lens.studies.samformer import benchmark
from tsfm_lens.studies.samformer.models import make_model
from tsfm_lens.studies.samformer.tasks import (
    BenchmarkTask,
    LinearToy,
    ToyTask,
    compute_errors,
)
from tsfm_lens.testing import assert_close

SMALL = LinearToy(length=16, horizon=5, channels=3, training=70, validation=20)


def waves(steps: int = 300, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    positions = np.arange(channels)[:, None]
    return (
        4.0 * positions
        + np.sin(np.arange(steps) / (3 + positions))
        + 0.3 * rng.standard_normal((channels, steps))
    )


def toy_task(**options: Any) -> ToyTask:
    return ToyTask(make_model("transformer", 16, 5, 3), SMALL, batch=16, **options)


def test_the_toy_is_linear_with_noise() -> None:
    """The toy is linear with noise, and any part of it can be made alone."""
    toy = LinearToy(
        length=40, horizon=6, channels=2, training=900, validation=300, noise=0.5
    )
    x, y = toy.pairs(0, 1200)
    noise = y - x @ toy.weight()
    # four standard errors of a mean and of a variance
    assert abs(float(noise.mean())) < 4 * 0.5 / noise.numel() ** 0.5
    assert abs(float(noise.var()) - 0.25) < 4 * 0.25 * (2 / noise.numel()) ** 0.5
    for start, stop in ((0, 1), (499, 501), (700, 1200)):
        part = toy.pairs(start, stop)
        assert torch.equal(part[0], x[start:stop])
        assert torch.equal(part[1], y[start:stop])
    assert not torch.equal(
        LinearToy(length=40, horizon=6, channels=2, seed=1).pairs(0, 1)[0], x[:1]
    )


def test_benchmarks_are_split_as_published() -> None:
    """A benchmark is split and standardised as the papers say."""
    values = waves(503)
    made = benchmark(values, length=24, horizon=6)
    # 70 %, the rest, 20 %, each rounded down as the released code does (E1-8)
    training = int(503 * 0.7)
    test = int(503 * 0.2)
    bounds = (0, training, 503 - test, 503)
    mean = values[:, :training].mean(axis=1)
    deviation = values[:, :training].std(axis=1)
    standard = ((values - mean[:, None]) / deviation[:, None]).astype(np.float32)
    assert_close(made.mean, mean, depth=400)
    for position, part in enumerate((made.training, made.validation, made.test)):
        start = max(bounds[position] - (24 if position else 0), 0)
        assert_close(part.values, standard[:, start : bounds[position + 1]], depth=10)
        assert len(part) == bounds[position + 1] - start - 30 + 1
        x, y = part.take(torch.tensor([0, len(part) - 1]))
        for row, at in enumerate((start, bounds[position + 1] - 30)):
            assert_close(x[row], standard[:, at : at + 24], depth=10)
            assert_close(y[row], standard[:, at + 24 : at + 30], depth=10)


@pytest.mark.parametrize("zipped", [False, True])
def test_files_are_read_plain_and_zipped(zipped: bool, tmp_path: Path) -> None:
    values = waves(200)
    text = "\n".join(",".join(f"{number:.6f}" for number in row) for row in values.T)
    file = tmp_path / ("rates.txt.gz" if zipped else "rates.txt")
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    made, expected = (
        benchmark(source, length=10, horizon=3)
        for source in (file, np.round(values, 6))
    )
    assert made.name == file.name
    assert torch.equal(made.test.values, expected.test.values)
    assert (
        made.digest
        == expected.digest
        != benchmark(values[:, ::-1].copy(), length=10, horizon=3).digest
    )


def test_epochs_hold_each_pair_once() -> None:
    """Every pair comes once an epoch, in an order given by seed and epoch."""
    task = toy_task()
    control = toy_task()
    other = toy_task(seed=1)
    assert task.batches_per_epoch == 5
    epochs = [
        torch.cat([task.list_pairs(step) for step in range(5 * epoch, 5 * epoch + 5)])
        for epoch in range(2)
    ]
    for order in epochs:
        assert torch.equal(order.sort().values, torch.arange(70))
    assert not torch.equal(*epochs)
    # from anywhere, in any order
    assert torch.equal(control.list_pairs(7), task.list_pairs(7))
    assert torch.equal(control.list_pairs(2), task.list_pairs(2))
    assert not torch.equal(other.list_pairs(2), task.list_pairs(2))


def test_losses_are_means_over_all_numbers() -> None:
    """Losses and measures of error are means over all numbers."""
    task = toy_task()
    x, y = SMALL.pairs(70, 90)
    with torch.no_grad():
        error = (task.model(x) - y).double().numpy()
        found = task.evaluate()
    assert list(found) == ["mse", "mae"]
    assert_close(found["mse"], (error**2).mean(), depth=100, dtype="float32")
    assert_close(found["mae"], np.abs(error).mean(), depth=100, dtype="float32")


def test_evaluation_keeps_modes_without_dropout() -> None:
    """Evaluation leaves the mode as it was and uses no dropout."""
    data = benchmark(waves(), length=16, horizon=5)
    model = make_model("tsmixer", 16, 5, 3, dropout=0.5).train()
    assert compute_errors(model, data.test) == compute_errors(model, data.test)
    assert model.training


def test_the_identity_tells_every_setting() -> None:
    data = benchmark(waves(), length=16, horizon=5)
    first = BenchmarkTask(make_model("samformer", 16, 5, 3), data).identity
    assert json.loads(first)["model.normalise"] is True
    rest = [
        BenchmarkTask(make_model("samformer", 16, 5, 3, width=8), data),
        BenchmarkTask(make_model("samformer", 16, 5, 3, seed=1), data),
        BenchmarkTask(make_model("samformer", 16, 5, 3), data, seed=1),
        BenchmarkTask(make_model("samformer", 16, 5, 3), data, batch=16),
        BenchmarkTask(make_model("samformer", 16, 5, 3), data, settings={"rho": 0.5}),
        BenchmarkTask(
            make_model("samformer", 16, 5, 3),
            benchmark(2 + waves() ** 3, length=16, horizon=5),
        ),
    ]
    assert len({first, *(other.identity for other in rest)}) == 7


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "the training part has 210 of 300 rows"),
        ({"length": 100, "horizon": 40}, "validation .* and the window before it"),
        ({"split": "ett-hourly"}, "takes 14400 rows, the series has 300"),
        ({"split": "70/20/10"}, "70/10/20"),
    ],
)
def test_windows_longer_than_data_are_refused(
    options: dict[str, Any], says: str
) -> None:
    """Windows that do not fit into the data are refused."""
    expect_error(says, benchmark, waves(), **options)


def test_gaps_and_constant_channels_are_refused() -> None:
    gap = waves()
    still = waves()
    gap[1, 250] = np.nan
    still[2] = 3.0
    expect_error("no value in row 250", benchmark, gap)
    expect_error("is constant over the training rows", benchmark, still)
    other = make_model("linear", 16, 6, 3)
    expect_error("horizon=6, the data horizon=5", ToyTask, other, SMALL)
