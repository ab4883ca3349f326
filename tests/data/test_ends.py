"""Series that end with missing values: what is noted, and what is no truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from refusals import expect_error
from tsfm_lens.data import SeriesBatch, read_series
from tsfm_lens.data.batch import held_out, known_frequency, missing_at_end, noted_ends
from tsfm_lens.errors import InputError

GONE = [np.nan] * 3
LONG = np.arange(12.0)


def test_only_targets_are_noted_and_many_are_counted(tmp_path: Path) -> None:
    past = SeriesBatch(
        (LONG, np.r_[LONG[3:], GONE]), ("y", "x"), groups=("a", "a"), variates=("y", "x"), roles=("target", "past")
    )
    assert noted_ends(past).notes == ()
    assert [missing_at_end(np.array(row)) for row in ([1.0, 2.0], [1.0, np.nan], [np.nan])] == [0, 1, 1]
    many = noted_ends(SeriesBatch(tuple(np.r_[LONG, GONE] for _ in range(5)), tuple("abcde")))
    assert "'a' with 3, 'b' with 3, 'c' with 3, … (5 series)" in many.notes[0]
    (tmp_path / "y.csv").write_text("y\n1\n2\nNA\n")
    assert "'y' with 1" in read_series(tmp_path / "y.csv", header=True).notes[-1]


def test_a_held_out_end_needs_a_value() -> None:
    ended, going = np.r_[LONG, GONE], np.arange(15.0)
    with pytest.raises(InputError, match="'series-0' ends with 3 missing values: the truth of all 2 steps is missing"):
        held_out(SeriesBatch((ended,)), 2)
    context, truth = held_out(SeriesBatch((ended,)), 4)
    assert context.notes == ()
    assert np.isfinite(truth).sum() == 1
    context, truth = held_out(SeriesBatch((ended, going)), 2)
    assert context.notes == ("the truth of all 2 steps is missing of 'series-0'",)
    assert np.isfinite(truth).tolist() == [[False] * 2, [True] * 2]


def test_no_warning_of_pandas_stands_before_the_refusal(recwarn: pytest.WarningsRecorder) -> None:
    known_frequency.cache_clear()
    expect_error("no pandas frequency", known_frequency, "bogus")
    assert not recwarn.list
