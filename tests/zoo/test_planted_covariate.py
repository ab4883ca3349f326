"""The planted covariate: forecasts by its rule, parts that matter, where its head
looks, and turned streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.testing import assert_close
from tsfm_lens.zoo.planted import CovariateTimes, Planted, plant
from tsfm_lens.zoo.planted.chronos2 import HORIZON, NAME, draw_cases, forecast_covariate
from tsfm_lens.zoo.planted.patches import DECILES, PATCH
from zoo import planted_oracles as oracles

Array = oracles.Array


MEDIAN = len(DECILES) // 2


READS: dict[tuple[int, ...], Any] = {(0,): "recent", (80,): "old", (24, 72): "spread"}


@pytest.fixture(scope="module", params=READS.values())
def planted(request: pytest.FixtureRequest) -> Planted:
    """Turned."""
    return plant("covariate", NAME, seed=3, reads=request.param)


def make_cases(planted: Planted) -> list[Array]:
    """Other than those that the builder tries."""
    return draw_cases(planted.card.context, 6, seed=7)


def median_forecast(planted: Planted, cases: list[Array]) -> Array:
    """Median forecasts by the library's pipeline: (case, step)."""
    return forecast_covariate(oracles.open_tiny(planted).native, cases)[:, MEDIAN]


def find_rule(planted: Planted) -> CovariateTimes:
    """The rule."""
    rule = planted.card.rule
    assert isinstance(rule, CovariateTimes)
    return rule


@pytest.mark.parametrize("seed", [4, 5, 6, 7])
def test_forecasts_by_its_rule(seed: int) -> None:
    planted = plant("covariate", NAME, seed=seed, reads=None)
    cases = make_cases(planted)
    for case, forecast in zip(cases, median_forecast(planted, cases), strict=True):
        expected = find_rule(planted).compute_forecast(
            *case[:, :-HORIZON], case[1, -HORIZON:]
        )
        assert np.abs(forecast - expected).max() <= rounding_bound(planted, case)
    assert 0 < planted.card.error <= oracles.SMALL


def rounding_bound(planted: Planted, case: Array) -> float:
    """Rounding of what the covariate moves."""
    return max(1.0, abs(find_rule(planted).coefficient)) * oracles.tolerance(
        case[0, :-HORIZON]
    )


def test_parts_matter_as_stated(planted: Planted) -> None:
    lens = oracles.open_tiny(planted)
    cases = make_cases(planted)[:2]
    plain = median_forecast(planted, cases)
    heads = planted.card.components("mechanism")
    for part in oracles.list_parts(lens):
        with lens.ablate(part):
            off = np.abs(median_forecast(planted, cases) - plain).max(1)
        bounds = np.array([rounding_bound(planted, case) for case in cases])
        assert (
            (off > oracles.EFFECT * bounds).all()
            if part in heads
            else (off <= bounds).all()
        ), part


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
    plain = plant(
        "covariate", NAME, seed=3, reads=READS[find_rule(planted).ago], rotate=False
    )
    cases = make_cases(planted)
    off = np.abs(median_forecast(plain, cases) - median_forecast(planted, cases)).max(1)
    assert (off <= [rounding_bound(planted, case) for case in cases]).all()
    unturned = {"rotated": False, "error": plain.card.error}
    assert planted.card.model_copy(update=unturned) == plain.card
    assert oracles.share_of_zeros(plain.model) > oracles.share_of_zeros(planted.model)
