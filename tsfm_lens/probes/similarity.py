"""Similarity of layers, and the number of directions in which heads write.

:func:`layer_similarity` compares streams and updates; :func:`entropic_rank` the writes
of one layer's heads. :func:`mean_over_tokens` averages any function of head writes
while the model runs, without storing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.axes import depth_coords
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.recorder import by_row
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.logit_lens import layer_streams

__all__ = ["entropic_rank", "layer_similarity"]


@probe(
    title="Similarity of layers",
    theme="Activations",
    summary="similarity of layers (CKA, cosine of updates)",
    description=(
        "How alike the residual stream is after different layers, and how alike the "
        "layers' updates are. Neighbours that are almost the same change little."
    ),
    source="Kornblith et al. 2019, equation 6",
)
def layer_similarity(run: Run) -> xr.Dataset:
    """Compare the layers of the output stack.

    Args:
        run: the forecast to explain.

    Returns:
        Dataset of kind "layer_similarity":

        - ``update_cosine`` (layer, other_layer): cosine between what two layers add to
          the stream at a token, mean over tokens and series.
        - ``cka`` (stream, other_stream): linear centred kernel alignment of the streams
          over all tokens. -1 is the embedding, then after every layer.

    Source:
        tsfm-lens paper, section 4; Kornblith et al. 2019, equation 6, for CKA.

    Raises:
        InputError: a horizon longer than one pass.

    Example:
        >>> probes.layer_similarity(run)["cka"].dims
        ('stream', 'other_stream')
    """
    streams = layer_streams(run)
    n_layers = len(streams) - 1
    updates = torch.stack(
        [after - before for before, after in pairwise(streams)]
    ).double()
    visible = run.encoded.shown(run.lens.wiring.output_stack.name).to(updates.device)
    # an update of length 0 has no direction, and counts as 0
    unit = (updates / updates.norm(dim=-1, keepdim=True).clamp(min=1e-30))[:, visible]
    cosine = torch.einsum("lnd,mnd->lmn", unit, unit).mean(dim=-1)
    flat = [stream[visible].double() for stream in streams]
    return xr.Dataset(
        {
            "update_cosine": (("layer", "other_layer"), cosine.cpu().numpy()),
            "cka": (("stream", "other_stream"), linear_cka(flat)),
        },
        coords={
            "layer": range(n_layers),
            "other_layer": range(n_layers),
            **depth_coords("stream", n_layers),
            **depth_coords("other_stream", n_layers),
        },
    )


def linear_cka(representations: list[Tensor]) -> np.ndarray:
    """Return linear CKA of every pair of representations (sample, feature).

    It is ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of centred features (Kornblith et al. 2019).
    """
    centred = [x - x.mean(dim=0, keepdim=True) for x in representations]
    cross = torch.stack(
        [torch.stack([(x.T @ y).square().sum() for y in centred]) for x in centred]
    )
    norms = cross.diagonal().sqrt()
    return (cross / (norms[:, None] * norms[None])).cpu().numpy()


EPSILON = 1e-8


@probe(
    title="Entropic rank",
    theme="Activations",
    summary="entropic rank of the heads of a layer",
    description=(
        "The number of different directions that the heads of a layer write in. It "
        "equals the number of heads if none repeats another."
    ),
    source="tsfm-lens paper, appendix E (S3-ERANK)",
    paper=("S3-F1E",),
)
def entropic_rank(
    run: Run, *, kind: str | None = None, batch_size: int = 8
) -> xr.Dataset:
    """Compute the entropic rank of the head outputs of every layer of a stack.

    The writes of a layer's heads at one token, after the output projection and before a
    post-norm, are scaled to length 1 and stacked. The entropy of their normalised
    singular values is averaged over tokens and exponentiated. It is 1 if all heads
    write along one line, and the number of heads if no two share a direction.

    Args:
        run: the forecast to explain.
        kind: kind of attention; the stack's last kind if None.
        batch_size: series in a group, or items where they have several variates.

    Returns:
        Dataset of kind "entropic_rank":

        - ``rank`` (layer): from 1 to the number of heads.
        - ``entropy`` (layer, series): in nats, mean over tokens.
        - ``tokens`` (series): their number without padding, by which the rank weights
          the series.

    Source:
        tsfm-lens paper, appendix E and figure 1E (S3-ERANK).

    Raises:
        InputError: batch_size below 1, or a horizon longer than one pass.
        UnknownNameError: no such kind of attention.

    Example:
        >>> bool((probes.entropic_rank(run)["rank"] <= 4).all())  # heads
        True
    """
    means = mean_over_tokens(
        run, reduce=head_entropy_of_writes, kind=kind, batch_size=batch_size
    )
    data = means.rename(mean="entropy", over_all="rank").assign(
        rank=lambda item: np.exp(item["rank"])
    )
    data["entropy"].attrs["units"] = "nats"
    return data.assign_attrs(
        title=f"Entropic rank of {means.attrs['attention']}",
        heads=run.lens.wiring.output_stack.n_heads,
    )


def mean_over_tokens(
    run: Run,
    *,
    reduce: Callable[[Tensor], Tensor],
    kind: str | None = None,
    batch_size: int = 8,
    normed: bool = False,
) -> xr.Dataset:
    """Return the mean over tokens of a function of head writes.

    The result has ``mean`` (layer, series, …), ``over_all`` series, and ``tokens``,
    their number.
    """
    lens = run.lens
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}, expected 1 or more")
    stack = lens.wiring.output_stack
    attention, layers = stack.find_layers(kind)
    reducers = dict(
        _reducer(lens, layer, attention, reduce, normed=normed) for layer in layers
    )
    means = []
    rows: list[str] = []
    tokens: list[np.ndarray] = []
    for group in item_groups(run, batch_size):
        encoded = group.encoded
        rows += encoded.rows
        with torch.no_grad():
            # reduced while the model runs, so that the writes are never stored
            _, activations = lens.run_with_cache(
                encoded, names_filter=list(reducers), reduce=reducers
            )
        reduced = torch.stack([activations[point] for point in reducers]).cpu()
        visible = encoded.shown(stack.name)
        weights = visible.reshape(*visible.shape, *[1] * (reduced.ndim - 3))
        tokens.append(visible.sum(dim=1).numpy())
        means.append(((reduced * weights).sum(dim=2) / weights.sum(dim=1)).numpy())
    values = np.concatenate(means, axis=1)
    counts = np.concatenate(tokens)
    parts = ("part",) * (values.ndim - 2)
    # every token has the same weight, so a series has that of its tokens
    over_all = np.average(values, axis=1, weights=counts)
    return xr.Dataset(
        {
            "mean": (("layer", "series", *parts), values),
            "over_all": (("layer", *parts), over_all),
            "tokens": ("series", counts),
        },
        coords={"layer": list(layers), "series": rows},
        attrs={"attention": attention},
    )


def _reducer(
    lens: Lens,
    layer: int,
    kind: str,
    reduce: Callable[[Tensor], Tensor],
    *,
    normed: bool,
) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return a hook point of a layer's head writes, and its reducing function."""
    stack = lens.wiring.output_stack
    prefix = f"{stack.prefix}.{layer}.{kind}"
    if normed or not stack.attention(kind, layer).post_norm:
        return f"{prefix}.hook_result", by_row(partial(reduce))
    # hook_result comes after the post-norm, so the writes before it are made from z
    project = lens.weights.heads(layer, kind, stack.name).W_O

    def reduce_projection(states: Tensor) -> Tensor:
        return reduce(torch.einsum("bphd,hdm->bphm", states, project))

    return f"{prefix}.hook_z", by_row(reduce_projection)


def item_groups(run: Run, size: int) -> Iterator[Run]:
    """Split a run into groups of ``size`` items; variates of an item stay together."""
    items = run.batch.group_index
    for first in range(0, int(items.max()) + 1, size):
        yield run.select(
            np.flatnonzero((items >= first) & (items < first + size)).tolist()
        )


def head_entropy_of_writes(writes: Tensor) -> Tensor:
    """Return the entropy of the singular values of head writes.

    Writes (…, head, d_model) are scaled to length 1, and singular values normalised;
    the result is (…).
    """
    z = writes.double()
    unit = z / z.norm(dim=-1, keepdim=True).clamp(min=EPSILON)
    # the singular values of U are the roots of the eigenvalues of its Gram matrix,
    # which is heads × heads
    eigenvalues = torch.linalg.eigvalsh(unit @ unit.transpose(-2, -1)).clamp(min=0.0)
    weights = eigenvalues.sqrt()
    share = weights / weights.sum(dim=-1, keepdim=True).clamp(min=EPSILON)
    result: Tensor = -(share * share.clamp(min=EPSILON).log()).sum(dim=-1)
    return result
