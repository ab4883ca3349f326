"""Spectra, entropic rank, similarities and kernel regression against known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import entropy as scipy_entropy

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, fresh, lens_of
from tsfm_lens.data import as_series, bundled
from tsfm_lens.probes import (
    entropic_rank,
    head_spectra,
    kernel_regression,
)
from tsfm_lens.probes.kernel_regression import concentration_bound, spectral_kernel
from tsfm_lens.probes.similarity import head_entropy_of_writes, linear_cka
from tsfm_lens.probes.weights import stable_rank
from tsfm_lens.testing import assert_close


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1, 1, 1], 4.0),
        ([3, 0, 0], 1.0),
        ([2, 1], 1.25),
        ([2e-200, 1e-200], 1.25),
        ([2e200, 1e200], 1.25),
    ],
)
def test_stable_rank_of_known_spectra(values: list[float], expected: float) -> None:
    assert stable_rank(np.array(values, dtype=float)) == pytest.approx(expected)
    assert np.isnan(stable_rank(np.zeros(3)))


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_head_spectra_equal_dense_products(name: str) -> None:
    """Spectra of every head are those of the dense products."""
    lens = lens_of(name)
    found = head_spectra(lens)
    kind = lens.wiring.output_stack.attention_kinds()[-1]
    for layer in found["layer"].values:
        weights = lens.weights.heads(int(layer), kind)
        for product, dense in (("QK", weights.W_QK.AB), ("OV", weights.W_OV.AB)):
            values = torch.linalg.svdvals(dense.detach().double())[
                :, : found.sizes["mode"]
            ]
            ours = found["singular_value"].sel(product=product, layer=layer).values
            close_in_float32(ours, values.numpy())
    ranks = found["stable_rank"].values
    assert ((ranks >= 1) & (ranks <= found.sizes["mode"])).all()
    ordered = np.take_along_axis(ranks, found["order"].values.argsort(axis=-1), axis=-1)
    assert (np.diff(ordered, axis=-1) >= 0).all()


def test_entropic_rank_of_known_arrangements() -> None:
    eye = np.eye(12, 20)
    line = np.outer(np.arange(1, 13) * (-1) ** np.arange(12), np.ones(20))
    twins = eye.copy()
    silent = eye.copy()
    twins[1] = -3 * twins[0]
    silent[3] = 0
    at_60_degrees = np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)]])
    for writes, expected in (
        (eye, 12),
        (line, 1),
        (twins, 10.9345),
        (silent, 11),
        (at_60_degrees, 1.92862),
    ):
        rank = head_entropy_of_writes(torch.tensor(writes)).exp()
        close_in_float32(rank, expected, depth=200)


@pytest.mark.parametrize("name", ["timesfm-2.5", "chronos-2"])
def test_entropic_rank_pools_all_tokens(name: str) -> None:
    """By the definition, from the states and rows of W_O, over the tokens of series of
    two lengths.
    """
    lens = lens_of(name)
    generator = np.random.default_rng(3)
    series = [generator.normal(size=size).cumsum() for size in (40, 100)]
    run = lens.run(as_series(series), 6)
    found = entropic_rank(run)
    stack = lens.wiring.output_stack
    kind = str(found.attrs["attention"])
    visible = run.encoded.shown(stack.name)
    assert_array_equal(found["tokens"], visible.sum(1))
    assert len(set(found["tokens"].values.tolist())) == 2
    for layer in found["layer"].values:
        point = f"{stack.prefix}.{layer}.{kind}.hook_z"
        states = run.record([point])[point][visible]
        weights = lens.weights.heads(int(layer), kind, stack.name).W_O
        written = torch.einsum("phd,hdm->phm", states, weights).detach().double()
        unit = torch.nn.functional.normalize(written, dim=-1)
        entropy = scipy_entropy(np.linalg.svd(unit.numpy(), compute_uv=False), axis=-1)
        close_in_float32(found["rank"].sel(layer=layer), np.exp(entropy.mean()))


def test_cka_of_known_representations() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6))
    other = rng.normal(size=(50, 9))
    turned = 3 * x @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + 5
    given = (x, turned, other, np.ones((50, 2)))
    found = linear_cka([torch.tensor(item) for item in given])
    assert found[0, 1] == pytest.approx(1)
    assert 0 < found[0, 2] < 0.6
    assert np.isnan(found[0, 3])
    assert_allclose(found[:3, :3], found[:3, :3].T)


Pair = tuple[torch.Tensor, torch.Tensor]


def draw(
    seed: int, n: int, m: int, d: int, r: int, size: float
) -> tuple[torch.Tensor, torch.Tensor, Pair]:
    """Queries, keys, and the two factors of their product."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return normal(n, d), normal(m, d), (size * normal(d, r), normal(r, d).T / d)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(2, 9),
    st.integers(2, 8),
    st.floats(0.01, 20),
)
def test_kernel_and_tilt_are_the_softmax(
    seed: int, n: int, m: int, d: int, size: float
) -> None:
    queries, keys, product = draw(seed, n, m, d, max(1, d // 2), size)
    expected = torch.softmax(queries @ product[0] @ product[1].T @ keys.T, dim=-1)
    assert_close(spectral_kernel(queries, keys, product)[2], expected, depth=1000)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 8), st.floats(0.1, 60))
def test_the_bound_holds_where_it_applies(
    seed: int, d: int, rank: int, size: float
) -> None:
    queries, keys, product = draw(seed, 6, 7, d, d, size)
    found = concentration_bound(queries, keys, product, rank)
    held = found["missing"] <= found["bound"] * (1 + 1e-9) + 1e-12
    assert bool(held[found["applicable"]].all())
    assert bool(found["bound"][~found["applicable"]].isnan().all())


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "t5"])
def test_heads_of_the_t5_family(name: str) -> None:
    lens = fresh(name)
    example = getattr(lens.adapter, "example", None)
    found = kernel_regression(
        lens.run(example(0, 40) if example else bundled("co2").tail(40), 4)
    )
    assert float(found["identity_error"].max()) < 1e-4
    applicable = found["applicable"].values
    assert (
        found["missing"].values[applicable]
        <= found["bound"].values[applicable] * (1 + 1e-6) + 1e-9
    ).all()
    assert (found["tilt_share"] >= 0).all()
    assert_array_equal(found["vacuous"], ~(found["bound"] < 1))
    assert found.attrs["beta"] == 1


def test_other_models_and_inputs_are_refused() -> None:
    queries, keys, product = draw(0, 2, 3, 4, 4, 1.0)
    expect_error("rank", concentration_bound, queries, keys, product, 0)
    expect_error("two keys", concentration_bound, queries, keys[:1], product)
