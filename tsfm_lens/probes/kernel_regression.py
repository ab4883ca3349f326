"""Attention as kernel regression, and the bound on its concentration.

:func:`kernel_regression` writes the weights of a cross-attention head as a Gaussian
kernel times a tilt, and checks this against the model's own pattern;
:func:`concentration_bound` has the proposition. Models whose scores are not products of
projections are refused.
"""

from __future__ import annotations

import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import check_single
from tsfm_lens.probes.weights import core_svd

__all__ = ["kernel_regression"]


_TOLERANCE = 1e-3
Product = tuple[Tensor, Tensor]
"""Factors W_Q and W_K (d_model, d_head) of the product M = W_Q W_Kᵀ."""


def spectral_kernel(
    queries: Tensor, keys: Tensor, product: Product
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log kernel, log tilt, attention weights, and bandwidths.

    The weights are softmax(q M kᵀ), in the singular directions of M (equation 1). The
    kernel and the weights are (query, key), the tilt is (key,), bandwidths are (mode,).
    """
    u, s, vt = core_svd(product[0], product[1].T)
    q = queries.double() @ u
    k = keys.double() @ vt.T
    log_tilt = 0.5 * (s * k.square()).sum(-1)
    gap = q[:, None] - k[None]
    # q M kᵀ = Σ s q k = -½ Σ s (q - k)² + ½ Σ s k² + ½ Σ s q², and the softmax over
    # keys does not see the last sum
    log_kernel = -0.5 * (s * gap.square()).sum(-1)
    bandwidth = torch.where(s > 0, s, torch.nan).rsqrt()
    return log_kernel, log_tilt, torch.softmax(log_kernel + log_tilt, dim=-1), bandwidth


def concentration_bound(
    queries: Tensor, keys: Tensor, product: Product, rank: int | None = None
) -> dict[str, Tensor]:
    """Return a bound of the weight outside one key, from leading directions alone.

    All entries of the result are (query,); :func:`kernel_regression` says what they
    are.

    Source: tsfm-lens paper, proposition C.1.
    """
    if len(keys) < 2:
        raise InputError(
            f"a concentration bound needs two keys or more, got {len(keys)}"
        )
    if rank is not None and rank < 1:
        raise InputError(f"rank is {rank}, expected 1 or more")
    u, s, vt = core_svd(product[0], product[1].T)
    if rank is None:
        # smaller singular values are rounding
        n_modes = int((s > s[0] * 1e-12).sum())
    else:
        n_modes = min(rank, len(s))
    q = queries.double() @ u[:, :n_modes]
    k = keys.double() @ vt[:n_modes].T
    scaled = q * s[:n_modes]
    exact = (queries.double() @ product[0].double()) @ (
        keys.double() @ product[1].double()
    ).T
    # the key of the largest truncated score, and its margin over the next one
    top = (scaled @ k.T).topk(2, dim=-1)
    best = top.indices[:, 0]
    margin = top.values[:, 0] - top.values[:, 1]
    # what the left-out modes can add to the margin of two scores
    tail = s[n_modes:].square().sum().sqrt()
    # by Cauchy and Schwarz, a score moves by at most this norm times both lengths, and
    # a margin has two scores; the Frobenius norm bounds the spectral one
    allowance = (
        2
        * tail
        * queries.double().norm(dim=-1).max()
        * keys.double().norm(dim=-1).max()
    )
    applicable = margin > allowance
    bound = torch.where(
        applicable, (len(keys) - 1) * torch.exp(allowance - margin), torch.nan
    )
    missing = 1 - torch.softmax(exact, dim=-1).gather(1, best[:, None])[:, 0]
    return {
        "missing": missing,
        "bound": bound,
        "applicable": applicable,
        # negated, so that a NaN bound counts as vacuous
        "vacuous": ~(bound < 1),
    }


@probe(
    "first",
    title="Attention as kernel regression",
    theme="Weights alone",
    summary=(
        "attention as kernel regression: bandwidths, tilt, and how concentrated it "
        "must be"
    ),
    description=(
        "A cross-attention head averages the context with a Gaussian kernel, in the "
        "singular directions of its query–key product, times a tilt towards long "
        "keys. A proposition bounds the attention outside a single key."
    ),
    source="tsfm-lens paper, equation 1 and proposition C.1 (S3-NW, S3-NW2, S3-PC1)",
    needs="cross_attention",
)
def kernel_regression(run: Run, *, rank: int | None = None) -> xr.Dataset:
    """Write the cross-attention of every head as kernel regression.

    The result also has an upper bound on the weight outside a single key.

    Args:
        run: the forecast to explain, of exactly one series, by a model of the T5
            family, whose scores are products.
        rank: number of leading singular values in the concentration bound; all that are
            not zero if None.

    Returns:
        Dataset of kind "kernel_regression":

        - ``bandwidth`` (layer, head, mode): 1/√ of the singular values.
        - ``tilt_share`` (layer, head): variance over keys of the tilt over that of tilt
          and kernel together, near 0 if the query determines weights.
        - ``identity_error`` (layer, head): largest difference of the kernel's weights
          from the model's own pattern.
        - ``missing`` (layer, head, query): 1 minus the weight of the key with the
          largest truncated score.
        - ``bound`` (layer, head, query): its upper bound.
        - ``applicable`` (layer, head, query): whether the margin condition holds.
        - ``vacuous`` (layer, head, query): whether the bound says nothing.

        Attribute ``beta`` is the paper's β.

    Source:
        tsfm-lens paper, section 4, equation 1 and proposition C.1 (S3-NW, S3-NW2,
        S3-PC1).

    Raises:
        InputError: several series, a horizon longer than one pass, a rank below 1, or a
            model whose scores are not such products (because of rotary embeddings,
            norms or scales).

    Example:
        >>> probes.kernel_regression(run)["bandwidth"].dims
        ('layer', 'head', 'mode')
    """
    lens = run.lens
    check_single(run, "kernel regression is computed")
    stack = lens.wiring.output_stack
    if "cross_attn" not in stack.attention_kinds():
        raise InputError(
            f"{lens.wiring.architecture} has no cross-attention, which the proposition"
            " is about"
        )
    hidden = _hidden_states(run)
    rows: dict[str, list[Tensor]] = {}
    for layer in range(stack.n_layers):
        weights = lens.weights.heads(layer, "cross_attn", stack.name)
        queries, keys, pattern = hidden[layer]
        # half precision rounds scores and weights more coarsely
        tolerance = max(_TOLERANCE, 4 * torch.finfo(pattern.dtype).eps)
        for head in range(stack.n_heads):
            product = (weights.W_Q[head], weights.W_K[head])
            log_kernel, log_tilt, kernel_weights, bandwidth = spectral_kernel(
                queries, keys, product
            )
            error = float((kernel_weights - pattern[head].double()).abs().max())
            if error > tolerance:
                raise InputError(
                    f"the scores of layer {layer}, head {head} of"
                    f" {lens.wiring.architecture} are not the product of its"
                    f" projections (weights differ by {error:.2g})"
                )
            # the tilt is by key alone, (key,), the kernel by (query, key); the clamp is
            # for weights of zero, whose scores do not vary
            share = log_tilt.var() / (log_kernel + log_tilt).var(dim=-1).mean().clamp(
                min=1e-300
            )
            bound = concentration_bound(queries, keys, product, rank)
            measures = bound | {
                "bandwidth": bandwidth[: stack.d_head],
                "tilt_share": share,
                "identity_error": torch.tensor(error),
            }
            for name, value in measures.items():
                rows.setdefault(name, []).append(value)
    # the bound's entries are by query; the last head's name them, as all have the same
    axes = {"bandwidth": ("mode",)} | dict.fromkeys(bound, ("query",))
    shape = (stack.n_layers, stack.n_heads)
    values = {
        name: torch.stack(row).unflatten(0, shape).cpu().numpy()
        for name, row in rows.items()
    }
    data = xr.Dataset(
        {
            name: (("layer", "head", *axes.get(name, ())), value)
            for name, value in values.items()
        },
        coords={
            "layer": range(stack.n_layers),
            "head": range(stack.n_heads),
        },
    )
    data.attrs = {
        "series": run.batch.ids[0],
        "keys": len(hidden[0][1]),
        # models whose scores have another factor have been refused above
        "beta": 1.0,
        **({} if rank is None else {"rank": rank}),
    }
    return data


def _hidden_states(run: Run) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return normed queries, keys, and the cross-attention pattern of every layer.

    They are of the run's one series.
    """
    lens = run.lens
    stack = lens.wiring.output_stack
    source = lens.wiring.stack(
        next(
            attention.keys_from
            for attention in stack.attentions()
            if attention.keys_from
        )
    )
    last = f"{source.name}.ln_final.hook_normalized"
    streams = [
        f"{stack.prefix}.{layer}.hook_resid_mid" for layer in range(stack.n_layers)
    ]
    patterns = [
        f"{stack.prefix}.{layer}.cross_attn.hook_pattern"
        for layer in range(stack.n_layers)
    ]
    activations = run.in_one_pass().record([last, *streams, *patterns])
    # padded tokens are no keys
    visible = activations[patterns[0]][0].sum(dim=(0, 1)) > 0
    states = []
    for layer, (stream, pattern) in enumerate(zip(streams, patterns, strict=True)):
        norm = lens.model.get_submodule(
            f"{stack.block(layer)}.{stack.attention('cross_attn', layer).norm}"
        )
        with torch.no_grad():
            # forward, since a call of the module would fire its hooks
            queries = norm.forward(activations[stream][0])
        states.append(
            (
                queries,
                activations[last][0][visible],
                activations[pattern][0][..., visible],
            )
        )
    return states
