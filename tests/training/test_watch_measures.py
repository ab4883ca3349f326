"""Measures of attention against known answers; slices through losses, and weights that come back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.models import load
from tsfm_lens.models.wirings import chronos, chronos_bolt
from tsfm_lens.ranks import epsilon_rank
from tsfm_lens.testing import assert_close
from tsfm_lens.training import (
    Watch,
    attention_measures,
    attention_norms,
    filter_normalised,
    loss_landscape,
    patterns_of,
)


def softmaxed(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype).mul(3).softmax(-1)


def test_every_measure_is_that_of_brute_force() -> None:
    patterns = softmaxed(2, 3, 6, 6)
    found = attention_measures(patterns, epsilon=0.3)
    for place in itertools.product(range(2), range(3)):
        one = patterns[place]
        # eigenvalues of AᵀA, from another routine than singular values
        squares = torch.linalg.eigvalsh(one.T @ one).clamp_min(0)
        assert_close(found["nuclear_norm"][place], squares.sqrt().sum(), depth=10_000)
        assert_close(found["stable_rank"][place], one.square().sum() / squares.max(), depth=1000)
        assert_close(found["diagonal_mass"][place], one.trace() / 6, depth=100)
        assert_close(found["entropy"][place], -(one * one.log()).sum(-1).mean(), depth=100)
        assert found["numerical_rank"][place] == epsilon_rank(squares.sqrt().numpy(), 0.3)


def test_rectangular_and_masked_patterns() -> None:
    assert np.isnan(attention_measures(softmaxed(3, 5))["diagonal_mass"])
    causal = torch.tril(torch.ones(4, 4)).double()
    causal /= causal.sum(-1, keepdim=True)
    assert_close(attention_measures(causal)["entropy"], np.mean(np.log(np.arange(1, 5))), depth=100)


@pytest.mark.parametrize(
    ("pattern", "epsilon", "words"),
    [
        (torch.ones(3), 0.1, r"shape \(3,\)"),
        (torch.ones(0, 3), 0.1, "at least one"),
        (torch.full((2, 2), torch.nan), 0.1, "entry below 0 or none"),
        (-torch.eye(2), 0.1, "entry below 0"),
        (torch.eye(2), 0.0, "epsilon is 0.0"),
    ],
)
def test_what_is_no_attention_is_refused(pattern: Tensor, epsilon: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        attention_measures(pattern, epsilon=epsilon)


@pytest.mark.parametrize("wiring", [chronos, chronos_bolt], ids=["chronos", "chronos-bolt"])
def test_a_lens_gives_the_patterns_of_every_head(wiring: ModuleType) -> None:
    lens = load(wiring.ARCHITECTURE.tiny())
    series = bundled("co2").tail(64)
    found = patterns_of(lens, series)
    seen = Watch(lens, series=series, every=1)(0)
    assert seen is not None
    assert seen["attention"].keys() == found.keys()
    _, kept = lens.run_with_cache(series, names_filter="**.hook_pattern")
    assert len(found) == len(kept)
    assert all(torch.equal(*pair) for pair in zip(found.values(), (kept[name] for name in kept), strict=True))
    norms = attention_norms(found, name="x")
    layer, head = "encoder.1.self_attn", 1
    expected = torch.linalg.matrix_norm(found[layer][0, head].double(), "nuc")
    assert_close(norms["nuclear_norm"].sel(layer=layer, head=head, input=0).item(), expected, depth=5000)
    assert norms["n_keys"].sel(layer=layer) == found[layer].shape[-1]


def test_layers_of_other_sizes_stand_side_by_side() -> None:
    norms = attention_norms({"a": softmaxed(2, 3, 4, 4), "b": softmaxed(1, 5, 6)})
    assert dict(norms.sizes) == {"layer": 2, "head": 3, "input": 2}
    assert np.isfinite(norms["entropy"].sel(layer="a").values).all()
    assert np.isfinite(norms["entropy"].sel(layer="b").values).sum() == 1
    for wrong, words in (({}, "no attention"), ({"a": torch.ones(2, 2)}, r"shape \(2, 2\)"), ({"a": 1}, "int")):
        with pytest.raises(InputError, match=words):
            attention_norms(wrong)  # type: ignore[arg-type]


def bowl() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(9, 3), torch.randn(9, 1)
    return model, lambda: (model(x) - y).square().mean()


def bits(model: nn.Module) -> list[tuple[int, bytes]]:
    """Where the weights lie, and what stands there."""
    return [(weight.data_ptr(), weight.detach().numpy().tobytes()) for weight in model.parameters()]


@pytest.mark.parametrize("axes", [1, 2])
def test_a_slice_is_the_loss_at_moved_weights(axes: int) -> None:
    model, loss = bowl()
    before, weights = bits(model), [weight.detach().clone() for weight in model.parameters()]
    random = [[torch.randn_like(weight) for weight in weights] for _ in range(axes)]
    found = loss_landscape(loss, model, directions=random, span=0.7, points=5)
    assert bits(model) == before
    assert found["loss"][(2,) * axes] == found.attrs["centre"] == float(loss().detach())
    directions = [filter_normalised(direction, weights) for direction in random]
    at = found["first"].values
    for place in np.ndindex(*[5] * axes):
        with torch.no_grad():
            for index, (weight, former) in enumerate(zip(model.parameters(), weights, strict=True)):
                weight.copy_(former + sum(at[p] * d[index] for p, d in zip(place, directions, strict=True)))
            expected = loss()
        assert_close(found["loss"].values[place], expected, depth=200, dtype=torch.float32)


def test_directions_are_as_long_as_the_filters_and_leave_biases_alone() -> None:
    weights = [torch.randn(3, 2, 4), torch.randn(5), torch.zeros(2, 2), torch.randn(2, 6)]
    random = [torch.randn_like(weight) for weight in weights]
    random[3][1] = 0
    found = filter_normalised(random, weights)
    for filters, weight, direction in zip(found, weights, random, strict=True):
        if weight.ndim < 2:
            assert not filters.any()
            continue
        for one, of, along in zip(filters, weight, direction, strict=True):
            assert_close(one.norm(), of.norm() if along.any() else 0.0, depth=100, magnitude=10.0, dtype=torch.float32)
            assert_close(one * along.norm(), along * one.norm(), depth=100)
    with pytest.raises(InputError, match=r"\(2, 2\) where the weights have \(3, 2, 4\)"):
        filter_normalised([torch.ones(2, 2)], weights)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_weights_come_back_to_the_bit_whatever_happens(error: type[BaseException]) -> None:
    model, loss = bowl()
    before, rng = bits(model), torch.get_rng_state()
    calls = itertools.count()

    def broken() -> Tensor:
        torch.rand(1)
        if next(calls) == 7:
            raise error
        return loss()

    with pytest.raises(error):
        loss_landscape(broken, model, points=5)
    assert bits(model) == before
    assert torch.equal(rng, torch.get_rng_state())


def test_slices_that_cannot_be_are_refused() -> None:
    model, loss = bowl()
    for options, words in (
        ({"axes": 3}, "axes=3"),
        ({"points": 1}, "points=1"),
        ({"span": 0.0}, "span=0.0"),
        ({"directions": []}, "0 directions"),
        ({"directions": [[torch.ones(1)]]}, "expected a tensor a weight"),
    ):
        with pytest.raises(InputError, match=words):
            loss_landscape(loss, model, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the loss is nan"):
        loss_landscape(lambda: torch.tensor(torch.nan), model)
    # far away a loss may be anything
    weight = torch.ones(1, 1, requires_grad=True)
    far = loss_landscape(lambda: torch.log(weight.sum()), [weight], axes=1, span=2.0, points=3)
    assert np.isnan(far["loss"]).sum() == 1
