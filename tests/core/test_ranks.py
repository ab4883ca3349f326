"""Measures of rank: answers known beforehand, and what they do not depend on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsfm_lens.core import ranks
from tsfm_lens.core.errors import InputError
from tsfm_lens.testing import assert_close, rounding

SPECTRA = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20).map(np.array)


def test_value_at_epsilon_is_not_above() -> None:
    values = np.array([1.0, 0.5, 0.1, 0.01])
    assert ranks.epsilon_rank(values, 0.1) == 2
    assert ranks.epsilon_rank(values, [0.4, 0.1, 0.05, 0.001]).tolist() == [2, 2, 3, 4]
    assert ranks.epsilon_rank(np.zeros(3), 0.1) == 0
    assert ranks.epsilon_rank(
        np.stack([values, values[::-1]]), [0.4, 0.05]
    ).tolist() == [[2, 2], [3, 3]]
    for wrong in (0.0, 1.0, -0.1, np.nan):
        with pytest.raises(InputError, match="epsilon is"):
            ranks.epsilon_rank(values, wrong)


def test_rank_truncation_error_is_bounded() -> None:
    """A matrix cut off at its epsilon rank is off by at most epsilon."""
    matrix = np.random.default_rng(0).normal(size=(12, 8)) * 10.0 ** -np.arange(8)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    for epsilon in (0.3, 1e-2, 1e-4):
        rank = int(ranks.epsilon_rank(values, epsilon))
        trimmed = (left[:, :rank] * values[:rank]) @ right[:rank]
        assert np.linalg.norm(matrix - trimmed, 2) <= epsilon * values[0] * (
            1 + rounding("float64", 1.0, depth=100)
        )


@given(SPECTRA, st.floats(1e-3, 1e3))
def test_rank_measures_ignore_order_and_scale(
    values: np.ndarray, factor: float
) -> None:
    """No measure depends on the order or the size of singular values."""
    other = factor * values[::-1]
    for measure in (ranks.effective_rank, ranks.participation_ratio):
        found = float(measure(values))
        assert_close(measure(other), found, depth=200)
        assert (
            1 - rounding("float64", 1.0, depth=200)
            <= found
            <= len(values) * (1 + rounding("float64", 1.0, depth=200))
        )
    assert_close(
        ranks.relative_spectrum(other), ranks.relative_spectrum(values), depth=5
    )
    assert ranks.decade_histogram(values, 20).sum() == len(values)


def test_flat_and_single_spectra_have_ranks() -> None:
    """Even spectra have their size as rank, and single values have one."""
    for measure in (ranks.effective_rank, ranks.participation_ratio):
        assert_close(measure(np.ones(7)), 7.0, depth=50)
        assert_close(measure(np.array([3.0, 0.0, 0.0])), 1.0, depth=50)
        assert np.isnan(measure(np.zeros(3)))
    # by hand: shares 3/4 and 1/4, variances 9/10 and 1/10
    assert_close(ranks.effective_rank(np.array([3.0, 1.0])), 4 / 27**0.25, depth=50)
    assert_close(ranks.participation_ratio(np.array([3.0, 1.0])), 100 / 82, depth=50)


def test_decades_hold_their_upper_ends() -> None:
    assert ranks.decade_histogram(
        np.array([1.0, 0.1, 0.01, 1e-5, 1e-6, 0.0])
    ).tolist() == [1, 1, 1, 0, 0]
    # the quotient and the power of ten are rounded apart
    assert ranks.decade_histogram(np.array([1e6, 10.0]), 8).sum() == 2
    with pytest.raises(InputError, match="decades is 0"):
        ranks.decade_histogram(np.ones(2), 0)


def test_angles_are_between_lines() -> None:
    columns = np.array([[1.0, -2.0, 0.0, 1.0, 0.0], [0.0, 0.0, 3.0, 1.0, 0.0]])
    found = np.degrees(ranks.angles(columns))
    # near zero the arccos takes a rounding for its root
    np.testing.assert_allclose(
        found[0, :4],
        [0, 0, 90, 45],
        atol=np.degrees(np.sqrt(rounding("float64", 1.0, depth=8))),
    )
    assert np.isnan(found[4]).all()
    with pytest.raises(InputError, match="finite matrix"):
        ranks.angles(np.array([[np.nan]]))


@pytest.mark.parametrize(
    "values", [np.array([]), np.array([1.0, -1.0]), np.array([np.inf]), np.array(2.0)]
)
def test_what_is_no_spectrum_is_refused(values: np.ndarray) -> None:
    with pytest.raises(InputError, match="singular values"):
        ranks.relative_spectrum(values)
