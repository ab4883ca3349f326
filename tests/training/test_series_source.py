"""Batches of series by seed and step, their crops, and mixtures of series."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from refusals import expect_error
from tsfm_lens.training.series_source import (
    LENGTH,
    Corpus,
    SeriesSource,
    draw_weights,
    tsmixup,
)

DRAWS = np.random.default_rng(0).normal(size=(18, LENGTH)).astype(np.float32)
CORPUS = Corpus(DRAWS, {"rough": (0, 6), "harmonics": (6, 12), "walks": (12, 18)})
SOURCE = SeriesSource(CORPUS, seed=0)


def test_mixup_equals_the_written_loop() -> None:
    """Mixup equals the algorithm written as a loop."""
    slices = np.random.default_rng(5).normal(size=(6, 3, 11))
    weights = draw_weights(np.random.default_rng(0), 6)
    slices[0, weights[0] == 0] = np.nan
    expected = np.zeros((6, 11))
    for row in range(6):
        for slot in range(3):
            if weights[row, slot] > 0:
                expected[row] += (
                    weights[row, slot]
                    * slices[row, slot]
                    / np.mean(np.abs(slices[row, slot, :8]))
                )
    assert_allclose(
        tsmixup(torch.from_numpy(slices), torch.from_numpy(weights), 8), expected
    )


def test_mixup_weights_are_dirichlet() -> None:
    """The weights of a mixture are Dirichlet over one to three series."""
    weights = draw_weights(np.random.default_rng(0), 30_000)
    assert_allclose(weights.sum(1), 1.0)
    used = (weights > 0).sum(1)
    # five standard errors of a share of so many draws
    shares = [(used == count).mean() for count in (1, 2, 3)]
    assert_allclose(shares, 1 / 3, atol=5 * (1 / 3 * 2 / 3 / len(used)) ** 0.5)
    # variance of a Dirichlet(1.5, 1.5, 1.5) component: (1/3)(2/3) / 5.5
    variance = 2 / 9 / 5.5
    draws = (used == 3).sum()
    # five standard errors of the variance of so many draws
    assert weights[used == 3].var(axis=0) == pytest.approx(
        variance, rel=5 * (2 / draws) ** 0.5
    )


def test_batches_depend_on_seed_and_step() -> None:
    """A batch depends on the seed and the step and on nothing else."""
    again = SeriesSource(CORPUS, seed=0)
    kwargs = {
        "mix": {"rough": 1.0, "walks": 2.0, "tsmixup": 1.0},
        "rows": 8,
        "context": 24,
        "horizon": 8,
    }
    for one, two in zip(
        SOURCE.batch(7, **kwargs), again.batch(7, **kwargs), strict=True
    ):
        assert_array_equal(one, two)
    assert not np.array_equal(
        SOURCE.batch(8, **kwargs)[1], SOURCE.batch(7, **kwargs)[1]
    )


def test_contexts_are_cut_from_the_left() -> None:
    """Only the left end of a context is cut."""
    past, future = SOURCE.batch(
        0, mix={"harmonics": 1.0}, rows=400, context=24, horizon=8
    )
    missing = np.isnan(past.numpy())
    assert (np.diff(missing.astype(int), axis=1) <= 0).all()
    # 5 standard errors of a share of 0.2 among 400 rows
    assert abs(missing[:, 0].mean() - 0.2) < 5 * 0.02
    assert np.isfinite(future.numpy()).all()


def test_unknown_family_is_named_with_neighbour() -> None:
    """An unknown family is named, with the one most like it."""
    expect_error(
        "harmonics",
        SOURCE.batch,
        0,
        mix={"harmonic": 1.0},
        rows=2,
        context=8,
        horizon=4,
    )


def test_rows_are_crops_of_their_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is a crop of a series of its family."""
    monkeypatch.setattr("tsfm_lens.training.series_source.NOISE", (0.0,))
    source = SeriesSource(CORPUS, seed=0)
    crops = source.choose({"harmonics": 1.0}, np.random.default_rng([0, 3]), 20, 32)
    past, future = source.batch(
        3, mix={"harmonics": 1.0}, rows=20, context=24, horizon=8
    )
    start, stop = CORPUS.rows["harmonics"]
    assert ((crops.rows >= start) & (crops.rows < stop)).all()
    for row in range(20):
        at = crops.starts[row, 0] + crops.strides[row, 0] * np.arange(32)
        got = torch.cat([past[row], future[row]]).double().numpy()
        seen = ~np.isnan(got)
        want = CORPUS.values[crops.rows[row, 0], at][seen]
        # level, sign and unit are a straight line, whose correlation is 1; a level of
        # 200 deviations leaves float noise
        assert abs(np.corrcoef(got[seen], want)[0, 1]) > 0.999
