"""The planted covariate: forecasts by its rule, parts that matter, where its head
looks, and turned streams.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tsfm_lens.testing import assert_close
from tsfm_lens.zoo.planted import CovariateTimes, Planted, plant
from tsfm_lens.zoo.planted.chronos2 import HORIZON, NAME
from tsfm_lens.zoo.planted.patches import PATCH
from zoo import planted_oracles as oracles

READS: dict[tuple[int, ...], Any] = {(0,): "recent", (80,): "old", (24, 72): "spread"}


@pytest.fixture(scope="module", params=READS.values())
def planted(request: pytest.FixtureRequest) -> Planted:
    """Turned."""
    return plant("covariate", NAME, seed=3, reads=request.param)


@pytest.mark.parametrize("seed", [4, 5, 6, 7])
def test_forecasts_by_its_rule(seed: int) -> None:
    oracles.assert_follows_rule(plant("covariate", NAME, seed=seed, reads=None))


def test_parts_matter_as_stated(planted: Planted) -> None:
    oracles.assert_parts_matter_as_stated(planted)


def test_head_attends_from_target_to_covariate(planted: Planted) -> None:
    """The head looks from the target to the known series."""
    attention = planted.card.attends[0]
    assert {attend.component for attend in planted.card.attends} == set(
        planted.card.components("mechanism")
    )
    assert (attention.query, attention.back, attention.series) == (
        "forecast token",
        (0,),
        "known covariate",
    )
    layer, _, head = attention.component.split(".")
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(4, 40, generator=generator)
    # two items: a target and its covariate each, of which the second knows one value of
    # the last patch alone
    future = torch.full((4, HORIZON), torch.nan)
    future[1] = torch.randn(HORIZON, generator=generator)
    future[3, : PATCH + 1] = torch.randn(PATCH + 1, generator=generator)
    patterns = planted.model(
        context=context,
        group_ids=torch.tensor([0, 0, 1, 1]),
        future_covariates=future,
        num_output_patches=HORIZON // PATCH,
        output_attentions=True,
    ).enc_group_self_attn_weights[int(layer)]
    # (token, head, query, key)
    ahead = patterns[-HORIZON // PATCH :, int(head)].detach()
    sharp = attention.weight * torch.tensor(
        [[0.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    ).expand_as(ahead)
    assert_close(ahead, sharp, depth=64, magnitude=1.0)


def test_turning_the_stream_changes_only_weights(planted: Planted) -> None:
    """Turning the stream changes weights and nothing else."""
    rule = planted.card.rule
    assert isinstance(rule, CovariateTimes)
    plain = plant("covariate", NAME, seed=3, reads=READS[rule.ago], rotate=False)
    oracles.assert_same_in_any_basis(planted, plain)
