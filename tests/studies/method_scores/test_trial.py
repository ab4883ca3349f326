"""A small version of the trial of the verdict: eight drawn forecasts, true and wrong explanations of each."""

from __future__ import annotations

from tsfm_lens.studies.method_scores.trial import accepted, trial


def test_true_explanations_hold_and_wrong_ones_fail() -> None:
    table = accepted(trial(8, 5))["all"].str.split(" of ", expand=True).astype(int)
    share = table[0] / table[1]
    assert len(share) == 6
    assert share.pop("true") >= 0.85
    # one by chance of eight
    assert (share <= 1 / 8).all(), share
