"""Learning rates and first weights that carry over from one width to another (maximal update parametrisation)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured.encoder import Embedding, InContextRegressor, PatchForecaster
from tsfm_lens.studies.structured.projections import LevelFactor, TrainFactor
from tsfm_lens.studies.structured.sizes import whole
from tsfm_lens.studies.structured.steps import StepForecaster

__all__ = ["fan_in_of", "first_deviation", "parameter_groups", "redraw", "rms_capped"]


def first_deviation(d_out: int, d_in: int) -> float:
    """Compute the standard deviation of first weights, d_in^-1/2 · min(1, √(d_out / d_in)).

    The spectral norm is then of the order √(d_out / d_in).

    Source:
        Structured attention, appendix F.1 (S2-MUP); the norm that it writes ‖·‖_* is the spectral one.

    Example:
        >>> structured.first_deviation(d_out=16, d_in=64)
        0.0625
    """
    return whole(d_in, "d_in") ** -0.5 * min(1.0, (whole(d_out, "d_out") / d_in) ** 0.5)


def fan_in_of(module: nn.Module, name: str) -> int | None:
    """Return the length of the sum in one output of a parameter; None without such a sum (biases, norms, read-in).

    Dense layers have their inputs; level l of :class:`LevelFactor` has D / p_l (equation 36); :class:`TrainFactor` has
    c · s on the queries' side (equation 37) and d on the keys', where equation 38 prints a.

    Args:
        module: that holds the parameter itself.
        name: of the parameter in it, as ``named_parameters`` gives it.

    Example:
        >>> structured.fan_in_of(structured.LevelFactor(64, 2, (4, 4)), "factors.1")
        32
    """
    if isinstance(module, LevelFactor):
        return int(module.factors[int(name.rpartition(".")[2])].shape[1])
    if isinstance(module, TrainFactor):
        return module.c * module.rank if module.side == "queries" else module.d
    if isinstance(module, nn.Linear) and name == "weight":
        return module.in_features
    return None


def parameter_groups(model: nn.Module, rate: float, base_width: int) -> list[dict[str, Any]]:
    """Group parameters by the learning rate of AdamW that μP gives each, as torch's optimisers take them.

    A rate tuned at width D_1 is used at another as rate · D_1 / fan-in on matrices, and as it is on biases, norms and
    the read-in, whose sums have the length of the input.

    Args:
        model: a transformer of this package, or any module with its layers.
        rate: tuned at ``base_width``.
        base_width: D_1.

    Returns:
        One group for each rate: "params", "lr", and the "names" of its parameters.

    Raises:
        InputError: a rate that is not above 0.

    Example:
        >>> encoder = structured.Encoder(32, 1, 2, structured.Standard())
        >>> sorted(group["lr"] for group in structured.parameter_groups(encoder, 1e-3, 16))
        [0.000125, 0.0005, 0.001]
    """
    if not rate > 0:
        raise InputError(f"a learning rate of {rate}, expected one above 0")
    whole(base_width, "base_width")
    groups: dict[float, dict[str, Any]] = {}
    for path, parameter, fan_in in _parameters(model):
        own = rate if fan_in is None else rate * base_width / fan_in
        group = groups.setdefault(own, {"params": [], "lr": own, "names": []})
        group["params"].append(parameter)
        group["names"].append(path)
    return list(groups.values())


def redraw(model: nn.Module, seed: int) -> None:
    """Draw first weights by μP: matrices by their sizes, read-out zero, read-in and positions 0.02, biases zero.

    Args:
        model: changed in place.
        seed: of the draw.

    Example:
        >>> model = structured.Encoder(16, 1, 2, structured.Standard())
        >>> structured.redraw(model, seed=0)
        >>> model.norm.weight.sum().item()
        16.0
    """
    generator = torch.Generator().manual_seed(seed)
    last = {id(part.weight) for part in _read_outs(model)}
    fans = {id(parameter): fan_in for _, parameter, fan_in in _parameters(model)}
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator).to(parameter)
            fan_in = fans[id(parameter)]
            if fan_in is not None:
                # structured factors have as variance one over what they sum; a dense matrix may be narrower than that
                deviation = first_deviation(len(parameter), fan_in) if parameter.ndim == 2 else fan_in**-0.5
                parameter.copy_(0.0 * draw if id(parameter) in last else deviation * draw)
            elif parameter.ndim > 1:
                parameter.copy_(0.02 * draw)
            else:
                parameter.fill_(1.0 if path.endswith("weight") else 0.0)


def rms_capped(weight: Tensor, d_out: int, d_in: int) -> Tensor:
    """Compute W / max(1, RMS(W) / σ₀) with σ₀² = min(d_in, d_out) / d_in², which keeps factors of tensor trains small.

    Args:
        weight: any shape.
        d_out, d_in: its sizes as a matrix.

    Source:
        Structured attention, appendix F.1: factors are RMS-normalised; the cap is that of the published code.

    Example:
        >>> structured.rms_capped(torch.full((4, 4), 3.0), 4, 4)[0, 0].item()
        0.5
    """
    sigma = min(whole(d_in, "d_in"), whole(d_out, "d_out")) ** 0.5 / d_in
    return weight / (weight.square().mean().sqrt() / sigma).clamp(min=1.0)


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, int | None]]:
    """Yield path, parameter and fan-in of each parameter, once."""
    read_in = {id(part) for module in model.modules() if isinstance(module, Embedding) for part in module.parameters()}
    owners: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=isinstance(module, LevelFactor)):
            # a list of factors comes after the layer that it belongs to
            owners.setdefault(id(parameter), (module, name))
    for path, parameter in model.named_parameters():
        fan_in = None if id(parameter) in read_in else fan_in_of(*owners[id(parameter)])
        yield path, parameter, fan_in


def _read_outs(model: nn.Module) -> Iterator[nn.Linear]:
    for module in model.modules():
        if isinstance(module, InContextRegressor):
            yield module.read_out
        elif isinstance(module, PatchForecaster):
            yield module.head
        elif isinstance(module, StepForecaster):
            yield module.read_out
