"""Ranks by what they do to the forecast, by schedule, by threshold and by share,
against brute force and the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import compress
from tsfm_lens.compress import BlockShape
from tsfm_lens.compress.schedule import ranks_by_share

# signs of gradients are drawn anew for another order of series
ROUGH = 0.3
FORMS = {
    "a": BlockShape(1, 24, 24),
    "b": BlockShape(1, 24, 48),
    "c": BlockShape(2, 12, 24),
}
RANKS = {"a": [1, 3, 6, 24], "b": [1, 4, 8, 24], "c": [1, 2, 4, 12]}


def every_choice(
    effects: dict[str, dict[int, float]],
) -> list[tuple[int, float, dict[str, int]]]:
    choices = [
        dict(zip(effects, ranks, strict=True)) for ranks in product(*effects.values())
    ]
    return [
        (
            sum(FORMS[k].stored(r) for k, r in choice.items()),
            sum(effects[k][r] for k, r in choice.items()),
            choice,
        )
        for choice in choices
    ]


@pytest.mark.parametrize("seed", range(20))
def test_chosen_ranks_are_best_for_size(seed: int) -> None:
    """No other choice of ranks of this size is better."""
    rng = np.random.default_rng(seed)
    # of any form, rising ones included
    effects = {
        k: dict(zip(ranks, (*rng.exponential(size=3), 0.0), strict=True))
        for k, ranks in RANKS.items()
    }
    choices = every_choice(effects)
    for budget in {size + more for size, _, _ in choices for more in (0, 7)}:
        ranks, effect = compress.methods.allocate(effects, FORMS, budget)
        size, expected, _ = next(choice for choice in choices if choice[2] == ranks)
        assert size <= budget
        assert effect == pytest.approx(expected)
        assert effect == pytest.approx(min(e for s, e, _ in choices if s <= budget))


def test_any_budget_is_kept_nearly_used() -> None:
    """Budgets without a common divisor are kept and nearly used up."""
    forms = {str(i): BlockShape(1, 500 + 7 * i, 901 - 11 * i) for i in range(12)}
    effects = {k: {r: 1.0 / r for r in (10, 50, 120, 200)} for k in forms}
    budget = sum(form.stored(113) for form in forms.values())
    ranks, effect = compress.methods.allocate(effects, forms, budget)
    assert (
        0
        <= budget - sum(forms[k].stored(r) for k, r in ranks.items())
        < max(f.stored(80) for f in forms.values())
    )
    assert effect <= compress.methods.allocate(effects, forms, round(0.999 * budget))[1]


def test_budget_below_smallest_ranks_is_refused() -> None:
    effects = {"a": {2: 1.0, 4: 0.5}}
    assert compress.methods.allocate(effects, FORMS, 96) == ({"a": 2}, 1.0)
    expect_error(
        "no rank meets a budget of 95 parameters",
        compress.methods.allocate,
        effects,
        FORMS,
        95,
    )


@pytest.mark.parametrize("by_head", [False, True])
def test_effects_use_series_without_factors(
    calibration: Callable, by_head: bool
) -> None:
    """Effects are measured on series that the factors were not made from."""
    lens = lens_of("chronos")
    run = calibration(lens)
    names = [f"decoder_blocks.0.cross_attn.{letter}" for letter in "qo"]
    full = compress.matrices(lens)[names[0]].form(by_head=by_head).full
    candidates = {name: [1, 3, full] for name in names}
    effects = compress.methods.rank_effects(run, candidates, by_head=by_head)
    parts = compress.moments.folds(run)
    assert sorted(name for part in parts for name in part.batch.ids) == sorted(
        run.batch.ids
    )
    for name in names:
        assert effects[name][full] == 0.0
        assert effects[name][1] > effects[name][3] > 0
        expected = []
        for held in parts:
            rows = [
                run.batch.ids.index(item)
                for part in parts
                if part is not held
                for item in part.batch.ids
            ]
            weights = compress.moments.weights([run.select(rows)], names, True)
            alone = compress.factorised(lens, {name: 3}, by_head=by_head, **weights)
            with torch.no_grad():
                logits = [
                    item.adapter.run(held.encoded.inputs).double()
                    for item in (lens, alone)
                ]
            p, q = (logit.softmax(-1) for logit in logits)
            expected += (p * (p.log() - q.log())).sum(-1).mean(-1).tolist()
        # signs of gradients are drawn anew for another order of series, so that factors
        # agree but roughly
        assert effects[name][3] == pytest.approx(np.sum(expected), rel=ROUGH)


def test_epsilon_bounds_the_remaining_error() -> None:
    """Ranks by epsilon leave an error of at most epsilon."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((12, 9)) * 0.5 ** np.arange(9)
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    rank = compress.ranks_by_epsilon({"w": s}, 0.05)["w"]
    assert 1 < rank < 9
    assert (
        np.linalg.norm(matrix - (u[:, :rank] * s[:rank]) @ v[:rank], 2) <= 0.05 * s[0]
    )
    assert (
        np.linalg.norm(matrix - (u[:, : rank - 1] * s[: rank - 1]) @ v[: rank - 1], 2)
        > 0.05 * s[0]
    )
    # of heads the one that needs most
    assert compress.ranks_by_epsilon(
        {"w": np.array([[1.0, 0.01], [1.0, 0.5]])}, 0.1
    ) == {"w": 2}
    assert compress.ranks_by_epsilon({"w": np.zeros(4)}, 0.1) == {"w": 1}


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9, 1.0])
def test_shares_are_met_with_largest_ranks(share: float) -> None:
    """Shares are met, and no larger rank meets them."""
    forms = {
        "square": BlockShape(1, 64, 64),
        "wide": BlockShape(1, 64, 256),
        "heads": BlockShape(4, 16, 64),
    }
    assert compress.compute_ratio(
        forms, ranks_by_share(forms, share)
    ).ranks == pytest.approx(share, abs=0.5 / 16)
    ranks = ranks_by_share(
        {k: v for k, v in forms.items() if k != "heads"}, share, of="parameters"
    )
    for name, rank in ranks.items():
        form = forms[name]
        best = max(
            r
            for r in range(1, form.full + 1)
            if share == 1 or form.factors(r) <= share * form.numbers
        )
        assert rank == best


def test_both_readings_of_the_ratio() -> None:
    forms = {"q": BlockShape(1, 36, 36), "o": BlockShape(2, 36, 18)}
    ratio = compress.compute_ratio(forms, {"q": 9, "o": 18})
    # 9 + 2 * 18 of 36 + 2 * 18 ranks; 9 * 72 + 2 * 18 * 54 numbers of 2 * 36 * 36, of
    # which o is kept whole
    assert ratio == pytest.approx((45 / 72, (648 + 1944) / 2592, (648 + 1296) / 2592))
    assert compress.compute_ratio([BlockShape(1, 8, 8)], [8]) == (1.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compress.ranks_by_epsilon({"q": np.ones(2)}, 1.0), "epsilon is 1"),
        (lambda: compress.ranks_by_epsilon({"q": np.ones(2)}, 0.0), "epsilon is 0"),
        (lambda: ranks_by_share({"q": BlockShape(1, 8, 8)}, 0.0), "share of 0"),
        (
            lambda: ranks_by_share({"q": BlockShape(1, 8, 8)}, 0.1, of="parameters"),
            "no rank meets",
        ),
        (lambda: ranks_by_share({"q": BlockShape(1, 8, 8)}, 0.5, of="size"), "'size'"),  # type: ignore[arg-type]
        (
            lambda: compress.compute_ratio({"q": BlockShape(1, 8, 8)}, {"k": 3}),
            "one each",
        ),
        (lambda: compress.compute_ratio([BlockShape(1, 8, 8)], [9]), "from 1 to 8"),
    ],
)
def test_what_cannot_be_met_is_refused(call: object, message: str) -> None:
    expect_error(message, call)  # type: ignore[operator]
