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


@cache
def make(mechanism: str, architecture: str, size: str) -> Planted:
    planted = plant(mechanism, architecture, seed=3)
    if size == "large":
        return enlarge(planted)
    return planted


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


def test_what_is_large_or_unknown_is_not_enlarged() -> None:
    expect_error("already", enlarge, make("sinks", bolt.NAME, "large"))
    expect_error(chronos2.NAME, enlarge, plant("seasonal-copy", chronos2.NAME))


def test_pages_of_planted_models_leave_them_out() -> None:
    assert not {name for name, _ in mechanisms()} & set(SEPARATING)
