"""Direct attribution: how much each component's write moves the forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError, WiringError, unknown_name
from tsfm_lens.findings import judge
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.residual import Place, carry_factors, excess, first_deviation, no_sum
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models.batching import width_of_output
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import own_rounding, relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.places import component_coords, head_or_kind
from tsfm_lens.registry import probe

__all__ = ["attribute", "component_writes", "stream_shares"]

# most numbers in the streams, or in the writes at points of the path, that are read out at once
_NUMBERS = 2**21
_SOURCE = "tsfm-lens paper, section 2 (S3-DLA, S3-HEAD); Sundararajan et al. 2017 for the path integral"
DECOMPOSITIONS = {
    "token": ("logit", "probability", "expected_value"),
    "quantile": ("lens_difference", "linearised", "integrated"),
    "distribution": ("lens_difference", "linearised", "integrated"),
}


def decompositions_of(lens: Lens) -> tuple[str, ...]:
    """Return the attribution decompositions that a model allows."""
    decompositions = DECOMPOSITIONS[lens.emits]
    return decompositions if lens.wiring.true_gradients else decompositions[:1]


@probe("attribution")
def attribute(run: Run, *, nodes: int = 128) -> xr.Dataset:
    """Split the forecast among the embedding, heads, MLPs and output biases of the stack that is read out.

    Parts go from the readout of an empty residual stream to the model's own forecast. Sharp logits saturate
    ``expected_value``, and ``logit`` mistakes a head that lifts all logits alike for a part.

    - ``logit``: of the token on the run's path, less the mean over the vocabulary, with the final norm's scale frozen;
      linear, so the parts sum exactly to the whole.
    - ``probability``, ``expected_value`` (in data units), and of patch models ``lens_difference``: the readout after a
      component has written less the readout before, in order of writing; telescopes exactly.
    - ``linearised``: the head's derivative at the full stream, norm scale frozen, times each write; not complete.
    - ``integrated``: that derivative averaged along the straight path from the empty to the full stream (integrated
      gradients); complete up to the quadrature.

    Args:
        run: the forecast to explain.
        nodes: points of the midpoint rule along the path.

    Returns:
        Dataset of kind "attribution": ``attribution`` and ``total`` over ``decomposition``, ``component`` (not total),
        ``series``, (``quantile``), ``step``; ``mean_attribution`` (decomposition, component, series), mean over steps
        but a token decoder's first, of the median; ``attribution_share``, the same over the sum of all sizes, with what
        :func:`tsfm_lens.findings.judge` adds, heads among heads; ``completeness_error`` (decomposition, series):
        the parts' largest deviation from ``total``, over the largest total.

    Raises:
        InputError: a horizon longer than one pass, nodes below 1, or hooks that edit the stream or what is behind it.
        WiringError: the writes do not sum to the model's last stream, or its readout is not its forecast.

    Example:
        >>> parts = probes.attribute(run)
        >>> parts["decomposition"].values.tolist()
        ['logit', 'probability', 'expected_value']
        >>> bool((parts["completeness_error"] < 1e-3).all())
        True
    """
    return _add_statistics(decomposed(run, nodes).assign_attrs(nodes=nodes), run)


def decomposed(run: Run, nodes: int | None = 128) -> xr.Dataset:
    """Compute :func:`attribute` without its statistics, once for all probes of a run."""
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
        parts = _of_tokens(run, writes, last) if run.tokens is not None else _of_quantiles(run, writes, last, nodes)
    units = {"logit": "logit", "probability": "probability"}
    coords = component_coords(names)
    coords["unit"] = ("decomposition", [units.get(name, "data units") for name in parts])
    attribution, total = (np.stack([part[i].cpu().double().numpy() for part in parts.values()]) for i in (0, 1))
    axes = ("series", "step") if run.tokens is not None else ("series", "quantile", "step")
    if run.tokens is None:
        coords["quantile"] = list(run.lens.levels)
    gap = np.abs(attribution.sum(axis=1) - total)
    over = tuple(range(2, gap.ndim))
    size = np.abs(total).max(axis=over)
    data = run.dataset().assign_coords(decomposition=list(parts), **coords)
    data = data.assign(
        attribution=(("decomposition", "component", *axes), attribution),
        total=(("decomposition", *axes), total),
        completeness_error=(("decomposition", "series"), gap.max(axis=over) / np.where(size > 0, size, 1.0)),
        native_median=(("series", "step"), run.forecast.median),
    )
    data.attrs = run.describe("attribution", "Direct attribution", _SOURCE, nodes=nodes, first_step=run.first_step)
    return data


def _add_statistics(data: xr.Dataset, run: Run) -> xr.Dataset:
    """Add means over steps, their shares, and what :func:`tsfm_lens.findings.judge` adds."""
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


Parts = dict[str, tuple[Tensor, Tensor]]
"""decomposition -> attribution (component, …), total (…)."""


def _of_tokens(run: Run, writes: Tensor, last: Tensor) -> Parts:
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

    steps, whole = _telescope(readouts, writes, lens), read(output) - readouts(torch.zeros_like(last))
    parts = {name: (steps[..., i], whole[..., i]) for i, name in enumerate(DECOMPOSITIONS["token"][1:])}
    return {"logit": (logit, centred(output) - empty), **parts}


def _of_quantiles(run: Run, writes: Tensor, last: Tensor, nodes: int) -> Parts:
    lens = run.lens

    def native(stream: Tensor) -> Tensor:
        return lens.readout(stream, run.encoded)[..., : run.horizon]

    def frozen(stream: Tensor) -> Tensor:
        return lens.readout(stream, run.encoded, like=last)[..., : run.horizon]

    whole = own_readout(run, last)[..., : run.horizon] - native(torch.zeros_like(last))
    parts = {"lens_difference": (_telescope(native, writes, lens), whole)}
    if not lens.wiring.true_gradients:
        return parts
    integrated = torch.zeros(len(writes), *whole.shape, dtype=whole.dtype, device=whole.device)
    shares = (torch.arange(nodes, dtype=last.dtype, device=last.device) + 0.5) / nodes
    for part in shares.split(max(1, _NUMBERS // writes.numel())):
        stretch = last * part.reshape(-1, *[1] * last.ndim)
        integrated += _push_forward(lambda stream: frozen(stream).sum(0), stretch, writes) / nodes
    return parts | {"linearised": (_push_forward(frozen, last, writes), whole), "integrated": (integrated, whole)}


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


@probe("stream_shares")
def stream_shares(run: Run, *, decomposition: str | None = None) -> xr.Dataset:
    """List the writers of the stream that is read out, in order of writing, with the size of their attribution.

    Args:
        run: the forecast to explain.
        decomposition: of attribution; the first that the model allows if None. Of several quantiles the median.

    Returns:
        Dataset of kind "stream_shares" over ``writer`` ("embed", "decoder.0.self_attn", …) and ``series``: ``size``,
        mean over steps of the whole branch's absolute attribution, in ``attrs["unit"]``; ``share``, the same over the
        sum of all, with what :func:`tsfm_lens.findings.judge` adds; ``head_size`` (writer, head, series), NaN
        where a writer has none. Coordinates ``layer_index``, ``kind``, and ``keys_from``, the stack that an attention
        reads.

    Source:
        tsfm-lens paper, section 2 and figure 1B (S3-RES, S3-DLA).

    Raises:
        InputError, WiringError: see :func:`tsfm_lens.probes.attribute`.
        UnknownNameError: the model does not allow this decomposition.

    Example:
        >>> round(float(probes.stream_shares(run)["share"].sum()), 3)
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
    order = list(dict.fromkeys(places))
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
    rows = [stack.writer(kind, layer) if layer >= 0 else None for layer, kind in order]
    total = size.sum(axis=0)
    data = xr.Dataset(
        {
            "size": (("writer", "series"), size),
            "share": (("writer", "series"), np.divide(size, total, out=np.zeros_like(size), where=total > 0)),
            "head_size": (("writer", "head", "series"), head_size),
        },
        coords={
            "writer": [kind if layer < 0 else str(Component(stack.name, layer, kind)) for layer, kind in order],
            "layer_index": ("writer", [layer for layer, _ in order]),
            "kind": ("writer", [kind for _, kind in order]),
            "keys_from": ("writer", [row.keys_from if isinstance(row, Attention) else "" for row in rows]),
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


_SUMMED = ("hook_out", "hook_result", *RESIDUAL_NAMES, "hook_resid_post")


def component_writes(run: Run) -> tuple[list[Component | str], Tensor]:
    """Return what the embedding, heads, MLPs and output biases write: names and (component, series, pos, d_model).

    Raises:
        WiringError: the writes do not sum to the model's own last stream; names where they first differ from it.
        InputError: the same, under hooks that edit the stream itself.

    Example:
        >>> names, writes = probes.component_writes(run)
        >>> names[0], len(names) == len(writes)
        ('embed', True)
    """
    names, writes, _ = writes_and_stream(run)
    return names, writes


def writes_and_stream(run: Run) -> tuple[list[Component | str], Tensor, Tensor]:
    """Return names and writes of :func:`component_writes`, and the model's own last stream (series, pos, d_model)."""
    lens, model = run.lens, run.lens.model
    stack = lens.wiring.output_stack
    dot = f"{stack.name}." if stack.name else ""
    components = writers(lens.wiring)
    heads = sorted({f"{stack.prefix}.{c.layer}.{c.kind}.hook_result" for c in components if c.head is not None})
    branches = [f"{stack.prefix}.{c.layer}.{c.kind}.hook_out" for c in components if c.head is None]
    end = f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"
    acts = run.in_one_pass().record([f"{dot}hook_embed", *heads, *branches, end])
    with torch.no_grad():
        # where blocks rescale the stream, every later scale is part of a write
        factors = carry_factors(model, stack)
        parts = [acts[f"{dot}hook_embed"] * factors["embed"]]
        for component in components:
            at, head = f"{stack.prefix}.{component.layer}.{component.kind}", component.head
            write = acts[f"{at}.hook_out"] if head is None else acts[f"{at}.hook_result"][..., head, :]
            parts.append(write * factors[component.layer, str(component.kind)])
        bias = _biases(lens, factors)
        names: list[Component | str] = ["embed", *components]
        if bias is not None:
            names.append("bias")
            parts.append(bias.expand_as(parts[0]))
        writes, last = torch.stack(parts), acts[end]
        apart = excess(writes.sum(0), writes.abs().sum(0), last, relative_rounding(lens))
        if apart is not None:
            points = [name for name in lens.registry.points if name.startswith(f"{stack.prefix}.")]
            sums = run.in_one_pass().record([name for name in points if name.endswith(_SUMMED)])
            first = first_deviation(model, lens.wiring, stack, sums)
            raise no_sum(lens.wiring, f"that is read out ({end})", apart, first, edited_points(lens))
    return names, writes, last


def own_readout(run: Run, last: Tensor) -> Tensor:
    """Read out the model's own last stream."""
    single = run.in_one_pass()
    output = run.lens.readout(last, run.encoded)
    forecast = single.read(output.detach()).cpu().double().numpy()
    apart = np.abs(forecast - single.point)
    apart[(forecast == single.point) | (np.isnan(forecast) & np.isnan(single.point))] = 0.0
    bound = own_rounding(single)
    wrong = ~(apart.max(-1) <= bound)
    if wrong.any():
        row = int(wrong.argmax())
        message = (
            f"the last residual stream, read out by {run.lens.wiring.architecture!r}, is off the model's own forecast "
            f"of series {run.batch.ids[row]!r} by up to {apart[row].max():.3g}, and rounding allows {bound[row]:.1g}"
        )
        hooked = edited_points(run.lens)
        if hooked:
            raise InputError(
                f"{message}. Hooks are set at {', '.join(hooked)}, and what they change behind the last block is in no "
                "readout of a stream; decompose a run without them"
            )
        raise WiringError(
            f"{message}. ln_final, or final_norm or head of the adapter, is not what the model does behind its last "
            "block, which testing.check_wiring tells"
        )
    return output


def edited_points(lens: Lens) -> list[str]:
    """Return hook points that have a hook now."""
    return [name for name, point in lens.registry.hooked.items() if point.fwd_hooks]


def _biases(lens: Lens, factors: Mapping[Place, float]) -> Tensor | None:
    """Sum what the attentions' output projections add whatever their heads do, None where there is no bias."""
    stack = lens.wiring.output_stack
    biases = [
        lens.weights.b_O(layer, row.kind, stack.name)
        * (lens.weights.scale(layer, row.kind, stack.name) * factors[layer, row.kind])
        for layer in range(stack.n_layers)
        for row in stack.attentions(layer)
        if not row.post_norm
    ]
    biases = [bias for bias in biases if bool(bias.any())]
    return sum(biases[1:], biases[0]) if biases else None
