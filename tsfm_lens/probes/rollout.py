"""Attention along a forecast: the paper's roll-out maps, Abnar and Zuidema's rollout, norm-weighted attention.

Three different measurements that are all called rollout or weighting of attention; each has its own name here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.attention import attention_patterns
from tsfm_lens.probes.trajectory import describe, trajectory

_KEEP = ("key_start", "key_stop", "key_special", "query_start", "query_stop", "query_special")


def rollout_maps(lens: Lens, series: Any, horizon: int | None = None, **options: Any) -> xr.Dataset:
    """The attention of every head over the context, one column a forecast token.

    Not a product of matrices: the attention rows of all forecast tokens stand side by side, as the tsfm-lens
    paper draws them. Heads whose columns are narrow are sharp, and often read at a fixed lag.

    Args:
        lens: the model.
        series: exactly one series.
        horizon: forecast steps; the model's prediction length if None.
        options: ``kind``, ``stack``, ``along``, ``num_samples``, ``seed``; see
            :func:`tsfm_lens.probes.attention.attention_patterns`.

    Returns:
        Dataset of kind "rollout": ``attention`` (layer, head, key, query), columns over the keys summing to 1;
        ``entropy`` (layer, head) in nats, mean over columns; ``sharpness_rank`` (layer, head), 0 for the
        sharpest head of all. Coordinates place keys and queries in time.

    Source:
        tsfm-lens paper, appendix D.2 (S3-ROLL).
    """
    found = attention_patterns(lens, series, horizon, **options)
    data = xr.Dataset(
        {
            "attention": found["pattern"].transpose("layer", "head", "key", "query"),
            "entropy": found["entropy"],
            "sharpness_rank": (("layer", "head"), _ranks(found["entropy"].values)),
        }
    ).assign_coords({name: found[name] for name in _KEEP})
    data.attrs = {
        **found.attrs,
        "kind": "rollout",
        "title": "Roll-out maps",
        "source": "tsfm-lens paper, D.2 (S3-ROLL)",
    }
    return data


def attention_flow(
    lens: Lens, series: Any, horizon: int | None = None, *, stack: str | None = None, seed: int = 0
) -> xr.Dataset:
    """Abnar and Zuidema's attention rollout: how much of each input token may have reached each token.

    The mean pattern over heads and the identity, half each for the residual stream, multiplied layer by layer.

    Args:
        lens: the model.
        series: exactly one series.
        horizon: forecast steps of the forward.
        stack: a stack whose tokens attend to their own stack; the last such stack if None.
        seed: of the forecast that a token model is forced along.

    Returns:
        Dataset of kind "attention_flow": ``flow`` (layer, query, key), after each layer; rows sum to 1.

    Source:
        Abnar and Zuidema 2020, equation 1. It bounds nothing and sees neither values nor MLPs.

    Raises:
        InputError: more than one series, or several variates.
        UnknownNameError: no stack of this name attends to itself over time.
    """
    batch = as_series(series)
    if len(batch) != 1:
        raise InputError(f"attention flow is computed for one series at a time, got {len(batch)}")
    kinds = {row.name: _own_kind(row) for row in lens.wiring.stacks}
    usable = [name for name, kind in kinds.items() if kind]
    wanted = usable[-1] if stack is None and usable else stack
    if wanted not in usable:
        raise unknown_name("stack with self-attention over time", str(wanted), usable)
    column = lens.wiring.stack(str(wanted))
    run = trajectory(lens, batch, horizon, seed=seed)
    layers = [x for x in range(column.n_layers) if _over_time(column, x, kinds[column.name])]
    points = [f"{column.prefix}.{layer}.{kinds[column.name]}.hook_pattern" for layer in layers]
    with torch.no_grad():
        _, acts = lens.run_with_cache(run.encoded, names_filter=points)
    flows = rolled([acts[point][0].double() for point in points])
    spans = run.encoded.spans[column.name]
    data = xr.Dataset(
        {"flow": (("layer", "query", "key"), np.stack([flow.cpu().numpy() for flow in flows]))},
        coords={"layer": list(map(str, layers))},
    )
    for axis in ("query", "key"):
        parts = {"start": spans.start, "stop": spans.stop, "special": spans.special}
        data = data.assign_coords({f"{axis}_{part}": (axis, list(values)) for part, values in parts.items()})
    data.attrs = describe(
        lens, "attention_flow", "Attention flow", "Abnar and Zuidema 2020, equation 1", stack=column.name, seed=seed
    )
    return data


def rolled(patterns: list[Tensor]) -> list[Tensor]:
    """Products of (A + I) / 2 over layers, A the mean over heads with its rows normalised.

    Args:
        patterns: (head, query, key) a layer, queries and keys being the same tokens.

    Returns:
        (query, key) after every layer.
    """
    flows: list[Tensor] = []
    for pattern in patterns:
        mean = pattern.mean(dim=0)
        total = mean.sum(dim=-1, keepdim=True)
        # a token that may attend to nothing keeps to itself
        eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        mean = torch.where(total > 0, mean / total.clamp(min=1e-30), eye)
        step = 0.5 * mean + 0.5 * eye
        flows.append(step if not flows else step @ flows[-1])
    return flows


def norm_weighted_attention(
    lens: Lens, series: Any, horizon: int | None = None, *, kind: str | None = None, seed: int = 0
) -> xr.Dataset:
    """How long the vector is that each key contributes to a query's write, head by head.

    A key may get much attention and contribute little, if its value is short: end tokens often do.

    Args:
        lens: the model.
        series: exactly one series.
        horizon: forecast steps of the forward.
        kind: kind of attention of the stack that is read out; its last one over time if None.
        seed: of the forecast that a token model is forced along.

    Returns:
        Dataset of kind "norm_weighted": ``norm`` (layer, head, query, key), the length of
        ``pattern * (v W_O)`` in units of the residual stream, before a post-norm.

    Source:
        Kobayashi et al. 2020, equation 4.

    Raises:
        InputError: more than one series, or an attention between variates.
        UnknownNameError: no such kind of attention.
    """
    batch = as_series(series)
    if len(batch) != 1:
        raise InputError(f"norm-weighted attention is computed for one series at a time, got {len(batch)}")
    stack = lens.wiring.output_stack
    kinds = [name for name in stack.attention_kinds() if any(_over_time(stack, x, name) for x in range(stack.n_layers))]
    chosen = kinds[-1] if kind is None and kinds else kind
    if chosen not in kinds:
        raise unknown_name("attention over time", str(chosen), kinds)
    layers = [layer for layer in range(stack.n_layers) if _over_time(stack, layer, str(chosen))]
    run = trajectory(lens, batch, horizon, seed=seed)
    at = [f"{stack.prefix}.{layer}.{chosen}" for layer in layers]
    with torch.no_grad():
        _, acts = lens.run_with_cache(
            run.encoded, names_filter=[f"{a}.{what}" for a in at for what in ("hook_pattern", "hook_v")]
        )
        norms = []
        for layer, place in zip(layers, at, strict=True):
            weights = lens.weights.heads(layer, str(chosen), stack.name)
            written = torch.einsum("phc,hcd->hpd", acts[f"{place}.hook_v"][0], weights.W_O)
            norms.append(acts[f"{place}.hook_pattern"][0] * written.norm(dim=-1)[:, None] * weights.scale)
    data = xr.Dataset(
        {"norm": (("layer", "head", "query", "key"), torch.stack(norms).cpu().numpy())},
        coords={"layer": list(map(str, layers)), "head": range(stack.n_heads)},
    )
    source = "Kobayashi et al. 2020, equation 4"
    data.attrs = describe(lens, "norm_weighted", "Norm-weighted attention", source, attention=str(chosen), seed=seed)
    return data


def _own_kind(stack: Stack) -> str:
    """The attention of a stack over its own tokens in time, "" if it has none."""
    for layer in range(stack.n_layers):
        for row in stack.attentions(layer):
            if not row.keys_from and row.over == "time":
                return row.kind
    return ""


def _over_time(stack: Stack, layer: int, kind: str) -> bool:
    return any(row.kind == kind and row.over == "time" for row in stack.attentions(layer))


def _ranks(values: np.ndarray) -> np.ndarray:
    return values.ravel().argsort(kind="stable").argsort(kind="stable").reshape(values.shape)
