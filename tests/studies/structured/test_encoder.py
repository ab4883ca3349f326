"""Transformers with structured scores: every oracle on every form, regression in context, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError, WiringError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.studies.structured import (
    BilinearLevels,
    BilinearTrain,
    Encoder,
    ForecasterAdapter,
    InContextRegressor,
    PatchForecaster,
    ScoringForm,
    Standard,
    TokenLevels,
    as_lens,
)
from tsfm_lens.testing import assert_close, check_wiring

WIDTH, HEADS, LAYERS = 12, 2, 2

FORMS: dict[str, tuple[ScoringForm, ...]] = {
    "standard": (Standard(),),
    "window and global": (Standard(window=3), Standard()),
    "token levels": (TokenLevels((3, 2, 2), by_depth=True),),
    "bilinear levels": (BilinearLevels((4, 3, 1), norm=True),),
    "bilinear levels, keys": (BilinearLevels((2, 1), order="keys"),),
    "bilinear train": (BilinearTrain(),),
    "bilinear train, keys, and standard": (BilinearTrain(rank=2, norm=True), Standard()),
}


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    """Weights so large that every head moves the forecast."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                weight.copy_(draw * (1.0 if "factor" in name else 1.5 * weight.shape[-1] ** -0.5))
            else:
                weight.copy_(1 + 0.2 * draw if "norm" in name and "weight" in name else 0.1 * draw)
    return model.eval()


def forecaster(name: str, *, causal: bool = True) -> PatchForecaster:
    encoder = Encoder(WIDTH, LAYERS, HEADS, FORMS[name], d_mlp=20, causal=causal)
    made = drawn(PatchForecaster(encoder, WIDTH, patch=4, context_length=64, prediction_length=7))
    assert isinstance(made, PatchForecaster)
    return made


@pytest.mark.parametrize("name", FORMS)
def test_every_oracle_holds(name: str) -> None:
    results = check_wiring(ForecasterAdapter, forecaster(name, causal=name != "token levels"), quiet=True)
    assert all(result.passed for result in results), [result for result in results if not result.passed]


@pytest.mark.parametrize("name", FORMS)
def test_a_pattern_put_in_by_hand_makes_the_output(name: str) -> None:
    """With the pattern of a head made even over what it may see, z is the mean of those values."""
    lens = as_lens(forecaster(name))
    series = bundled("co2").tail(64)

    def even(pattern: Tensor) -> Tensor:
        seen = (pattern > 0).to(pattern)
        return seen / seen.sum(-1, keepdim=True)

    with lens.edit(EditPattern("0.attn.1", even)):
        _, acts = lens.run_with_cache(series)
    pattern, v = acts["blocks.0.attn.hook_pattern"][:, 1], acts["blocks.0.attn.hook_v"][:, :, 1]
    allowed = (acts["blocks.0.attn.hook_attn_scores"][:, 1] > float("-inf")).to(v)
    assert_close(pattern, allowed / allowed.sum(-1, keepdim=True), depth=20)
    assert_close(acts["blocks.0.attn.hook_z"][:, :, 1], pattern @ v, depth=64)


def test_a_table_with_another_number_of_score_features_is_refused() -> None:
    class Wrong(ForecasterAdapter):
        def __init__(self, native: PatchForecaster) -> None:
            super().__init__(native)
            (stack,) = self.wiring.stacks
            rows = (replace(stack.writers[0], d_score=0), *stack.writers[1:])
            self.wiring = replace(self.wiring, stacks=(replace(stack, writers=rows),))

    with pytest.raises(WiringError, match=r"attn: q: the weight .*n_heads=2, d_head=6"):
        check_wiring(Wrong, forecaster("bilinear train"), quiet=True)


@pytest.mark.parametrize("form", [Standard(), TokenLevels((4, 2)), BilinearTrain(), BilinearLevels((2, 1))])
def test_regression_learns(form: ScoringForm) -> None:
    """A few steps on one batch lower its loss for every form: gradients reach what they should."""
    torch.manual_seed(0)
    model = InContextRegressor(2, 5, Encoder(WIDTH, 1, HEADS, form), WIDTH)
    x, w = torch.randn(16, 5, 2), torch.randn(16, 2, 1)
    y = (x @ w)[..., 0]
    losses = []
    for _ in range(40):
        model.zero_grad()
        loss = (model(x, y) - y).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for part in model.parameters():
                part -= 0.01 * part.grad.sign()
    assert losses[-1] < 0.7 * losses[0]
    assert all(part.grad is not None and part.grad.any() for part in model.encoder.parameters())


def test_a_forecast_is_in_the_units_of_the_data() -> None:
    model = forecaster("token levels")
    context = bundled("co2").tail(64).values[0]
    lens = as_lens(model)
    plain, moved = (lens.forecast(values, 7).quantiles for values in (context, 10 * context + 3))
    assert_close(moved, 10 * plain + 3, depth=400, dtype=torch.float32)


def test_what_does_not_fit_is_refused_by_name() -> None:
    encoder = Encoder(WIDTH, 1, HEADS, Standard(), causal=False)
    with pytest.raises(InputError, match="not causal"):
        InContextRegressor(2, 4, encoder, WIDTH)
    with pytest.raises(InputError, match="no multiple of the patch of 4; the nearest is 32"):
        PatchForecaster(encoder, WIDTH, patch=4, context_length=30, prediction_length=2)
    model = PatchForecaster(encoder, WIDTH, patch=4, context_length=32, prediction_length=2)
    with pytest.raises(InputError, match="40 steps, expected 32"):
        model(torch.zeros(1, 40))
    with pytest.raises(UnknownNameError, match="learned"):
        PatchForecaster(encoder, 12, patch=4, context_length=32, prediction_length=2, positions="learnt")  # type: ignore[arg-type]
