"""The paper's experiments at small sizes: slopes, invariants, and no bound that anything exceeds."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory import AttentionWeights
from tsfm_lens.studies.rank_theory.experiments import children, of_spectrum, slope_of, slope_of_rms
from tsfm_lens.testing import assert_close, rounding

SLACK = rounding("float64", 1.0, depth=1000)


@pytest.fixture(scope="module")
def by_rank() -> xr.Dataset:
    return rank_theory.compression_by_rank(width=64, n_tokens=256, n_ranks=16, scalings=rank_theory.SCALINGS, draws=4)


@pytest.fixture(scope="module")
def by_width() -> xr.Dataset:
    return rank_theory.compression_by_width(widths=(16, 32, 64), n_tokens=64, draws=50)


@pytest.fixture(scope="module")
def sketching() -> xr.Dataset:
    return rank_theory.sketching_by_heads(width=128, rank=2, heads=(1, 2, 4, 8, 16, 32), decay=12.0, draws=3)


@pytest.fixture(scope="module")
def spectra() -> xr.Dataset:
    return rank_theory.spectra_by_heads(draws=3)


def test_slopes_are_those_of_powers_and_their_intervals_hold_them() -> None:
    x = np.array([1.0, 2.0, 8.0])
    assert_close(slope_of(x, np.stack([x**0.5, 3 * x**-2])), np.array([0.5, -2.0]), depth=50)
    noisy = x * np.exp(0.3 * np.random.default_rng(0).normal(size=(200, 3)))
    slope, low, high = slope_of_rms(x, noisy, 0)
    assert low < slope < high
    assert low < 1 < high
    # draws go on where fewer end
    assert children(3, 5)[:2] == children(3, 2)


def test_the_error_of_compression_grows_with_the_singular_value_cut_off(by_rank: xr.Dataset) -> None:
    assert by_rank.attrs["kind"] == "theory_compression_rank"
    assert abs(float(by_rank["slope"].mean()) - 1) < 0.1
    assert float(by_rank["slope_of_all"].mean()) > float(by_rank["slope"].mean())
    assert (by_rank["error"] <= by_rank["bound"]).all()
    # the printed rate holds for generic inputs, though not for every one
    assert float((by_rank["error"] / by_rank["rate"]).max()) < 1
    # by hand: the compressed layer itself, not the layer on fewer coordinates
    child = children(0, 1)[0]
    vocabulary = of_spectrum(np.exp(np.linspace(0, -5, 64)), 256, np.random.default_rng(child))
    weights, rank = AttentionWeights.random(64, seed=child + 1), int(by_rank["rank"][5])
    whole, less = (
        rank_theory.attention(vocabulary, each) for each in (weights, rank_theory.compressed(weights, vocabulary, rank))
    )
    expected = np.linalg.norm(whole - less)
    found = float(by_rank["error"].sel(scaling="theorem", draw=0, rank=rank))
    assert_close(found, expected, depth=3000, magnitude=float(np.linalg.norm(whole)))
    assert_close(by_rank["next_singular_value"].values[5], np.linalg.svd(vocabulary)[1][rank], depth=500, magnitude=1.0)


def test_the_error_grows_as_the_root_of_the_width_if_the_values_do(by_width: xr.Dataset) -> None:
    slopes = {str(name): by_width.sel(weights=name) for name in by_width["weights"].values}
    for name in ("theorem", "orthogonal"):
        assert float(slopes[name]["slope_low"]) < 0.5 < float(slopes[name]["slope_high"]) + 0.1
        assert float(slopes[name]["slope_low"]) > 0.2
    assert float(slopes["normalised"]["slope_high"]) < 0.25
    # of orthogonal values it is exact
    root = np.sqrt(by_width["width"].values)
    exact = by_width["value_error"].values / by_width["residual"].values
    assert_close(exact, np.broadcast_to(root, exact.shape), depth=500)


def test_sketches_miss_between_what_the_best_and_none_would(sketching: xr.Dataset) -> None:
    distance = sketching["distance"]
    assert (distance >= sketching["floor"] - SLACK).all()
    assert (distance <= 1 + SLACK).all()
    assert (sketching["entries"] == 2 * 128).all()
    # as many heads, as many directions: in proportion, and as well as dense ones
    assert 0.7 < float(sketching["slope"].sel(sketch="sparse").mean()) < 1.4
    apart = np.log(distance.sel(sketch="sparse") / distance.sel(sketch="dense")).mean("draw")
    assert float(np.abs(apart).max()) < 0.25
    # right singular vectors play no part
    rng = np.random.default_rng(0)
    left, right = rank_theory.orthonormal(20, 20, rng), rank_theory.orthonormal(30, 20, rng)
    singular, sketch = np.exp(-np.arange(20) / 3), rank_theory.sparse_sketch(20, 2, 4)
    assert_close(
        rank_theory.sketching_distance(left * singular, sketch),
        rank_theory.sketching_distance(left * singular @ right.T, sketch),
        depth=2000,
        magnitude=1.0,
    )


# of an independent run with the same sizes and one draw
KNOWN_RANKS = {4: 75, 8: 105, 16: 123, 32: 128}


def test_heads_raise_rank_where_scores_differ(spectra: xr.Dataset) -> None:
    assert int(spectra["input_rank"]) == 28
    spread, even = spectra["rank"].sel(input="times √L"), spectra["rank"].sel(input="of norm 1")
    assert (spread.diff("heads") > 0).all()
    assert (spread.sel(heads=1) > 28).all()
    for heads, known in KNOWN_RANKS.items():
        assert float(np.abs(spread.sel(heads=heads) - known).min()) <= 5
    # where softmax is even, attention adds one direction however many heads there are
    assert (even <= 29).all()
    deviation = spectra["logit_deviation"].mean(("draw", "heads"))
    assert float(deviation.sel(input="times √L")) > 1.5
    assert float(deviation.sel(input="of norm 1")) < 0.02


def test_curves_of_chebyshev_embeddings_are_the_embeddings() -> None:
    found = rank_theory.chebyshev_curves(dimension=12, ranks=(1, 2, 12), n_points=60, seed=4)
    assert found["found_rank"].values.tolist() == [1, 2, 12]
    tokens = rank_theory.ChebyshevEmbedding.random(12, 2, seed=4)(found["value"].values)
    np.testing.assert_array_equal(found["coordinate"].sel(rank=2), tokens[:2])
    assert (found["value"].values[0], found["value"].values[-1]) == (-15, 15)


def test_nothing_exceeds_its_bound() -> None:
    of_embeddings = rank_theory.embedding_bounds(dimension=40, n_tokens=200, draws=3)
    slack = SLACK * of_embeddings["singular_value"].isel(index=0)
    assert (of_embeddings["singular_value"] <= of_embeddings["bound"] + slack).all()
    assert (of_embeddings["count"] <= of_embeddings["most"]).all()
    assert (of_embeddings["count"] > 0).any()
    of_layers = rank_theory.compression_bounds(width=16, n_tokens=24, draws=5)
    assert (of_layers["error"] <= of_layers["bound"]).all()
    assert (of_layers["least_error"] >= of_layers["floor"]).all()
    over = (of_layers["repeated_error"] / of_layers["repeated_rate"]).values
    assert_close(over, np.sqrt(of_layers["length"].values), depth=2000)
    sharp = of_layers["sharpness"]
    assert (sharp.sel(logarithm="of 4 max(d, L)") > 0.25).all()
    assert (sharp.sel(logarithm="of 4d, as printed", length_over=["d", "4d + 1"]) > 0.25).all()
    growth = rank_theory.growth_bounds(width=24, draws=4)
    assert (growth["relative"] <= growth["upper"] + SLACK).all()
    assert (growth["grown"] >= growth["lower"]).all()
    proof, printed = (growth["alone"] <= growth["corollary"].sel(form=form) for form in ("of the proof", "as printed"))
    assert proof.all()
    # a sign slips: with one head, the largest of the output would go with the second of the input
    assert not printed.sel(heads=1, index=1).any()
    sketches = rank_theory.sketch_bounds(draws=2)
    assert (sketches["shared_error"] >= sketches["shared_floor"]).all()
    assert (sketches["own_error"] <= sketches["own_bound"]).all()


def test_every_experiment_repeats_with_its_seed_and_says_its_sizes() -> None:
    one, same, other = (
        rank_theory.spectra_by_heads(width=8, n_tokens=9, heads=(2,), draws=2, seed=s) for s in (1, 1, 2)
    )
    xr.testing.assert_identical(one, same)
    assert not one.equals(other)
    assert one.attrs["source"].endswith("(S0-J3)")
    assert {"width", "n_tokens", "decay", "epsilon", "seed", "title"} <= set(one.attrs)
