"""The kernel identity and the concentration bound, on random heads and on models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_lenses import fresh
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.probes import kernel_regression
from tsfm_lens.probes.kernel_regression import concentration_bound, equal_norm_weights, spectral_kernel
from tsfm_lens.testing import assert_close

Pair = tuple[torch.Tensor, torch.Tensor]


def draw(seed: int, n: int, m: int, d: int, r: int, size: float) -> tuple[torch.Tensor, torch.Tensor, Pair]:
    """Queries, keys, and the two factors of their product."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return normal(n, d), normal(m, d), (size * normal(d, r), normal(r, d).T / d)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 9), st.integers(2, 8), st.floats(0.01, 20))
def test_kernel_and_tilt_are_the_softmax(seed: int, n: int, m: int, d: int, size: float) -> None:
    queries, keys, product = draw(seed, n, m, d, max(1, d // 2), size)
    expected = torch.softmax(queries @ product[0] @ product[1].T @ keys.T, dim=-1)
    assert_close(spectral_kernel(queries, keys, product).weights, expected, depth=1000)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 9), st.integers(1, 8), st.floats(0.1, 5))
def test_attention_to_keys_of_one_length_is_a_gaussian_kernel(seed: int, n: int, m: int, d: int, length: float) -> None:
    """Against PyTorch's own attention, whose scores are divided by the root of the head's width."""
    queries, keys, _ = draw(seed, n, m, d, d, 1.0)
    keys = length * keys / keys.norm(dim=-1, keepdim=True)
    kernel, off = equal_norm_weights(queries, keys, d**0.5)
    attention = torch.nn.functional.scaled_dot_product_attention(
        queries[None], keys[None], torch.eye(m, dtype=torch.float64)[None]
    )[0]
    # scores of up to 100 are summed before the exponential
    assert_close(kernel, attention, depth=20 * d, magnitude=100.0)
    assert_close(off, torch.zeros(n, dtype=torch.float64), depth=20 * d, magnitude=100.0)


def test_keys_of_other_lengths_are_off_by_what_is_said() -> None:
    queries, keys, _ = draw(2, 4, 6, 5, 5, 1.0)
    kernel, off = equal_norm_weights(queries, keys, 1.0)
    attention = torch.softmax(queries @ keys.T, dim=-1)
    assert float(off.min()) > 0
    assert_close(off, (kernel - attention).abs().max(-1).values, depth=5, magnitude=1.0)
    with pytest.raises(InputError, match="variance 0"):
        equal_norm_weights(queries, keys, 0.0)


def test_the_bound_comes_with_what_it_is_made_of() -> None:
    queries, keys, product = draw(4, 6, 7, 6, 2, 30.0)
    found = concentration_bound(queries, keys, product, 2)
    at = found.applicable
    assert int(at.sum()) > 0
    whole = product[0] @ product[1].T
    scores = queries @ whole @ keys.T
    size, top = float(scores.abs().max()), scores.topk(2).values
    assert_close(found.margin, top[:, 0] - top[:, 1], depth=100, magnitude=size)
    # a d |S q| is the margin, by the definition of the angle
    stretched = (queries @ torch.linalg.svd(whole)[0] * torch.linalg.svd(whole)[1])[:, :2].norm(dim=-1)
    assert_close(found.alignment * found.distance * stretched, found.margin, depth=100, magnitude=size)
    # of a product of rank 2 nothing is cut off, so that the allowance is 0
    assert_close(found.bound[at], (6 * torch.exp(-found.margin))[at], depth=1000)
    assert_close(found.missing, 1 - torch.softmax(scores, dim=-1).max(-1).values, depth=100, magnitude=1.0)


def test_equal_lengths_leave_the_kernel_alone() -> None:
    queries, keys, _ = draw(1, 4, 6, 5, 5, 1.0)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    kernel = spectral_kernel(queries, keys, (torch.eye(5, dtype=torch.float64),) * 2)
    assert_close(float(kernel.log_tilt.std()), 0, depth=1000, magnitude=1.0)
    plain = torch.softmax(-0.5 * torch.cdist(queries, keys).square(), dim=-1)
    assert_close(kernel.weights, plain, depth=100)
    assert_close(kernel.bandwidth, torch.ones(5, dtype=torch.float64), depth=100)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 8), st.floats(0.1, 60))
def test_the_bound_holds_where_it_applies(seed: int, d: int, rank: int, size: float) -> None:
    queries, keys, product = draw(seed, 6, 7, d, d, size)
    found = concentration_bound(queries, keys, product, rank)
    held = found.missing <= found.bound * (1 + 1e-9) + 1e-12
    assert bool(held[found.applicable].all())
    assert bool(found.bound[~found.applicable].isnan().all())


def test_the_bound_applies_somewhere_and_is_no_tautology() -> None:
    found = [concentration_bound(*draw(seed, 6, 7, 6, 2, 30.0), 2) for seed in range(60)]
    assert sum(int(one.applicable.sum()) for one in found) > 100
    assert sum(int((one.bound < 1).sum()) for one in found) > 20


def test_one_aligned_key_of_a_rank_one_head() -> None:
    direction = torch.zeros(4, dtype=torch.float64)
    direction[0] = 1.0
    keys = torch.zeros(5, 4, dtype=torch.float64)
    keys[2, 0] = 1.0
    found = concentration_bound(3 * direction[None], keys, (direction[:, None], direction[:, None]))
    # scores are 3 for the aligned key and 0 for the four others
    assert float(found.margin) == pytest.approx(3)
    assert float(found.bound) == pytest.approx(4 * np.exp(-3))
    assert float(found.missing) == pytest.approx(4 / (4 + np.exp(3)))


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "t5"])
def test_heads_of_the_t5_family(name: str) -> None:
    lens = fresh(name)
    own = getattr(lens.adapter, "example", None)
    found = kernel_regression(lens.run(own(0, 40) if own else bundled("co2").tail(40), 4))
    assert float(found["identity_error"].max()) < 1e-4
    applicable = found["applicable"].values
    assert (found["missing"].values[applicable] <= found["bound"].values[applicable] * (1 + 1e-6) + 1e-9).all()
    assert (found["tilt_share"] >= 0).all()
    np.testing.assert_array_equal(found["vacuous"], ~(found["bound"] < 1))
    np.testing.assert_array_equal(found["slack"], found["bound"] - found["missing"])
    assert float(found["vacuous_share"]) == pytest.approx(float(found["vacuous"].mean()))
    assert found.attrs["beta"] == 1


def test_other_models_and_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="cross-attention"):
        kernel_regression(fresh("timesfm-2.5").run(bundled("co2").tail(40)))
    queries, keys, product = draw(0, 2, 3, 4, 4, 1.0)
    with pytest.raises(InputError, match="rank"):
        concentration_bound(queries, keys, product, 0)
    with pytest.raises(InputError, match="two keys"):
        concentration_bound(queries, keys[:1], product)
