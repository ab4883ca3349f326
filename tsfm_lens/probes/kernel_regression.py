"""Attention as kernel regression, and how far one key can dominate: cross-attention seen through its spectrum."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.recorder import record
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.spectra import core_svd
from tsfm_lens.probes.trajectory import describe, trajectory

_TOLERANCE = 1e-3

Product = Tensor | tuple[Tensor, Tensor]
"""M (d_model, d_model), or W_Q and W_K (d_model, d_head) whose product W_Q W_Kᵀ it is."""


class Kernel(NamedTuple):
    """Attention weights split into a Gaussian kernel and a tilt.

    Attributes:
        log_kernel: (query, key), minus half the squared distance of query and key in the metric of the spectrum.
        log_tilt: (key,), half the squared length of a key in that metric: what it gets whatever is asked.
        weights: (query, key), the softmax of their sum, which is the attention itself.
        bandwidth: (mode,), standard deviation of the kernel along each direction, 1/sqrt of its singular value.
    """

    log_kernel: Tensor
    log_tilt: Tensor
    weights: Tensor
    bandwidth: Tensor


class Bound(NamedTuple):
    """The concentration bound, query by query.

    Attributes:
        missing: (query,), 1 minus the weight of the key with the largest truncated score.
        bound: (query,), what ``missing`` cannot exceed; NaN where a condition fails.
        applicable: (query,), whether the margin condition holds.
        margin: (query,), difference of the two largest truncated scores.
    """

    missing: Tensor
    bound: Tensor
    applicable: Tensor
    margin: Tensor


def spectral_kernel(queries: Tensor, keys: Tensor, product: Product) -> Kernel:
    """Write softmax(q M kᵀ) as a Gaussian kernel in the singular directions of M times a tilt; an exact identity.

    Args:
        queries: (query, d_model).
        keys: (key, d_model).
        product: M, (d_model, d_model), with any scale of the scores in it; or the pair W_Q, W_K, each
            (d_model, d_head), whose product W_Q W_Kᵀ it is.

    Source:
        tsfm-lens paper, equation 1 (S3-NW2).
    """
    u, s, vt = _decomposed(product)
    q, k = queries.double() @ u, keys.double() @ vt.T
    log_tilt = 0.5 * (s * k.square()).sum(-1)
    gap = q[:, None] - k[None]
    log_kernel = -0.5 * (s * gap.square()).sum(-1)
    bandwidth = torch.where(s > 0, s, torch.nan).rsqrt()
    return Kernel(log_kernel, log_tilt, torch.softmax(log_kernel + log_tilt, dim=-1), bandwidth)


def concentration_bound(queries: Tensor, keys: Tensor, product: Product, rank: int | None = None) -> Bound:
    """How much weight can fall outside one key, from the leading singular directions alone.

    Args:
        queries, keys, product: see :func:`spectral_kernel`.
        rank: singular values kept; all that are not zero if None.

    Source:
        tsfm-lens paper, proposition C.1 (S3-PC1).

    Raises:
        InputError: rank below 1, or fewer than two keys.
    """
    if len(keys) < 2:
        raise InputError(f"a concentration bound needs two keys or more, got {len(keys)}")
    if rank is not None and rank < 1:
        raise InputError(f"rank is {rank}, expected 1 or more")
    u, s, vt = _decomposed(product)
    kept = int((s > s[0] * 1e-12).sum()) if rank is None else min(rank, len(s))
    q, k = queries.double() @ u[:, :kept], keys.double() @ vt[:kept].T
    pulled = q * s[:kept]
    scores, exact = pulled @ k.T, _scores(queries, keys, product)
    top = scores.topk(2, dim=-1)
    best, second = top.indices[:, 0], top.indices[:, 1]
    margin = top.values[:, 0] - top.values[:, 1]
    tail = s[kept:].square().sum().sqrt()
    allowance = 2 * tail * queries.double().norm(dim=-1).max() * keys.double().norm(dim=-1).max()
    applicable = margin > allowance
    gap = k[best] - k[second]
    distance, pull = gap.norm(dim=-1), pulled.norm(dim=-1)
    cosine = (pulled * gap).sum(-1) / (distance * pull).clamp(min=1e-300)
    bound = (len(keys) - 1) * torch.exp(-(cosine * distance * pull - allowance))
    weights = torch.softmax(exact, dim=-1)
    missing = 1 - weights.gather(1, best[:, None])[:, 0]
    return Bound(missing, torch.where(applicable, bound, torch.nan), applicable, margin)


def _decomposed(product: Product) -> tuple[Tensor, Tensor, Tensor]:
    """U, singular values and Vᵀ in float64; of factors without their product."""
    if isinstance(product, Tensor):
        return torch.linalg.svd(product.double(), full_matrices=False)
    return core_svd(product[0], product[1].T)


def _scores(queries: Tensor, keys: Tensor, product: Product) -> Tensor:
    if isinstance(product, Tensor):
        return queries.double() @ product.double() @ keys.double().T
    return (queries.double() @ product[0].double()) @ (keys.double() @ product[1].double()).T


def kernel_regression(
    lens: Lens, series: Any, horizon: int | None = None, *, rank: int | None = None, seed: int = 0
) -> xr.Dataset:
    """The cross-attention of every head as kernel regression, with the bound on its concentration.

    Args:
        lens: a model whose cross-attention scores are plain products of two projections: the T5 family.
        series: exactly one series.
        horizon, seed: see :func:`tsfm_lens.probes.trajectory.trajectory`.
        rank: of the concentration bound; see :func:`concentration_bound`.

    Returns:
        Dataset of kind "kernel_regression": ``bandwidth`` (layer, head, mode); ``tilt_share`` (layer, head), the
        variance over keys of the tilt over that of tilt and kernel together, near 0 where the query decides;
        ``missing``, ``bound`` and ``applicable`` (layer, head, query); ``identity_error`` (layer, head), the
        largest difference of the kernel's weights from the model's own pattern.

    Source:
        tsfm-lens paper, equation 1 and proposition C.1 (S3-NW2, S3-PC1).

    Raises:
        InputError: more than one series, or a model whose scores are not such products (rotary embeddings,
            norms or scales stand between).
    """
    batch = as_series(series)
    if len(batch) != 1:
        raise InputError(f"kernel regression is computed for one series at a time, got {len(batch)}")
    stack = lens.wiring.output_stack
    if "cross_attn" not in stack.attention_kinds():
        raise InputError(
            f"{lens.wiring.architecture} has no cross-attention; the proposition is about cross-attention heads"
        )
    run = trajectory(lens, batch, horizon, seed=seed)
    hidden = _hidden_states(lens, run.encoded)
    rows: dict[str, list] = {
        name: [] for name in ("bandwidth", "tilt_share", "missing", "bound", "applicable", "error")
    }
    for layer in range(stack.n_layers):
        weights = lens.weights.heads(layer, "cross_attn", stack.name)
        queries, keys, pattern = hidden[layer]
        for head in range(stack.n_heads):
            product = (weights.W_Q[head].detach(), weights.W_K[head].detach())
            kernel = spectral_kernel(queries, keys, product)
            found = concentration_bound(queries, keys, product, rank)
            error = float((kernel.weights - pattern[head].double()).abs().max())
            if error > _TOLERANCE:
                raise InputError(
                    f"the scores of layer {layer}, head {head} of {lens.wiring.architecture} are not the product of "
                    f"its projections (weights differ by {error:.2g})"
                )
            both = kernel.log_kernel + kernel.log_tilt
            share = kernel.log_tilt.var() / both.var(dim=-1).mean().clamp(min=1e-300)
            rows["bandwidth"].append(kernel.bandwidth[: stack.d_head])
            rows["tilt_share"].append(share)
            rows["missing"].append(found.missing)
            rows["bound"].append(found.bound)
            rows["applicable"].append(found.applicable)
            rows["error"].append(torch.tensor(error))
    own = {"series": batch.ids[0], "keys": len(hidden[0][1]), "horizon": run.horizon, "seed": seed}
    return _dataset(lens, rows, own if rank is None else {**own, "rank": rank})


def _hidden_states(lens: Lens, encoded: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For every layer what the cross-attention reads: normed queries, keys, and its pattern, of the one series."""
    stack = lens.wiring.output_stack
    source = lens.wiring.stack(next(row.keys_from for row in stack.attentions() if row.keys_from))
    last = f"{source.name}.ln_final.hook_normalized"
    streams = [f"{stack.prefix}.{layer}.hook_resid_mid" for layer in range(stack.n_layers)]
    patterns = [f"{stack.prefix}.{layer}.cross_attn.hook_pattern" for layer in range(stack.n_layers)]
    acts = Activations(lens.registry.points, False, encoded.rows)
    with torch.no_grad(), record(lens.registry, [last, *streams, *patterns], acts):
        lens.forward(encoded)
    out = []
    keys = acts[last][0]
    # padded tokens are no keys
    seen = acts[patterns[0]][0].sum(dim=(0, 1)) > 0
    for layer in range(stack.n_layers):
        row = stack.attention("cross_attn", layer)
        norm = lens.adapter.model.get_submodule(f"{stack.block(layer)}.{row.norm}")
        with torch.no_grad():
            queries = norm.forward(acts[streams[layer]][0])
        out.append((queries, keys[seen], acts[patterns[layer]][0][..., seen]))
    return out


def _dataset(lens: Lens, rows: dict[str, list], own: dict[str, Any]) -> xr.Dataset:
    stack = lens.wiring.output_stack

    def shaped(name: str) -> np.ndarray:
        return torch.stack(rows[name]).unflatten(0, (stack.n_layers, stack.n_heads)).cpu().numpy()

    data = xr.Dataset(
        {
            "bandwidth": (("layer", "head", "mode"), shaped("bandwidth")),
            "tilt_share": (("layer", "head"), shaped("tilt_share")),
            "missing": (("layer", "head", "query"), shaped("missing")),
            "bound": (("layer", "head", "query"), shaped("bound")),
            "applicable": (("layer", "head", "query"), shaped("applicable")),
            "identity_error": (("layer", "head"), shaped("error")),
        },
        coords={"layer": list(map(str, range(stack.n_layers))), "head": range(stack.n_heads)},
    )
    source = "tsfm-lens paper, equation 1 and proposition C.1 (S3-NW2, S3-PC1)"
    data.attrs = describe(lens, "kernel_regression", "Attention as kernel regression", source, **own)
    return data
