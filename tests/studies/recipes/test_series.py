"""Generators against closed forms, brute force and their defining equations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import expm

from tsfm_lens.studies.recipes import corpus as corpora
from tsfm_lens.studies.recipes import families
from tsfm_lens.testing import assert_close
from tsfm_lens.training.series_source import SeriesSource

# the error of a method of fourth order falls by 2^4 when the step is halved, and by a
# term of the next order more
NEXT_ORDER = 0.15


def test_periodic_kernels_return_after_their_period() -> None:
    full = families.kernel_bank(800)
    halves = families.kernel_bank(40, period_scale=0.5)
    for index, period in enumerate(families.PERIODS):
        row = full[index][0]
        assert row[period].item() == pytest.approx(1.0), period
        # half a period away the sine is one
        if period % 2 == 0:
            assert row[period // 2].item() == pytest.approx(np.exp(-2.0)), period
        expected = np.exp(-2.0 * np.sin(np.pi / (0.5 * period)) ** 2)
        assert halves[index][0][1].item() == pytest.approx(expected), period


def test_other_kernels_have_their_closed_form() -> None:
    # of the eleven points on [0, 1] the fourth and the ninth are 0.3 and 0.8
    bank = families.kernel_bank(11)[21:]
    expected = [0.24, 1.24, 100.24]
    expected += [np.exp(-0.5 * (0.5 / scale) ** 2) for scale in (0.1, 1.0, 10.0)]
    expected += [(1 + 0.25 / (2 * alpha)) ** -alpha for alpha in (0.1, 1.0, 10.0)]
    expected += [0.0, 0.0, 1.0]
    np.testing.assert_allclose(bank[:, 3, 8], expected)
    np.testing.assert_allclose(bank[9:11, 3, 3], [0.1, 1.0])


def test_draws_have_their_kernel_s_covariance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    covariance = families.compose(
        families.kernel_bank(6), rng.integers(33, size=3), rng.random(3) < 0.5
    )
    monkeypatch.setattr(
        "tsfm_lens.studies.recipes.families.compose", lambda *_: covariance.clone()
    )
    draws = families.kernelsynth(
        families.SeriesDraw(np.random.default_rng(0), 5_000, 6)
    )
    scale = covariance.abs().max().item()
    # the standard error of a covariance is at most sqrt(2 / n) of the variances; five
    # of them
    atol = 5 * (2 / len(draws)) ** 0.5
    np.testing.assert_allclose(
        draws.T @ draws / len(draws) / scale, covariance / scale, atol=atol
    )


def test_runge_kutta_is_of_fourth_order() -> None:
    matrix = np.array([[-0.1, 2.0, 0.0], [-2.0, -0.1, 0.0], [0.0, 0.0, -0.5]])
    start = np.array([[1.0, 0.5, 2.0]])
    exact = start @ expm(matrix).T
    errors = [
        np.abs(
            families.rk4(lambda state: state @ matrix.T, start, 1.0 / steps, steps)[-1]
            - exact
        ).max()
        for steps in (10, 20)
    ]
    assert errors[0] / errors[1] == pytest.approx(16, rel=NEXT_ORDER)


def test_flows_vanish_at_known_fixed_points() -> None:
    root = np.sqrt(8.0 / 3.0 * 27.0)
    assert_close(
        families.lorenz(np.array([root, root, 27.0])),
        0.0,
        depth=1000,
        magnitude=27.0 * 30,
    )
    x = (5.7 - np.sqrt(5.7**2 - 4 * 0.04)) / 2
    assert_close(
        families.roessler(np.array([x, -x / 0.2, x / 0.2])),
        0.0,
        depth=1000,
        magnitude=27.0 * 30,
    )


def test_logistic_rows_obey_one_rate_each() -> None:
    series = families.logistic_series(
        families.SeriesDraw(np.random.default_rng(0), 5, 60)
    )
    rates = series[:, 1:] / (series[:, :-1] * (1 - series[:, :-1]))
    assert_close(rates, np.broadcast_to(rates[:, :1], rates.shape), depth=10000)
    assert ((rates > 3.5) & (rates < 4.0)).all()


def test_seasonal_walk_differences_are_white(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        families, "lengths_for_motifs", lambda draw: np.full(draw.size, 7)
    )
    series = families.seasonal_walk(
        families.SeriesDraw(np.random.default_rng(0), 50, 400)
    )
    steps = series[:, 7:] - series[:, :-7]
    spread = steps.std(axis=1)
    assert all(np.abs(spread - level).min() < 0.02 for level in (0.05, 0.15, 0.3))
    correlations = [np.corrcoef(row[1:], row[:-1])[0, 1] for row in steps]
    assert abs(np.mean(correlations)) < 0.02


@pytest.mark.parametrize("name", list(families.FAMILIES))
def test_families_depend_on_their_seed_only(name: str) -> None:
    """Families of series are finite and depend on their seed only."""
    family = families.FAMILIES[name]
    first, again, other = (
        family(families.SeriesDraw(np.random.default_rng(seed), 9, 50))
        for seed in (0, 0, 1)
    )
    assert first.shape == (9, 50)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_short_series_end_with_the_row(tmp_path: Path) -> None:
    """Series shorter than a row stand at its end."""
    short = np.arange(100.0, dtype=np.float32)
    long = np.arange(2_000.0, dtype=np.float32)
    np.savez(
        tmp_path / "real.npz",
        **{"training/a": short, "training/b": long, "validation/c": long},
    )
    rows = corpora.real_rows(tmp_path / "real.npz")
    assert rows.shape[1] == corpora.LENGTH
    firsts = np.isnan(rows).sum(1)
    assert set(firsts) == {corpora.LENGTH - 100, 0}
    assert rows[firsts == 0][:, 0].max() == 2_000 - corpora.LENGTH
    np.savez(
        tmp_path / "longest.npz",
        **{"training/d": np.arange(100_000.0, dtype=np.float32)},
    )
    starts = corpora.real_rows(tmp_path / "longest.npz")[:, 0]
    # 625 pieces would fit: four times the root of that, evenly spread from the first
    # value to the last
    assert len(starts) == 100
    assert (starts[0], starts[-1]) == (0, 100_000 - corpora.LENGTH)
    assert np.ptp(np.diff(starts)) <= 1
    corpus = corpora.build_corpus({"harmonics": 2}, seed=0, real=tmp_path / "real.npz")
    crops = SeriesSource(corpus, seed=0).choose(
        {corpora.REAL: 1.0}, np.random.default_rng(0), 200, 96
    )
    first = np.isnan(corpus.values[crops.rows]).sum(-1)
    # a crop never asks for what lies before the series, but where the series is too
    # short for it
    assert (crops.starts >= np.minimum(first, corpora.LENGTH - 96)).all()
    assert (crops.starts + 95 * crops.strides < corpora.LENGTH).all()
