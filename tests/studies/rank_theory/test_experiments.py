"""Experiments on rank at small sizes, and vocabularies, patch sizes and models against
planted ones.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.spatial.distance import pdist

from refusals import expect_error
from tiny_lenses import fresh
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import weight_ranks
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory.compression import AttentionWeights
from tsfm_lens.studies.rank_theory.experiments import children, of_spectrum
from tsfm_lens.studies.rank_theory.of_models import (
    ranks_by_model,
    vocabulary_plane,
)
from tsfm_lens.testing import assert_close, rounding

SLACK = rounding("float64", 1.0, depth=1000)


@pytest.fixture(scope="module")
def by_rank() -> xr.Dataset:
    return rank_theory.compression_by_rank(width=64, n_tokens=256, n_ranks=16, draws=4)


@pytest.fixture(scope="module")
def spectra() -> xr.Dataset:
    return rank_theory.spectra_by_heads(draws=3)


def test_errors_grow_with_the_dropped_values(
    by_rank: xr.Dataset,
) -> None:
    """The error of compression grows with the singular value that is cut off."""
    assert by_rank.attrs["kind"] == "theory_compression_rank"
    assert abs(float(by_rank["slope"].mean()) - 1) < 0.1
    assert float(by_rank["slope_of_all"].mean()) > float(by_rank["slope"].mean())
    assert (by_rank["error"] <= by_rank["bound"]).all()
    # the printed rate holds for generic inputs, though not for every one
    assert float((by_rank["error"] / by_rank["rate"]).max()) < 1
    # by hand: the compressed layer itself, not the layer on fewer coordinates
    child = children(0, 1)[0]
    vocabulary = of_spectrum(
        np.exp(np.linspace(0, -5, 64)), 256, np.random.default_rng(child)
    )
    weights = AttentionWeights.random(64, seed=child + 1)
    rank = int(by_rank["rank"][5])
    full, less = (
        rank_theory.attention(vocabulary, item)
        for item in (weights, rank_theory.compressed(weights, vocabulary, rank))
    )
    expected = np.linalg.norm(full - less)
    found = float(by_rank["error"].sel(draw=0, rank=rank))
    assert_close(found, expected, depth=3000, magnitude=float(np.linalg.norm(full)))
    assert_close(
        by_rank["next_singular_value"].values[5],
        np.linalg.svd(vocabulary)[1][rank],
        depth=500,
        magnitude=1.0,
    )


# of an independent run with the same sizes and one draw
KNOWN_RANKS = {4: 75, 8: 105, 16: 123, 32: 128}


def test_heads_raise_rank_where_scores_differ(spectra: xr.Dataset) -> None:
    assert int(spectra["input_rank"]) == 28
    spread = spectra["rank"].sel(input="times √L")
    even = spectra["rank"].sel(input="of norm 1")
    assert (spread.diff("heads") > 0).all()
    assert (spread.sel(heads=1) > 28).all()
    for heads, known in KNOWN_RANKS.items():
        assert float(np.abs(spread.sel(heads=heads) - known).min()) <= 5
    # where softmax is even, attention adds one direction however many heads there are
    assert (even <= 29).all()
    deviation = spectra["logit_deviation"].mean(("draw", "heads"))
    assert float(deviation.sel(input="times √L")) > 1.5
    assert float(deviation.sel(input="of norm 1")) < 0.02


def planted_vocabulary(lens: Lens, sizes: tuple[float, float]) -> np.ndarray:
    """An ellipse through the tokens in a plane of the stream; (token, 2) where they
    lie.
    """
    table = lens.model.shared.weight
    turn = np.linspace(0, np.pi, len(table), endpoint=False)
    circle = np.stack([np.cos(2 * turn), np.sin(2 * turn)], axis=1) * sizes
    plane = np.linalg.qr(np.random.default_rng(0).normal(size=(table.shape[1], 2)))[0]
    with torch.no_grad():
        table.copy_(torch.tensor(circle @ plane.T))
    return circle


def test_planted_curves_are_found_in_planes() -> None:
    """A planted curve is found in the plane of the first two directions."""
    lens = fresh("t5")
    circle = planted_vocabulary(lens, (3.0, 1.0))
    found = vocabulary_plane(lens)
    # up to the sign of each direction
    assert_close(
        np.abs(found["coordinate"].values), np.abs(circle), depth=300, dtype=np.float32
    )
    assert_close(
        found["share"].values, np.array([0.9, 0.1]), depth=300, dtype=np.float32
    )
    assert (np.abs(found["coordinate"]).max("token") > 0).all()
    assert found["value"].isnull().all()
    tokens = len(circle)
    near = np.linalg.norm(np.diff(circle, axis=0), axis=1)
    # others stand for any two of them
    expected = np.median(near) / np.median(pdist(circle))
    assert 0.5 * expected < float(found["neighbour_ratio"]) < 2 * expected < 0.5
    # the same tokens in another order lie no nearer than any
    table = lens.model.shared.weight
    with torch.no_grad():
        table.copy_(
            table[
                torch.randperm(tokens, generator=torch.Generator().manual_seed(0))
            ].clone()
        )
    assert 0.5 < float(vocabulary_plane(lens)["neighbour_ratio"]) < 2


def test_special_tokens_have_no_bins() -> None:
    """Bins have their values, and special tokens are left out."""
    lens = load("chronos-nano")
    found = vocabulary_plane(lens)
    table = lens.native.model.model.shared.weight.detach().double().numpy()
    first = lens.first_value_token
    assert found["token"].values.tolist() == list(range(first, len(table)))
    dense = np.linalg.svd(table[first:], compute_uv=False)
    assert_close(found["share"].values, dense[:2] ** 2 / (dense**2).sum(), depth=1000)
    centres = lens.native.tokenizer.centers.double().numpy()
    assert_close(found["value"].values, centres, depth=10, dtype=np.float32)
    assert (found["neighbour_ratio"] < 0.2).all()
    expect_error("bolt-nano embeds patches", vocabulary_plane, load("bolt-nano"))


def test_ranks_by_model_are_its_means() -> None:
    """Ranks of several models are the means of each."""
    lenses = [load("bolt-nano"), load("chronos-nano")]
    found = ranks_by_model(iter(lenses), epsilon=[0.1, 0.01])
    assert found["model"].values.tolist() == ["bolt-nano", "chronos-nano"]
    assert found["width"].values.tolist() == [lens.cfg.d_model for lens in lenses]
    assert found["heads"].values.tolist() == [4, 4]
    assert found["architecture"].values.tolist() == ["chronos-bolt", "chronos"]
    for lens in lenses:
        one = weight_ranks(lens, epsilon=[0.1, 0.01], parts=["W_Q"], per_head=True)
        of_head = one["head"] != ""
        for name, chosen in (("rank", ~of_head), ("head_rank", of_head)):
            ranks = one["epsilon_rank"].where(chosen, drop=True)
            summary = found.sel(model=lens.model_id)
            assert_close(summary[name].values, ranks.mean("matrix").values, depth=100)
            np.testing.assert_array_equal(summary[f"{name}_low"], ranks.min("matrix"))
            np.testing.assert_array_equal(summary[f"{name}_high"], ranks.max("matrix"))
    expect_error(
        "two models are called 'bolt-nano'", ranks_by_model, [lenses[0], lenses[0]]
    )
