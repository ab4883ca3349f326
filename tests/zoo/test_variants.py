"""Variants of planted models compute what their cards say: removing the true parts
destroys the forecast, removing all others does nothing.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest

from refusals import expect_error
from tsfm_lens.zoo.planted import (
    Planted,
    add_cancelling_pair,
    add_second_way,
    bolt,
    chronos,
    enlarge,
    plant,
    read_period_before,
    split_head,
)
from tsfm_lens.zoo.planted.patches import PATCH
from tsfm_lens.zoo.planted.planting import SEPARATING
from zoo import planted_oracles as oracles

VARIANTS = {
    f"{edit.__name__} in {name}": (edit, mechanism, name, reads)
    for edit, mechanism, name, reads in (
        (add_cancelling_pair, "trend", bolt.NAME, "recent"),
        (add_cancelling_pair, "trend", chronos.NAME, "recent"),
        (split_head, "seasonal-copy", bolt.NAME, "recent"),
        (split_head, "seasonal-copy", chronos.NAME, "recent"),
        (add_second_way, "gate", bolt.NAME, "recent"),
        (add_second_way, "seasonal-copy", chronos.NAME, "recent"),
        (read_period_before, "seasonal-copy", bolt.NAME, "old"),
        (read_period_before, "seasonal-copy", chronos.NAME, "old"),
    )
}
FORMATS = (bolt.NAME, chronos.NAME)
SMALL = {
    f"{name} in {format}": (name, format) for name in SEPARATING for format in FORMATS
}
LARGE = {f"large {name}": pair for name, pair in SMALL.items()}
# models grow in the same way whatever they hold: of each format one is large by default
BY_DEFAULT = {
    f"large trend in {chronos.NAME}": ("trend", chronos.NAME),
    f"large gate in {bolt.NAME}": ("gate", bolt.NAME),
}


def in_turn(name: str, at: int) -> Any:
    """A model in one format, in turn; in the other by `make exhaustive`."""
    turn = FORMATS[(at // 2) % len(FORMATS)]
    marks = () if name.endswith(turn) else pytest.mark.exhaustive
    return pytest.param(name, marks=marks)


@cache
def make(name: str) -> Planted:
    if name in VARIANTS:
        edit, mechanism, architecture, reads = VARIANTS[name]
        return edit(plant(mechanism, architecture, reads=reads, seed=3))
    pair = (SMALL | LARGE | BY_DEFAULT)[name]
    planted = plant(*pair, seed=3)
    return enlarge(planted) if name.startswith("large") else planted


@pytest.fixture(
    scope="module",
    params=[
        # each format of a mechanism follows the other
        *(in_turn(name, at) for at, name in enumerate(VARIANTS | SMALL)),
        *BY_DEFAULT,
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in LARGE),
    ],
)
def variant(request: pytest.FixtureRequest) -> Planted:
    return make(request.param)


def test_variants_follow_their_rule(variant: Planted) -> None:
    """The forecast is that of the rule, and moves with the inputs that it reads."""
    oracles.assert_follows_rule(variant)
    oracles.assert_heads_look_where_stated(variant)
    # a stair or a route is no sum of its inputs
    if variant.card.mechanism not in SEPARATING and "large" not in variant.card.name:
        oracles.assert_inputs_matter_as_stated(variant)


def test_true_parts_are_needed_and_suffice(variant: Planted) -> None:
    """Parts that do the same are removed together."""
    of = oracles.find_format(variant.card)
    tasks: dict[str, list[str]] = {}
    for part in variant.card.parts:
        if part.role in ("mechanism", "constant"):
            is_shared = part.does.startswith(("writes 1/4 of", "suffices", "fetches o"))
            task = part.does if is_shared else part.component
            tasks.setdefault(task, []).append(part.component)
    true = set(chain(*tasks.values()))
    parts = oracles.list_parts(oracles.open_tiny(variant))
    assert len(parts) >= 300 or "large" not in variant.card.name
    others = [name for name in parts if name not in true]
    without_others, *without_true = oracles.measure_shifts(
        variant, others, *tasks.values()
    )
    assert without_others <= of.rest
    assert min(without_true) >= of.effect


@pytest.mark.parametrize("name", [name for name in VARIANTS if "second" in name])
def test_either_of_two_heads_suffices(name: str) -> None:
    planted = make(name)
    of = oracles.find_format(planted.card)
    first, second = (
        part.component for part in planted.card.parts if "either of two" in part.does
    )
    *alone, both = oracles.measure_shifts(planted, [first], [second], [first, second])
    assert max(alone) <= of.rest < of.effect <= both


def test_a_quarter_writes_a_quarter() -> None:
    """Each of the four heads moves a linear forecast by the same."""
    planted = make(f"split_head in {bolt.NAME}")
    quarters = [
        part.component for part in planted.card.parts if part.does.startswith("writes")
    ]
    assert len(quarters) == 4
    whole, *each = oracles.measure_shifts(
        planted, quarters, *([one] for one in quarters)
    )
    # an error is what such a forecast is rounded to
    assert np.abs(np.array(each) - whole / 4).max() <= 1


def test_the_decoy_looks_at_the_right_period() -> None:
    """One head looks one period back, and the true one two."""
    planted = make(f"read_period_before in {bolt.NAME}")
    rule = planted.card.rule
    assert rule.ago == (rule.period,)
    looks = {one.component: one.back for one in planted.card.attends}
    roles = {part.does[:9]: part.component for part in planted.card.parts}
    assert looks[roles["copies th"]] == (2 * rule.period // PATCH,)
    assert looks[roles["looks one"]] == (rule.period // PATCH,)


def test_other_models_have_no_such_variant() -> None:
    trend = plant("trend", bolt.NAME)
    expect_error("no task that either", add_second_way, trend)
    expect_error("no single older period", read_period_before, trend)
    split = split_head(plant("seasonal-copy", bolt.NAME))
    expect_error("3 heads without a task", split_head, split_head(split))
