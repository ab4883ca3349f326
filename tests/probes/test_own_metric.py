"""A metric of one's own has the statements of the built-in measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tsfm_lens
from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.core.registry import find
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.probes import ablation_effects, activation_patching, path_patching
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo.planted import plant
from tsfm_lens.zoo.planted.rules import draw_contexts

STATEMENTS = ("acts", "size", "low", "high", "p", "significant", "floor")
MODELS = ("bolt-nano", "chronos-nano", "chronos2-nano")


def swing(forecast: np.ndarray, truth: Any, series: SeriesBatch) -> float:
    """Distance from the lowest to the highest step."""
    return float(np.ptp(forecast))


@pytest.mark.parametrize("name", MODELS)
def test_own_error_equals_the_built_in(name: str) -> None:
    run = tsfm_lens.load(name).run(
        tsfm_lens.bundled("co2", "elnino"), 6, holdout=True, rollout=False
    )

    def error(forecast: np.ndarray, truth: Any, series: SeriesBatch) -> float:
        # the built-in measure leaves out the step at which no value is read
        return float(np.abs(forecast - truth)[run.first_step :].mean())

    found = ablation_effects(run, components=["**.mlp"], metric=error)
    assert_close(found["metric_value"].values, found["mae"].values, depth=10)
    for part in STATEMENTS:
        own = found[f"metric_change_{part}"].values.astype(float)
        built_in = found[f"mae_change_{part}"].values.astype(float)
        # a change is a share of 1, of which the floor is a difference
        largest = max(1.0, float(np.abs(built_in).max()))
        assert_close(own, built_in, depth=100, magnitude=largest, what=part)
    assert found.attrs["metric"] == "error"


@pytest.mark.parametrize("probe", [activation_patching, path_patching])
@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_own_share_equals_the_built_in(probe: Any, direction: str) -> None:
    run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("co2"), 6)
    pair = run.shifted_pair()
    base, source = pair[::-1] if direction == "denoise" else pair
    way = (source.point - base.point)[0]

    def along(forecast: np.ndarray, truth: Any, series: SeriesBatch) -> float:
        assert truth is None
        assert series.ids == pair[0].batch.ids
        assert_array_equal(series.values[0], pair[0].batch.values[0])
        return float((forecast - base.point[0]) @ way / (way @ way))

    at = {"positions": "all"} if probe is activation_patching else {"senders": "**.mlp"}
    plain = probe(*pair, direction=direction, **at)
    found = probe(*pair, direction=direction, metric=along, **at)
    # the measured forecast is a difference of numbers of the series' level
    largest = float(np.abs(base.point).max() / np.abs(way).max())
    for part in ("recovered", "effect"):
        assert_close(
            found[part].values, plain[part].values, depth=100, magnitude=largest
        )


def test_planted_head_is_found_by_its_metric() -> None:
    """The head that copies the season makes the swing; in a twin no head does.

    Without the head nothing is left of the swing. A head of an untrained twin may well
    make it several times as large, so that no share of it can be called learned.
    """
    planted = plant("seasonal-copy", "chronos-2", seed=1)
    card = planted.card
    contexts = draw_contexts(card.rule, 12, (96, 96), seed=5)
    lens = planted.lens()
    run = lens.run(as_series(list(contexts)), card.horizon, twins=0)
    found = ablation_effects(run, components=["*.*_attn.*"], metric=swing)
    marked = found["component"].values[found["metric_change_significant"]]
    assert marked.tolist() == list(card.components("mechanism"))
    assert float(found["metric_change_size"].min()) < -0.9
    # the fifth has new weights; planted weights in random order give no finite numbers
    twin = ablation_effects(run.twin(4), components=["*.*_attn.*"], metric=swing)
    assert float(twin["metric_change_size"].min()) > -0.9


def test_figures_and_sentences_name_the_metric() -> None:
    run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("co2"), 6)
    pair = run.shifted_pair()
    results = [
        ablation_effects(run, components=["decoder.*.mlp"], metric=swing),
        activation_patching(*pair, metric=swing),
        activation_patching(*pair, metric=swing, positions="all"),
        path_patching(*pair, metric={"swing": swing}, senders=["decoder.*.mlp"]),
    ]
    for result in results:
        assert "swing" in str(viz.plot(result).layout.title.text)
        panels = find(result.attrs["kind"]).draw_panels(result)
        assert any("swing" in line for panel in panels for line in panel.sentences)
    # a value of the whole forecast is not called by the metric's name
    plain = viz.patching_map(results[1], value="effect")
    assert "swing" not in str(plain.layout.title.text)


REFUSED: dict[str, tuple[Any, str]] = {
    "array": ({"peak": lambda f, t, s: f}, r"peak.*array of shape \(6,\).*co2"),
    "tensor": ({"peak": lambda f, t, s: f[None, :2]}, r"array of shape \(1, 2\)"),
    "NaN": ({"peak": lambda f, t, s: np.nan}, r"returns nan.*finite number"),
    "infinite": ({"peak": lambda f, t, s: np.inf}, r"returns inf.*finite number"),
    "text": ({"peak": lambda f, t, s: "high"}, r"returns a str.*finite number"),
    "nothing": ({"peak": lambda f, t, s: None}, r"returns None.*finite number"),
    "no name": (lambda f, t, s: 1.0, r"name '<lambda>'.*metric=\{'peak': function\}"),
    "no function": (3, r"a int.*function of \(forecast, truth, series\)"),
    "no entry": ({}, r"0 entries.*metric=\{'peak': function\}"),
    "constant": ({"peak": lambda f, t, s: 0.0}, r"peak.*(no more than|nothing to)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_functions_without_a_number_are_refused(case: str) -> None:
    metric, message = REFUSED[case]
    run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("co2"), 6)
    pair = run.shifted_pair()
    mlps = ["decoder.*.mlp"]
    expect_error(message, ablation_effects, run, components=mlps, metric=metric)
    expect_error(message, activation_patching, *pair, at=mlps, metric=metric)
    expect_error(message, path_patching, *pair, senders=mlps, metric=metric)


def test_a_metric_may_change_what_it_is_given() -> None:
    def middle(forecast: np.ndarray, truth: Any, series: SeriesBatch) -> float:
        forecast.sort()
        truth.sort()
        return float(forecast[len(forecast) // 2] - truth[0])

    run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("co2"), 6, holdout=True)
    before = run.point.copy(), run.truth.copy()
    ablation_effects(run, components=["decoder.*.mlp"], metric=middle)
    assert_array_equal(run.point, before[0])
    assert_array_equal(run.truth, before[1])


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano"])
def test_metric_that_cannot_be_measured_is_explained(name: str) -> None:
    """Wrong arguments, and a truth that is not there, are named as the cause."""
    run = tsfm_lens.load(name).run(tsfm_lens.bundled("co2"), 6)

    def error(forecast: np.ndarray, truth: Any, series: SeriesBatch) -> float:
        return float(np.abs(forecast - truth).mean())

    def failing(forecast: np.ndarray, truth: Any, series: SeriesBatch) -> float:
        raise ZeroDivisionError("of its own")

    pair = run.shifted_pair()
    for probe, runs in (
        (ablation_effects, (run,)),
        (activation_patching, pair),
        (path_patching, pair),
    ):
        for function in (lambda a: 1.0, lambda a, b, c, d: 1.0, lambda *, a: 1.0):
            message = r"cannot be called with \(forecast, truth, series\)"
            expect_error(message, probe, *runs, metric={"one": function})
        expect_error("truth is None.*holdout=True", probe, *runs, metric=error)
    # the advice works, and a function's own error with a truth is its own
    held = run.lens.run(tsfm_lens.bundled("co2"), 6, holdout=True)
    ablation_effects(held, components=["**.0.mlp"], metric=error)
    with pytest.raises(ZeroDivisionError):
        ablation_effects(held, components=["**.0.mlp"], metric=failing)
