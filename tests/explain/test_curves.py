"""Deletion and insertion of a forecast that is a weighted sum of what is shown: curves, areas and chances by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import explain
from tsfm_lens.explain.curves import _curves, scores_of
from tsfm_lens.models import Run

WEIGHTS = np.array([1.0, 4.0, 2.0])


def weighed() -> Any:
    """What stands for :class:`Masks` where the forecast is the sum of the weights that are shown."""

    class Sum:
        middle = 0

        def __call__(self, keep: np.ndarray) -> np.ndarray:
            return (keep @ WEIGHTS)[:, None, None]

    return Sum()


def test_curves_are_the_weights_that_are_gone_and_those_that_are_missing() -> None:
    deletion, insertion = _curves(weighed(), np.array([[1, 2, 0], [0, 2, 1]]))
    np.testing.assert_array_equal(deletion, [[0, 4, 6, 7], [0, 1, 3, 7]])
    np.testing.assert_array_equal(insertion, [[7, 3, 1, 0], [7, 6, 4, 0]])


def test_scores_are_sizes_whatever_their_sign() -> None:
    steps = np.array([[1.0, -1.0], [-3.0, -3.0], [2.0, 2.0]])
    data = xr.Dataset({"attribution": (("segment", "step"), steps)})
    np.testing.assert_array_equal(scores_of(data, 3), [1, 3, 2])


@pytest.fixture(scope="module")
def tried(bolt_run: Run) -> Any:
    scores = {"newest first": [0.0, 1.0, 2.0], "oldest first": [2.0, 1.0, 0.0]}
    return explain.deletion_curves(bolt_run, scores, parts={"parts": 3, "season": 1}, orders=19, seed=5)


def test_areas_bands_and_chances_are_those_of_the_curves(tried: Any) -> None:
    whole = float(tried["deletion"].values[0, -1])
    assert float(tried["everything_masked"]) == whole
    for curves, areas in (("", "area"), ("random_", "random_area")):
        gap = tried[f"{curves}deletion"].values - tried[f"{curves}insertion"].values
        np.testing.assert_array_equal(tried[areas].values, gap.mean(1) / whole)
    drawn = np.stack([tried["random_deletion"].values, tried["random_insertion"].values])
    np.testing.assert_array_equal(tried["random_low"].values, np.quantile(drawn, 0.025, axis=1))
    np.testing.assert_array_equal(tried["random_high"].values, np.quantile(drawn, 0.975, axis=1))
    as_good = [(tried["random_area"].values >= area).sum() for area in tried["area"].values]
    # of 3 segments there are 6 orders, so that the one on trial is drawn, too, and is as good as itself
    assert min(as_good) > 0
    np.testing.assert_array_equal(tried["p"].values, (1 + np.array(as_good)) / 20)
    np.testing.assert_array_equal(tried["order"].values, [[2, 1, 0], [0, 1, 2]])


def test_orders_are_drawn_by_their_seed(bolt_run: Run, tried: Any) -> None:
    how: dict[str, Any] = {"parts": {"parts": 3, "season": 1}, "orders": 19}
    again = explain.deletion_curves(bolt_run, {"newest first": [0, 1, 2]}, seed=5, **how)
    other = explain.deletion_curves(bolt_run, {"newest first": [0, 1, 2]}, seed=6, **how)
    np.testing.assert_array_equal(again["random_area"], tried["random_area"])
    assert not np.array_equal(other["random_area"], tried["random_area"])


def test_segments_are_those_of_the_result_unless_others_are_given(bolt_run: Run) -> None:
    found = explain.attribute_inputs(bolt_run, method="occlusion", parts={"parts": 3, "season": 1})
    names = found["segment"].values.tolist()
    assert explain.deletion_curves(bolt_run, found, orders=2)["segment"].values.tolist() == names
