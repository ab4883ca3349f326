"""Structure of scoring forms: planted forms stand out, random weights do not, and every architecture has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom, t

from tiny_lenses import ATTENDING, fresh, lens_of
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import Lens
from tsfm_lens.probes import head_spectra
from tsfm_lens.stats import CONFIDENCE
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.structured import scoring_structure
from tsfm_lens.studies.structured.figures import read_scoring_errors, scoring_errors
from tsfm_lens.testing import assert_close, rounding

CHEAP = {"draws": 3, "sweeps": 1}


def planted(queries: torch.Tensor, keys: torch.Tensor) -> Lens:
    """A tiny model, the first head of whose first encoder layer has these W_Q and W_K, (d_model, d_head)."""
    lens = fresh("chronos-bolt")
    attention = lens.model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        attention.q.weight[: queries.shape[1]] = queries.T
        attention.k.weight[: keys.shape[1]] = keys.T
    return lens


def widths() -> tuple[int, int]:
    heads = fresh("chronos-bolt").weights.heads(0, "self_attn", "encoder")
    return heads.W_Q.shape[1], heads.W_Q.shape[2]


@pytest.mark.parametrize("name", ATTENDING)
def test_every_architecture_has_the_forms_of_its_dense_matrices(name: str) -> None:
    lens = lens_of(name)
    found = scoring_structure(lens, budget=(0.5, 1.0), **CHEAP)
    assert found.sizes["component"] == sum(
        stack.n_heads * len(list(stack.attentions(layer)))
        for stack in lens.wiring.stacks
        for layer in range(stack.n_layers)
    )
    column = lens.wiring.output_stack
    spectra = head_spectra(lens, products=["QK"])["stable_rank"].values.ravel()
    own = (found["stack"] == column.name) & (
        found["kind"] == column.attention_kinds()[-1]
    )
    assert_close(found["stable_rank"].values[own.values], spectra, depth=1000)
    # a head is low rank itself, so at its own size nothing is missing
    assert (
        found["error"].sel(budget=1.0, structure="low rank")
        < rounding("float64", 1.0, depth=1000)
    ).all()
    # and no structure takes more numbers
    assert (found["numbers"] <= found["numbers"].sel(structure="low rank")).all()
    head = found.isel(component=int(np.flatnonzero(own.values)[0]))
    weights = lens.weights.heads(
        int(head["layer_index"]), str(head["kind"].values), column.name
    )
    dense = (weights.W_Q[0].double() @ weights.W_K[0].double().T).detach().numpy()
    values = np.linalg.svd(dense, compute_uv=False)
    rank = int(head["numbers"].sel(budget=0.5, structure="low rank")) // sum(
        dense.shape
    )
    expected = np.linalg.norm(values[rank:]) / np.linalg.norm(values)
    assert_close(
        head["error"].sel(budget=0.5, structure="low rank").values,
        expected,
        depth=10_000,
        magnitude=1.0,
    )
    # one stack or several, and attention to itself or across
    if name in ("chronos-bolt", "toto-2"):
        assert (
            scoring_errors(found)
            .layout.meta["title"]
            .startswith("Structure of the scoring forms")
        )


def test_a_planted_block_diagonal_form_has_no_error_and_stands_out_in_its_order_and_basis() -> (
    None
):
    d_model, d_head = widths()
    blocks = rank_theory.structure_sizes(d_model, d_model, max(d_head // 2, 1)).blocks
    generator = torch.Generator().manual_seed(0)
    queries = torch.zeros(d_model, d_head)
    rows = d_model // blocks
    for column in range(d_head):
        start = column % blocks * rows
        queries[start : start + rows, column] = torch.randn(rows, generator=generator)
    found = scoring_structure(planted(queries, queries), stack="encoder").isel(
        component=0, budget=0
    )
    assert float(found["error"].sel(structure="block diagonal")) < rounding(
        "float32", 1.0, depth=100
    )
    assert_close(found["block_share"].sel(level=blocks).values, 1.0, depth=1000)
    stands = found["gain_significant"].sel(structure="block diagonal")
    assert stands.sel(null="rotated")
    assert stands.sel(null="shuffled")
    assert not found["gain_significant"].sel(structure="low rank", null="rotated")


def test_a_form_with_a_basis_but_no_order_is_told_from_one_with_an_order() -> None:
    d_model, d_head = widths()
    queries = torch.zeros(d_model, d_head)
    queries[
        torch.randperm(d_model, generator=torch.Generator().manual_seed(1))[:d_head],
        range(d_head),
    ] = 1.0
    found = scoring_structure(planted(queries, queries), stack="encoder").isel(
        component=0, budget=0
    )
    stands = found["gain_significant"].sel(structure="block tensor train")
    assert stands.sel(null="rotated")
    assert not stands.sel(null="shuffled")


def test_random_weights_have_no_more_findings_than_the_level_allows() -> None:
    lens = fresh("chronos-bolt")
    models, found = 8, 0
    for seed in range(models):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in lens.model.encoder.named_parameters():
                if name.endswith(("q.weight", "k.weight")):
                    weight.copy_(torch.randn(weight.shape, generator=generator))
        result = scoring_structure(lens, stack="encoder", seed=seed, sweeps=2)
        found += bool(result["gain_significant"].any())
    # 1 in 10,000 tests of a true level would have more
    assert found <= binom.ppf(1 - 1e-4, models, 1 - CONFIDENCE)


def test_the_interval_is_that_of_a_further_draw() -> None:
    found = scoring_structure(fresh("chronos-bolt"), stack="encoder", draws=5)
    gains = (found["null_error"] - found["error"]).sel(structure="block tensor train")
    reach = t.ppf(0.975, 4) * gains.std("draw", ddof=1) * np.sqrt(1 + 1 / 5)
    ours = found.sel(structure="block tensor train")
    order = ours["gain_high"].dims
    expected = (gains.mean("draw") + reach).transpose(*order)
    assert_close(ours["gain_high"].values, expected.values, depth=10_000, magnitude=1.0)


def test_a_head_of_zeros_has_no_error_and_is_no_finding() -> None:
    d_model, d_head = widths()
    found = scoring_structure(
        planted(torch.zeros(d_model, d_head), torch.zeros(d_model, d_head)), **CHEAP
    )
    first = found.isel(component=0)
    assert np.isnan(first["error"]).all()
    assert not first["gain_significant"].any()
    assert np.isfinite(found["error"].isel(component=1)).all()
    assert scoring_errors(found)
    assert "norm" in read_scoring_errors(found)[0]


def test_what_cannot_be_is_refused() -> None:
    d_model, d_head = widths()
    for options in (
        {"budget": 1.5},
        {"budget": []},
        {"draws": 2},
        {"levels": 0},
        {"sweeps": 0},
        {"epsilon": 2.0},
    ):
        with pytest.raises(InputError):
            scoring_structure(fresh("chronos-bolt"), **options)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError):
        scoring_structure(
            planted(torch.zeros(d_model, d_head), torch.zeros(d_model, d_head)),
            stack="encodr",
        )
    with pytest.raises(InputError, match=r"encoder\.0\.self_attn"):
        scoring_structure(
            planted(
                torch.full((d_model, d_head), torch.nan), torch.zeros(d_model, d_head)
            )
        )


def test_rotations_leave_low_rank_alone_and_nulls_have_the_errors_of_their_own_forms() -> (
    None
):
    found = scoring_structure(fresh("chronos-bolt"), **CHEAP)
    low = found.sel(structure="low rank")
    for null in ("rotated", "shuffled"):
        missing = np.abs(low["null_error"].sel(null=null) - low["error"]).max()
        assert float(missing) < rounding("float64", 1.0, depth=1000)
    assert (
        float(
            np.abs(
                found["gain"].sel(null="rotated", structure="block tensor train")
            ).max()
        )
        > 1e-4
    )
