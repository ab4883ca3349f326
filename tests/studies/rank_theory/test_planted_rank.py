"""A vocabulary of prescribed rank is found by the probe of embeddings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsfm_lens import load
from tsfm_lens.models.architecture import architectures
from tsfm_lens.probes import embedding_ranks
from tsfm_lens.studies.rank_theory import ChebyshevEmbedding
from tsfm_lens.testing import assert_close


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_planted_embedding_of_prescribed_rank_is_found(rank: int) -> None:
    """A vocabulary made of Chebyshev polynomials has their number as its rank, and every series at most that."""
    lens = load(architectures()["t5"].tiny(), check=False)
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
