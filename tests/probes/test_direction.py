"""Planted directions are found, exchanged as their rule says, and beyond nulls."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr

from benchmarks.nulls import PAIRS, READ
from refusals import expect_error
from tsfm_lens import load, probes
from tsfm_lens.core.nulls import claimed
from tsfm_lens.models import Lens, Run
from tsfm_lens.probes.direction import _subject, pair_by_label
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.direction import read_direction
from tsfm_lens.zoo.planted import plant

SEEDS = (0, pytest.param(1, marks=pytest.mark.exhaustive))


@cache
def planted_pair(mechanism: str, seed: int, count: int = 16) -> tuple[Run, Run, Any]:
    """Runs with and without a planted property, and the rule."""
    pytest.importorskip("chronos")
    planted = plant(mechanism, "chronos-bolt", seed=seed)
    lens = planted.lens()
    rule = planted.card.rule
    rng = np.random.default_rng(seed)
    pairs = [PAIRS[mechanism](rule, rng) for _ in range(count)]
    having, lacking = (
        lens.run([pair[side] for pair in pairs], planted.card.horizon)
        for side in (0, 1)
    )
    return having, lacking, rule


def expected(mechanism: str, having: Run, lacking: Run, rule: Any) -> np.ndarray:
    """The forecast of the rule for the series without, with the property of the other.

    The values of a pair are the same, and so is the scale that the model divides by.
    """
    source, base = (
        np.array([rule.forecast(values, run.horizon) for values in run.batch.values])
        for run in (having, lacking)
    )
    if mechanism == "gate":
        return source
    late = [
        np.array([values[-rule.width :].mean() for values in run.batch.values])
        for run in (having, lacking)
    ]
    # the level of one series with the slope of the other
    assert base.shape == source.shape
    return late[1][:, None] + source - late[0][:, None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mechanism", list(PAIRS))
@pytest.mark.parametrize("method", ["means", "das"])
def test_planted_direction_is_exchanged_as_its_rule_says(
    mechanism: str, seed: int, method: str
) -> None:
    """Exchange reaches the closed form; draws of the same norm do not."""
    having, lacking, rule = planted_pair(mechanism, seed)
    data = probes.direction(
        having,
        lacking,
        tokens=READ,
        method=method,
        counterfactual=expected(mechanism, having, lacking, rule),
        doses=[-1, 1],
        nulls=100,
    )
    exchanged = data.sel(change="interchange")
    assert float(exchanged["agreement_size"]) >= 0.95
    assert float(exchanged["agreement_nulls"].quantile(0.95)) <= 0.1
    # that none of so many does it does not depend on their seed
    assert float(exchanged["agreement_null_share"]) == 0.0
    assert bool(exchanged["agreement_exceeds_nulls"])
    assert bool(exchanged["agreement_significant"])
    assert float(data["half_cosine"][0]) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mechanism", list(PAIRS))
def test_twins_have_no_planted_direction(mechanism: str, seed: int) -> None:
    """With shuffled weights a tenth of the way is recovered at most, in the median.

    None of them is claimed.
    """
    having, lacking, _ = planted_pair(mechanism, seed)
    found = [
        probes.direction(
            having.twin(number), lacking.twin(number), tokens=READ, doses=[-1, 1]
        )
        for number in range(5)
    ]
    sizes = [data["agreement_size"].sel(change="interchange") for data in found]
    assert float(np.nanmedian(sizes)) <= 0.1
    assert not any(claimed(data, "agreement").any() for data in found)


def test_slope_of_doses_is_that_of_the_readout() -> None:
    """A trend is linear in its slope: each dose moves the forecast in proportion."""
    having, lacking, _ = planted_pair("trend", 0)
    data = probes.direction(having, lacking, tokens=READ)
    # positive doses lead to the run that has the property
    assert (data["dose_recovered"].sel(dose=3.0) > 0).all()
    per_dose = data["dose_recovered"] / data["dose"]
    spread = float((per_dose.max("dose") - per_dose.min("dose")).max())
    assert 0 < spread <= 0.05 * float(abs(data["slope"]).median())


def test_discriminant_is_the_solution_of_its_equation() -> None:
    """Within-group covariance times the discriminant is the difference of the means."""
    having, lacking, _ = planted_pair("gate", 0)
    point = "encoder_blocks.2.hook_resid_post"
    data = probes.direction(having, lacking, tokens=READ, method="lda", nulls=0)
    groups = [
        run.record([point])[point][:, -1].double().numpy() for run in (lacking, having)
    ]
    rows = np.vstack([group - group.mean(axis=0) for group in groups])
    reference = pytest.importorskip("sklearn.covariance")
    within, _ = reference.ledoit_wolf(rows, assume_centered=True)
    weights = np.linalg.solve(within, groups[1].mean(axis=0) - groups[0].mean(axis=0))
    cosine = weights @ data["vector"].values[0] / np.linalg.norm(weights)
    assert_close(float(cosine), 1.0, depth=1000, dtype=np.float32)


def test_activations_end_at_their_mahalanobis_distance() -> None:
    """At the doses returned, the distance is that within which 99 % lie."""
    having, lacking, _ = planted_pair("gate", 0)
    point = "encoder_blocks.2.hook_resid_post"
    subject = _subject(having, lacking, None, READ)
    base, source = (
        run.record([point])[point][:, -1].double().numpy() for run in (lacking, having)
    )
    rows = np.vstack([base, source])
    centred = rows - rows.mean(axis=0)
    reference = pytest.importorskip("sklearn.covariance")
    within, _ = reference.ledoit_wolf(centred, assume_centered=True)
    inverse = np.linalg.inv(within)
    distances = np.einsum("ri,ij,rj->r", centred, inverse, centred)
    largest = np.quantile(distances, 0.99)
    inside = np.flatnonzero(distances[: len(base)] < largest)
    step = source[0] - base[0]
    for doses in subject.limits(np.tile(step, (len(base), 1, 1))):
        ends = centred[: len(base)] + doses[:, None] * step
        found = np.einsum("ri,ij,rj->r", ends, inverse, ends)[inside]
        assert_close(found / largest, 1.0, depth=1000, dtype=np.float32)


def test_labels_are_paired_by_level_and_spread() -> None:
    """The pairs are those of least distance, and keep the ids of the labelled."""
    lens = _nano()
    steps = np.arange(48)
    series = [
        level + spread * np.sin(2 * np.pi * (steps + shift) / 12)
        for shift in (0, 6)
        for level, spread in ((10, 1), (50, 2), (90, 3))
    ]
    run = lens.run([*series[:3], *reversed(series[3:])], 6)
    having, lacking, _ = pair_by_label(run, [True] * 3 + [False] * 3)
    levels = [
        [values.mean() for values in one.batch.values] for one in (having, lacking)
    ]
    assert_close(*map(np.array, levels), depth=100)
    assert having.batch.ids == lacking.batch.ids
    data = probes.direction(run, labels=[1, 1, 1, 0, 0, 0], nulls=2)
    assert data.sizes["series"] == 3


def test_groups_of_other_content_are_refused() -> None:
    """A label that goes with the level, the spread or what the caller names."""
    lens = _nano()
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((16, 48))
    labels = np.arange(16) % 2 == 0
    by_level = lens.run(list(noise + 5 * labels[:, None]), 6)
    expect_error("differ in level", probes.direction, by_level, labels=labels)
    by_spread = lens.run(list(noise * (1 + 2 * labels[:, None])), 6)
    expect_error("differ in spread", probes.direction, by_spread, labels=labels)
    scaled = noise - noise.mean(axis=1, keepdims=True)
    run = lens.run(list(scaled / scaled.std(axis=1, keepdims=True)), 6)
    season = {"season": labels + 0.1 * rng.standard_normal(16)}
    expect_error(
        "differ in season", probes.direction, run, labels=labels, content=season
    )


def test_a_single_series_is_tested_on_itself_and_says_so() -> None:
    """There are no halves, and its sentences state it."""
    data = probes.direction(*turned_pair(), nulls=2)
    assert data.attrs["held_out"] == 0
    assert np.isnan(data["half_cosine"]).all()
    text = " ".join(read_direction(data))
    assert "only one" in text
    assert "2 random directions" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "pca"}, "method='pca'"),
        ({"rank": 2}, "rank is 2"),
        ({"tokens": [99]}, "tokens has"),
        ({"tokens": []}, "tokens has"),
        ({"doses": [1.0, 2.0]}, "both sides of 0"),
        ({"nulls": -1}, "nulls is -1"),
        ({"counterfactual": np.zeros(3)}, "counterfactual"),
        ({"content": {"a": [1.0]}}, "labels"),
        ({"labels": [True]}, "labels"),
        ({"point": "encoder_blocks.*.hook_resid_post"}, "expected one"),
        ({"point": "encoder.0.self_attn.1"}, "is a head"),
        ({"point": 3}, "point is 3"),
        ({"tokens": [0.5]}, "tokens has"),
        ({"tokens": [True]}, "tokens has"),
        ({"tokens": "ab"}, "tokens has"),
        ({"doses": 5}, "doses is 5"),
        ({"doses": ["a"]}, "doses is"),
        ({"rank": True}, "rank is True"),
        ({"counterfactual": "abc"}, "counterfactual"),
        ({"content": [1.0]}, "content is a list"),
        # a single activation has no covariance to draw from
        ({"tokens": -1}, "vary in fewer"),
    ],
    ids=str,
)
def test_options_without_meaning_are_refused(
    options: dict[str, Any], message: str
) -> None:
    """The message has the wrong value."""
    expect_error(message, probes.direction, *turned_pair(), **options)


@cache
def _nano() -> Lens:
    """An embedded model."""
    return load("bolt-nano")


def turned_pair(count: int = 1, **options: Any) -> list[Run]:
    """Runs of seasons of several levels, and of the same half a season later."""
    series = [
        np.sin(2 * np.pi * (np.arange(48) + shift) / 12) + shift
        for shift in range(count)
    ]
    return [
        _nano().run([np.roll(one, turn) for one in series], 6, **options)
        for turn in (0, 6)
    ]


def test_twins_of_a_pair_are_compared() -> None:
    """Both runs of a pair are of the same twin."""
    pair = turned_pair(6, twins=2)
    data: xr.Dataset = probes.direction(*pair, nulls=1, doses=[-1, 1])
    assert "twins_refused" not in data.attrs
    assert data["agreement_twins"].sizes["twin"] == 2


def test_a_counterfactual_that_is_reached_is_refused() -> None:
    """There is no way from a forecast to itself."""
    having, lacking = turned_pair()
    expect_error(
        "nothing to reach",
        probes.direction,
        having,
        lacking,
        counterfactual=lacking.point,
    )


def test_tokens_that_are_padding_are_refused() -> None:
    """A short series has no token there; labels pair series of one length."""
    values = np.sin(2 * np.pi * np.arange(48) / 12)
    series = [values, values[-16:]]
    turned = [np.roll(one, 6) for one in series]
    pair = [_nano().run(one, 6) for one in (series, turned)]
    expect_error("padding in series 'series-1'", probes.direction, *pair, tokens=[0])
    run = _nano().run([*series, *turned], 6)
    expect_error("of one length", probes.direction, run, labels=[1, 1, 0, 0])


def test_without_draws_there_are_sentences_without_them() -> None:
    """No draws are no reason to fail, and are not spoken of."""
    data = probes.direction(*turned_pair(), nulls=0, tokens=np.int64(3))
    text = " ".join(read_direction(data))
    assert "random directions" not in text
    assert "Exchanged" in text


def test_confounded_labels_of_few_series_are_spoken_of() -> None:
    """Six pairs cannot show a difference in content, so a sentence states it."""
    rng = np.random.default_rng(0)
    run = _nano().run(list(rng.standard_normal((12, 48))), 6)
    labels = np.arange(12) < 6
    content = {"season": np.where(labels, 1.0, 3.0)}
    data = probes.direction(run, labels=labels, content=content, nulls=2)
    # both groups are two standard deviations apart
    assert_close(float(data["content_gap"].sel(content="season")), -2.0, depth=10)
    text = " ".join(read_direction(data))
    assert "differ most in season: by 2 standard deviations" in text


@pytest.mark.parametrize("count", [1, 3])
def test_a_half_of_one_activation_has_the_means_as_discriminant(count: int) -> None:
    """Its covariance is zero, and the runs still differ."""
    pair = turned_pair(count)
    found = [
        probes.direction(*pair, tokens=-1, method=method, nulls=0)
        for method in ("lda", "means")
    ]
    assert np.isfinite(found[0]["vector"]).all()
    # with one series both are the same; with three, of a half alone
    if count == 1:
        xr.testing.assert_allclose(found[0]["vector"], found[1]["vector"])


def test_one_draw_is_singular() -> None:
    """Neither is it directions, nor has it a range."""
    text = " ".join(read_direction(probes.direction(*turned_pair(), nulls=1)))
    assert "1 random direction of" in text
    assert "1 do " not in text
