"""Sensitivity of the forecast to errors in what leaves each matrix, as second moments of gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.compress.matrices import matrices
from tsfm_lens.compress.moments import alike
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.recording import refuse_gradients
from tsfm_lens.models.run import Run

__all__ = ["felt_moments"]

DRAWS = 4


class _GradientTap(torch.autograd.Function):
    """The identity, which shows the gradient that comes back through it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, show: Callable[[Tensor], None]) -> Tensor:
        ctx.show = show
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.show(gradient)
        return gradient, None


def felt_moments(
    run: Run, names: Iterable[str] | None = None, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Tensor]:
    """Compute the mean of g gᵀ over what leaves each matrix, where the square of g is the forecast's deviation.

    To second order :func:`deviation` under small errors d of one token is the mean of (g · d)². Of a token model that
    is the Fisher information: g is the gradient of the log-probability of tokens drawn from its own distribution. Of
    all others g is the gradient of the outputs summed with random signs, in units of the spread of the context.

    Args:
        run: a forecast of the calibration series, over a horizon of one pass.
        names: of the matrices; those of all attentions if None.
        draws: of tokens or signs.
        seed: of these.

    Returns:
        By name, (out, out) in double precision, on the CPU.

    Raises:
        UnknownNameError: no such matrix.
        InputError: the library's backward pass is not the derivative, a gradient is not finite, or none came back.

    Example:
        >>> felt = compress.felt_moments(run, ["decoder_blocks.0.cross_attn.o"])
        >>> felt["decoder_blocks.0.cross_attn.o"].shape == (lens.d_model, lens.d_model)
        True
    """
    refuse_gradients(run.lens.wiring)
    by_name = matrices(run.lens)
    keys = list(by_name if names is None else names)
    if not set(keys) <= set(by_name):
        by_name = matrices(run.lens, mlps=True)
    for name in keys:
        if name not in by_name:
            raise unknown_name("matrix", name, by_name)
    twin = copy.deepcopy(run.lens)
    sums = {name: torch.zeros(by_name[name].shape[0], by_name[name].shape[0], dtype=torch.float64) for name in keys}
    counts = dict.fromkeys(keys, 0)

    def look(name: str) -> Callable[[Tensor], None]:
        def show(gradient: Tensor) -> None:
            rows = gradient.reshape(-1, gradient.shape[-1]).double()
            sums[name] += (rows.T @ rows).cpu()
            counts[name] += len(rows)

        return show

    for name in keys:
        layer: Any = twin.adapter.model.get_submodule(by_name[name].path)
        layer.__dict__["forward"] = _showing(layer.forward, look(name))
    generator = torch.Generator().manual_seed(seed)
    for part in alike(run):
        inputs = part.encoded.inputs
        for _ in range(draws):
            with torch.enable_grad():
                _random_scalar(twin, part, twin.adapter.run(inputs), generator).backward()
    twin.adapter.model.zero_grad()
    for name in keys:
        if not counts[name] or not bool(torch.isfinite(sums[name]).all()):
            what = "is not finite" if counts[name] else "never came back"
            raise InputError(f"the gradient at {name} {what} on the calibration series; give other series")
    return {name: sums[name] / counts[name] for name in keys}


def _showing(forward: Callable[..., Tensor], show: Callable[[Tensor], None]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: _GradientTap.apply(forward(*args, **kwargs), show)


def _random_scalar(lens: Lens, run: Run, output: Tensor, generator: torch.Generator) -> Tensor:
    """Compute a scalar whose gradient has the deviation's curvature as its mean square."""
    if run.tokens_read:
        logs = output.float().log_softmax(-1)
        flat = logs.detach().exp().flatten(0, -2).cpu()
        tokens = torch.multinomial(flat, 1, generator=generator).reshape(*logs.shape[:-1], 1).to(logs.device)
        return logs.gather(-1, tokens).sum()
    spread = np.array([np.nanstd(series) for series in run.batch.values])
    scale = torch.as_tensor(np.where(spread > 0, spread, 1.0)).to(output)
    signs = (torch.randint(0, 2, output.shape, generator=generator) * 2 - 1).to(output)
    return (output * signs / scale[:, None, None])[..., : run.horizon].sum()
