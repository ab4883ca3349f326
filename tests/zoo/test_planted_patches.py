"""Planted models of patches do what their cards say, for the reasons that their cards give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_lenses
from tsfm_lens.zoo.planted import Planted, bolt, chronos2, mechanisms, moirai2, plant
from tsfm_lens.zoo.planted.patches import PATCH, deviates
from zoo import planted_oracles as oracles


@dataclass(frozen=True)
class Format:
    """What differs between formats: tokens of the longest context, and what is done to values."""

    tokens: int
    squash: Any = np.asarray
    scale: Callable[[Any], Any] = np.std


FORMATS = {
    bolt.NAME: Format(bolt.CONTEXT // PATCH + 1),
    chronos2.NAME: Format(chronos2.CONTEXT // PATCH + 1 + chronos2.AHEAD, squash=np.arcsinh),
    moirai2.NAME: Format(moirai2.CONTEXT // PATCH + 1, scale=moirai2.deviation),
}
# the covariate is of several series, and has tests of its own
PLANTED = [(each, name) for each, name in mechanisms() if name in FORMATS and each != "covariate"]


def planted_as(mechanism: str, name: str, **options: Any) -> Planted:
    """A planted model; skips where its library is not installed."""
    tiny_lenses.tiny(name)
    return plant(mechanism, name, **options)


@pytest.fixture(scope="module", params=PLANTED, ids=" in ".join)
def planted(request: pytest.FixtureRequest) -> Planted:
    """Each mechanism in each format, turned."""
    return planted_as(*request.param, seed=3)


@pytest.mark.parametrize(
    "oracle",
    [
        oracles.assert_follows_rule,
        oracles.assert_inputs_matter_as_stated,
        oracles.assert_parts_matter_as_stated,
        oracles.assert_edges_are_those_stated,
    ],
)
def test_it_does_what_its_card_says(planted: Planted, oracle: Callable[[Planted], None]) -> None:
    oracle(planted)


@pytest.mark.parametrize(("mechanism", "name"), PLANTED)
def test_another_seed_forecasts_by_its_rule(mechanism: str, name: str) -> None:
    oracles.assert_follows_rule(planted_as(mechanism, name, seed=4))


def test_heads_look_where_stated(planted: Planted) -> None:
    oracles.assert_heads_look_where_stated(planted, FORMATS[planted.card.architecture].tokens)


def test_turning_the_stream_changes_weights_and_nothing_else(planted: Planted) -> None:
    plain = plant(planted.card.mechanism, planted.card.architecture, seed=3, rotate=False)
    oracles.assert_same_in_any_basis(plain, planted)


def test_quantiles_lie_around_the_rule_as_stated(planted: Planted) -> None:
    of = FORMATS[planted.card.architecture]
    oracles.assert_quantiles_spread(planted, deviates().numpy(), of.squash, of.scale)


def test_saved_and_opened_is_the_same(planted: Planted, tmp_path: Path) -> None:
    oracles.assert_saved_is_the_same(planted, tmp_path)


def test_weight_noise_makes_it_worse_and_the_card_says_so() -> None:
    clean, noisy = (plant("seasonal-copy", bolt.NAME, seed=3, weight_noise=noise) for noise in (0.0, 0.02))
    assert 10 * clean.card.error < noisy.card.error < 1
    assert noisy.card.weight_noise > 0


def test_a_seed_is_one_model_and_another_seed_another() -> None:
    one, again, other = (plant("seasonal-copy", bolt.NAME, seed=seed) for seed in (3, 3, 4))
    weights = [planted.model.shared.weight.detach().numpy() for planted in (one, again, other)]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert one.card == again.card
    assert not np.array_equal(weights[0], weights[2])
