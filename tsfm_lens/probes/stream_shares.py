"""Shares of the forecast that each branch writes into the residual stream."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution import decomposed, decompositions_of, of_median
from tsfm_lens.probes.findings import judge
from tsfm_lens.registry import probe

__all__ = ["stream_shares"]


@probe("stream_shares")
def stream_shares(run: Run, *, decomposition: str | None = None) -> xr.Dataset:
    """List the writers of the stream that is read out, in order of writing, with the size of their attribution.

    Shares have the limits of the decomposition, see :func:`tsfm_lens.probes.attribute`. In planted Chronos models, by
    their logits, a head that lifts the logits of all values alike has a share as large as a true part's.

    Args:
        run: the forecast to explain.
        decomposition: of attribution; the first that the model allows if None. Of several quantiles the median.

    Returns:
        Dataset of kind "stream_shares" over ``writer`` ("embed", "decoder.0.self_attn", …) and ``series``:
        ``size``, the mean over steps of the absolute attribution of the whole branch, in ``attrs["unit"]``;
        ``share``, the same over the sum of all writers, with what :func:`tsfm_lens.probes.findings.judge` adds;
        ``head_size`` (writer, head, series), that of single heads, NaN where a writer has none. Coordinates
        ``layer_index``, ``kind``, and ``keys_from``, the stack whose activations an attention reads.

    Source:
        tsfm-lens paper, section 2 and figure 1B (S3-RES, S3-DLA).

    Raises:
        InputError, WiringError: see :func:`tsfm_lens.probes.attribute`.
        UnknownNameError: the model does not allow this decomposition.

    Example:
        >>> data = probes.stream_shares(run)
        >>> round(float(data["share"].sum()), 3)
        1.0
    """
    lens = run.lens
    methods = decompositions_of(lens)
    method = methods[0] if decomposition is None else decomposition
    if method not in methods:
        raise unknown_name("attribution decomposition", method, methods)
    # only the path integral has nodes
    result = decomposed(run) if method == "integrated" else decomposed(run, None)
    parts = result["attribution"].sel(decomposition=method)
    parts = of_median(parts).transpose("component", "series", "step")
    places = list(zip(result["layer_index"].values.tolist(), result["kind"].values.tolist(), strict=True))
    order = _in_order(lens, list(dict.fromkeys(places)))
    stack = lens.wiring.output_stack
    size = np.empty((len(order), parts.sizes["series"]))
    head_size = np.full((len(order), stack.n_heads, parts.sizes["series"]), np.nan)
    for row, place in enumerate(order):
        members = [i for i, each in enumerate(places) if each == place]
        branch_parts = parts.values[members]
        size[row] = np.abs(branch_parts.sum(axis=0)).mean(axis=-1)
        heads = result["head"].values[members]
        if (heads >= 0).all():
            head_size[row, heads] = np.abs(branch_parts).mean(axis=-1)
    total = size.sum(axis=0)
    dot = f"{stack.name}." if stack.name else ""
    data = xr.Dataset(
        {
            "size": (("writer", "series"), size),
            "share": (("writer", "series"), np.divide(size, total, out=np.zeros_like(size), where=total > 0)),
            "head_size": (("writer", "head", "series"), head_size),
        },
        coords={
            "writer": [kind if layer < 0 else f"{dot}{layer}.{kind}" for layer, kind in order],
            "layer_index": ("writer", [layer for layer, _ in order]),
            "kind": ("writer", [kind for _, kind in order]),
            "keys_from": ("writer", [_keys_from(lens, layer, kind) for layer, kind in order]),
            "series": result["series"],
            "head": range(stack.n_heads),
        },
    )
    unit = str(result["unit"].sel(decomposition=method).item())
    title, source = "Writers of the residual stream", "tsfm-lens paper, section 2 and figure 1B (S3-RES, S3-DLA)"
    facts = {"decomposition": method, "unit": unit, "stack": stack.name, "d_model": stack.d_model}
    data.attrs = run.describe("stream_shares", title, source, **facts)
    totals = of_median(result["total"].sel(decomposition=method)).transpose("series", "step")
    whole = np.abs(totals.values).mean(-1)
    floor = relative_rounding(lens) * np.divide(whole, total, out=np.ones_like(total), where=total > 0)
    return judge(data, "share", floor=floor)


def _in_order(lens: Lens, places: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Sort writers: embedding, then layer by layer in order of writing, then what the output projections add."""
    stack = lens.wiring.output_stack

    def key(place: tuple[int, str]) -> tuple[int, int]:
        layer, kind = place
        if layer < 0:
            return (-1, 0) if kind == "embed" else (stack.n_layers, 0)
        return layer, [row.kind for row in stack.rows(layer)].index(kind)

    return sorted(places, key=key)


def _keys_from(lens: Lens, layer: int, kind: str) -> str:
    row = lens.wiring.output_stack.writer(kind, layer) if layer >= 0 else None
    return row.keys_from if isinstance(row, Attention) else ""
