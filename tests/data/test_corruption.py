"""Corruptions against series whose parts are known."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series, bundled, remove_motif, shift_phase, swap_season

# STL parts a clean season of size 1 from its trend to within a few per cent
PARTED = 0.05

TIME = np.arange(96)
SEASON = np.sin(2 * np.pi * TIME / 12) + 0.5 * np.cos(4 * np.pi * TIME / 12)
TREND = 0.05 * TIME + 3


def test_removed_motif_is_a_straight_line() -> None:
    """A removed motif is replaced by a straight line."""
    line = 2.0 * TIME + 1
    bumped = line.copy()
    bumped[40:48] += 5
    np.testing.assert_allclose(remove_motif(bumped, 40, 48).values[0], line)
    # the same stretch counted from the end, and every season
    comb = line.copy()
    for start in range(4, 96, 24):
        comb[start : start + 6] -= 7
    np.testing.assert_allclose(
        remove_motif(comb, 28 - 96, 34 - 96, every=24).values[0], line
    )
    # at the end the line goes on level
    np.testing.assert_allclose(remove_motif(TREND, -5, 0).values[0][-5:], TREND[-6])


@pytest.mark.parametrize(
    ("start", "stop", "every", "message"),
    [
        (5, 5, None, "motif"),
        (0, 96, None, "motif"),
        (90, 200, None, "motif"),
        (-200, 5, None, "motif"),
        (0, 12, 12, "leaves nothing"),
        (0, 12, 0, "leaves nothing"),
    ],
)
def test_a_motif_must_lie_inside(
    start: int, stop: int, every: int | None, message: str
) -> None:
    expect_error(message, remove_motif, TREND, start, stop, every=every)


@pytest.mark.parametrize("shift", [-12, -5, 0, 1, 6, 12, 30])
def test_shifted_season_comes_one_season_later(shift: int) -> None:
    found = shift_phase(TREND + SEASON, shift, period=12).values[0]
    moved = np.sin(2 * np.pi * (TIME - shift) / 12) + 0.5 * np.cos(
        4 * np.pi * (TIME - shift) / 12
    )
    np.testing.assert_allclose(found, TREND + moved, atol=PARTED)


def test_swapped_season_has_new_period() -> None:
    found = swap_season(TREND + SEASON, 8, period=12).values[0] - TREND
    spectrum = np.abs(np.fft.rfft(found - found.mean()))
    assert spectrum.argmax() == 96 // 8
    np.testing.assert_allclose(
        found.max() - found.min(), np.ptp(SEASON), rtol=2 * PARTED
    )


def test_scale_is_kept_on_request() -> None:
    series = bundled("pedestrians", "electricity").tail(96)
    for found in (
        remove_motif(series, -24, 0, keep_scale=True),
        swap_season(series, 16, period=24, keep_scale=True),
    ):
        assert found.ids == series.ids
        assert found.timestamps(0).equals(series.timestamps(0))
        for new, old in zip(found.values, series.values, strict=True):
            assert new.mean() == pytest.approx(old.mean())
            assert new.std() == pytest.approx(old.std())


def test_gaps_stay_and_change_nothing_else() -> None:
    series = TREND + SEASON
    gap = np.where(TIME == 40, np.nan, TREND + SEASON)
    for corrupt, steps in ((shift_phase, 5), (swap_season, 8)):
        found, full = (
            corrupt(item, steps, period=12).values[0] for item in (gap, series)
        )
        assert np.flatnonzero(np.isnan(found)).tolist() == [40]
        np.testing.assert_allclose(
            np.delete(found, 40), np.delete(full, 40), atol=PARTED * np.ptp(SEASON)
        )


def test_covariates_stay_as_they_are() -> None:
    """A corruption changes targets: the future of covariates is known, and some are
    categories.
    """
    future = {"known": np.cos(TIME[:12]), "kind": ["a", "b", "c"] * 4}
    item = {
        "target": TREND + SEASON,
        "past_covariates": {
            "past": SEASON,
            "known": np.cos(TIME),
            "kind": ["a", "b", "c"] * 32,
        },
        "future_covariates": future,
    }
    batch = as_series([item])
    for found in (
        swap_season(batch, 8, period=12, keep_scale=True),
        shift_phase(batch, 5, period=12),
        remove_motif(batch, 40, 48),
    ):
        assert np.abs(found.values[0] - batch.values[0]).max() > 0.1
        for row in range(1, len(batch)):
            np.testing.assert_array_equal(found.values[row], batch.values[row])


def test_what_has_no_season_is_refused() -> None:
    expect_error("no known season", shift_phase, TREND, 3)
    expect_error("needs 24 or more", shift_phase, TREND[:20], 3, period=12)
    expect_error(
        "new_period is 1, expected 2 or more", swap_season, TREND, 1, period=12
    )
    with pytest.raises(InputError, match="nothing but a constant"):
        remove_motif(
            np.where((TIME >= 40) & (TIME < 48), 5.1, 0.1), 40, 48, keep_scale=True
        )
