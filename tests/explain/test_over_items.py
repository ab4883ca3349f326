"""Effects over many series: planted mechanisms are larger than all that untrained twins
have.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from tsfm_lens import explain, viz
from tsfm_lens.data import SeriesBatch, as_series, bundled
from tsfm_lens.explain import route_effects, untrained_twin
from tsfm_lens.explain.masking import in_random_order
from tsfm_lens.explain.routes import PairedRuns, all_effects
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.models.noise import forecast_rounding
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.input_effects import item_overview, read_items
from tsfm_lens.viz.panels import name_segments
from tsfm_lens.zoo import checkpoint_names, checkpoint_path
from tsfm_lens.zoo.planted import Card, plant


@cache
def planted() -> tuple[Run, Card]:
    """A covariate that one head carries, on four items."""
    made = plant("covariate", "chronos-2")
    rng = np.random.default_rng(0)
    horizon = made.card.horizon
    items = []
    for _ in range(4):
        known = rng.normal(size=32 + horizon)
        item = {"target": rng.normal(size=32), "past_covariates": {"k": known[:32]}}
        items.append({**item, "future_covariates": {"k": known[32:]}})
    return made.lens().run(as_series(items), horizon, twins=4), made.card


def test_planted_heads_carry_more_than_twins() -> None:
    """A planted head carries more than any component of the untrained twins."""
    run, card = planted()
    (head,) = card.components("mechanism")
    found = route_effects(run, parts=1)
    assert found["component"].values[found["carried_learned"].values].tolist() == [head]
    assert found["carried"].sel(component=head).values.min() > 0.5
    assert found["series"].values.tolist() == list(run.batch.targets().ids)


@pytest.mark.parametrize("name", checkpoint_names())
def test_twins_ignore_the_model_s_path(name: str) -> None:
    """Its weights are the trained ones in another order."""
    twins = [
        untrained_twin(load(source, check=False), 1)
        for source in (name, str(checkpoint_path(name)))
    ]
    assert twins[0].model_id == f"{name} (weights in random order, seed 1)"
    trained, first, second = (
        item.adapter.model.state_dict() for item in (load(name, check=False), *twins)
    )
    for key, weight in trained.items():
        assert torch.equal(first[key], second[key])
        if weight.ndim > 1 and weight.std() > 0:
            assert not torch.equal(weight, first[key])
    for key, weight in load(name, check=False).adapter.model.named_parameters():
        ours, theirs = (item.flatten().sort().values for item in (weight, first[key]))
        assert torch.equal(ours, theirs)


def test_shuffled_series_keep_values_and_gaps() -> None:
    """Shuffled series keep values, gaps and what they have in common."""
    values = np.arange(12.0)
    gappy = values.copy()
    gappy[3] = np.nan
    batch = SeriesBatch(
        (values, values * 2, gappy), groups=("a", "a", "b"), variates=("x", "y", "z")
    )
    found, again = (in_random_order(batch, [0, draw]).values for draw in range(2))
    for item in (again[0], values):
        assert not np.array_equal(found[0], item)
    # another item is in another order
    known = np.isfinite(found[2])
    assert not np.array_equal(found[2][known], found[0][known])
    for original, shuffled in zip(batch.values, found, strict=True):
        assert_array_equal(np.sort(shuffled), np.sort(original))
    assert_array_equal(found[1], 2 * found[0])
    assert np.isnan(found[2][3])
    # what is known ahead is shuffled, too
    ahead = SeriesBatch(
        (values,) * 3,
        futures=(None, values, 2 * values),
        groups=("a",) * 3,
        variates=("x", "y", "z"),
        roles=("target", "known", "known"),
    )
    _, first, second = in_random_order(ahead, [0, 0]).futures
    assert_array_equal(second, 2 * first)
    assert_array_equal(np.sort(first), values)
    assert not np.array_equal(first, values)


def test_effects_use_the_item_s_unit(covariate_run: Run) -> None:
    """Effects are those of each item, in its own unit."""
    found = explain.input_effects(covariate_run, parts=2)
    batch = covariate_run.batch
    for item in range(2):
        one = explain.input_attribution(covariate_run, item, reference="mean", parts=2)
        middle = one["attribution"].sel(quantile=0.5)
        ours = found.isel(series=item)
        target, _, known = batch.values[3 * item : 3 * item + 3]
        ahead = batch.futures[3 * item + 2]
        last = target[int(one["start"][1]) :]
        unit = np.abs(target[24:] - target[:-24]).mean()
        # each in deviations of its series from the mean
        height = (ahead.mean() - known.mean()) / known.std()
        newest = (last.mean() - target.mean()) / target.std()
        for actual, expected in (
            (ours["unit"], unit),
            (ours["effect"], middle.mean("step") / unit),
            (ours["size"], np.abs(middle).mean("step") / unit),
            (ours["value"].sel(segment="k, future"), height),
            (ours["value"][1], newest),
        ):
            assert_close(actual, expected, depth=100)
    # the mean of the whole past is its mean
    assert np.isnan(found["value"].sel(segment=["a", "k, past"])).all()
    assert (found["size_acts"] > 0).any()
    assert set(found["kind"].values) == {"past", "past covariate", "known covariate"}


def test_unequal_items_keep_their_own_segments(bolt: Lens) -> None:
    rng = np.random.default_rng(0)
    batch = SeriesBatch((rng.normal(size=64), rng.normal(size=48)))
    seen = []
    found = explain.input_effects(
        bolt.run(batch, 8),
        method="occlusion",
        parts=2,
        progress=lambda *done: seen.append(done),
    )
    assert seen == [(1, 2), (2, 2)]
    has = found["effect"].notnull().transpose("series", "segment").values
    assert has.tolist() == [[True, True, False, False], [False, False, True, True]]
    assert found["start"].values.tolist() == [-64, -32, -48, -24]
    assert found.attrs["forecasts"] == 2 * 4


def test_overview_sorts_items_by_error() -> None:
    """Errors are MASE, and each item's segment has the dates of this item."""
    lens = load("bolt-nano")
    run = lens.run(bundled("co2", "nile", "elnino"), 8, holdout=True)
    effects = explain.input_effects(run, parts=2, method="occlusion")
    table = item_overview(effects).set_index("series")
    batch = run.batch
    for row, name in enumerate(batch.ids):
        season = batch.seasonalities[row]
        context = batch.values[row]
        unit = np.nanmean(np.abs(context[season:] - context[:-season]))
        error = np.abs(run.truth[row] - run.forecast.median[row]).mean() / unit
        assert_close(table.loc[name, "error"], error, depth=100)
        sizes = effects["size"].sel(series=name)
        assert_close(table.loc[name, "effect"], float(sizes.max()) * unit, depth=100)
        last = batch.timestamps(row)[-1]
        assert str(last.year) in table.loc[name, "largest"]
    assert table["error"].is_monotonic_decreasing
    first = table.index[0]
    assert read_items(effects)[0].startswith(f"{first}: error")


def test_overview_without_truth_sorts_by_effect() -> None:
    run = load("bolt-nano").run(bundled("co2", "elnino"), 8)
    effects = explain.input_effects(run, parts=2, method="occlusion")
    table = item_overview(effects)
    assert table["error"].isna().all()
    assert table["effect"].is_monotonic_decreasing
    assert not any("error" in text for text in read_items(effects))


def test_map_of_items_stands_as_the_overview() -> None:
    run = load("bolt-nano").run(bundled("co2", "elnino"), 8)
    effects = explain.input_effects(run, parts=2, method="occlusion")
    order = item_overview(effects)["series"]
    fig = viz.item_map(effects)
    assert list(fig.data[0].x) == order.tolist()
    sizes = effects["size"].sel(series=order.values).transpose("segment", "series")
    np.testing.assert_array_equal(fig.data[0].z, sizes)


def test_dates_of_one_series_name_no_other() -> None:
    """Segments of series at different times are named by steps."""
    run = load("bolt-nano").run(bundled("co2", "nile"), 8)
    effects = explain.input_effects(run, parts=2, method="occlusion")
    assert not any("19" in name for name in name_segments(effects))
    same = effects.isel(series=[0])
    assert all("19" in name or "20" in name for name in name_segments(same))


@pytest.mark.parametrize("parts", [1, 3])
def test_noise_of_shares_is_in_their_unit(bolt: Lens, parts: int) -> None:
    """Rounding of every segment's effect, as a share of the total effect."""
    steps = np.arange(64.0)
    run = bolt.run(as_series([1000 + np.sin(steps / 3), np.sin(steps / 5)]), 4)
    found = route_effects(run, parts=parts, components=["decoder.*.mlp"])
    for item, floor in enumerate(found["carried_floor"].values):
        _, _, total = all_effects(
            PairedRuns(run, parts, "mean", item, 0, 0), ["decoder.*.mlp"]
        )
        size = np.abs(total).mean(-1).sum()
        noise = len(total) * forecast_rounding(run)[item]
        assert_close(floor, noise / size, depth=10)
