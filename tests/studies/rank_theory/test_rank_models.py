"""Vocabularies, spectra by patch size and ranks by model, against planted and hand-made ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from tiny_lenses import fresh
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import embedding_ranks, weight_ranks
from tsfm_lens.studies.rank_theory import (
    ChebyshevEmbedding,
    ResidualMlpEmbedding,
    ranks_by_model,
    spectra_by_patch,
    vocabulary_plane,
)
from tsfm_lens.testing import assert_close


def planted_vocabulary(lens: Lens, sizes: tuple[float, float]) -> np.ndarray:
    """An ellipse through the tokens in a plane of the stream; (token, 2) where they lie."""
    table = lens.model.shared.weight
    turn = np.linspace(0, np.pi, len(table), endpoint=False)
    circle = np.stack([np.cos(2 * turn), np.sin(2 * turn)], axis=1) * sizes
    plane = np.linalg.qr(np.random.default_rng(0).normal(size=(table.shape[1], 2)))[0]
    with torch.no_grad():
        table.copy_(torch.tensor(circle @ plane.T))
    return circle


def test_a_planted_curve_is_found_in_the_plane() -> None:
    lens = fresh("t5")
    circle = planted_vocabulary(lens, (3.0, 1.0))
    found = vocabulary_plane(lens)
    # up to the sign of each direction
    assert_close(np.abs(found["coordinate"].values), np.abs(circle), depth=300, dtype=np.float32)
    assert_close(found["share"].values, np.array([0.9, 0.1]), depth=300, dtype=np.float32)
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
        table.copy_(table[torch.randperm(tokens, generator=torch.Generator().manual_seed(0))].clone())
    assert 0.5 < float(vocabulary_plane(lens)["neighbour_ratio"]) < 2


def test_bins_have_their_values_and_special_tokens_are_left_out() -> None:
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
    with pytest.raises(InputError, match="bolt-nano embeds patches"):
        vocabulary_plane(load("bolt-nano"))


def test_random_embeddings_have_the_directions_of_their_patches() -> None:
    lens = load("bolt-nano")
    other = load("chronos-nano")
    runs = [lens.run(bundled("co2"), 8), other.run(bundled("co2"), 8)]
    found = spectra_by_patch(runs, patches=(1, 8), epsilon=[0.1, 0.01], seed=3)
    assert found["embedding"].values.tolist() == ["bolt-nano", "chronos-nano", "random, patch 1", "random, patch 8"]
    assert found["patch"].values.tolist() == [4, 1, 1, 8]
    width = lens.cfg.d_model
    # random ones are as wide as the first model
    assert found["width"].values.tolist() == [width, other.cfg.d_model, width, width]
    # a network of single steps that is linear on either side of zero
    assert found["epsilon_rank"].sel(embedding="random, patch 1").values.tolist() == [2, 2]
    tokens = ResidualMlpEmbedding.random(width, 8, seed=3).embed(np.random.default_rng(3).normal(size=(8, 2 * width)))
    assert_close(
        found["singular_value"].sel(embedding="random, patch 8").dropna("mode").values,
        np.linalg.svd(tokens, compute_uv=False),
        depth=300,
    )
    noise = embedding_ranks(runs[0], epsilon=[0.1, 0.01], seed=3).sel(family="white noise")
    own = found.sel(embedding="bolt-nano")
    np.testing.assert_array_equal(own["epsilon_rank"], noise["epsilon_rank"])
    assert_close(own["singular_value"].values, noise["singular_value"].values, depth=1000, dtype=np.float32)
    for patches, given in (((0,), runs), ((1,), [])):
        with pytest.raises(InputError, match="expected one run or more"):
            spectra_by_patch(given, patches=patches)
    text = fresh("t5")
    with pytest.raises(InputError, match="reads text"):
        spectra_by_patch(text.run([np.full(20, 7.0)], 2))


def test_ranks_of_several_models_are_the_means_of_each() -> None:
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
            own = found.sel(model=lens.model_id)
            assert_close(own[name].values, ranks.mean("matrix").values, depth=100)
            np.testing.assert_array_equal(own[f"{name}_low"], ranks.min("matrix"))
            np.testing.assert_array_equal(own[f"{name}_high"], ranks.max("matrix"))
    with pytest.raises(InputError, match="two models are called 'bolt-nano'"):
        ranks_by_model([lenses[0], lenses[0]])
    with pytest.raises(InputError, match="there is no model"):
        ranks_by_model([])


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_planted_embedding_of_prescribed_rank_is_found(rank: int) -> None:
    """A vocabulary made of Chebyshev polynomials has their number as its rank, and every series at most that."""
    lens = fresh("t5")
    table = lens.model.shared.weight
    values = np.linspace(-15, 15, len(table))
    planted = ChebyshevEmbedding.random(lens.d_model, rank).embed(values[None])
    with torch.no_grad():
        table.copy_(torch.tensor(planted.T))
    found = embedding_ranks(lens.run(lens.adapter.example(1, 40), 6, num_samples=2), epsilon=1e-5)
    ranks = found["epsilon_rank"].sel(epsilon=1e-5).to_series()
    assert ranks["vocabulary"] == rank
    assert ranks["own series"] == ranks["random ids"] == rank
    dense = np.linalg.svd(table.detach().double().numpy(), compute_uv=False)
    assert_close(found["singular_value"].sel(family="vocabulary").dropna("mode"), dense[: lens.d_model], depth=100)
