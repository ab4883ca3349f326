"""First weights and rates that carry over between widths: the table, and what one step of training does by width."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured import (
    BilinearLevels,
    BilinearTrain,
    Encoder,
    InContextRegressor,
    LevelFactor,
    ScoringForm,
    Standard,
    TokenLevels,
    TrainFactor,
    TrainMap,
    fan_in_of,
    first_deviation,
    parameter_groups,
    redraw,
    rms_capped,
)
from tsfm_lens.testing import assert_close

FORMS: dict[str, ScoringForm] = {
    "standard": Standard(scale="mup"),
    "token levels": TokenLevels((4, 4), scale="mup"),
    "bilinear levels": BilinearLevels((4, 2, 2), scale="mup"),
    "bilinear train": BilinearTrain(scale="mup"),
    "bilinear train, keys": BilinearTrain(rank=2, order="keys"),
}


def model_of(form: ScoringForm, width: int) -> InContextRegressor:
    made = InContextRegressor(4, 6, Encoder(width, 2, 4, form), width)
    redraw(made, seed=1)
    return made


def rates(model: nn.Module, rate: float, base: int) -> dict[str, float]:
    return {name: group["lr"] for group in parameter_groups(model, rate, base) for name in group["names"]}


@pytest.mark.parametrize("width", [16, 64])
def test_rates_are_those_of_the_table(width: int) -> None:
    """η D_1 / (D_2 / p_l); η D_1 / (c s) and η D_1 / d; standard elsewhere."""
    found = rates(model_of(BilinearLevels((4, 2, 2), order="both"), width), 1e-3, 32)
    for level in range(3):
        assert_close(found[f"encoder.blocks.0.attn.q.factors.{level}"], 1e-3 * 32 / (width / 2**level), depth=4)
    form = BilinearTrain(rank=2, out_factors=(2, width // 2), in_factors=(width // 4, 4), order="both")
    found = rates(model_of(form, width), 1e-3, 32)
    assert_close(found["encoder.blocks.1.attn.q.factor"], 1e-3 * 32 / (width // 4 * 2), depth=4)
    assert_close(found["encoder.blocks.1.attn.k.factor"], 1e-3 * 32 / 4, depth=4)
    assert_close(found["encoder.blocks.1.attn.v.weight"], 1e-3 * 32 / width, depth=4)
    assert_close(found["encoder.blocks.1.down.weight"], 1e-3 * 32 / (4 * width), depth=4)
    assert found["embed.read_in.weight"] == found["embed.positions"] == found["encoder.norm.weight"] == 1e-3


@pytest.mark.parametrize("name", FORMS)
def test_every_parameter_has_one_rate(name: str) -> None:
    model = model_of(FORMS[name], 16)
    groups = parameter_groups(model, 1e-3, 16)
    listed = [id(part) for group in groups for part in group["params"]]
    assert sorted(listed) == sorted(id(part) for part in model.parameters())


@pytest.mark.parametrize(("d_out", "d_in"), [(64, 64), (256, 64), (64, 256), (16, 512)])
def test_first_weights_have_the_spectral_norm_of_the_theory(d_out: int, d_in: int) -> None:
    """‖W‖₂ stays between one and three times √(d_out / d_in), whatever the sizes."""
    draw = torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(0)) * first_deviation(d_out, d_in)
    assert 1 <= float(torch.linalg.matrix_norm(draw, 2)) / (d_out / d_in) ** 0.5 <= 3


LAYERS = {
    "levels": lambda width: LevelFactor(width, 2, (4, 2, 2)),
    "train, keys": lambda width: TrainFactor(width, 2, side="keys"),
    "train": lambda width: TrainMap(width, 2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_moves_features_as_much_at_every_width(name: str) -> None:
    """One step of Adam, which is the sign of the gradient, with the rates of the table and without.

    An update that is aligned with its input moves a feature by rate · fan-in · |x|.
    """
    moved: dict[bool, list[float]] = {True: [], False: []}
    for width in (64, 256, 1024):
        for scaled, out in moved.items():
            torch.manual_seed(0)
            layer = LAYERS[name](width)
            x = torch.randn(1, width)
            before = layer(x)
            before.sum().backward()
            groups = parameter_groups(layer, 1e-3, 64) if scaled else [{"params": layer.parameters(), "lr": 1e-3}]
            with torch.no_grad():
                for group in groups:
                    for part in group["params"]:
                        part += group["lr"] * part.grad.sign()
                out.append(float((layer(x) - before).square().mean().sqrt()))
    steady, growing = moved[True], moved[False]
    assert max(steady) / min(steady) < 2 < growing[-1] / growing[0]


def test_factors_are_capped_at_their_first_size() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    capped = rms_capped(100 * weight, 8, 32)
    assert_close(capped.square().mean().sqrt(), 8**0.5 / 32, depth=300)
    assert torch.equal(rms_capped(1e-3 * weight, 8, 32), 1e-3 * weight)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="rate of 0"):
        parameter_groups(nn.Linear(2, 2), 0.0, 4)
    with pytest.raises(InputError, match="base_width is 0"):
        parameter_groups(nn.Linear(2, 2), 1.0, 0)
    assert fan_in_of(nn.LayerNorm(4), "weight") is None
