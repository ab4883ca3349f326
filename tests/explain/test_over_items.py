"""Effects over many series: planted mechanisms are larger than all that untrained twins have."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from tsfm_lens import explain
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.explain import route_effects, untrained_twin
from tsfm_lens.explain.masking import in_random_order
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo import checkpoint_names, checkpoint_path
from tsfm_lens.zoo.planted import Card, plant


@cache
def planted() -> tuple[Run, Card]:
    """A covariate that one head carries, on four items."""
    made = plant("covariate", "chronos-2")
    rng, horizon = np.random.default_rng(0), made.card.horizon
    items = []
    for _ in range(4):
        known = rng.normal(size=32 + horizon)
        item = {"target": rng.normal(size=32), "past_covariates": {"k": known[:32]}}
        items.append({**item, "future_covariates": {"k": known[32:]}})
    return made.lens().run(as_series(items), horizon, twins=4), made.card


def test_a_planted_head_carries_more_than_any_component_of_untrained_twins() -> None:
    run, card = planted()
    (head,) = card.components("mechanism")
    found = route_effects(run, parts=1)
    assert found["component"].values[found["carried_learned"].values].tolist() == [head]
    assert found["carried"].sel(component=head).values.min() > 0.5
    assert found["series"].values.tolist() == list(run.batch.targets().ids)


@pytest.mark.parametrize("name", checkpoint_names())
def test_a_twin_is_the_same_by_whatever_name_its_files_are_opened(name: str) -> None:
    """Its weights are the trained ones in another order."""
    by_name, by_path = (
        untrained_twin(load(source, check=False), 1)
        for source in (name, str(checkpoint_path(name)))
    )
    first, second = (each.adapter.model.state_dict() for each in (by_name, by_path))
    assert all(torch.equal(first[key], weight) for key, weight in second.items())
    assert by_name.model_id == f"{name} (weights in random order, seed 1)"
    own, other = (
        dict(each.adapter.model.named_parameters())
        for each in (load(name, check=False), by_name)
    )
    moved = [key for key, weight in own.items() if not torch.equal(weight, other[key])]
    assert moved
    assert all(
        key in moved
        for key, weight in own.items()
        if weight.ndim > 1 and weight.std() > 0
    )
    for key, weight in own.items():
        assert torch.equal(
            weight.flatten().sort().values, other[key].flatten().sort().values
        )


def test_shuffled_series_keep_values_gaps_and_agreement() -> None:
    def shuffled(batch: SeriesBatch) -> SeriesBatch:
        first, second = (in_random_order(batch, [0, draw]) for draw in range(2))
        assert not np.array_equal(first.values[0], second.values[0])
        return first

    values = np.arange(12.0)
    gappy = values.copy()
    gappy[3] = np.nan
    batch = SeriesBatch(
        (values, values * 2, gappy), groups=("a", "a", "b"), variates=("x", "y", "z")
    )
    found = shuffled(batch)
    assert sorted(found.values[0]) == sorted(values)
    assert_array_equal(found.values[1], 2 * found.values[0])
    assert np.isnan(found.values[2][3])
    assert sorted(found.values[2][~np.isnan(gappy)]) == sorted(gappy[~np.isnan(gappy)])
    assert not np.array_equal(found.values[0], values)
    # another item is in another order, and what is known ahead is, too
    assert not np.array_equal(
        found.values[2][~np.isnan(gappy)], found.values[0][found.values[0] != values[3]]
    )
    roles = {
        "groups": ("a",) * 3,
        "variates": ("x", "y", "z"),
        "roles": ("target", "known", "known"),
    }
    ahead = SeriesBatch((values,) * 3, futures=(None, values, 2 * values), **roles)  # type: ignore[arg-type]
    futures = shuffled(ahead).futures
    assert_array_equal(futures[2], 2 * np.asarray(futures[1]))
    assert sorted(np.asarray(futures[1])) == sorted(values)
    assert not np.array_equal(futures[1], values)  # type: ignore[arg-type]


def test_effects_are_those_of_each_item_in_its_unit(covariate_run: Run) -> None:
    found = explain.input_effects(covariate_run, parts=2)
    context = covariate_run.batch.values
    for column, item in enumerate(("series-0", "series-1")):
        one = explain.input_attribution(covariate_run, item, reference="mean", parts=2)
        middle = one["attribution"].sel(quantile=0.5)
        target = context[3 * column]
        unit = np.abs(target[24:] - target[:-24]).mean()
        assert_close(found["unit"][column], unit, depth=100)
        assert_close(found["effect"][:, column], middle.mean("step") / unit, depth=100)
        assert_close(
            found["size"][:, column], np.abs(middle).mean("step") / unit, depth=100
        )
        ahead = covariate_run.batch.futures[3 * column + 2]
        known = context[3 * column + 2]
        height = found["value"].sel(segment="k, future")[column]
        assert_close(height, (ahead.mean() - known.mean()) / known.std(), depth=100)
        last = target[int(one["start"][1]) :]
        assert_close(
            found["value"][1, column],
            (last.mean() - target.mean()) / target.std(),
            depth=100,
        )
    # the mean of the whole past is its mean
    assert np.isnan(found["value"].sel(segment=["a", "k, past"])).all()
    assert (found["size_acts"] > 0).any()
    assert set(found["kind"].values) == {"past", "past covariate", "known covariate"}


def test_items_of_unequal_length_have_what_they_have(bolt: Lens) -> None:
    rng = np.random.default_rng(0)
    batch = SeriesBatch(
        (rng.normal(size=64), rng.normal(size=48)), ids=("long", "short")
    )
    seen: list[tuple[int, int]] = []
    found = explain.input_effects(
        bolt.run(batch, 8),
        method="occlusion",
        parts=2,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert seen == [(1, 2), (2, 2)]
    assert list(np.isfinite(found["effect"].sel(series="long")).values) == [
        True,
        True,
        False,
        False,
    ]
    assert list(np.isfinite(found["effect"].sel(series="short")).values) == [
        False,
        False,
        True,
        True,
    ]
    assert found["start"].values.tolist() == [-64, -32, -48, -24]
    assert found.attrs["forecasts"] == 2 * 4
