"""Generators against closed forms, brute force and their defining equations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import expm

from tsfm_lens.errors import UnknownNameError
from tsfm_lens.zoo import mixture
from tsfm_lens.zoo.chaos import logistic_series, lorenz, rk4, roessler
from tsfm_lens.zoo.kernelsynth import PERIODS, draw_covariance, kernel_bank, kernelsynth
from tsfm_lens.zoo.source import SeriesSource
from tsfm_lens.zoo.tsmixup import draw_weights, tsmixup


def test_bank_has_the_33_kernels_of_the_paper() -> None:
    assert len(kernel_bank(64)) == 33
    assert len(PERIODS) == 21


@pytest.mark.parametrize("index", range(len(PERIODS)))
def test_periodic_kernels_return_to_one_after_their_period(index: int) -> None:
    length = 1024
    kernel = kernel_bank(length)[index]
    period = PERIODS[index] / length
    assert kernel(np.array(0.25), np.array(0.25 + period)) == pytest.approx(1.0)
    # half a period away the sine is one
    assert kernel(np.array(0.25), np.array(0.25 + period / 2)) == pytest.approx(np.exp(-2.0))


def test_other_kernels_have_their_closed_form() -> None:
    x, y = np.array(0.3), np.array(0.8)
    expected = [0.24, 1.24, 100.24]
    expected += [np.exp(-0.5 * (0.5 / scale) ** 2) for scale in (0.1, 1.0, 10.0)]
    expected += [(1 + 0.25 / (2 * alpha)) ** -alpha for alpha in (0.1, 1.0, 10.0)]
    expected += [0.0, 0.0, 1.0]
    np.testing.assert_allclose([kernel(x, y) for kernel in kernel_bank(64)[21:]], expected)
    assert [float(kernel(x, x)) for kernel in kernel_bank(64)[30:32]] == [0.1, 1.0]


def test_draws_have_the_covariance_of_their_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    covariance = draw_covariance(np.random.default_rng(3), 6)
    monkeypatch.setattr("tsfm_lens.zoo.kernelsynth.draw_covariance", lambda rng, length: covariance.copy())
    draws = kernelsynth(np.random.default_rng(0), 20_000, 6)
    scale = np.abs(covariance).max()
    np.testing.assert_allclose(draws.T @ draws / len(draws) / scale, covariance / scale, atol=0.03)


def test_runge_kutta_is_of_fourth_order_on_a_linear_flow() -> None:
    matrix = np.array([[-0.1, 2.0, 0.0], [-2.0, -0.1, 0.0], [0.0, 0.0, -0.5]])
    start = np.array([[1.0, 0.5, 2.0]])
    exact = start @ expm(matrix).T
    errors = [
        np.abs(rk4(lambda state: state @ matrix.T, start, 1.0 / steps, steps)[-1] - exact).max() for steps in (10, 20)
    ]
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.15)


def test_flows_vanish_at_their_known_fixed_points() -> None:
    root = np.sqrt(8.0 / 3.0 * 27.0)
    np.testing.assert_allclose(lorenz(np.array([root, root, 27.0])), 0.0, atol=1e-12)
    x = (5.7 - np.sqrt(5.7**2 - 4 * 0.04)) / 2
    np.testing.assert_allclose(roessler(np.array([x, -x / 0.2, x / 0.2])), 0.0, atol=1e-12)


def test_logistic_rows_obey_one_rate_each() -> None:
    series = logistic_series(np.random.default_rng(0), 5, 60)
    rates = series[:, 1:] / (series[:, :-1] * (1 - series[:, :-1]))
    np.testing.assert_allclose(rates, np.broadcast_to(rates[:, :1], rates.shape), rtol=1e-9)
    assert ((rates > 3.5) & (rates < 4.0)).all()


@pytest.mark.parametrize("name", ["motif_rough", "motif_smooth"])
def test_motifs_repeat_exactly_at_least_twice(name: str) -> None:
    length = 96
    for row in mixture.FAMILIES[name](np.random.default_rng(1), 40, length):
        periods = [lag for lag in range(2, length // 2) if np.allclose(row[lag:], row[:-lag])]
        assert periods


def test_a_tiled_row_is_its_shape_modulo_the_period() -> None:
    shapes = np.arange(10.0).reshape(2, 5)
    tiled = mixture.tile(shapes, np.array([3, 5]), np.array([2, 0]), 7)
    np.testing.assert_array_equal(tiled, [[2, 0, 1, 2, 0, 1, 2], [5, 6, 7, 8, 9, 5, 6]])


def test_seasonal_walk_differences_are_white(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "lengths_for_motifs", lambda rng, count, length: np.full(count, 7))
    series = mixture.seasonal_walk(np.random.default_rng(0), 50, 400)
    steps = series[:, 7:] - series[:, :-7]
    spread = steps.std(axis=1)
    assert all(np.abs(spread - level).min() < 0.02 for level in (0.05, 0.15, 0.3))
    correlations = [np.corrcoef(row[1:], row[:-1])[0, 1] for row in steps]
    assert abs(np.mean(correlations)) < 0.02


@pytest.mark.parametrize("name", list(mixture.FAMILIES))
def test_families_are_finite_and_depend_on_their_seed_only(name: str) -> None:
    family = mixture.FAMILIES[name]
    first, again, other = (family(np.random.default_rng(seed), 9, 50) for seed in (0, 0, 1))
    assert first.shape == (9, 50)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_mixup_equals_the_algorithm_written_as_a_loop() -> None:
    slices = np.random.default_rng(5).normal(size=(6, 3, 11))
    weights = draw_weights(np.random.default_rng(0), 6)
    expected = np.zeros((6, 11))
    for row in range(6):
        for slot in range(3):
            expected[row] += weights[row, slot] * slices[row, slot] / np.mean(np.abs(slices[row, slot]))
    np.testing.assert_allclose(tsmixup(np.random.default_rng(0), slices), expected)


def test_weights_are_dirichlet_over_one_to_three_series() -> None:
    weights = draw_weights(np.random.default_rng(0), 30_000)
    np.testing.assert_allclose(weights.sum(1), 1.0)
    used = (weights > 0).sum(1)
    np.testing.assert_allclose([(used == k).mean() for k in (1, 2, 3)], 1 / 3, atol=0.02)
    # variance of a Dirichlet(1.5, 1.5, 1.5) component: (1/3)(2/3) / 5.5
    assert weights[used == 3].var(axis=0) == pytest.approx(2 / 9 / 5.5, abs=0.003)


@pytest.fixture
def source(tmp_path: Path) -> SeriesSource:
    return SeriesSource(seed=0, cache=tmp_path, corpus_size=6, corpus_length=48)


def test_a_batch_depends_on_seed_and_step_only(source: SeriesSource, tmp_path: Path) -> None:
    again = SeriesSource(seed=0, cache=tmp_path, corpus_size=6, corpus_length=48)
    kwargs = {"mix": {"motif_rough": 1.0, "kernelsynth": 2.0, "tsmixup": 1.0}, "rows": 8, "context": 24, "horizon": 8}
    for one, two in zip(source.batch(7, **kwargs), again.batch(7, **kwargs), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(source.batch(8, **kwargs)[1], source.batch(7, **kwargs)[1])


def test_only_the_left_of_a_context_is_cut(source: SeriesSource) -> None:
    past, future = source.batch(0, mix={"harmonics": 1.0}, rows=400, context=24, horizon=8)
    missing = np.isnan(past)
    assert (np.diff(missing.astype(int), axis=1) <= 0).all()
    assert missing[:, 0].mean() == pytest.approx(0.2, abs=0.06)
    assert np.isfinite(future).all()


def test_an_unknown_family_is_named_with_its_neighbour(source: SeriesSource) -> None:
    with pytest.raises(UnknownNameError, match="harmonics"):
        source.batch(0, mix={"harmonic": 1.0}, rows=2, context=8, horizon=4)
