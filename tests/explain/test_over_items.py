"""Effects over many series are those of each, in units that can be compared."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens import explain
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import assert_close


def test_effects_are_those_of_each_item_in_its_unit(covariate_run: Run) -> None:
    found = explain.input_effects(covariate_run, parts=2)
    context = covariate_run.batch.values
    for column, item in enumerate(("series-0", "series-1")):
        one = explain.attribute_inputs(covariate_run, item, reference="mean", parts=2)
        middle = one["attribution"].sel(quantile=0.5)
        target = context[3 * column]
        unit = np.abs(target[24:] - target[:-24]).mean()
        assert_close(found["unit"][column], unit, depth=100)
        assert_close(found["effect"][:, column], middle.mean("step") / unit, depth=100)
        assert_close(found["size"][:, column], np.abs(middle).mean("step") / unit, depth=100)
        ahead = covariate_run.batch.futures[3 * column + 2]
        known = context[3 * column + 2]
        height = found["value"].sel(segment="k, future")[column]
        assert_close(height, (ahead.mean() - known.mean()) / known.std(), depth=100)
        last = target[int(one["start"][1]) :]
        assert_close(found["value"][1, column], (last.mean() - target.mean()) / target.std(), depth=100)
    # the mean of the whole past is its mean
    assert np.isnan(found["value"].sel(segment=["a", "k, past"])).all()
    assert found["size_stands_out"].any()
    assert set(found["kind"].values) == {"past", "past covariate", "known covariate"}


def test_items_of_unequal_length_have_what_they_have(bolt: Lens) -> None:
    rng = np.random.default_rng(0)
    batch = SeriesBatch((rng.normal(size=64), rng.normal(size=48)), ids=("long", "short"))
    seen: list[tuple[int, int]] = []
    found = explain.input_effects(
        bolt.run(batch, 8), method="occlusion", parts=2, progress=lambda done, of: seen.append((done, of))
    )
    assert seen == [(1, 2), (2, 2)]
    assert list(np.isfinite(found["effect"].sel(series="long")).values) == [True, True, False, False]
    assert list(np.isfinite(found["effect"].sel(series="short")).values) == [False, False, True, True]
    assert found["start"].values.tolist() == [-64, -32, -48, -24]
    assert found.attrs["forecasts"] == 2 * 4


def test_every_method_is_one_argument_away(bolt_run: Run) -> None:
    for method in explain.METHODS:
        found = explain.input_effects(bolt_run, method=method, parts=2)
        assert found.attrs["method"] == method
        assert np.isfinite(found["effect"]).all()
    with pytest.raises(KeyError, match="Closest: shapley"):
        explain.input_effects(bolt_run, method="shap")
