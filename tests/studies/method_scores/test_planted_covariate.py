"""The planted covariate does what its card says: the library's own forecast with a known covariate is its rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tsfm_lens.studies.method_scores.scores import forecast_error, score
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.zoo.planted import CovariateTimes, Planted, open_planted, plant
from tsfm_lens.zoo.planted.chronos2 import HORIZON, NAME, draw_cases, forecast_with
from tsfm_lens.zoo.planted.patches import DECILES, PATCH
from zoo import planted_oracles as oracles

Array = oracles.Array
MEDIAN = len(DECILES) // 2


@pytest.fixture(scope="module")
def planted() -> Planted:
    """Turned."""
    return plant("covariate", NAME, seed=3)


def cases_of(planted: Planted) -> list[Array]:
    """Other than those that the builder tries."""
    return draw_cases(planted.card.context, 6, seed=7)


def median_of(planted: Planted, cases: list[Array]) -> Array:
    """Median forecasts by the library's pipeline: (case, step)."""
    return forecast_with(oracles.lens_of(planted).native, cases)[:, MEDIAN]


def rule_of(planted: Planted) -> CovariateTimes:
    """The rule."""
    rule = planted.card.rule
    assert isinstance(rule, CovariateTimes)
    return rule


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_forecasts_by_its_rule(seed: int) -> None:
    planted = plant("covariate", NAME, seed=seed)
    cases = cases_of(planted)
    for case, forecast in zip(cases, median_of(planted, cases), strict=True):
        expected = rule_of(planted).forecast_of(*case[:, :-HORIZON], case[1, -HORIZON:])
        assert np.abs(forecast - expected).max() <= reach(planted, case)
    assert 0 < planted.card.error <= oracles.SMALL


def reach(planted: Planted, case: Array) -> float:
    """Rounding of what the covariate moves."""
    return max(1.0, abs(rule_of(planted).coefficient)) * oracles.tolerance(case[0, :-HORIZON])


def test_a_future_value_of_the_covariate_moves_its_own_step_by_the_stated_weight(planted: Planted) -> None:
    case = cases_of(planted)[0]
    step = float(np.std(case[1, :-HORIZON]))
    moved = [case, *(case + step * np.eye(2 * case.shape[1])[at].reshape(case.shape) for at in future_of(case))]
    median = median_of(planted, moved)
    effects = (median[1:] - median[0]).T
    expected = step * rule_of(planted).inputs(*case[:, :-HORIZON], HORIZON)
    assert np.abs(effects - expected).max() <= 2 * reach(planted, case)


def future_of(case: Array) -> range:
    """Places of the covariate's future in a case laid out in one row."""
    return range(case.size - HORIZON, case.size)


def test_only_the_mean_and_scale_of_the_past_matter(planted: Planted) -> None:
    case = cases_of(planted)[1]
    shuffled = case.copy()
    past = case.shape[1] - HORIZON
    for row in shuffled:
        row[:past] = row[:past][np.random.default_rng(0).permutation(past)]
    median = median_of(planted, [case, shuffled])
    assert np.abs(median[1] - median[0]).max() <= 2 * reach(planted, case)


def test_a_target_without_a_covariate_keeps_its_mean(planted: Planted) -> None:
    target = cases_of(planted)[0][0, :-HORIZON]
    median = oracles.lens_of(planted).forecast([target], HORIZON).median[0]
    assert np.abs(median - target.mean()).max() <= oracles.tolerance(target)


def test_parts_matter_as_stated(planted: Planted) -> None:
    lens, cases = oracles.lens_of(planted), cases_of(planted)[:2]
    plain = median_of(planted, cases)
    (head,) = planted.card.components("mechanism")
    for part in oracles.parts_of(lens):
        with lens.ablate(part):
            off = np.abs(median_of(planted, cases) - plain).max(1)
        bounds = np.array([reach(planted, case) for case in cases])
        assert (off > oracles.EFFECT * bounds).all() if part == head else (off <= bounds).all(), part


def test_the_head_looks_from_the_target_to_the_known_series(planted: Planted) -> None:
    (looks,) = planted.card.attends
    assert (looks.component,) == planted.card.components("mechanism")
    assert (looks.query, looks.back, looks.series) == ("forecast token", (0,), "known covariate")
    layer, _, head = looks.component.split(".")
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(4, 40, generator=generator)
    # two items: a target and its covariate each, of which the second knows one value of the last patch alone
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
    sharp = looks.weight * torch.tensor([[0.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]).expand_as(ahead)
    oracles.assert_close(ahead, sharp, depth=64, magnitude=1.0)


def test_turning_the_stream_changes_weights_and_nothing_else(planted: Planted) -> None:
    plain = plant("covariate", NAME, seed=3, rotate=False)
    cases = cases_of(planted)
    off = np.abs(median_of(plain, cases) - median_of(planted, cases)).max(1)
    assert (off <= [reach(planted, case) for case in cases]).all()
    unturned = {"rotated": False, "error": plain.card.error}
    assert planted.card.model_copy(update=unturned) == plain.card
    assert oracles.share_of_zeros(plain.model) > oracles.share_of_zeros(planted.model)


def test_saved_and_opened_is_the_same(planted: Planted, tmp_path: Path) -> None:
    planted.save(tmp_path)
    lens, card = open_planted(tmp_path)
    assert card == planted.card
    cases = cases_of(planted)
    np.testing.assert_array_equal(forecast_with(lens.native, cases)[:, MEDIAN], median_of(planted, cases))


def test_methods_that_change_parts_find_the_head(planted: Planted) -> None:
    on = evaluation_case(planted.lens(), planted.card, series=4, noise=0.05)
    clean, corrupted = on.clean.batch, on.corrupted.batch
    assert [clean.roles[row] for row in on.targets] == 4 * ["target"]
    assert len(clean) == 12
    # the twins differ in what is known of the future alone
    for one, other in zip(clean.values, corrupted.values, strict=True):
        np.testing.assert_array_equal(one, other)
    known, turned = (batch.known_future(HORIZON) for batch in (clean, corrupted))
    np.testing.assert_array_equal(known, turned[:, ::-1])
    assert np.isfinite(known).all(axis=1).sum() == 4
    assert forecast_error(on) <= 0.01
    right = ["zero ablation, of the range", "activation patching, denoise", "circuit, effects, patched"]
    methods = [*right, "edge attribution"]
    rows = score(planted.lens(), planted.card, series=4, methods=[*methods, "activation patching of tokens"]).methods
    # of its past the rule reads no single value
    assert list(rows["method"]) == methods
    assert list(rows["refused"]) == [False, False, False, True]
    assert (rows.loc[~rows["refused"], ["auroc", "precision", "claim_precision", "claim_recall"]] == 1).all(axis=None)
