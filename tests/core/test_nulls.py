"""Draws have the covariance of the activations, and their changes the tested norm."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy.stats import t

from refusals import expect_error
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.nulls import (
    centre,
    check_draws,
    claimed,
    covariance,
    draw_changes,
    draw_directions,
    match_norms,
    prediction_bound,
    share_of_like_norm,
    with_nulls,
)
from tsfm_lens.testing import assert_close


def activations(count: int, width: int = 6) -> np.ndarray:
    """Centred rows, whose coordinates vary by powers of two."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((count, width)) * 2.0 ** np.arange(width)
    return rows - rows.mean(axis=0)


@pytest.mark.parametrize("count", [5, 40, 2000])
def test_covariance_is_the_estimate_of_ledoit_and_wolf(count: int) -> None:
    """Their estimate for few rows is that of scikit-learn."""
    reference = pytest.importorskip("sklearn.covariance")
    rows = activations(count)
    expected, _ = reference.ledoit_wolf(rows, assume_centered=True)
    assert_close(covariance(rows), expected, depth=count)


def test_rows_without_variation_have_no_covariance() -> None:
    """A constant activation gives zeros, and no division by zero."""
    assert not covariance(np.zeros((4, 3))).any()


def test_draws_have_the_covariance_of_the_rows() -> None:
    """Squared cosines with the axes are those of normal draws of the covariance."""
    rows = activations(300)
    draws = draw_directions(rows, 4000)[:, 0]
    normal = np.random.default_rng(1).multivariate_normal(
        np.zeros(6), rows.T @ rows / len(rows), 4000
    )
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    found, expected = (np.square(values).mean(0) for values in (draws, normal))
    spread = np.square(normal).std(0) / np.sqrt(len(normal) / 2)
    # five standard errors of a difference
    assert (np.abs(found - expected) <= 5 * spread).all()


def test_draws_lead_either_way() -> None:
    """Half of them have a positive first coordinate, as normal draws do."""
    positive = draw_directions(activations(300), 4000)[:, 0, 0] > 0
    # five standard errors
    assert abs(positive.mean() - 0.5) <= 5 * 0.5 / np.sqrt(4000)


def test_draws_are_orthonormal_and_repeatable() -> None:
    """Several directions of a null form a basis; a seed gives the same."""
    rows = activations(20)
    draws = draw_directions(rows, 3, rank=2, seed=4)
    assert_close(draws @ draws.swapaxes(1, 2), np.tile(np.eye(2), (3, 1, 1)), depth=10)
    assert np.array_equal(draws, draw_directions(rows, 3, rank=2, seed=4))
    assert not np.array_equal(draws, draw_directions(rows, 3, rank=2, seed=5))


def test_changes_get_the_norm_of_the_tested_one() -> None:
    """Token by token; a change of norm 0 stays."""
    rng = np.random.default_rng(0)
    changes = rng.standard_normal((4, 3, 5))
    changes[0, 0] = 0.0
    like = rng.standard_normal((3, 5))
    norms = np.linalg.norm(match_norms(changes, like), axis=-1)
    expected = np.broadcast_to(np.linalg.norm(like, axis=-1), (4, 3)).copy()
    expected[0, 0] = 0.0
    assert_close(norms, expected, depth=10)


def test_drawn_changes_stand_beside_the_tested_one() -> None:
    """Token by token, of its norm and at right angles to it."""
    like = np.random.default_rng(0).standard_normal((4, 3, 6))
    like[0, 0] = 0.0
    drawn = draw_changes(activations(40), 5, like)
    assert drawn.shape == (5, 4, 3, 6)
    norms = np.broadcast_to(np.linalg.norm(like, axis=-1), (5, 4, 3))
    assert_close(np.linalg.norm(drawn, axis=-1), norms, depth=20)
    products = (drawn * like).sum(-1)
    assert_close(products, 0.0, depth=20, magnitude=float(np.square(norms).max()))


def test_next_draw_is_within_the_bound_as_often_as_stated() -> None:
    """Of normal draws, the ninth exceeds the bound of eight in 5 % of cases."""
    draws = np.random.default_rng(0).standard_normal((9, 20_000))
    share = (draws[8] > prediction_bound(draws[:8])).mean()
    standard_error = np.sqrt(0.05 * 0.95 / 20_000)
    assert abs(share - 0.05) < 4 * standard_error
    one = draws[:8, 0]
    expected = one.mean() + t.ppf(0.95, 7) * one.std(ddof=1) * np.sqrt(1 + 1 / 8)
    assert_close(prediction_bound(one), expected, depth=20)
    assert np.isinf(prediction_bound(draws[:2])).all()


def result(effects: list[list[float]]) -> xr.Dataset:
    """A result of members (member, series) with estimates."""
    data = xr.Dataset({"effect": (("member", "series"), effects)})
    return add_estimates(data, "effect", floor=0.0, signed=True)


def test_share_of_nulls_counts_those_that_do_as_much() -> None:
    """By the median over series, and in the direction of the effect."""
    data = result([[3.0, 4.0, 5.0], [-3.0, -4.0, -5.0]])
    nulls = np.array([[5.0, 5.0, 5.0], [1.0, 1.0, 1.0], [-9.0, -9.0, -9.0], [4, 4, 4]])
    effects = xr.DataArray(
        np.repeat(nulls[:, None], 2, axis=1), dims=("null", "member", "series")
    )
    found = with_nulls(data, "effect", effects, floor=0.0, signed=True)
    assert found["effect_null_share"].values.tolist() == [0.5, 0.25]
    assert found["effect_nulls"].values[:, 0].tolist() == [5.0, 1.0, -9.0, 4.0]
    assert not found["effect_exceeds_nulls"].any()


def test_an_effect_beyond_its_nulls_is_marked() -> None:
    """Those of nulls that lead the other way count as none."""
    effects = xr.DataArray(np.full((8, 1, 3), -50.0), dims=("null", "member", "series"))
    effects[:4] = 0.1
    data = result([[3.0, 4.0, 5.0]])
    found = with_nulls(data, "effect", effects, floor=0.0, signed=True)
    assert found["effect_exceeds_nulls"].values.tolist() == [True]
    none = with_nulls(data, "effect", effects[:0], floor=0.0, signed=True)
    assert np.isnan(none["effect_null_share"]).all()
    assert not none["effect_exceeds_nulls"].any()


@pytest.mark.parametrize("nulls", [-1, 2.5, "8", True, None])
def test_what_is_no_number_of_draws_is_refused(nulls: object) -> None:
    """The message has the wrong value."""
    expect_error(f"nulls is {nulls!r}", check_draws, nulls)


def test_members_are_compared_with_those_of_like_norm() -> None:
    """Of their own group, at most as many as asked for, without themselves."""
    sizes = np.array([1.0, 2.0, 3.0, 9.0, 5.0])
    norms = np.array([1.0, 1.1, 1.2, 5.0, 1.0])
    groups = np.array(["head", "head", "head", "head", "mlp"])
    found = share_of_like_norm(sizes, norms, groups, count=2)
    assert found[:4].tolist() == [1.0, 0.5, 0.0, 0.0]
    assert np.isnan(found[4])


def test_a_claim_exceeds_all_nulls_and_is_significant() -> None:
    """Too few series decide nothing, and twins that do as much refute it."""
    nulls = xr.DataArray(np.full((8, 1, 12), 0.1), dims=("null", "member", "series"))
    few, many = (result([[3.0 + at for at in range(count)]]) for count in (3, 12))
    for data, expected in ((few, False), (many, True)):
        drawn = nulls.isel(series=slice(data.sizes["series"]))
        data = with_nulls(data, "effect", drawn, floor=0.0, signed=True)
        assert data["effect_exceeds_nulls"].all()
        assert claimed(data, "effect").values.tolist() == [expected]
    refuted = data.assign(effect_learned=("member", [False]))
    assert not claimed(refuted, "effect").any()


def test_a_wide_page_needs_a_higher_bound() -> None:
    """Of members that are themselves draws, few pages claim one."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(200):
        # a log-normal size a member and draw, the same on every series
        sizes = np.exp(rng.standard_normal((9, 20, 1)) / 2).repeat(2, axis=-1)
        data = xr.Dataset({"effect": (("member", "series"), sizes[0])})
        data = add_estimates(data, "effect", floor=0.0)
        drawn = xr.DataArray(sizes[1:], dims=("null", "member", "series"))
        found = with_nulls(data, "effect", drawn, floor=0.0)
        false += bool(found["effect_exceeds_nulls"].any())
    standard_error = np.sqrt(200 * 0.05 * 0.95)
    assert false <= 200 * 0.05 + 3 * standard_error


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_activations_that_do_not_vary_have_no_draws(count: int, scale: float) -> None:
    """Draws of one activation would all be the same, or be those of rounding."""
    rng = np.random.default_rng(0)
    row = scale * rng.standard_normal(6)
    alike = row * (1 + 1e-8 * rng.standard_normal((count, 6)))
    assert not centre(alike).any()
    expect_error("vary in fewer than 2", draw_directions, centre(alike), 3)
    line = np.outer([-1.0, 1.0], row)
    expect_error("vary in fewer than 2", draw_changes, line, 3, row[None])
    plane = np.vstack([line, scale * rng.standard_normal((1, 6))])
    assert len(draw_directions(centre(plane), 3)) == 3
    expect_error("vary in fewer than 3", draw_directions, centre(plane), 3, rank=2)
    assert draw_directions(centre(alike), 0).shape == (0, 1, 6)


def test_less_is_never_more_where_effects_have_no_sign() -> None:
    """An agreement below 0 leads away, however little the draws do."""
    series = [0.0, 0.01, 0.02, -0.01, -0.02, 0.0]
    data = xr.Dataset({"agreement": (("change", "series"), np.array([series]) - 0.5)})
    data = add_estimates(data, "agreement", floor=0.0)
    nulls = xr.DataArray(
        np.array([[[-0.9] * 6], [[0.2] * 6], [[-0.1] * 6], [[-0.2] * 6]]),
        dims=("null", "change", "series"),
    )
    result = with_nulls(data, "agreement", nulls, floor=0.0)
    assert float(result["agreement_null_share"][0]) == 0.75
    assert not bool(result["agreement_exceeds_nulls"][0])


def test_members_without_a_size_have_no_like_norm() -> None:
    """NaN is no small effect, neither of the member nor of another."""
    sizes = np.array([np.nan, 1.0, 2.0, 3.0])
    shares = share_of_like_norm(sizes, np.ones(4), np.zeros(4))
    np.testing.assert_array_equal(shares, [np.nan, 1.0, 0.5, 0.0])
