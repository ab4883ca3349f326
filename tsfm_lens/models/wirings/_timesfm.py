"""Common parts of the TimesFM models: branches between two norms, running statistics, filled gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site

GAINS = {"output_projection": 0.5, "output_head": 0.5}
"""Factors on the random weights of the head; see ``_random.spread_weights``."""


def attention(
    kind: str,
    module: str,
    norms: tuple[str, str],
    projections: tuple[Projection, Projection, Projection, Projection],
    *,
    stream: str = "batch pos d_model",
    inside: tuple[str, str, str] = ("batch pos (head d_head)", "batch head pos d_head", "batch head query key"),
    over: Literal["time", "variate"] = "time",
    aside: bool = False,
) -> Attention:
    """Describe an attention that reads the stream through the first norm and writes to it through the second.

    Args:
        kind, module, projections, over, aside: see :class:`Attention`; projections are q, k, v, o.
        norms: paths of the two norms.
        stream: axes of the residual stream.
        inside: axes of z, of q, k and v, and of the pattern.
    """
    reads = Site(norms[0], "in", 0, stream) if aside else Site("", "in", 0, stream)
    return Attention(
        kind,
        module,
        Site(norms[1], layout=stream),
        reads,
        *projections,
        z_layout=inside[0],
        qkv_layout=inside[1],
        pattern_layout=inside[2],
        over=over,
        norm=norms[0],
        post_norm=norms[1],
        aside=aside,
    )


def mlp(norms: tuple[str, str], layers: tuple[str, str], act: str, stream: str = "batch pos d_model") -> Mlp:
    """Describe an MLP between two norms; ``layers`` are the paths of its matrices, ``act`` as the library names it."""
    layout = stream.replace("d_model", "d_mlp")
    return Mlp(
        Site(norms[1], layout=stream),
        Site(norms[0], "in", 0, stream),
        Site(layers[0], layout=layout),
        Site(layers[1], "in", 0, layout),
        layers[1],
        Projection(layers[0], "d_mlp"),
        norm=norms[0],
        post_norm=norms[1],
        aside=True,
        act={"swish": "silu", "none": "linear"}.get(act, act),
    )


def cleaned(batch: SeriesBatch) -> list[np.ndarray]:
    """Return series without their leading NaN and with inner ones interpolated, as ``timesfm`` does; fresh arrays."""
    out = []
    for series in batch.values:
        is_value = ~np.isnan(series)
        first = int(np.argmax(is_value))
        index = np.arange(len(series))
        out.append(np.interp(index, index[is_value], series[is_value])[first:])
    return out


def patched(batch: SeriesBatch, length: int, patch: int) -> tuple[Tensor, Tensor]:
    """Return values and masks, (batch, time): zero-padded at the front to a multiple of the patch, True = padding."""
    width = -(-length // patch) * patch
    values = torch.zeros(len(batch), width)
    masks = torch.ones_like(values, dtype=torch.bool)
    for row, mask, series in zip(values, masks, cleaned(batch), strict=True):
        tail = torch.as_tensor(series[-width:], dtype=torch.float32)
        row[width - len(tail) :] = tail
        mask[width - len(tail) :] = False
    return values, masks


def running_statistics(
    patches: Tensor, masks: Tensor, update: Callable[..., tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation up to each patch, (batch, patch) each, by the library's own update."""
    n, mu, sigma = (torch.zeros(len(patches), device=patches.device) for _ in range(3))
    means, deviations = [], []
    for index in range(patches.shape[1]):
        n, mu, sigma = update(n, mu, sigma, patches[:, index], masks[:, index])
        means.append(mu)
        deviations.append(sigma)
    return torch.stack(means, dim=1), torch.stack(deviations, dim=1)


def deciles(flat: Tensor, horizon: int, mu: Tensor, sigma: Tensor) -> Tensor:
    """Turn a head's raw output (…, batch, horizon · 10) into quantiles in data units, (…, batch, quantile, step).

    Entry 0 of the ten is the mean.
    """
    raw = flat.reshape(*flat.shape[:-1], horizon, -1)[..., 1:].transpose(-1, -2)
    return raw * sigma.to(raw)[:, None, None] + mu.to(raw)[:, None, None]
