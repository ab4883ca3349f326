"""Direct attribution: how much each component's write moves the forecast."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

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
from tsfm_lens.probes.secants import Secants
from tsfm_lens.registry import probe

__all__ = ["attribute", "component_writes", "stream_shares"]

# most numbers in the streams, or in the writes at points of the path, that are read out at once
_NUMBERS = 2**21
TOLERANCE = 1e-3
"""Of the largest total: error of a path integral, by default."""
_MOST_NODES = 1024
_SOURCE = "tsfm-lens paper, section 2 (S3-DLA, S3-HEAD); Sundararajan et al. 2017 for the path integral"
DECOMPOSITIONS = {
    "token": ("logit", "probability", "expected_value"),
    "quantile": ("integrated", "linearised", "lens_difference"),
    "distribution": ("integrated", "linearised", "lens_difference"),
}
"""By what a head emits; the one that finds most on planted models (``docs/planted.csv``) comes first."""


def decompositions_of(lens: Lens) -> tuple[str, ...]:
    """Return the attribution decompositions that a model allows, the default first."""
    decompositions = DECOMPOSITIONS[lens.emits]
    return decompositions if lens.wiring.true_gradients else decompositions[-1:]


@probe("attribution")
def attribute(
    run: Run, *, decompositions: str | Sequence[str] | None = None, tolerance: float = TOLERANCE
) -> xr.Dataset:
    """Split the forecast among the embedding, heads, MLPs and output biases of the stack that is read out.

    Parts go from the readout of an empty residual stream to the model's own forecast. The default is the decomposition
    that ranks the true parts of planted models first: ``logit`` of token models, ``integrated`` of others (mean AUROC
    0.97 and 0.98; ``lens_difference`` 0.93, ``expected_value``, which sharp logits saturate, 0.63).

    - ``logit``: of the token on the run's path, less the mean over the vocabulary, with the final norm's scale frozen;
      linear, so the parts sum exactly to the whole. A head that lifts all logits alike is mistaken for a part.
    - ``probability``, ``expected_value`` (in data units), and of patch models ``lens_difference``: the readout after a
      component has written less the readout before, in order of writing; telescopes exactly.
    - ``linearised``: the head's derivative at the full stream, norm scale frozen, times each write; not complete.
    - ``integrated``: that derivative averaged along the straight path from the empty to the full stream (integrated
      gradients). Heads with one hidden layer have it exactly, others to ``tolerance``.

    Args:
        run: the forecast to explain.
        decompositions: one or several of the above, or "all"; the default alone if None.
        tolerance: most error of ``integrated``, as a share of a series' largest total. Points of the path are doubled
            until the parts, or their sum, are within it, up to 1,024 of them.

    Returns:
        Dataset of kind "attribution": ``attribution`` and ``total`` over ``decomposition``, ``component`` (not total),
        ``series``, (``quantile``), ``step``. Over (decomposition, component, series), of the median, a token decoder's
        first step left out: ``mean_absolute``, mean size over steps; ``size_share``, the same over the sum of all, with
        what :func:`tsfm_lens.findings.judge` adds, heads among heads; ``mean_attribution``, signed;
        ``attribution_share``, the same over the sum of all sizes; ``sign_agreement``, share of steps with the sign of
        ``mean_attribution``. ``series_agreement`` (decomposition, component): share of series with the more frequent
        sign. ``completeness_error`` (decomposition, series): the parts' largest deviation from ``total``, over the
        largest total. ``nodes`` (decomposition): points of the path, 1 where the head's one hidden layer needs no more,
        0 where there is no path; ``path_error``, estimate of the error that is left for lack of points.

    Raises:
        InputError: a horizon longer than one pass, no positive tolerance, or hooks that edit the stream or what is
            behind it.
        UnknownNameError: the model does not allow this decomposition.
        WiringError: the writes do not sum to the model's last stream, or its readout is not its forecast.

    Example:
        >>> parts = probes.attribute(run)
        >>> parts["decomposition"].values.tolist()
        ['logit']
        >>> bool((parts["completeness_error"] < 1e-3).all())
        True
    """
    return _add_statistics(decomposed(run, decompositions, tolerance), run)


# attribution (component, …), total (…), nodes, error of the path
Parts = tuple[Tensor, Tensor, int, float]


def decomposed(run: Run, decompositions: str | Sequence[str] | None = None, tolerance: float = TOLERANCE) -> xr.Dataset:
    """Compute :func:`attribute` without its statistics, each decomposition once for all probes of a run."""
    if not tolerance > 0:
        raise InputError(f"tolerance is {tolerance}, expected more than 0")
    allowed = decompositions_of(run.lens)
    wanted = [decompositions or allowed[0]] if isinstance(decompositions, str | None) else list(decompositions)
    wanted = list(allowed) if wanted == ["all"] else wanted
    for name in wanted:
        if name not in allowed:
            raise unknown_name("attribution decomposition", name, allowed)
    cache: dict[Hashable, Any] = run.cache.setdefault("attribution", {})
    keys = {name: (name, tolerance) if name == "integrated" else name for name in wanted}
    lacking = [name for name, key in keys.items() if key not in cache]
    if lacking:
        cache["components"], writes, last = writes_and_stream(run)
        split = _of_quantiles if run.tokens is None else _of_tokens
        with torch.no_grad():
            for name, (parts, total, *path) in split(run, writes, last, lacking, tolerance).items():
                cache[keys[name]] = (*(each.cpu().double().numpy() for each in (parts, total)), *path)
    return _dataset(run, {name: cache[key] for name, key in keys.items()}, tolerance)


def _dataset(run: Run, parts: dict[str, Any], tolerance: float) -> xr.Dataset:
    units = {"logit": "logit", "probability": "probability"}
    coords = component_coords(run.cache["attribution"]["components"])
    coords["unit"] = ("decomposition", [units.get(name, "data units") for name in parts])
    attribution, total, nodes, errors = (np.stack(each) for each in zip(*parts.values(), strict=True))
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
        nodes=("decomposition", nodes),
        path_error=("decomposition", errors),
    )
    facts = {"tolerance": tolerance, "first_step": run.first_step}
    data.attrs = run.describe("attribution", "Direct attribution", _SOURCE, **facts)
    return data


def _add_statistics(data: xr.Dataset, run: Run) -> xr.Dataset:
    """Add sizes and means over steps, their shares and signs, and what ``findings.judge`` adds."""
    parts, total = (of_median(data[name]).values[..., run.first_step :] for name in ("attribution", "total"))
    mean, sizes = parts.mean(-1), np.abs(parts).mean(-1)
    size = sizes.sum(1, keepdims=True)
    size = np.where(size > 0, size, np.nan)
    # parts round as the whole that they sum to does, and values in data units at their own level, too
    level = np.where(data["unit"].values[:, None] == "data units", own_rounding(run), 0.0)
    floor = relative_rounding(run.lens) * np.abs(total).max(-1) + level
    axes = ("decomposition", "component", "series")
    target = data["role"].values == "target" if "role" in data.coords else np.ones(mean.shape[-1], dtype=bool)
    up, down = ((sign * mean[..., target] > 0).mean(-1) for sign in (1, -1))
    data = data.assign(
        mean_absolute=(axes, sizes),
        size_share=(axes, sizes / size),
        mean_attribution=(axes, mean),
        attribution_share=(axes, mean / size),
        sign_agreement=(axes, (np.sign(parts) == np.sign(mean)[..., None]).mean(-1)),
        series_agreement=(axes[:2], np.maximum(up, down)),
    )
    groups = [f"{each} {of}" for each in data["decomposition"].values for of in head_or_kind(data)]
    floors = xr.DataArray(floor / size[:, 0], dims=("decomposition", "series"))
    return judge(data, "size_share", floor=floors, groups=groups)


def of_median(parts: xr.DataArray) -> xr.DataArray:
    """Return the parts of the quantile nearest to the median, where there are several."""
    return parts.sel(quantile=0.5, method="nearest") if "quantile" in parts.dims else parts


def _of_tokens(run: Run, writes: Tensor, last: Tensor, names: list[str], _tolerance: float) -> dict[str, Parts]:
    assert run.tokens is not None
    lens, output = run.lens, own_readout(run, last)
    tokens = run.tokens.to(last.device)[..., None]

    def centred(logits: Tensor) -> Tensor:
        return (logits.gather(-1, tokens.expand(*logits.shape[:-1], 1)) - logits.mean(-1, keepdim=True))[..., 0]

    def frozen(stream: Tensor) -> Tensor:
        return centred(lens.readout(stream, run.encoded, like=last))

    # the frozen readout is linear, so each write goes through it alone, less the readout of an empty stream
    empty = frozen(torch.zeros_like(last))
    logit = _of_each(frozen, writes, lens) - empty, centred(output) - empty, 0, 0.0
    if names == ["logit"]:
        return {"logit": logit}
    first, values = lens.first_value_token, lens.bin_values(run.encoded)[:, None].to(last)

    def read(logits: Tensor) -> Tensor:
        # among the value tokens alone, whose share may be too small to be divided by
        p, mass = torch.softmax(logits, dim=-1), torch.softmax(logits[..., first:], dim=-1)
        probability = p.gather(-1, tokens.expand(*p.shape[:-1], 1))[..., 0]
        return torch.stack([probability, (mass * values).sum(-1)], dim=-1)

    def readouts(stream: Tensor) -> Tensor:
        return read(lens.readout(stream, run.encoded))

    steps, whole = _telescope(readouts, writes, lens), read(output) - readouts(torch.zeros_like(last))
    others = {name: (steps[..., i], whole[..., i], 0, 0.0) for i, name in enumerate(DECOMPOSITIONS["token"][1:])}
    return {name: {"logit": logit, **others}[name] for name in names}


def _of_quantiles(run: Run, writes: Tensor, last: Tensor, names: list[str], tolerance: float) -> dict[str, Parts]:
    lens = run.lens

    def native(stream: Tensor) -> Tensor:
        return lens.readout(stream, run.encoded)[..., : run.horizon]

    def frozen(stream: Tensor) -> Tensor:
        return lens.readout(stream, run.encoded, like=last)[..., : run.horizon]

    whole = own_readout(run, last)[..., : run.horizon] - native(torch.zeros_like(last))
    ways: dict[str, Callable[[], tuple[Tensor, int, float]]] = {
        "integrated": lambda: _integrate(run, writes, last, whole, tolerance),
        "linearised": lambda: (_push_forward(frozen, last, writes), 1, 0.0),
        "lens_difference": lambda: (_telescope(native, writes, lens), 0, 0.0),
    }
    found = {name: ways[name]() for name in names}
    return {name: (parts, whole, nodes, apart) for name, (parts, nodes, apart) in found.items()}


def _integrate(run: Run, writes: Tensor, last: Tensor, whole: Tensor, tolerance: float) -> tuple[Tensor, int, float]:
    """Apply the mean derivative along the path to every write; also return the points that it took, and the error."""
    lens, norm = run.lens, partial(run.lens.adapter.final_norm, like=last)
    start, at_once = norm(torch.zeros_like(last)), max(1, _NUMBERS // _width(lens, last))
    size = whole.abs().flatten(1).amax(1).clamp(min=torch.finfo(whole.dtype).tiny)
    # two halves of the stream show what the whole one, complete in any case, does not
    halves = torch.stack([writes[::2].sum(0), writes[1::2].sum(0)])

    def read(normed: Tensor) -> Tensor:
        return lens.adapter.head(normed, run.encoded)[..., : run.horizon]

    def push(parts: Tensor) -> Tensor:
        if secants is not None:
            return secants.apply(norm(parts) - start, at_once)
        at, weights = (each / 2 for each in np.polynomial.legendre.leggauss(nodes))
        slopes = [_push_forward(lambda x: read(norm(x)), (share + 0.5) * last, parts) for share in at]
        return torch.tensordot(torch.as_tensor(weights).to(last), torch.stack(slopes), dims=1)

    def error() -> float:
        gap = (push(halves).sum(0) - whole).abs().flatten(1).amax(1) / size
        # nothing is emitted for some covariates
        return float(gap[size.isfinite()].nan_to_num(math.inf).max())

    rounding = 10 * (relative_rounding(lens) + float(np.nanmax(own_rounding(run) / size.cpu().double().numpy())))
    secants, nodes = Secants(read, start, norm(last), 1) if lens.emits == "quantile" else None, 1
    apart = error()
    if secants is None or apart > rounding:
        # halves do not add up: the head is not affine but for elementwise functions
        secants, rounding = None, 0.0
    while apart > max(tolerance, rounding) or (nodes == 1 and (secants is None or secants.layers > 1)):
        if nodes >= _MOST_NODES:
            break
        nodes *= 4 if nodes == 1 else 2
        secants = secants and Secants(read, start, norm(last), nodes)
        apart = error()
    return push(writes), nodes, apart


def _push_forward(function: Callable[[Tensor], Tensor], at: Tensor, writes: Tensor) -> Tensor:
    """Apply the derivative of a readout at one stream, or at several at once (point, …), to every write."""
    return torch.func.vmap(lambda write: torch.func.jvp(function, (at,), (write.expand_as(at),))[1])(writes)


def _telescope(readout: Callable[[Tensor], Tensor], writes: Tensor, lens: Lens) -> Tensor:
    """Compute the readout after each write less the readout before, in order of writing."""
    streams = torch.cat([torch.zeros_like(writes[:1]), writes.cumsum(0)])
    return _of_each(readout, streams, lens).diff(dim=0)


def _of_each(readout: Callable[[Tensor], Tensor], streams: Tensor, lens: Lens) -> Tensor:
    """Read out streams (stream, series, pos, d_model), as many at once as keep the memory small."""
    return torch.cat([readout(part) for part in streams.split(max(1, _NUMBERS // _width(lens, streams[0])))])


def _width(lens: Lens, stream: Tensor) -> int:
    """Guess the most numbers that a readout of one stream holds."""
    return stream.numel() // lens.d_model * max(lens.d_model, width_of_output(lens))


@probe("stream_shares")
def stream_shares(run: Run, *, decomposition: str | None = None) -> xr.Dataset:
    """List the writers of the stream that is read out, in order of writing, with the size of their attribution.

    Args:
        run: the forecast to explain.
        decomposition: of :func:`attribute`; its default if None. Of several quantiles the median.

    Returns:
        Dataset of kind "stream_shares" over ``writer`` ("embed", "decoder.0.self_attn", …) and ``series``: ``size``,
        mean over steps (a token decoder's first left out) of the whole branch's absolute attribution, in
        ``attrs["unit"]``; ``share``, the same over the sum of all, with what
        :func:`tsfm_lens.findings.judge` adds; ``head_size`` (writer, head, series), NaN where a writer has none.
        Coordinates ``layer_index``, ``kind``, and ``keys_from``, the stack that an attention reads.

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
    result, later = decomposed(run, decomposition).isel(decomposition=0), slice(run.first_step, None)
    method = str(result["decomposition"].item())
    parts = of_median(result["attribution"]).transpose("component", "series", "step").isel(step=later)
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
    unit = str(result["unit"].item())
    title, source = "Writers of the residual stream", "tsfm-lens paper, section 2 and figure 1B (S3-RES, S3-DLA)"
    facts = {
        "decomposition": method,
        "unit": unit,
        "stack": stack.name,
        "d_model": stack.d_model,
        "steps": parts.sizes["step"],
    }
    data.attrs = run.describe("stream_shares", title, source, **facts)
    totals = of_median(result["total"]).transpose("series", "step").isel(step=later)
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
        apart = excess(writes.sum(0), functools.reduce(torch.add, map(torch.abs, parts)), last, relative_rounding(lens))
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
