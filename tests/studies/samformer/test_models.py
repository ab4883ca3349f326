"""The models against their formulas in numpy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from refusals import expect_error
from tsfm_lens.studies.samformer.models import (
    ChannelTransformer,
    RevIN,
    TSMixer,
    make_model,
    oracle_loss,
    sigma_reparametrised,
    spectral_norm,
)
from tsfm_lens.studies.samformer.tasks import LinearToy
from tsfm_lens.testing import assert_close

L = 24
H = 7
D = 5
WIDTH = 4


def windows(seed: int = 0, channels: int = D) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 + 2.0 * torch.randn(
        6, channels, L, dtype=torch.float64, generator=generator
    )


def moved(model: nn.Module) -> nn.Module:
    """In double precision, and no parameter at 0 or 1."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.double().parameters():
            if weight.ndim < 2:
                weight += 0.2 * torch.randn(
                    weight.shape, dtype=weight.dtype, generator=generator
                )
    return model.eval()


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def softmax(scores: np.ndarray) -> np.ndarray:
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)


def reference(model: Any, x: np.ndarray) -> np.ndarray:
    """f(X) = [X + A(X) X W_V W_O] W for one X (D, L), with RevIN as equations 6 to 8
    print it.
    """
    settings = model.settings
    gamma = np.ones((len(x), 1))
    beta = np.zeros((len(x), 1))
    mean = np.zeros((len(x), 1))
    scale = np.ones((len(x), 1))
    if settings["normalise"]:
        gamma = array(model.embed.weight)[:, None]
        beta = array(model.embed.bias)[:, None]
        mean = x.mean(axis=1, keepdims=True)
        scale = np.sqrt(
            ((x - mean) ** 2).sum(axis=1, keepdims=True) / x.shape[1] + 1e-5
        )
    inside = gamma * (x - mean) / scale + beta
    attn = model.blocks[0].attn
    maps = {
        name: (array(layer.weight).T, 0 if layer.bias is None else array(layer.bias))
        for name, layer in {
            "q": attn.q,
            "k": attn.k,
            "v": attn.v,
            "o": attn.o,
            "w": model.readout,
        }.items()
    }
    stream = inside
    if settings["attention"] == "time":
        stream = inside.T
    q, k, v = (stream @ maps[name][0] + maps[name][1] for name in "qkv")
    pattern = softmax(q @ k.T / np.sqrt(q.shape[1]))
    if settings["attention"] == "identity":
        pattern = np.eye(len(stream))
    stream = stream + pattern @ v @ maps["o"][0] + maps["o"][1]
    out = (stream.T if settings["attention"] == "time" else stream) @ maps["w"][
        0
    ] + maps["w"][1]
    return scale * (out - beta) / gamma + mean


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with biases": {"bias": True},
    "samformer": {"normalise": True},
    "identity": {"normalise": True, "attention": "identity"},
    "over time": {"normalise": True, "attention": "time", "bias": True},
    "reparametrised": {"normalise": True, "sigma_reparam": True},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_the_transformer_is_its_formula(options: dict[str, Any]) -> None:
    model = moved(ChannelTransformer(L, H, D, width=WIDTH, **options))
    x = windows()
    expected = np.stack([reference(model, array(one)) for one in x])
    assert_close(model(x), expected, depth=400, magnitude=30.0)


def test_released_inputs_and_draws_are_available() -> None:
    """Scaling of inputs and draws of weights can be those of the released code."""
    x, (scaled, plain) = (
        windows(),
        (
            ChannelTransformer(L, H, D, scaled_inputs=flag).double()
            for flag in (True, False)
        ),
    )
    attn: Any = plain.blocks[0].attn
    # one window's largest singular value is that of the batch; scaled inputs are scaled
    # maps
    with torch.no_grad():
        scaled.blocks[0].attn.gamma.mul_(0.7)  # type: ignore[union-attr]
        for part in (attn.q, attn.k, attn.v):
            part.weight.mul_(0.7 / max(np.linalg.norm(array(one), 2) for one in x))
    assert_close(scaled(x), array(plain(x)), depth=400, magnitude=30.0)
    drawn = ChannelTransformer(L, H, D, width=WIDTH, released_draws=True).blocks[0].attn
    limit = (6 / (L + L * WIDTH)) ** 0.5
    assert 0.9 * limit < float(drawn.v.weight.detach().abs().max()) <= limit  # type: ignore[union-attr]


def test_frozen_weights_get_no_gradient() -> None:
    """What is frozen gets no gradient; the formula gives the number of weights."""
    wide = {"width": 16}
    for options, frozen in (
        ({}, ()),
        ({"frozen": True}, "qkvo"),
        ({"attention": "identity"}, "qk"),
    ):
        model = ChannelTransformer(L, H, D, normalise=True, **wide, **options)
        model(windows().float()).square().mean().backward()
        without = {
            name for name, weight in model.named_parameters() if weight.grad is None
        }
        assert without == {f"blocks.0.attn.{letter}.weight" for letter in frozen}
        # 4 L d_m + L H + 2 D (E1-12: table 8 counts otherwise)
        assert (
            sum(weight.numel() for weight in model.parameters())
            == 4 * L * 16 + L * H + 2 * D
        )


def test_revin_can_be_held_fixed() -> None:
    free, held = (
        ChannelTransformer(L, H, D, normalise=True, affine=affine)
        for affine in (True, False)
    )
    x = windows().float()
    assert torch.equal(free(x), held(x))
    held(x).square().mean().backward()
    fixed = {
        name for name, weight in held.named_parameters() if not weight.requires_grad
    }
    assert (
        fixed
        == {"embed.weight", "embed.bias"}
        == {name for name, w in held.named_parameters() if w.grad is None}
    )
    assert held.settings == {**free.settings, "affine": False}


@pytest.mark.parametrize("level", [0.0, 7.0, -1e6, 1e-12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_channel_is_safe(level: float, dtype: torch.dtype) -> None:
    model = ChannelTransformer(L, H, 2, normalise=True).to(dtype)
    x = (
        torch.stack([torch.full((1, L), level), torch.linspace(0, 1, L)[None]], dim=1)
        .to(dtype)
        .requires_grad_()
    )
    out = model(x)
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    revin = model.embed
    assert isinstance(revin, RevIN)
    statistics = revin.statistics(x)
    assert_close(
        revin.inverse(revin(x, *statistics), *statistics),
        x.detach(),
        depth=20,
        dtype=dtype,
    )


def test_reparametrised_matrices_have_norm_gamma() -> None:
    """The spectral norm of every reparametrised matrix is gamma."""
    model = ChannelTransformer(L, 40, D, sigma_reparam=True).double()
    before = model.readout.parametrizations.weight.original.detach().clone()
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers) == 5
    for index, layer in enumerate(layers):
        matrix = layer.parametrizations.weight
        with torch.no_grad():
            matrix[0].gamma.fill_((-1) ** index * (0.5 + index))
        assert_close(torch.linalg.svdvals(layer.weight)[0], 0.5 + index, depth=100)
    factor = float((model.readout.weight / before).detach().mean())
    assert_close(model.readout.weight, factor * before, depth=20)


def test_spectral_norms_have_the_right_gradient() -> None:
    """The gradient through the spectral norm is that of small steps."""
    layer = sigma_reparametrised(nn.Linear(6, 4, bias=False).double())
    original = layer.parametrizations.weight.original
    fixed = torch.randn(
        4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    assert torch.autograd.gradcheck(
        lambda w: (fixed * w / spectral_norm(w)).sum(), original
    )
    assert torch.autograd.gradgradcheck(
        lambda w: (fixed * w / spectral_norm(w)).sum(), original
    )


def test_the_oracle_reaches_its_expected_loss() -> None:
    toy = LinearToy(length=30, horizon=12, channels=3, training=300, validation=3000)
    x, y = (part.flatten(0, 1).double() for part in toy.pairs(0, 3300))
    weight = torch.linalg.lstsq(x[:900], y[:900]).solution
    errors = (x[900:] @ weight - y[900:]).square().flatten()
    expected = oracle_loss(30, 900)
    of_noise = expected * (2 / len(errors)) ** 0.5
    of_fit = (expected - 1) * (2 / (30 * 12)) ** 0.5
    assert abs(float(errors.mean()) - expected) < 4 * (of_noise + of_fit)
    assert round(oracle_loss(512, 70_000), 4) == 1.0074


def test_tsmixer_is_its_description() -> None:
    model = moved(TSMixer(L, H, D, blocks=1, hidden=6, normalise=False))
    x = windows()
    block: Any = model.blocks[0]
    for part in block.norms:
        part.running_mean.normal_(generator=torch.Generator().manual_seed(2))
        part.running_var.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(3))

    def normed(part: Any, value: np.ndarray) -> np.ndarray:
        parts = (part.bias, part.weight, part.running_mean, part.running_var)
        shift, scale, mean, variance = (array(item).reshape(D, L) for item in parts)
        return (value - mean) / np.sqrt(variance + part.eps) * scale + shift

    def linear(layer: Any, value: np.ndarray) -> np.ndarray:
        return value @ array(layer.weight).T + array(layer.bias)

    stream = array(x)
    stream = stream + np.maximum(linear(block.time, normed(block.norms[0], stream)), 0)
    hidden = np.maximum(
        linear(block.up, normed(block.norms[1], stream).transpose(0, 2, 1)), 0
    )
    stream = stream + linear(block.down, hidden).transpose(0, 2, 1)
    assert_close(model(x), linear(model.readout, stream), depth=500, magnitude=30.0)
    # a batch of one has no variance of its own, in training either
    assert torch.equal(model.train()(x[:1]), model.eval()(x[:1]))


def test_seeds_leave_torch_s_generator_alone() -> None:
    """A seed draws the same weights and leaves torch's random numbers alone."""
    before = torch.get_rng_state()
    first, second, other = (
        ChannelTransformer(L, H, D, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.readout.weight, second.readout.weight)
    assert not torch.equal(first.readout.weight, other.readout.weight)
    limit = (6 / (L + H)) ** 0.5
    assert 0.9 * limit < float(first.readout.weight.detach().abs().max()) <= limit


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ChannelTransformer(0, 3), "length=0"),
        (lambda: ChannelTransformer(4, 3, normalise=True), "is None"),
        (lambda: ChannelTransformer(4, 3, attention="time"), "is None"),
        (lambda: TSMixer(4, 3, 2, dropout=1.0), "dropout=1.0"),
        (lambda: make_model("samforer", 4, 3, 2), "samformer"),
    ],
)
def test_what_cannot_be_made_is_refused(make: Any, says: str) -> None:
    expect_error(says, make)
