"""Several models on one axis: errors without parts, and parts that do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import tsfm_lens
from benchmarks.matching import COPIES, LENGTH, page_rows, twins
from refusals import expect_error
from tiny_lenses import fresh
from tsfm_lens import testing, viz
from tsfm_lens.ablation.metrics import mae
from tsfm_lens.core.registry import find
from tsfm_lens.data import as_series
from tsfm_lens.hooks import Zero
from tsfm_lens.models import Run
from tsfm_lens.probes import compare_models, heads_by_stable_rank, random_heads
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.compare_models import read_curves
from tsfm_lens.zoo.planted import plant
from tsfm_lens.zoo.planted.rules import draw_contexts

HORIZON = 6


def run_of(name: str, *series: str, **options: Any) -> Run:
    return tsfm_lens.load(name).run(
        tsfm_lens.bundled(*(series or ("co2", "elnino"))), HORIZON, **options
    )


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano"])
def test_errors_equal_those_of_edited_models(name: str) -> None:
    run = run_of(name, holdout=True)
    assert run.truth is not None
    found = compare_models([run], draws=2, seed=3)
    steps = slice(run.first_step, None)
    layers = range(run.lens.wiring.output_stack.n_layers)
    keep = dict.fromkeys(layers, 2)
    sets = {
        "low": heads_by_stable_rank(run.lens, keep),
        "high": heads_by_stable_rank(run.lens, keep, order="high"),
        1: random_heads(run.lens, keep, seed=4),
    }
    plain = mae(run.point[:, steps], run.truth[:, steps])
    assert_close(found["error"].values[0], plain, depth=10)
    for label, heads in sets.items():
        with run.lens.edit(*(Zero(head) for head in heads)):
            edited = run.read(run.lens(run.encoded)).detach().double().numpy()
        expected = mae(edited[:, steps], run.truth[:, steps]) / plain
        if isinstance(label, str):
            curve = found["error_ratio"].sel(order=label)
        else:
            curve = found["random_error_ratio"].sel(draw=label)
        actual = curve.isel(model=0, removed=2).values
        largest = float(np.abs(run.point).max() / plain.min())
        assert_close(actual, expected, depth=300, magnitude=largest, dtype=np.float32)


def test_orders_meet_where_nothing_is_chosen() -> None:
    found = compare_models([run_of("bolt-nano", holdout=True)], draws=3)
    ratios = found["error_ratio"].isel(model=0)
    assert (ratios.isel(removed=0) == 1.0).all()
    ends = ratios.isel(removed=-1)
    assert_array_equal(ends.sel(order="low"), ends.sel(order="high"))
    assert found["excess"].isel(removed=[0, -1]).isnull().all()
    assert found["share"].values[0].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_sentences_say_which_order_costs_more() -> None:
    runs = [run_of("bolt-nano", holdout=True)]
    found = compare_models(runs, draws=2).copy(deep=True)
    # removing two of four parts in the order "low" is less harm, in "high" more
    found["excess_size"][:] = 0.0
    found["excess_size"][0, :, 2] = [-0.5, 0.5]
    for part in ("acts", "significant"):
        found[f"excess_{part}"][:] = 0
        found[f"excess_{part}"][0, :, 2] = 2 if part == "acts" else 1
    text = " ".join(read_curves(found))
    assert "low stable rank first, 2 steps (less error)" in text
    assert "high stable rank first, 2 steps (more error)" in text


def test_ties_count_as_no_larger() -> None:
    """Random orders that remove the same heads as an order are no larger."""
    found = compare_models([run_of("bolt-nano", holdout=True)], draws=4)
    random = found["random_error_ratio"].median("series")
    ordered = found["error_ratio"].median("series")
    expected = (random <= ordered).mean("draw").isel(removed=[1, 2, 3])
    below = found["random_below"].isel(removed=[1, 2, 3]).transpose(*expected.dims)
    assert_array_equal(below, expected)


def test_mlps_are_removed_by_rank() -> None:
    runs = [
        run_of("bolt-nano", holdout=True),
        tsfm_lens.load(testing.tiny("fracast")).run(
            tsfm_lens.bundled("co2", "elnino"), HORIZON, holdout=True
        ),
    ]
    found = compare_models(runs, parts="mlps", draws=2)
    # the models have three and four layers
    assert np.isfinite(found["share"].values).sum(-1).tolist() == [4, 5]
    assert np.isfinite(found["error_ratio"].isel(model=1)).all()
    assert found["error_ratio"].isel(model=0, removed=-1).isnull().all()


def test_twins_of_a_mechanism_match() -> None:
    """A planted head's counterpart is found in another architecture."""
    seeds = {name: COPIES[0][name] for name in ("chronos-bolt", "chronos-2")}
    models = twins(seeds)
    found = compare_models([model.run for model in models.values()], draws=1)
    names = list(models)
    for name, other in (names, names[::-1]):
        planted = models[other].card.components("mechanism")
        for part in models[name].card.components("mechanism"):
            cell = found.sel(part=f"{name}: {part}", other_model=other)
            assert cell["matched"]
            assert str(cell["match"].values) in planted
    assert (found["matched_share"].sel(model=names[0], other_model=names[1])) == 1.0


def test_other_mechanisms_do_not_match() -> None:
    copy = plant("seasonal-copy", "chronos-2", seed=1)
    trend = plant("trend", "chronos-bolt", seed=1)
    contexts = [
        context
        for planted in (copy, trend)
        for context in draw_contexts(planted.card.rule, 8, (LENGTH, LENGTH), seed=5)
    ]
    batch = as_series([context[:-8] for context in contexts])
    truth = np.stack([context[-8:] for context in contexts])
    runs = []
    for planted in (copy, trend):
        lens = planted.lens()
        lens.model_id = planted.card.name
        runs.append(lens.run(batch, 8, truth=truth))
    found = compare_models(runs, draws=1)
    assert not found["matched"].any()
    assert np.isfinite(found["similarity"]).any()


def test_few_series_match_nothing() -> None:
    """Of two series every shuffle may be their own order."""
    runs = [run_of(name, holdout=True) for name in ("bolt-nano", "chronos2-nano")]
    found = compare_models(runs, draws=1)
    assert not found["matched"].any()
    lines = [
        line
        for panel in find("compare_models").draw_panels(found)
        for line in panel.sentences
    ]
    assert any("2 series are too few" in line for line in lines)
    assert any("bolt-nano: without 50" in line for line in lines)
    figure = viz.removal_curves(found)
    names = {trace.name for trace in figure.data}
    assert {"random orders", "low stable rank first", "high stable rank first"} <= names
    assert viz.plot(found).data
    one = viz.removal_curves(found, model="chronos2-nano")
    assert "bolt-nano" not in str(one.layout.title.text)


def test_orders_stand_beside_twins() -> None:
    runs = [
        run_of(name, holdout=True, twins=2) for name in ("bolt-nano", "chronos2-nano")
    ]
    found = compare_models(runs, draws=1, parts="mlps")
    alone = compare_models([run.twin(1) for run in runs], draws=1, parts="mlps")
    expected = np.abs(alone["excess_size"].values)
    assert_array_equal(found["excess_twins"][1], expected.astype("float32"))
    lines = [
        line
        for panel in find("compare_models").draw_panels(found)
        for line in panel.sentences
    ]
    assert any("2 untrained twins" in line for line in lines)


def test_copies_of_a_series_count_once() -> None:
    """A short series is padded beside a longer one, and its copy is no other."""
    long, short = (tsfm_lens.bundled(name).values[0] for name in ("co2", "elnino"))
    series = [array.ravel() for array in (long[-90:], short[-60:], short[-60:])]
    runs = [
        tsfm_lens.load(name).run(series, HORIZON, holdout=True)
        for name in ("bolt-nano", "chronos2-nano")
    ]
    found = compare_models(runs, draws=1)
    assert found["matched_share"].attrs["units_compared"] == 2
    assert found["excess_p"].attrs["units"] == 2


def test_flat_series_are_left_out() -> None:
    lens = tsfm_lens.load("bolt-nano")
    series = [np.sin(np.arange(60.0)), np.ones(60)]
    truth = np.zeros((2, HORIZON))
    found = compare_models(lens.run(series, HORIZON, truth=truth), draws=2)
    alone = compare_models(lens.run(series[:1], HORIZON, truth=truth[:1]), draws=2)
    ratios = found["error_ratio"].transpose("series", ...).values
    assert np.isnan(ratios[1]).all()
    # the forecast of a batch differs from that of one series by rounding
    assert_close(
        ratios[0], alone["error_ratio"].values[..., 0], depth=300, dtype=np.float32
    )
    flat = lens.run(series[1:], HORIZON, truth=truth[1:])
    expect_error("every series is flat", compare_models, [flat])


def test_what_cannot_be_compared_is_refused() -> None:
    run = run_of("bolt-nano", "co2", holdout=True)
    expect_error("no run is given", compare_models, [])
    expect_error("this is a Lens", compare_models, [run.lens])
    expect_error("two models are called 'bolt-nano'", compare_models, [run, run])
    expect_error("no truth.*holdout=True", compare_models, [run_of("bolt-nano", "co2")])
    other = run_of("chronos2-nano", "elnino", holdout=True)
    expect_error("other series or truths", compare_models, [run, other])
    longer = tsfm_lens.load("chronos2-nano").run(
        tsfm_lens.bundled("co2"), 7, holdout=True
    )
    expect_error("horizon 6.*7", compare_models, [run, longer])
    expect_error("'heads' or 'mlps'", compare_models, [run], parts="layers")
    expect_error("draws is 0", compare_models, [run], draws=0)
    mixer = tsfm_lens.load(testing.tiny("fracast")).run(
        tsfm_lens.bundled("co2"), HORIZON, holdout=True
    )
    expect_error("no attention.*parts='mlps'", compare_models, [mixer])


def test_page_of_convolutions_is_true() -> None:
    """The how-to says which orders of MLPs cost other than chance."""
    names = ("chronos-nano", "bolt-nano", "chronos2-nano")
    lenses = [fresh("fracast"), *map(tsfm_lens.load, names)]
    series = tsfm_lens.bundled("all")
    runs = [lens.run(series, 12, holdout=True) for lens in lenses]
    found = compare_models(runs, parts="mlps")
    assert found["excess_p"].notnull().sum() == 18
    significant = found["excess_significant"]
    assert significant.sum() == 2
    own = found.isel(model=0)
    assert np.flatnonzero(own["excess_significant"].sel(order="low")).tolist() == [2]
    assert np.flatnonzero(own["excess_significant"].sel(order="high")).tolist() == [1]
    assert own["excess_size"].sel(order="low")[2] > 0
    assert own["excess_size"].sel(order="high")[1] < 0


def test_table_of_matches_is_one_of_the_benchmark() -> None:
    """The page has a row for each pair of mechanisms, as the benchmark writes it."""
    index = pd.MultiIndex.from_tuples(
        [("of the copy", "seasonal-copy")], names=["series", "mechanisms"]
    )
    whole = pd.DataFrame({"parts": 81, "matched": 1.0, "planted": 1.0}, index)
    page = Path(__file__).parents[2] / "docs" / "howto" / "models-on-one-axis.md"
    for row in page_rows(whole):
        assert f"| {' | '.join(row)} |" in page.read_text()
