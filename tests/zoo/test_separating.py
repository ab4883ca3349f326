"""Mechanisms that tell methods apart compute what their cards say, at both sizes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from torch import Tensor

from refusals import expect_error
from tsfm_lens import probes
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.hooks import Component, EditPattern
from tsfm_lens.zoo.planted import (
    Planted,
    add_cancelling_pair,
    bolt,
    chronos,
    chronos2,
    draw_contexts,
    enlarge,
    mechanisms,
    plant,
)
from tsfm_lens.zoo.planted.features import LARGEST_COSINE, draw_features
from tsfm_lens.zoo.planted.planting import SEPARATING
from zoo import planted_oracles as oracles

PAIRS = [(name, format) for name in SEPARATING for format in (bolt.NAME, chronos.NAME)]
CASES = [(*pair, size) for pair in PAIRS for size in ("small", "large")]
CASES += [("trend", chronos.NAME, "large"), ("gate", bolt.NAME, "large")]
# models grow in the same way whatever they hold: of each format one is large by default
SLOW = [
    case for case in CASES if case[2] == "large" and case[0] not in ("trend", "gate")
]


@cache
def make(mechanism: str, architecture: str, size: str) -> Planted:
    planted = plant(mechanism, architecture, seed=3)
    if size == "large":
        return enlarge(planted)
    return planted


@pytest.fixture(
    params=[
        pytest.param(
            case,
            id=" ".join(case),
            marks=[pytest.mark.exhaustive] if case in SLOW else [],
        )
        for case in CASES
    ]
)
def planted(request: pytest.FixtureRequest) -> Planted:
    return make(*request.param)


def without(planted: Planted, *sets: list[str]) -> list[float]:
    """Change of the forecast without each set of parts, in errors of the format."""
    of = oracles.find_format(planted.card)
    series = draw_contexts(planted.card.rule, 6, planted.card.context, seed=5)
    run = oracles.open_tiny(planted).run(series, planted.card.horizon)
    variants = [Variant.zero(*map(Component.parse, parts)) for parts in sets]
    bounds = np.array([of.bound(one) for one in run.batch.values])[:, None]
    changes = np.abs(point_forecasts(run, variants) - run.point) / bounds
    return changes.max((1, 2)).tolist()


def test_the_forecast_is_that_of_the_rule(planted: Planted) -> None:
    card = planted.card
    of = oracles.find_format(card)
    series = draw_contexts(card.rule, 8, card.context, seed=4)
    forecast = oracles.open_tiny(planted).forecast(series, card.horizon).median
    for one, values in zip(series, forecast, strict=True):
        off = np.abs(values - card.rule.forecast(one, card.horizon)).max()
        assert off <= of.bound(one)
    oracles.assert_heads_look_where_stated(planted)


def test_true_parts_are_needed_and_suffice(planted: Planted) -> None:
    of = oracles.find_format(planted.card)
    kept = set(planted.card.components("mechanism"))
    kept |= set(planted.card.components("constant"))
    parts = oracles.list_parts(oracles.open_tiny(planted))
    others = [name for name in parts if name not in kept]
    assert len(parts) >= 300 or "large" not in planted.card.name
    without_others, *without_each = without(
        planted, others, *([name] for name in sorted(kept))
    )
    assert without_others <= of.rest
    assert min(without_each) >= of.effect


@pytest.mark.parametrize("architecture", [bolt.NAME, chronos.NAME])
def test_each_route_carries_its_own_series(architecture: str) -> None:
    """What the level decides against may go, without a change of the forecast."""
    planted = make("routes", architecture, "small")
    card = planted.card
    series = draw_contexts(card.rule, 12, card.context, seed=6)
    is_high = np.array([card.rule.margin(one) > 0 for one in series])
    assert 0 < is_high.sum() < len(series)
    run = oracles.open_tiny(planted).run(series, card.horizon)
    senders = [
        sender
        for sender, receiver in card.edges
        if receiver.startswith("decoder") and receiver.endswith("mlp")
    ]
    variants = [Variant.zero(Component.parse(name)) for name in senders[1:]]
    changes = np.abs(point_forecasts(run, variants) - run.point).max(-1)
    scale = np.array([oracles.find_format(card).bound(one) for one in series])
    for moved, carries in zip(changes / scale, (is_high, ~is_high), strict=True):
        assert moved[~carries].max() <= 1 < moved[carries].min()


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        (bolt.NAME, "small"),
        (bolt.NAME, "large"),
        (chronos.NAME, "small"),
        pytest.param(chronos.NAME, "large", marks=pytest.mark.exhaustive),
    ],
)
def test_sinks_differ_in_what_acts(architecture: str, size: str) -> None:
    """Without its value, with its mean over series, and with attention elsewhere."""
    planted = make("sinks", architecture, size)
    card = planted.card
    series = draw_contexts(card.rule, 6, card.context, seed=1)
    run = oracles.open_tiny(planted).run(series, card.horizon)
    heads = {
        part.role: Component.parse(part.component)
        for part in card.parts
        if "cross" in part.component
    }

    def elsewhere(pattern: Tensor) -> Tensor:
        """All attention on the token before the sink."""
        return pattern.roll(-1, dims=-1)

    bounds = np.array([oracles.find_format(card).bound(one) for one in series])
    options = {"how": "mean", "reference": run.batch}
    acts = {}
    for role, head in heads.items():
        variants = [Variant.zero(head), Variant("", (EditPattern(head, elsewhere),))]
        zeroed, without_sink = np.abs(point_forecasts(run, variants) - run.point)
        mean = probes.ablation_effects(run, components=[head], **options)["mean_shift"]
        changes = (zeroed.mean(-1), mean.values.squeeze(), without_sink.mean(-1))
        acts[role] = [bool((change / bounds).max() > 1) for change in changes]
    assert acts["mechanism"] == [True, True, True]
    assert acts["constant"][:2] == [True, False]
    assert acts["decoy"] == [False, False, True]
    if architecture == chronos.NAME:
        found = probes.attention_sinks(run)["sink"]
        kinds = {"mechanism": "broadcast", "constant": "bias", "decoy": "nop"}
        for role, head in heads.items():
            assert str(found.sel(component=str(head)).values) == kinds[role]


def test_features_are_more_than_dimensions() -> None:
    features = draw_features().numpy()
    cosines = features @ features.T
    assert features.shape[0] > features.shape[1] >= np.linalg.matrix_rank(features)
    assert cosines[np.triu_indices(len(cosines), 1)].max() <= LARGEST_COSINE


def test_a_large_model_keeps_its_pair() -> None:
    """Heads that cancel each other still do among others, and the card has them."""
    large = enlarge(add_cancelling_pair(plant("trend", bolt.NAME, seed=1)))
    one, other = (part for part in large.card.parts if part.role == "cancelling")
    assert (one.cancels, other.cancels) == (other.component, one.component)
    names = [one.component, other.component]
    of = oracles.find_format(large.card)
    first, second, both = without(large, names[:1], names[1:], names)
    assert both <= of.rest < of.effect <= min(first, second)
    expect_error("already", enlarge, large)
    expect_error(chronos2.NAME, enlarge, plant("seasonal-copy", chronos2.NAME))


def test_pages_of_planted_models_leave_them_out() -> None:
    assert not {name for name, _ in mechanisms()} & set(SEPARATING)
