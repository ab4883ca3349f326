"""Similarity of heads, layers' updates and layers' streams: cosine and linear CKA."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.hooks.recorder import by_row
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.logit_lens import layer_streams
from tsfm_lens.registry import probe

__all__ = ["head_similarity", "layer_similarity"]


@probe("layer_similarity")
def layer_similarity(run: Run) -> xr.Dataset:
    """Compare the layers of the stack that is read out.

    Returns:
        Dataset of kind "layer_similarity": ``update_cosine`` (layer, other_layer) between what two layers add to the
        stream at a token, mean over tokens and series; ``cka`` (stream, other_stream), linear centred kernel alignment
        of the streams over all tokens ("embed", then after every layer).

    Source:
        tsfm-lens paper, section 4; Kornblith et al. 2019, equation 6, for CKA.

    Raises:
        InputError: a horizon longer than one pass.

    Example:
        >>> probes.layer_similarity(run)["cka"].dims
        ('stream', 'other_stream')
    """
    names, streams = layer_streams(run)
    updates = torch.stack([after - before for before, after in pairwise(streams)]).double()
    visible = run.encoded.shown(run.lens.wiring.output_stack.name).to(updates.device)
    unit = (updates / updates.norm(dim=-1, keepdim=True).clamp(min=1e-30))[:, visible]
    cosine = torch.einsum("lnd,mnd->lmn", unit, unit).mean(dim=-1)
    flat = [stream[visible].double() for stream in streams]
    data = xr.Dataset(
        {
            "update_cosine": (("layer", "other_layer"), cosine.cpu().numpy()),
            "cka": (("stream", "other_stream"), linear_cka(flat)),
        },
        coords={"layer": names[1:], "other_layer": names[1:], "stream": names, "other_stream": names},
    )
    source = "Kornblith et al. 2019, equation 6"
    data.attrs = run.describe("layer_similarity", "Similarity of layers", source)
    return data


@probe("head_similarity")
def head_similarity(run: Run, *, kind: str | None = None) -> xr.Dataset:
    """Compute the cosine between what the heads of a layer write at a token, mean over tokens and series.

    Args:
        run: the forecast to explain.
        kind: kind of attention; the stack's last kind if None.

    Returns:
        Dataset of kind "head_similarity": ``cosine`` (layer, head, other_head), 1 on the diagonal.

    Raises:
        InputError: a horizon longer than one pass.
        UnknownNameError: no such kind of attention.

    Example:
        >>> dict(probes.head_similarity(run)["cosine"].sizes)
        {'layer': 3, 'head': 4, 'other_head': 4}
    """
    lens = run.lens
    stack = lens.wiring.output_stack
    attention, layers = stack.layers_with(kind)
    points = [f"{stack.prefix}.{layer}.{attention}.hook_result" for layer in layers]
    visible = run.encoded.shown(stack.name)
    with torch.no_grad():
        reduce = by_row(partial(_head_cosines, lens, visible=visible))
        _, acts = lens.run_with_cache(run.encoded, names_filter=points, reduce=reduce)
    cosine = np.stack([acts[point].sum(dim=0).cpu().numpy() for point in points]) / int(visible.sum())
    data = xr.Dataset(
        {"cosine": (("layer", "head", "other_head"), cosine)},
        coords={"layer": list(map(str, layers)), "head": range(stack.n_heads), "other_head": range(stack.n_heads)},
    )
    title = f"Similarity of heads of {attention}"
    data.attrs = run.describe("head_similarity", title, "tsfm-lens paper, section 4", attention=attention)
    return data


def _head_cosines(lens: Lens, writes: Tensor, visible: Tensor) -> Tensor:
    """Sum cosines over visible tokens (batch, pos), (batch, pos, head, d_model) -> (batch, head, head)."""
    own = lens.registry.state.own(visible).to(writes.device)
    z = torch.where(own[..., None, None], writes.double(), 0.0)
    unit = z / z.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    return torch.einsum("bphd,bpgd->bhg", unit, unit)


def linear_cka(representations: list[Tensor]) -> np.ndarray:
    """Compute linear CKA of every pair of (sample, feature), ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) (Kornblith et al. 2019)."""
    centred = [x - x.mean(dim=0, keepdim=True) for x in representations]
    cross = torch.stack([torch.stack([(x.T @ y).square().sum() for y in centred]) for x in centred])
    own = cross.diagonal().sqrt()
    return (cross / (own[:, None] * own[None])).cpu().numpy()
