"""Measures of attention against known answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.core.ranks import epsilon_rank
from tsfm_lens.data import bundled
from tsfm_lens.testing import assert_close
from tsfm_lens.training import (
    Watch,
    attention_measures,
    attention_norms,
    compute_patterns,
)


def softmaxed(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype).mul(3).softmax(-1)


def test_measures_agree_with_brute_force() -> None:
    """Every measure is that of a computation by brute force."""
    patterns = softmaxed(2, 3, 6, 6)
    found = attention_measures(patterns, epsilon=0.3)
    for position in itertools.product(range(2), range(3)):
        one = patterns[position]
        # eigenvalues of AᵀA, from another routine than singular values
        squares = torch.linalg.eigvalsh(one.T @ one).clamp_min(0)
        assert_close(
            found["nuclear_norm"][position], squares.sqrt().sum(), depth=10_000
        )
        assert_close(
            found["stable_rank"][position],
            one.square().sum() / squares.max(),
            depth=1000,
        )
        assert_close(found["diagonal_mass"][position], one.trace() / 6, depth=100)
        assert_close(
            found["entropy"][position], -(one * one.log()).sum(-1).mean(), depth=100
        )
        assert found["numerical_rank"][position] == epsilon_rank(
            squares.sqrt().numpy(), 0.3
        )


def test_rectangular_and_masked_patterns() -> None:
    assert np.isnan(attention_measures(softmaxed(3, 5))["diagonal_mass"])
    causal = torch.tril(torch.ones(4, 4)).double()
    causal /= causal.sum(-1, keepdim=True)
    assert_close(
        attention_measures(causal)["entropy"],
        np.mean(np.log(np.arange(1, 5))),
        depth=100,
    )


@pytest.mark.parametrize(
    ("pattern", "epsilon", "message"),
    [
        (torch.ones(3), 0.1, r"shape \(3,\)"),
        (torch.ones(0, 3), 0.1, "at least one"),
        (torch.full((2, 2), torch.nan), 0.1, "entry below 0 or none"),
        (-torch.eye(2), 0.1, "entry below 0"),
        (torch.eye(2), 0.0, "epsilon is 0.0"),
    ],
)
def test_what_is_no_attention_is_refused(
    pattern: Tensor, epsilon: float, message: str
) -> None:
    expect_error(message, attention_measures, pattern, epsilon=epsilon)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_lens_gives_patterns_of_all_heads(name: str) -> None:
    """A lens gives the attention patterns of every head."""
    lens = lens_of(name)
    series = bundled("co2").tail(64)
    found = compute_patterns(lens, series)
    seen = Watch(lens, patterns=lambda: compute_patterns(lens, series), every=1)(0)
    assert seen is not None
    assert seen["attention"].keys() == found.keys()
    _, retained = lens.run_with_cache(series, names_filter="**.hook_pattern")
    assert len(found) == len(retained)
    assert all(
        torch.equal(*pair)
        for pair in zip(
            found.values(), (retained[name] for name in retained), strict=True
        )
    )
    norms = attention_norms(found, name="x")
    layer = "encoder.1.self_attn"
    head = 1
    expected = torch.linalg.matrix_norm(found[layer][0, head].double(), "nuc")
    assert_close(
        norms["nuclear_norm"].sel(layer=layer, head=head, input=0).item(),
        expected,
        depth=5000,
    )
    assert norms["n_keys"].sel(layer=layer) == found[layer].shape[-1]


def test_layers_of_different_sizes_combine() -> None:
    """Layers of different sizes stand side by side."""
    norms = attention_norms({"a": softmaxed(2, 3, 4, 4), "b": softmaxed(1, 5, 6)})
    assert dict(norms.sizes) == {"layer": 2, "head": 3, "input": 2}
    assert np.isfinite(norms["entropy"].sel(layer="a").values).all()
    assert np.isfinite(norms["entropy"].sel(layer="b").values).sum() == 1
    for wrong, text in (
        ({}, "no attention"),
        ({"a": torch.ones(2, 2)}, r"shape \(2, 2\)"),
        ({"a": 1}, "int"),
    ):
        expect_error(text, attention_norms, wrong)  # type: ignore[arg-type]
