"""Ranks by what they do to the forecast: the greedy choice against every choice there is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from tsfm_lens import compress
from tsfm_lens.compress import BlockShape
from tsfm_lens.errors import InputError
from tsfm_lens.testing import assert_close

FORMS = {"a": BlockShape(1, 24, 24), "b": BlockShape(1, 24, 48), "c": BlockShape(2, 12, 24)}
RANKS = {"a": [1, 3, 6, 24], "b": [1, 4, 8, 24], "c": [1, 2, 4, 12]}


def every_choice(effects: dict[str, dict[int, float]]) -> list[tuple[int, float, dict[str, int]]]:
    choices = [dict(zip(effects, ranks, strict=True)) for ranks in product(*effects.values())]
    return [
        (sum(FORMS[k].stored(r) for k, r in each.items()), sum(effects[k][r] for k, r in each.items()), each)
        for each in choices
    ]


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_the_size_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # of any form, rising ones included
    effects = {k: dict(zip(ranks, (*rng.exponential(size=3), 0.0), strict=True)) for k, ranks in RANKS.items()}
    choices = every_choice(effects)
    dearest = max(FORMS[k].numbers for k in FORMS)
    smallest = min(size for size, _, _ in choices)
    for budget in sorted({size for size, _, _ in choices}):
        ranks, effect = compress.allocate(effects, FORMS, budget)
        size, expected, _ = next(each for each in choices if each[2] == ranks)
        assert size <= budget
        assert effect == pytest.approx(expected)
        # at most one step is left of the budget
        if budget - dearest >= smallest:
            assert effect <= min(e for s, e, _ in choices if s <= budget - dearest) + 1e-12
    # where every matrix by itself has the best of effect and price, steps end at the budget
    for price in np.geomspace(1e-5, 1e-2, 40):
        budget = sum(
            min((of[r] + price * FORMS[k].stored(r), FORMS[k].stored(r)) for r in of)[1] for k, of in effects.items()
        )
        _, effect = compress.allocate(effects, FORMS, budget)
        assert effect == pytest.approx(min(e for s, e, _ in choices if s <= budget))


def test_a_budget_below_the_smallest_ranks_is_refused() -> None:
    effects = {"a": {2: 1.0, 4: 0.5}}
    assert compress.allocate(effects, FORMS, 96) == ({"a": 2}, 1.0)
    with pytest.raises(InputError, match="no rank meets a budget of 95 numbers"):
        compress.allocate(effects, FORMS, 95)


@pytest.mark.parametrize("by_head", [False, True])
def test_effects_are_those_of_the_model_with_one_matrix_cut_off(
    opened: Callable, calibration: Callable, by_head: bool
) -> None:
    lens = opened("chronos")
    run = calibration(lens)
    names = [f"decoder_blocks.0.cross_attn.{letter}" for letter in "qo"]
    moments = compress.second_moments(run, names)
    full = compress.matrices(lens)[names[0]].form(by_head=by_head).full
    candidates = {name: [1, 3, full] for name in names}
    effects = compress.rank_effects(run, candidates, moments=moments, by_head=by_head)
    for name in names:
        assert effects[name][full] == 0.0
        assert effects[name][1] > effects[name][3] > 0
        alone = compress.factorised(lens, {name: 3}, moments=moments, by_head=by_head)
        with torch.no_grad():
            logits = [each.adapter.run(run.encoded.inputs).double() for each in (lens, alone)]
        p, q = (each.softmax(-1) for each in logits)
        divergence = float((p * (p.log() - q.log())).sum(-1).mean())
        assert_close(effects[name][3], divergence, depth=1000, magnitude=1.0, dtype=torch.float32)


def test_the_choice_is_no_worse_than_one_share_for_all(opened: Callable, calibration: Callable) -> None:
    lens = opened("chronos")
    run = calibration(lens)
    names = [name for name in compress.matrices(lens) if "cross_attn" in name]
    found = compress.allocated(run, dict.fromkeys(names, 4))
    forms = {name: compress.matrices(lens)[name].form() for name in names}
    assert sum(forms[n].stored(r) for n, r in found.ranks.items()) <= sum(form.stored(4) for form in forms.values())
    assert found.deviation <= found.uniform
    smaller = compress.factorised(lens, found.ranks)
    with torch.no_grad():
        moved = compress.deviation(run, smaller.adapter.run(run.encoded.inputs)).mean()
    assert found.deviation == pytest.approx(float(moved))
