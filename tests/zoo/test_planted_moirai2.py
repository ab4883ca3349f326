"""Planted models in Moirai 2's format do what their cards say, for the reasons that their cards give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsfm_lens.zoo.planted import Planted, plant
from tsfm_lens.zoo.planted.moirai2 import CONTEXT, NAME, deviation
from tsfm_lens.zoo.planted.patches import PATCH, deviates
from zoo import planted_oracles as oracles

PLANTED = ("seasonal-copy", "decoys")


@pytest.fixture(scope="module", params=PLANTED)
def planted(request: pytest.FixtureRequest) -> Planted:
    """Each mechanism, turned."""
    return plant(request.param, NAME, seed=3)


def test_forecasts_by_its_rule(planted: Planted) -> None:
    oracles.assert_follows_rule(planted)


@pytest.mark.parametrize("mechanism", PLANTED)
def test_another_seed_forecasts_by_its_rule(mechanism: str) -> None:
    oracles.assert_follows_rule(plant(mechanism, NAME, seed=4))


def test_inputs_matter_as_stated(planted: Planted) -> None:
    oracles.assert_inputs_matter_as_stated(planted)


def test_parts_matter_as_stated(planted: Planted) -> None:
    oracles.assert_parts_matter_as_stated(planted)


def test_edges_are_those_stated(planted: Planted) -> None:
    oracles.assert_edges_are_those_stated(planted)


def test_heads_look_where_stated(planted: Planted) -> None:
    oracles.assert_heads_look_where_stated(planted, CONTEXT // PATCH + 1)


def test_turning_the_stream_changes_weights_and_nothing_else(planted: Planted) -> None:
    oracles.assert_same_in_any_basis(plant(planted.card.mechanism, NAME, seed=3, rotate=False), planted)


def test_quantiles_lie_around_the_rule_as_stated(planted: Planted) -> None:
    oracles.assert_quantiles_spread(planted, deviates().numpy(), scale=deviation)


def test_saved_and_opened_is_the_same(planted: Planted, tmp_path: Path) -> None:
    oracles.assert_saved_is_the_same(planted, tmp_path)
