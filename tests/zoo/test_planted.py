"""Planted models do what their cards say, for the reasons that their cards give."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tiny_lenses
from refusals import expect_error
from tsfm_lens.zoo.planted import (
    Planted,
    add_cancelling_pair,
    bolt,
    enlarge,
    mechanisms,
    open_planted,
    plant,
)
from tsfm_lens.zoo.planted.__main__ import main
from tsfm_lens.zoo.planted.chronos import NAME
from tsfm_lens.zoo.planted.patches import deviates
from tsfm_lens.zoo.planted.planting import ONE_STRETCH
from tsfm_lens.zoo.planted.rules import Reads
from zoo import planted_oracles as oracles

# the covariate is of several series, and has tests of its own
PLANTED = [pair for pair in mechanisms() if pair[0] != "covariate"]
OF_PATCHES = [pair for pair in PLANTED if pair[1] != NAME]
# a copy in every format, and the mechanism of most nonlinear parts
TURNED = ("seasonal-copy", "gate")
# several places are read as an older one is
PLACED = [(*pair, "recent") for pair in PLANTED]
PLACED += [(*pair, "spread") for pair in PLANTED if pair not in ONE_STRETCH]
PLACED += [(*pair, "old") for pair in PLANTED if pair in ONE_STRETCH]


@cache
def open_planted_model(
    mechanism: str, name: str, reads: Reads | None = "recent", seed: int = 3
) -> Planted:
    """A planted model; skips where its library is not installed."""
    tiny_lenses.tiny(name)
    return plant(mechanism, name, seed=seed, reads=reads)


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Planted:
    """A mechanism in a format, turned."""
    return open_planted_model(*request.param)


def add_large_pair(planted: Planted) -> Planted:
    """Heads that cancel each other, among many others."""
    return enlarge(add_cancelling_pair(planted))


EACH_OF_PATCHES = pytest.mark.parametrize(
    "planted", OF_PATCHES, ids=" in ".join, indirect=True
)
ORACLES = (
    oracles.assert_follows_rule,
    oracles.assert_inputs_matter_as_stated,
    oracles.assert_parts_matter_as_stated,
    oracles.assert_heads_look_where_stated,
)


def judged(placed: tuple[str, str, Reads], oracle: Callable[[Planted], None]) -> Any:
    """A model and an oracle; the parts of a model that reads other places are those of
    the one that reads recent ones, and are tried by `make exhaustive`. So is what an
    input weighs there, which the closed form holds already, but for a copy's.
    """
    mechanism, _, reads = placed
    first = 2 if mechanism == TURNED[0] else 1
    again = reads != "recent" and oracle in ORACLES[first:]
    marks = [pytest.mark.exhaustive] if again else []
    name = f"{' in '.join(placed)}-{oracle.__name__}"
    return pytest.param(placed, oracle, marks=marks, id=name)


@pytest.mark.parametrize(
    ("planted", "oracle"),
    [judged(placed, oracle) for placed in PLACED for oracle in ORACLES],
    indirect=["planted"],
)
def test_it_does_what_its_card_says(
    planted: Planted, oracle: Callable[[Planted], None]
) -> None:
    oracle(planted)


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        pytest.param(*pair, marks=() if pair[0] in TURNED else pytest.mark.exhaustive)
        for pair in PLANTED
    ],
)
def test_turning_the_stream_changes_only_weights(mechanism: str, name: str) -> None:
    """Turning the stream changes weights and nothing else."""
    plain = plant(mechanism, name, seed=3, rotate=False)
    oracles.assert_same_in_any_basis(open_planted_model(mechanism, name), plain)


@EACH_OF_PATCHES
def test_saved_planted_models_are_as_stated(planted: Planted, tmp_path: Path) -> None:
    """Quantiles and saved files are those that the card states."""
    oracles.assert_quantiles_spread(planted, deviates().numpy())
    oracles.assert_saved_is_the_same(planted, tmp_path)


@pytest.mark.parametrize(("mechanism", "name"), OF_PATCHES)
def test_other_seeds_follow_their_rule(mechanism: str, name: str) -> None:
    """A model of another seed reads the middle and forecasts by its rule."""
    planted = open_planted_model(mechanism, name, reads=None, seed=6)
    assert planted.card == plant(mechanism, name, seed=6, reads="middle").card
    oracles.assert_follows_rule(planted)


def test_card_records_harm_of_weight_noise() -> None:
    """Noise in the weights makes the forecast worse, and the card says so."""
    clean, noisy = (
        plant("seasonal-copy", bolt.NAME, seed=3, weight_noise=noise)
        for noise in (0.0, 0.02)
    )
    assert 10 * clean.card.error < noisy.card.error < 1
    assert noisy.card.weight_noise > 0


def test_each_seed_is_its_own_model() -> None:
    """A seed gives one model, and another seed another."""
    one, again, other = (
        plant("seasonal-copy", bolt.NAME, seed=seed) for seed in (3, 3, 4)
    )
    weights = [
        planted.model.shared.weight.detach().numpy() for planted in (one, again, other)
    ]
    assert_array_equal(weights[0], weights[1])
    assert one.card == again.card
    assert not np.array_equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("mechanism", "name", "change"),
    [
        ("trend", bolt.NAME, add_cancelling_pair),
        ("trend", NAME, add_cancelling_pair),
        ("seasonal-copy", "chronos-2", add_cancelling_pair),
        ("trend", bolt.NAME, add_large_pair),
    ],
)
def test_cancelling_pair_acts_only_apart(
    mechanism: str, name: str, change: Callable[[Planted], Planted], tmp_path: Path
) -> None:
    """Ablating one of a cancelling pair moves the forecast; ablating both does not."""
    with_pair = change(open_planted_model(mechanism, name))
    with_pair.save(tmp_path)
    _, card = open_planted(tmp_path)
    one, other = (part for part in card.parts if part.role == "cancelling")
    assert (one.cancels, other.cancels) == (other.component, one.component)
    names = [one.component, other.component]
    first, second, both = oracles.measure_shifts(with_pair, names[:1], names[1:], names)
    of = oracles.find_format(card)
    assert both <= of.rest < of.effect <= min(first, second)


def test_cancelling_pair_needs_a_free_head() -> None:
    """No pair can be added where every head has a task."""
    pair = add_cancelling_pair(open_planted_model("trend", bolt.NAME))
    twice = add_cancelling_pair(pair)
    assert len(twice.card.components("cancelling")) == 4
    expect_error("without a task", add_cancelling_pair, twice)


def test_the_command_builds_one(tmp_path: Path) -> None:
    main("local-mean", NAME, tmp_path / "made", seed=2)
    _, card = open_planted(tmp_path / "made")
    assert card.name == f"local-mean-{NAME}-2"
    expect_error("reads one stretch", plant, "gate", NAME, reads="spread")
    expect_error("recent", plant, "gate", NAME, reads="recently")
    expect_error(
        f"seasonal-copy in {NAME}", main, "seasonal-copi", NAME, tmp_path / "other"
    )
    assert not (tmp_path / "other").exists()
