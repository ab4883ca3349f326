"""Direct attribution: how much each component's write moves the forecast.

The residual stream is a sum of what components write. :func:`attribution` splits the
forecast along that sum; of logits this is direct logit attribution (DLA). Read it
first, then :func:`component_writes`, which gives the sum itself. What a component does
through later components is not seen here: ``effects`` and ``path_patching`` measure
that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError, WiringError, unknown_name
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.hook_checks import check_additive
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.residual import (
    StreamPoint,
    carry_factors,
    excess,
    first_deviation,
    no_sum,
)
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models.batching import width_of_output
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import forecast_rounding, marked_dataset, relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.secants import Secants, push_forward
from tsfm_lens.probes.sites import component_coords, find_site, head_or_kind

__all__ = ["attribution", "component_writes", "stream_shares"]

# bounds the memory: most numbers in the streams that are read out at once
_NUMBERS = 2**21
TOLERANCE = 1e-3
"""Default error of a path integral, as a share of the largest total."""
_NODES = (1, *(2**power for power in range(2, 11)))
DECOMPOSITIONS = {
    "token": ("logit", "probability", "expected_value"),
    "quantile": ("integrated", "linearised", "lens_difference"),
    "distribution": ("integrated", "linearised", "lens_difference"),
}
"""Decompositions by the kind of output head.

The first of each scores best on planted models (``docs/planted.csv``).
"""


def list_decompositions(lens: Lens) -> tuple[str, ...]:
    """Return the attribution decompositions that a model allows, the default first."""
    decompositions = DECOMPOSITIONS[lens.emits]
    if lens.wiring.true_gradients:
        return decompositions
    return decompositions[-1:]


@probe(
    title="Attribution",
    theme="Activations",
    summary="signed contribution of each component to the forecast",
    description=(
        "The forecast is split into a signed contribution of each component, by "
        "what it writes to the residual stream."
    ),
    source=(
        "tsfm-lens paper, section 2 (S3-DLA, S3-HEAD); Sundararajan et al. 2017 for the"
        " path integral"
    ),
    needs="sums",
    example={"decompositions": "all"},
)
def attribution(
    run: Run,
    *,
    decompositions: str | Sequence[str] | None = None,
    tolerance: float = TOLERANCE,
) -> xr.Dataset:
    """Split the forecast among the components of the output stack.

    These are the embedding, heads, MLPs and output biases.

    Parts lead from the output head's value at an empty stream, ``start_value``, to the
    model's own. The default is ``logit`` for token models, where the start and all
    parts sum to the token's logit, and ``integrated`` for others, where they sum to the
    forecast. On planted models it ranks true parts best (mean AUROC 0.98 and 0.99;
    ``lens_difference`` 0.98, ``expected_value``, which sharp logits saturate, 0.65).

    - ``logit``: direct logit attribution to the token on the run's path, minus the mean
      over the vocabulary, with the final norm frozen. Parts sum exactly. A head that
      raises all logits equally looks like a part.
    - ``probability``, ``expected_value`` (in data units), and ``lens_difference`` of
      patch models: the output head's value after a component has written minus the
      value before, in order of writing. These differences sum exactly.
    - ``linearised``: the head's derivative at the full stream, norm scale frozen, times
      each write; parts need not sum.
    - ``integrated``: that derivative averaged along the straight path from the empty to
      the full stream (integrated gradients). It is exact for heads with one hidden
      layer, and within ``tolerance`` for others.

    Args:
        run: the forecast to explain.
        decompositions: one of the above, several, or "all"; the default alone if None.
        tolerance: largest error of ``integrated``, as a share of a series' largest
            total. Points of the path are doubled, up to 1,024, until the sum of all
            parts is within it.

    Returns:
        Dataset of kind "attribution". Values are in the unit of the decomposition,
        ``attrs["unit"]``; of several decompositions, each variable is over
        ``decomposition`` too.

        - ``attribution`` (component, series, quantile, step): the parts. A token model
          has no quantiles; its ``quantile`` is 0.5 alone.
        - ``start_value`` (series, quantile, step): the head's value at an empty stream.
        - ``total`` (series, quantile, step): the value at the full stream less that, to
          which the parts sum.
        - ``mean_absolute`` (component, series): mean size over steps, of the median,
          without a token decoder's first step; so are the next four.
        - ``size_share`` (component, series): this over the sum of all, with what
          :func:`.estimates.add_estimates` adds, heads among heads.
        - ``mean_attribution`` (component, series): signed mean over steps.
        - ``attribution_share`` (component, series): this over the sum of all sizes.
        - ``sign_agreement`` (component, series): share of steps with its sign.
        - ``series_agreement`` (component): share of series with the more frequent sign.
        - ``completeness_error`` (series): the parts' largest deviation from ``total``,
          over the largest total.
        - ``nodes``: points of the path, 0 where there is none.
        - ``path_error``: the remaining error of the path.

    Raises:
        InputError: a horizon beyond one pass, a tolerance not above 0, or hooks that
            edit the stream or its readout.
        UnknownNameError: the model does not allow this decomposition.
        WiringError: the writes do not sum to the model's last stream, or the output
            head does not give its forecast.

    Example:
        >>> parts = probes.attribution(run)
        >>> parts["decomposition"].item(), parts["attribution"].dims
        ('logit', ('component', 'series', 'quantile', 'step'))
        >>> bool((parts["completeness_error"] < 1e-3).all())
        True
    """
    result = _add_statistics(decomposed(run, decompositions, tolerance), run)
    if isinstance(decompositions, str | None) and decompositions != "all":
        return result.isel(decomposition=0)
    return result


def decomposed(
    run: Run,
    decompositions: str | Sequence[str] | None = None,
    tolerance: float = TOLERANCE,
) -> xr.Dataset:
    """Return :func:`attribution` without its statistics.

    Each decomposition is computed once for all probes of a run.
    """
    if not tolerance > 0:
        raise InputError(f"tolerance is {tolerance}, expected more than 0")
    allowed = list_decompositions(run.lens)
    if isinstance(decompositions, str | None):
        names = [decompositions or allowed[0]]
    else:
        names = list(decompositions)
    if names == ["all"]:
        names = list(allowed)
    for name in names:
        if name not in allowed:
            raise unknown_name("attribution decomposition", name, allowed)
    cache = run.cache.setdefault("attribution", {})
    # only the path integral depends on the tolerance
    keys = {name: (name, tolerance) if name == "integrated" else name for name in names}
    lacking = [name for name, key in keys.items() if key not in cache]
    if lacking:
        with torch.no_grad():
            split = _Split(run, tolerance)
            cache["components"] = split.components
            for name in lacking:
                decomposition = getattr(split, name)()
                cache[keys[name]] = replace(
                    decomposition,
                    attribution=decomposition.attribution.cpu().double(),
                    total=decomposition.total.cpu().double(),
                    start=decomposition.start.cpu().double(),
                )
    coords = component_coords(cache["components"])
    coords["unit"] = (
        "decomposition",
        [name if name in ("logit", "probability") else "data units" for name in names],
    )
    axes = ("series", "quantile", "step")
    found: list[_Decomposition] = [cache[key] for key in keys.values()]
    attribution = np.stack([part.attribution.numpy() for part in found])
    total = np.stack([part.total.numpy() for part in found])
    start = np.stack([part.start.numpy() for part in found])
    if run.tokens is None:
        coords["quantile"] = list(run.lens.levels)
    else:
        # one number a step, of the token or of the expectation over all
        coords["quantile"] = [0.5]
        attribution = attribution[..., None, :]
        total = total[..., None, :]
        start = start[..., None, :]
    over = tuple(range(2, total.ndim))
    gap = np.abs(attribution.sum(axis=1) - total).max(axis=over)
    size = np.abs(total).max(axis=over)
    data = marked_dataset(run, decomposition=list(keys), **coords)
    data = data.assign(
        attribution=(("decomposition", "component", *axes), attribution),
        total=(("decomposition", *axes), total),
        start_value=(("decomposition", *axes), start),
        completeness_error=(
            ("decomposition", "series"),
            gap / np.where(size > 0, size, 1.0),
        ),
        nodes=("decomposition", [part.nodes for part in found]),
        path_error=("decomposition", [part.path_error for part in found]),
    )
    return data.assign_attrs(tolerance=tolerance, first_step=run.first_step)


def _add_statistics(data: xr.Dataset, run: Run) -> xr.Dataset:
    """Return a result with sizes, means over steps, shares, signs and tests.

    The tests are those of ``estimates.add_estimates``.
    """
    parts, total = (
        of_median(data[name]).values[..., run.first_step :]
        for name in ("attribution", "total")
    )
    mean = parts.mean(-1)
    sizes = np.abs(parts).mean(-1)
    size = sizes.sum(1, keepdims=True)
    size = np.where(size > 0, size, np.nan)
    # parts round as the total that they sum to does; values in data units also round
    # as the forecast does
    scaling = np.where(
        data["unit"].values[:, None] == "data units", forecast_rounding(run), 0.0
    )
    floor = relative_rounding(run.lens) * np.abs(total).max(-1) + scaling
    axes = ("decomposition", "component", "series")
    compared = ~data["flat"].values
    if "role" in data.coords:
        compared &= data["role"].values == "target"
    signs = np.sign(mean[..., compared])
    series = max(signs.shape[-1], 1)
    up, down = ((signs == sign).sum(-1) / series for sign in (1, -1))
    data = data.assign(
        mean_absolute=(axes, sizes),
        size_share=(axes, sizes / size),
        mean_attribution=(axes, mean),
        attribution_share=(axes, mean / size),
        sign_agreement=(axes, (np.sign(parts) == np.sign(mean)[..., None]).mean(-1)),
        series_agreement=(axes[:2], np.maximum(up, down)),
    )
    groups = [
        f"{name} {group}"
        for name in data["decomposition"].values
        for group in head_or_kind(data)
    ]
    floors = xr.DataArray(floor / size[:, 0], dims=("decomposition", "series"))
    return add_estimates(data, "size_share", floor=floors, groups=groups)


def of_median(parts: xr.DataArray) -> xr.DataArray:
    """Return the parts of the quantile nearest to the median."""
    return parts.sel(quantile=0.5, method="nearest")


@dataclass(frozen=True, eq=False)
class _Decomposition:
    """Parts of the forecast, (component, …), and the total (…) that they lead to.

    ``start`` (…) is the output head's value at an empty stream. ``nodes`` and
    ``path_error`` are of a path integral.
    """

    attribution: Tensor
    total: Tensor
    start: Tensor
    nodes: int = 0
    path_error: float = 0.0


class _Split:
    """Residual stream of a single forward pass, and the writes that sum to it.

    It is the last stream, at the positions that the output head reads. Every
    decomposition is a method of its name.
    """

    def __init__(self, run: Run, tolerance: float) -> None:
        self.run = run
        self.lens = run.lens
        self.tolerance = tolerance
        positions = len(run.encoded.spans[run.lens.wiring.output_stack.name])
        count = count_read(run)
        self._unread = positions - count
        self.components, self.writes, self.last = writes_and_stream(run, count)
        self.empty = torch.zeros_like(self.last)
        numbers = self.empty[..., 0].numel() * max(
            width_of_output(self.lens), positions // count * self.lens.d_model
        )
        self._at_once = max(1, _NUMBERS // numbers)
        self.output = model_readout(run, self.readout(self.last))

    def readout(self, streams: Tensor, like: Tensor | None = None) -> Tensor:
        """Read out streams (…, series, pos, d_model) of the positions that are read."""
        output = self.lens.frozen_readout(streams, self.run.encoded, like, self._unread)
        if self.run.tokens is None:
            return output[..., : self.run.horizon]
        return output

    def frozen(self, streams: Tensor) -> Tensor:
        """Read out streams under the full stream's scale in the norm."""
        return self.readout(streams, self.last)

    def _in_parts(
        self, function: Callable[[Tensor], Tensor], streams: Tensor
    ) -> Tensor:
        """Return values of a function at streams (stream, …), a few at a time.

        As many are taken at once as keep the memory small.
        """
        return torch.cat([function(part) for part in streams.split(self._at_once)])

    def _telescope(self, readout: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output head's value after each write minus that before it.

        Writes are in order of writing.
        """
        return self._in_parts(
            readout, torch.cat([self.empty[None], self.writes.cumsum(0)])
        ).diff(dim=0)

    def logit(self) -> _Decomposition:
        # the frozen readout is linear, so each write goes through it alone, less the
        # readout of an empty stream
        empty = self._centred(self.frozen(self.empty))
        full = self._centred(self.output)
        parts = self._in_parts(
            lambda streams: self._centred(self.frozen(streams)), self.writes
        )
        return _Decomposition(parts - empty, full - empty, empty)

    def _centred(self, logits: Tensor) -> Tensor:
        # a constant added to all logits changes no probability
        return self._select_token(logits) - logits.mean(-1)

    def _select_token(self, numbers: Tensor) -> Tensor:
        """Select the token on the run's path, (…, vocabulary) -> (…)."""
        assert self.run.tokens is not None
        tokens = self.run.tokens.to(numbers.device)[..., None]
        return numbers.gather(-1, tokens.expand(*numbers.shape[:-1], 1))[..., 0]

    @cached_property
    def _distribution_parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Parts, total and start of the token's probability and expected value.

        The total and the start are (…, 2), parts (component, …, 2).
        """
        first = self.lens.first_value_token
        values = self.lens.bin_values(self.run.encoded)[:, None].to(self.last)

        def read(logits: Tensor) -> Tensor:
            # a softmax over the value tokens alone: their share of all tokens may be
            # too small to divide by
            mass = torch.softmax(logits[..., first:], dim=-1)
            return torch.stack(
                [
                    self._select_token(torch.softmax(logits, dim=-1)),
                    (mass * values).sum(-1),
                ],
                dim=-1,
            )

        parts = self._telescope(lambda streams: read(self.readout(streams)))
        start = read(self.readout(self.empty))
        return parts, read(self.output) - start, start

    def probability(self, index: int = 0) -> _Decomposition:
        parts, total, start = self._distribution_parts
        return _Decomposition(parts[..., index], total[..., index], start[..., index])

    def expected_value(self) -> _Decomposition:
        return self.probability(1)

    @cached_property
    def _start(self) -> Tensor:
        return self.readout(self.empty)

    @cached_property
    def _total(self) -> Tensor:
        return self.output - self._start

    def lens_difference(self) -> _Decomposition:
        parts = self._telescope(self.readout)
        return _Decomposition(parts, self._total, self._start)

    def linearised(self) -> _Decomposition:
        parts = push_forward(self.frozen, self.last, self.writes, self._at_once)
        return _Decomposition(parts, self._total, self._start, nodes=1)

    def integrated(self) -> _Decomposition:
        tiny = torch.finfo(self._total.dtype).tiny
        size = self._total.abs().flatten(1).amax(1).clamp(min=tiny)
        scaling = float(
            np.nanmax(forecast_rounding(self.run) / size.cpu().double().numpy())
        )
        rounding = 10 * (relative_rounding(self.lens) + scaling)
        for nodes in _NODES:
            path = Secants(self.frozen, self.last, nodes)
            # one node is exact with one hidden layer, whose parts add up to rounding,
            # and says nothing of more
            if nodes == 1 and not path.one_hidden:
                continue
            # nothing is emitted for some covariates
            deviation = (path.apply(self.last[None], 1)[0] - self._total)[
                size.isfinite()
            ]
            gap = deviation.abs().flatten(1).amax(1)
            error = float((gap / size[size.isfinite()]).nan_to_num(math.inf).max())
            allowed = rounding
            if nodes > 1:
                allowed = max(self.tolerance, rounding)
            if error <= allowed:
                break
        parts = path.apply(self.writes, self._at_once)
        return _Decomposition(parts, self._total, self._start, nodes, error)


def count_read(run: Run) -> int:
    """Return how many last positions of the stream the output head reads.

    Earlier positions change no value of the output.
    """
    encoded = run.encoded
    lens = run.lens
    stack = run.lens.wiring.output_stack
    positions = len(encoded.spans[stack.name])
    if run.tokens is not None:
        return positions
    # if the head reads none of the first positions, other noise there leaves its output
    # the same to the last bit
    noise = torch.randn(
        2,
        len(encoded.rows),
        positions,
        stack.d_model,
        generator=torch.Generator().manual_seed(0),
    )
    one, other = noise.to(next(lens.model.parameters()))

    def changed(count: int) -> bool:
        output = lens.readout(
            torch.cat([other[:, :count], one[:, count:]], dim=1), encoded
        )
        return not torch.equal(output.nan_to_num(), full)

    full = lens.readout(one, encoded).nan_to_num()
    return positions - bisect_left(range(1, positions), True, key=changed)


@probe(
    title="Contributions to the residual stream",
    theme="Activations",
    summary=(
        "share of the forecast that each attention and MLP writes to the residual "
        "stream"
    ),
    description=(
        "Every attention and MLP adds to one stream. The size of a box is its share "
        "of the forecast."
    ),
    source="tsfm-lens paper, section 2 and figure 1B (S3-RES, S3-DLA)",
    needs="sums",
)
def stream_shares(run: Run, *, decomposition: str | None = None) -> xr.Dataset:
    """List the writers of the output stream with the size of their attribution.

    Writers are in order of writing.

    Args:
        run: the forecast to explain.
        decomposition: "logit", "probability", "expected_value", "lens_difference",
            "linearised" or "integrated". If None "logit" for token models, "integrated"
            for others. With several quantiles, the median is used.

    Returns:
        Dataset of kind "stream_shares" over ``writer`` ("embed", "decoder.0.self_attn",
        …):

        - ``size`` (writer, series): mean over steps, without a token decoder's first,
          of the full branch's absolute attribution, in ``attrs["unit"]``.
        - ``share`` (writer, series): this over the sum of all, with what
          :func:`.estimates.add_estimates` adds.
        - ``head_size`` (writer, head, series): the same of each head, NaN where a
          writer has none.

        Coordinates are ``layer``, ``kind``, and ``keys_from``, the stack that an
        attention reads.

    Raises:
        InputError: a horizon beyond one pass, or hooks that edit the stream or its
            readout.
        UnknownNameError: the model does not allow this decomposition.
        WiringError: the writes do not sum to the model's last stream, or the output
            head does not give its forecast.

    Source:
        tsfm-lens paper, section 2 and figure 1B (S3-RES, S3-DLA).

    Example:
        >>> round(float(probes.stream_shares(run)["share"].sum()), 3)
        1.0
    """
    lens = run.lens
    stack = run.lens.wiring.output_stack
    result = decomposed(run, decomposition).isel(
        decomposition=0, step=slice(run.first_step, None)
    )
    parts = (
        of_median(result["attribution"]).transpose("component", "series", "step").values
    )
    part_writers = [*zip(result["layer"].values, result["kind"].values, strict=True)]
    order = list(dict.fromkeys(part_writers))
    branch = np.array(list(map(order.index, part_writers)))
    heads = result["head"].values
    size = np.stack(
        [np.abs(parts[branch == index].sum(0)).mean(-1) for index in range(len(order))]
    )
    head_size = np.full((len(order), stack.n_heads, parts.shape[1]), np.nan)
    head_size[branch[heads >= 0], heads[heads >= 0]] = np.abs(parts[heads >= 0]).mean(
        axis=-1
    )
    sublayers = [
        stack.writer(kind, layer) if layer >= 0 else None for layer, kind in order
    ]
    total = size.sum(axis=0)
    data = xr.Dataset(
        {
            "size": (("writer", "series"), size),
            "share": (
                ("writer", "series"),
                ratio(size, total, 0.0),
            ),
            "head_size": (("writer", "head", "series"), head_size),
        },
        coords={
            "writer": [
                kind if layer < 0 else str(Component(stack.name, layer, kind))
                for layer, kind in order
            ],
            "layer": ("writer", [layer for layer, _ in order]),
            "kind": ("writer", [kind for _, kind in order]),
            "keys_from": (
                "writer",
                [
                    sublayer.keys_from if isinstance(sublayer, Attention) else ""
                    for sublayer in sublayers
                ],
            ),
            "series": result["series"],
            "flat": result["flat"],
            "head": range(stack.n_heads),
        },
    )
    data.attrs = {
        "decomposition": str(result["decomposition"].item()),
        "unit": str(result["unit"].item()),
        "stack": stack.name,
        "d_model": stack.d_model,
        "steps": parts.shape[-1],
    }
    forecast_change = of_median(result["total"]).transpose("series", "step").values
    forecast_size = np.abs(forecast_change).mean(-1)
    floor = relative_rounding(lens) * ratio(forecast_size, total, 1.0)
    return add_estimates(data, "share", floor=floor, contexts=result)


_SUMMED = ("hook_out", "hook_result", "hook_z", *RESIDUAL_NAMES, "hook_resid_post")


def component_writes(run: Run) -> tuple[list[Component | str], Tensor]:
    """Return the names and writes of the embedding, heads, MLPs and output biases.

    Writes are (component, series, pos, d_model).

    Args:
        run: the forecast whose stream is read.

    Returns:
        The components, and their writes (component, series, pos, d_model) in units of
        the stream.

    Raises:
        WiringError: the writes do not sum to the model's own last stream; names where
            they first differ from it.
        InputError: the same, under hooks that edit the stream itself.

    Example:
        >>> names, writes = probes.component_writes(run)
        >>> names[0], len(names) == len(writes)
        ('embed', True)
    """
    return writes_and_stream(run)[:2]


def writes_and_stream(
    run: Run, count: int | None = None
) -> tuple[list[Component | str], Tensor, Tensor]:
    """Return the result of :func:`component_writes`, and the model's own last stream.

    The stream is (series, pos, d_model). With a ``count``, writes and stream are those
    of so many last positions.
    """
    lens = run.lens
    stack = run.lens.wiring.output_stack
    components = writers(lens.wiring)
    check_additive(lens.wiring, stack)
    embed = f"{stack.name}.hook_embed".lstrip(".")
    end = f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"
    # the point of a head is its z, which the output projection has yet to write
    points = [
        find_site(lens.wiring, item).point.replace("hook_z", "hook_result")
        for item in components
    ]
    biased = _biased_before_norm(lens)
    outs = [f"{stack.prefix}.{layer}.{kind}.hook_out" for layer, kind in biased]
    activations = run.in_one_pass().record([embed, *points, *outs, end], last=count)
    read_positions = slice(None if count is None else -count, None)
    with torch.no_grad():
        # where blocks rescale the stream, every later scale is part of a write
        factors = carry_factors(lens.model, stack)
        parts = [activations[embed][:, read_positions] * factors["embed"]]
        for component, point in zip(components, points, strict=True):
            write = activations[point][:, read_positions]
            if component.head is not None:
                write = write[..., component.head, :]
            parts.append(write * factors[component.layer, str(component.kind)])
        bias = _biases(lens, factors)
        for (layer, kind), out in zip(biased, outs, strict=True):
            heads = activations[out.replace("hook_out", "hook_result")].sum(-2)
            rest = (activations[out] - heads)[:, read_positions] * factors[layer, kind]
            bias = rest if bias is None else bias + rest
        names: list[Component | str] = ["embed", *components]
        if bias is not None:
            names.append("bias")
            parts.append(bias.expand_as(parts[0]))
        writes = torch.stack(parts)
        last = activations[end][:, read_positions]
        deviation = excess(
            writes.sum(0), writes.abs().sum(0), last, relative_rounding(lens)
        )
        if deviation is not None:
            start = f"{stack.prefix}."
            points = [
                name
                for name in lens.registry.points
                if name.startswith(start) and name.endswith(_SUMMED)
            ]
            sums = run.in_one_pass().record(points)
            first = first_deviation(lens.model, lens.wiring, stack, sums)
            label = f"that is read out ({end})"
            edited = edited_points(lens)
            raise no_sum(lens.wiring, label, deviation, first, edited)
    return names, writes, last


def model_readout(run: Run, output: Tensor) -> Tensor:
    """Return the readout of the model's own last stream.

    It is refused if it is not the model's forecast.
    """
    single = run.in_one_pass()
    forecast = single.read(output.detach()).cpu().double().numpy()
    same = (forecast == single.point) | (np.isnan(forecast) & np.isnan(single.point))
    deviation = np.where(same, 0.0, np.abs(forecast - single.point))
    bound = forecast_rounding(single)
    wrong = ~(deviation.max(-1) <= bound)
    if not wrong.any():
        return output
    row = int(wrong.argmax())
    hooked = edited_points(run.lens)
    message = (
        f"the output head of {run.lens.wiring.architecture!r} on the last stream"
        f" differs from the model's own forecast of series {run.batch.ids[row]!r} by up"
        f" to {deviation[row].max():.3g}, but rounding allows {bound[row]:.1g}"
    )
    if hooked:
        raise InputError(
            f"{message}. Hooks are set at {', '.join(hooked)}, and the output head on a"
            " stream misses what they change after the last block; decompose a run"
            " without them"
        )
    raise WiringError(
        f"{message}. ln_final, or final_norm or head of the adapter, is not what the"
        " model does after its last block, which testing.check_wiring tells"
    )


def edited_points(lens: Lens) -> list[str]:
    """Return the hook points that have a hook now."""
    return [name for name, point in lens.registry.hooked.items() if point.fwd_hooks]


def _biased_before_norm(lens: Lens) -> list[tuple[int, str]]:
    """Return the attentions with a bias that a norm scales before it is written.

    What it adds differs from token to token: it is what the heads lack of the write.
    """
    stack = lens.wiring.output_stack
    return [
        (layer, attention.kind)
        for layer in range(stack.n_layers)
        for attention in stack.attentions(layer)
        if attention.post_norm
        and bool(lens.weights.b_O(layer, attention.kind, stack.name).any())
    ]


def _biases(lens: Lens, factors: Mapping[StreamPoint, float]) -> Tensor | None:
    """Return what the attentions' output projections add, whatever their heads do.

    Those before a norm are left out. It is None where there is no bias.
    """
    stack = lens.wiring.output_stack
    biases = [
        lens.weights.b_O(layer, attention.kind, stack.name)
        * (
            lens.weights.scale(layer, attention.kind, stack.name)
            * factors[layer, attention.kind]
        )
        for layer in range(stack.n_layers)
        for attention in stack.attentions(layer)
        if not attention.post_norm
    ]
    if any(map(torch.any, biases)):
        return sum(biases[1:], biases[0])
    return None
