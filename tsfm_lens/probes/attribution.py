"""Direct attribution: how much each component's write moves the forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.memory import width_of_output
from tsfm_lens.models.noise import own_rounding, relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.places import component_coords, head_or_kind
from tsfm_lens.probes.writes import own_readout, writes_and_stream
from tsfm_lens.registry import probe

__all__ = ["attribute"]

# most numbers in the streams, or in the writes at points of the path, that are read out at once
_NUMBERS = 2**21
_SOURCE = "tsfm-lens paper, section 2 (S3-DLA, S3-HEAD); Sundararajan et al. 2017 for the path integral"
DECOMPOSITIONS = {
    "token": ("logit", "probability", "expected_value"),
    "quantile": ("lens_difference", "linearised", "integrated"),
    "distribution": ("lens_difference", "linearised", "integrated"),
}


def decompositions_of(lens: Lens) -> tuple[str, ...]:
    """Return the attribution decompositions that a model allows.

    Where a library's backward pass is not the derivative (Toto 2), only the difference of readouts is allowed.
    """
    decompositions = DECOMPOSITIONS[lens.emits]
    return decompositions if lens.wiring.true_gradients else decompositions[:1]


@probe("attribution")
def attribute(run: Run, *, nodes: int = 128) -> xr.Dataset:
    """Split the forecast among the embedding, every head and every MLP of the stack that is read out.

    Shares are signed means. A copying head adds to one series what it takes from another, so its share is near 0 and
    does not stand out; :func:`tsfm_lens.probes.stream_shares` measures sizes instead.

    No decomposition of a token model is right everywhere. In planted Chronos models ``logit`` mistakes a head that
    lifts the logits of all values alike for a part. Sharp logits saturate ``expected_value``, which ranks parts near
    chance in most mechanisms; with noise in the weights it ranks better than ``logit``.

    The parts are measured from the readout of an empty residual stream (``baseline``) to the model's own forecast. The
    stream after the last block is recorded beside the writes, which must sum to it. Its readout is compared with the
    output of the same forward. Methods for token models:

    - ``logit``: the logit of the token that the run's path takes, less the mean over the vocabulary, with the final
      norm's scale frozen; linear, so the parts sum exactly to the whole.
    - ``probability``, ``expected_value``: the readout after a component has written less the readout
      before, in the order of writing (heads of one branch by index); telescopes exactly. The expected value
      is that of the lens distribution over value bins, in data units.

    Methods for patch models, all in data units of each quantile:

    - ``lens_difference``: as above.
    - ``linearised``: the head's derivative at the full stream, norm scale frozen, times each write. The head
      is no linear map, so the parts miss the whole by ``completeness_error``.
    - ``integrated``: that derivative averaged along the straight path from the empty to the full stream
      (integrated gradients); complete up to the quadrature.

    Args:
        run: the forecast to explain.
        nodes: points of the midpoint rule along the path.

    Returns:
        Dataset of kind "attribution": ``attribution`` and ``total`` over ``decomposition``, ``component`` (not
        total), ``series``, (``quantile``), ``step``; ``mean_attribution`` (decomposition, component, series), its mean
        over steps, the median's of several quantiles, without the first step of a token model's decoder, which reads a
        start token and no value; ``attribution_share``, the same over the sum of the sizes of all components', since
        units of series differ, with what :func:`tsfm_lens.probes.findings.judge` adds: heads are compared with heads,
        in each decomposition by itself; ``completeness_error`` (decomposition, series): the largest
        deviation of the parts' sum from ``total``, which is the readout of the model's own last stream less that of an
        empty one, relative to the largest total.

    Raises:
        InputError: the horizon is longer than one pass of the model, nodes is below 1, or hooks edit the stream itself
            or what is behind it.
        WiringError: the writes do not sum to the model's own last stream, or its readout is not the model's forecast,
            by more than rounding; names where they first differ.

    Example:
        >>> parts = probes.attribute(run)
        >>> parts["decomposition"].values.tolist()
        ['logit', 'probability', 'expected_value']
        >>> bool((parts["completeness_error"] < 1e-3).all())
        True
    """
    return _add_statistics(decomposed(run, nodes).assign_attrs(nodes=nodes), run)


def decomposed(run: Run, nodes: int | None = 128) -> xr.Dataset:
    """Compute :func:`attribute` without its statistics, once for all probes of a run.

    Args:
        run: the forecast to explain.
        nodes: of the path integral; None for decompositions that have none, which reuse any cached result.
    """
    if nodes is not None and nodes < 1:
        raise InputError(f"nodes is {nodes}, expected 1 or more")
    cache: dict[int, xr.Dataset] = run.cache.setdefault("attribution", {})
    if nodes is None or run.tokens is not None:
        nodes = next(iter(cache), nodes or 1)
    if nodes not in cache:
        cache[nodes] = _decompose(run, nodes)
    return cache[nodes]


def _decompose(run: Run, nodes: int) -> xr.Dataset:
    names, writes, last = writes_and_stream(run)
    with torch.no_grad():
        parts = _token(run, writes, last) if run.tokens is not None else _quantile(run, writes, last, nodes)
    decompositions = decompositions_of(run.lens)
    attribution = np.stack([parts[decomposition][0] for decomposition in decompositions])
    total = np.stack([parts[decomposition][1] for decomposition in decompositions])
    axes = ("series", "step") if run.tokens is not None else ("series", "quantile", "step")
    quantiles: dict[str, Any] = {} if run.tokens is not None else {"quantile": list(run.lens.levels)}
    data = run.dataset().assign_coords(
        decomposition=list(decompositions),
        unit=("decomposition", [parts[decomposition][2] for decomposition in decompositions]),
        **quantiles,
        **component_coords(names),
    )
    data = data.assign(
        attribution=(("decomposition", "component", *axes), attribution),
        total=(("decomposition", *axes), total),
        completeness_error=(("decomposition", "series"), completeness(attribution, total)),
        native_median=(("series", "step"), run.forecast.median),
    )
    data.attrs = run.describe("attribution", "Direct attribution", _SOURCE, nodes=nodes, first_step=run.first_step)
    return data


def _add_statistics(data: xr.Dataset, run: Run) -> xr.Dataset:
    """Add means over steps, their shares, and what :func:`tsfm_lens.probes.findings.judge` adds."""
    parts, total = (of_median(data[name]).values[..., run.first_step :] for name in ("attribution", "total"))
    mean = parts.mean(-1)
    size = np.abs(mean).sum(1, keepdims=True)
    size = np.where(size > 0, size, np.nan)
    # parts round as the whole that they sum to does, and values in data units at their own level, too
    level = np.where(data["unit"].values[:, None] == "data units", own_rounding(run), 0.0)
    floor = relative_rounding(run.lens) * np.abs(total).max(-1) + level
    axes = ("decomposition", "component", "series")
    data = data.assign(mean_attribution=(axes, mean), attribution_share=(axes, mean / size))
    groups = [f"{each} {of}" for each in data["decomposition"].values for of in head_or_kind(data)]
    floors = xr.DataArray(floor / size[:, 0], dims=("decomposition", "series"))
    return judge(data, "attribution_share", floor=floors, signed=True, groups=groups)


def of_median(parts: xr.DataArray) -> xr.DataArray:
    """Return the parts of the quantile nearest to the median, where there are several."""
    return parts.sel(quantile=0.5, method="nearest") if "quantile" in parts.dims else parts


def completeness(attribution: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the largest |sum of parts - whole| of each decomposition and series, over the largest |whole|.

    The whole is the model's own, not the sum of the writes.
    """
    gap = np.abs(attribution.sum(axis=1) - total)
    axes = tuple(range(2, gap.ndim))
    size = np.abs(total).max(axis=axes)
    return gap.max(axis=axes) / np.where(size > 0, size, 1.0)


Parts = dict[str, tuple[np.ndarray, np.ndarray, str]]
"""decomposition -> attribution (component, …), total (…), unit."""


def _token(run: Run, writes: Tensor, last: Tensor) -> Parts:
    assert run.tokens is not None
    lens, output = run.lens, own_readout(run, last)
    tokens = run.tokens.to(last.device)[..., None]

    def centred(logits: Tensor) -> Tensor:
        return (logits.gather(-1, tokens.expand(*logits.shape[:-1], 1)) - logits.mean(-1, keepdim=True))[..., 0]

    def frozen(stream: Tensor) -> Tensor:
        return centred(lens.readout(stream, run.encoded, like=last))

    # the frozen readout is linear, so each write goes through it alone, less the readout of an empty stream
    empty = frozen(torch.zeros_like(last))
    logit = _of_each(frozen, writes, lens) - empty
    first, values = lens.first_value_token, lens.bin_values(run.encoded)[:, None].to(last)

    def read(logits: Tensor) -> Tensor:
        # among the value tokens alone, whose share may be too small to be divided by
        p, mass = torch.softmax(logits, dim=-1), torch.softmax(logits[..., first:], dim=-1)
        probability = p.gather(-1, tokens.expand(*p.shape[:-1], 1))[..., 0]
        return torch.stack([probability, (mass * values).sum(-1)], dim=-1)

    def readouts(stream: Tensor) -> Tensor:
        return read(lens.readout(stream, run.encoded))

    steps = _telescope(readouts, writes, lens)
    whole = read(output) - readouts(torch.zeros_like(last))
    return {
        "logit": (_array(logit), _array(centred(output) - empty), "logit"),
        "probability": (_array(steps[..., 0]), _array(whole[..., 0]), "probability"),
        "expected_value": (_array(steps[..., 1]), _array(whole[..., 1]), "data units"),
    }


def _quantile(run: Run, writes: Tensor, last: Tensor, nodes: int) -> Parts:
    lens = run.lens

    def native(stream: Tensor) -> Tensor:
        return lens.readout(stream, run.encoded)[..., : run.horizon]

    def frozen(stream: Tensor) -> Tensor:
        return lens.readout(stream, run.encoded, like=last)[..., : run.horizon]

    whole = own_readout(run, last)[..., : run.horizon] - native(torch.zeros_like(last))
    difference = (_array(_telescope(native, writes, lens)), _array(whole), "data units")
    if not lens.wiring.true_gradients:
        return {"lens_difference": difference}
    integrated = torch.zeros(len(writes), *whole.shape, dtype=whole.dtype, device=whole.device)
    shares = (torch.arange(nodes, dtype=last.dtype, device=last.device) + 0.5) / nodes
    for part in shares.split(max(1, _NUMBERS // writes.numel())):
        stretch = last * part.reshape(-1, *[1] * last.ndim)
        integrated += _push_forward(lambda stream: frozen(stream).sum(0), stretch, writes) / nodes
    return {
        "lens_difference": difference,
        "linearised": (_array(_push_forward(frozen, last, writes)), _array(whole), "data units"),
        "integrated": (_array(integrated), _array(whole), "data units"),
    }


def _push_forward(function: Callable[[Tensor], Tensor], at: Tensor, writes: Tensor) -> Tensor:
    """Apply the derivative of a readout at one stream, or at several at once (point, …), to every write."""
    return torch.func.vmap(lambda write: torch.func.jvp(function, (at,), (write.expand_as(at),))[1])(writes)


def _telescope(readout: Callable[[Tensor], Tensor], writes: Tensor, lens: Lens) -> Tensor:
    """Compute the readout after each write less the readout before, in order of writing."""
    streams = torch.cat([torch.zeros_like(writes[:1]), writes.cumsum(0)])
    return _of_each(readout, streams, lens).diff(dim=0)


def _of_each(readout: Callable[[Tensor], Tensor], streams: Tensor, lens: Lens) -> Tensor:
    """Read out streams (stream, series, pos, d_model), as many at once as keep the memory small."""
    numbers = streams[0].numel() // lens.d_model * max(lens.d_model, width_of_output(lens))
    return torch.cat([readout(part) for part in streams.split(max(1, _NUMBERS // numbers))])


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()
