"""Attention along a forecast: autoregressive, attention rollout, norm-weighted.

:func:`autoregressive_attention` is the one to read first: it joins the forward passes
of a rollout to one axis of keys and one of queries. :func:`patch_attention` builds on
it; :func:`attention_rollout` and :func:`norm_weighted_attention` are of one pass.
Patterns of a single pass are in ``attention``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.weights import for_every_head
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import (
    attention_attrs,
    check_single,
    forecast_queries,
    layers_in_time,
    pattern_coords,
    pick_attention,
    row_entropy,
    span_coords,
)
from tsfm_lens.probes.given import check_option
from tsfm_lens.probes.weights import head_spectra

__all__ = [
    "attention_rollout",
    "autoregressive_attention",
    "norm_weighted_attention",
    "patch_attention",
]


@probe(
    "first",
    title="Autoregressive attention",
    theme="Activations",
    summary="attention along a forecast: context × horizon, head by head",
    description=(
        "Each head's attention to the context for every token of the forecast. A "
        "diagonal band reads at a fixed lag, a horizontal one the same steps "
        "throughout."
    ),
    source="tsfm-lens paper, appendix D.2 (S3-ROLL)",
    needs="heads",
)
def autoregressive_attention(
    run: Run, *, kind: str | None = None, stack: str | None = None, keys: str = "time"
) -> xr.Dataset:
    """Map the attention of every head over the context, a column per forecast token.

    Beyond one pass, models re-read the context with the forecast so far appended
    (Chronos, Chronos-Bolt, Chronos-2, Moirai 2). These passes follow the run's path or
    the library's median.

    Args:
        run: the forecast to explain, of exactly one series.
        kind: "cross_attn", "self_attn" …; the stack's last kind of attention over time
            if None.
        stack: "encoder", "decoder"; the output stack if None.
        keys: "time" has a key for every step that any pass reads, forecast steps
            included. "window" has one for every position in the window of a pass, as in
            the paper. Within one pass both are the same.

    Returns:
        Dataset of kind "autoregressive_attention":

        - ``attention`` (layer, head, key, query): weights; each column sums to 1.
        - ``entropy`` (layer, head): in nats, mean over columns.
        - ``sharpness_rank`` (layer, head): 0 for the sharpest of all.

        Coordinates ``key_start`` and ``key_stop`` are in steps from the forecast start,
        ``key_special`` marks tokens that cover no step (queries have the same), and
        ``pass_start`` (query) counts the forecast steps that the pass has read.

    Source:
        tsfm-lens paper, appendix D.2 (S3-ROLL).

    Raises:
        InputError: several series or variates, no such ``keys``, or a horizon beyond
            one pass where nothing is re-read.
        UnknownNameError: the model has no such stack or kind of attention.

    Example:
        >>> probes.autoregressive_attention(run)["attention"].dims
        ('layer', 'head', 'key', 'query')
    """
    check_single(run, "autoregressive attention is drawn")
    check_option("keys", keys, ("time", "window"))
    chosen, attention_kind, layers = pick_attention(run.lens, stack, kind)
    passes = _passes(run)
    key_stack = chosen.attention(attention_kind, layers[0]).keys_from or chosen.name
    # by time, the window of a later pass ends later; by window, all passes are alike
    key_spans = [
        encoded.spans[key_stack].shifted(start if keys == "time" else 0)
        for start, encoded in passes
    ]
    key_axis, key_indices = _join(key_spans)
    query_axis, columns = _columns(passes, chosen.name)
    attention = np.zeros(
        (len(layers), chosen.n_heads, len(key_axis), len(query_axis)), dtype=np.float32
    )
    entropy = np.zeros(attention.shape[:2])
    points = [
        f"{chosen.prefix}.{layer}.{attention_kind}.hook_pattern" for layer in layers
    ]
    offset = 0
    for (_, encoded), indices, tokens in zip(passes, key_indices, columns, strict=True):
        query_slice = slice(offset, offset + len(tokens))
        offset += len(tokens)
        fill = {
            point: partial(
                _fill,
                attention[index, :, :, query_slice],
                entropy[index],
                indices,
                tokens,
            )
            for index, point in enumerate(points)
        }
        # what the run has recorded already need not be computed again
        activations = None
        if len(passes) == 1:
            activations = run.in_one_pass().find_record(points)
        if activations is not None:
            for point, take in fill.items():
                take(activations[point])
            continue
        with torch.no_grad():
            run.lens.run_with_cache(encoded, names_filter=points, reduce=fill)
    # each pass has added sums over its queries, of which passes have different numbers
    entropy /= max(len(query_axis), 1)
    # sorting the order of a sort gives ranks; a stable sort ranks equal heads by their
    # index
    ranks = entropy.ravel().argsort(kind="stable").argsort(kind="stable")
    data = xr.Dataset(
        {
            "attention": (("layer", "head", "key", "query"), attention),
            "entropy": (("layer", "head"), entropy, {"units": "nats"}),
            "sharpness_rank": (("layer", "head"), ranks.reshape(entropy.shape)),
        },
        coords={"layer": list(layers), "head": range(chosen.n_heads)},
    )
    data = data.assign_coords(span_coords(key=key_axis, query=query_axis))
    pass_start = np.repeat(
        [start for start, _ in passes], [len(tokens) for tokens in columns]
    )
    data = data.assign_coords(pass_start=("query", pass_start))
    metadata = attention_attrs(run, chosen, attention_kind)
    return data.assign_attrs(metadata, keys=keys, passes=len(passes))


def _passes(run: Run) -> list[tuple[int, Encoded]]:
    """Return the forward passes of a rollout.

    Each pass has the number of forecast steps that it has read, and its input.
    """
    lens = run.lens
    batch = run.batch
    steps = run.horizon
    width = lens.longest_pass
    if steps <= width or not lens.rereads:
        # the run refuses a horizon that one pass cannot forecast
        return [(0, run.encoded)]
    if run.forced_path is None:
        values = run.forecast.median
    else:
        values = run.forced_path
    passes = []
    for start in range(0, steps, width):
        stop = min(start + width, steps)
        context = np.concatenate([batch.values[0], values[0, :start]])
        longer = replace(batch, values=(context,))
        # a token decoder reads the path, others only the context
        if lens.emits == "token":
            encoded = lens.encode(longer, future=values[:, start:stop])
        else:
            encoded = lens.encode(longer, horizon=stop - start)
        passes.append((start, encoded))
    return passes


def _join(passes: list[TokenSpans]) -> tuple[TokenSpans, list[np.ndarray]]:
    """Return the keys of all passes on one axis, by the steps that they cover.

    The result is the axis, and the indices of each pass's keys on it.
    """
    if len(passes) == 1:
        return passes[0], [np.arange(len(passes[0]))]
    labels = [_labels(spans) for spans in passes]
    steps: dict[tuple[str, int, int], tuple[int, int]] = {}
    for spans, pass_labels in zip(passes, labels, strict=True):
        bounds = zip(pass_labels, spans.start, spans.stop, strict=True)
        for label, start, stop in bounds:
            steps.setdefault(label, (start, stop))
    # the label of an ordinary token begins with "", so these come first, by time
    order = sorted(steps)
    index_by_label = {label: index for index, label in enumerate(order)}
    starts, stops = zip(*(steps[label] for label in order), strict=True)
    axis = TokenSpans(starts, stops, tuple(special for special, *_ in order))
    indices = [
        np.array([index_by_label[label] for label in pass_labels])
        for pass_labels in labels
    ]
    return axis, indices


def _labels(spans: TokenSpans) -> list[tuple[str, int, int]]:
    """Return a label for each token on the common axis.

    The label is the steps that it covers, or which special token it is.
    """
    counts: Counter[str] = Counter()
    labels = []
    tokens = zip(spans.start, spans.stop, spans.special, strict=True)
    for start, stop, special in tokens:
        # the first EOS of every pass is one key, and the second another
        labels.append((special, counts[special], 0) if special else ("", start, stop))
        counts[special] += 1
    return labels


def _columns(
    passes: list[tuple[int, Encoded]], stack: str
) -> tuple[TokenSpans, list[np.ndarray]]:
    """Return the axis of queries, and each pass's tokens on it.

    These are all tokens of the first pass, then those that forecast.
    """
    axis = TokenSpans((), (), ())
    tokens = []
    for first, encoded in passes:
        spans = encoded.spans[stack].shifted(first)
        indices = [
            index
            for index in range(len(spans))
            if not first or (spans.start[index] >= first and not spans.special[index])
        ]
        axis += TokenSpans(
            tuple(spans.start[index] for index in indices),
            tuple(spans.stop[index] for index in indices),
            tuple(spans.special[index] for index in indices),
        )
        tokens.append(np.array(indices))
    return axis, tokens


def _fill(
    target: np.ndarray,
    entropy: np.ndarray,
    keys: np.ndarray,
    queries: np.ndarray,
    pattern: Tensor,
) -> Tensor:
    """Write a layer's pattern into (head, key, query), and add to the entropies.

    Entropies are (head,).

    Returns:
        An empty tensor, since what a reducer returns is stored.
    """
    # head by head, as the entropy needs double precision
    for head, rows in enumerate(pattern[0]):
        weights = rows[queries].cpu().double().numpy()
        target[head, keys] = weights.T
        entropy[head] += row_entropy(weights).sum()
    # what a reducer returns is stored, and all that is needed is in the arrays by now
    return pattern.new_empty(0)


@probe(
    "first",
    title="Attention rollout",
    theme="Activations",
    summary="attention rollout through the layers",
    description=(
        "How much of each input token may have reached each token after a layer. "
        "Attention matrices are multiplied layer by layer, each averaged with the "
        "identity."
    ),
    source="Abnar and Zuidema 2020, equation 1",
    needs="heads",
)
def attention_rollout(run: Run, *, stack: str | None = None) -> xr.Dataset:
    """Compute how much of each input token may have reached each token.

    This is Abnar and Zuidema's attention rollout. A layer is half the mean pattern over
    heads plus half the identity (the residual stream); layers are multiplied.

    Args:
        run: the forecast to explain, of exactly one series.
        stack: a stack whose tokens attend to their own stack; the last such one of
            several tokens if None.

    Returns:
        Dataset of kind "attention_rollout":

        - ``flow`` (layer, query, key): shares after each layer; each row sums to 1.

    Source:
        Abnar and Zuidema 2020, equation 1.

    Raises:
        InputError: several series or variates, or a horizon longer than one pass.
        UnknownNameError: no stack of this name attends to itself over time.

    Example:
        >>> probes.attention_rollout(run)["flow"].dims
        ('layer', 'query', 'key')
    """
    lens = run.lens
    check_single(run, "attention rollout is computed")
    kinds = {column.name: _self_attention(column) for column in lens.wiring.stacks}
    usable = [name for name, kind in kinds.items() if kind]
    if not usable or stack not in (None, *usable):
        raise unknown_name("stack with self-attention over time", str(stack), usable)
    # nothing flows in a stack of one token, as in the decoder of a model that forecasts
    # from a single one
    several = [name for name in usable if len(run.encoded.spans[name]) > 1]
    column = lens.wiring.stack((several or usable)[-1] if stack is None else stack)
    kind = kinds[column.name]
    layers = layers_in_time(column, kind)
    points = [f"{column.prefix}.{layer}.{kind}.hook_pattern" for layer in layers]
    activations = run.in_one_pass().record(points)
    flows = torch.stack(rolled([activations[point][0].double() for point in points]))
    coords = pattern_coords(run, column, kind, layers)
    # a flow is over all heads, while the coordinates are those of patterns
    data = xr.Dataset(
        {"flow": (("layer", "query", "key"), flows.cpu().numpy())}, coords=coords
    ).drop_vars("head")
    return data.assign_attrs(stack=column.name, series=run.batch.ids[0])


def rolled(patterns: list[Tensor]) -> list[Tensor]:
    """Return the products of (A + I) / 2 over layers.

    A is the mean over heads, with its rows normalised.
    """
    flows: list[Tensor] = []
    for pattern in patterns:
        mean = pattern.mean(dim=0)
        total = mean.sum(dim=-1, keepdim=True)
        # a token that attends to nothing reads itself alone
        eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        # torch.where evaluates both branches, so the divisor must not be 0 in either
        mean = torch.where(total > 0, mean / total.clamp(min=1e-30), eye)
        step = 0.5 * mean + 0.5 * eye
        flows.append(step if not flows else step @ flows[-1])
    return flows


@probe(
    "first",
    title="Norm-weighted attention",
    theme="Activations",
    summary="attention weighted by the norm of the value vectors it moves",
    description=(
        "The attention weight times the norm of the vector it moves. A token with a "
        "large weight can contribute little."
    ),
    source="Kobayashi et al. 2020, equation 4",
    needs="heads",
)
def norm_weighted_attention(run: Run, *, kind: str | None = None) -> xr.Dataset:
    """Measure how long a vector each key contributes to a query's write, head by head.

    Args:
        run: the forecast to explain, of exactly one series.
        kind: kind of attention of the output stack; its last one over time if None.

    Returns:
        Dataset of kind "norm_weighted_attention":

        - ``norm`` (layer, head, query, key): length of ``pattern * (v W_O)``, in units
          of the residual stream, before a post-norm.

        Coordinates ``key_start``, ``key_stop`` and ``key_special``, and the same for
        queries, are the steps that a token covers, from the forecast start.

    Source:
        Kobayashi et al. 2020, equation 4.

    Raises:
        InputError: several series, a horizon longer than one pass, or attention between
            variates.
        UnknownNameError: no such kind of attention.

    Example:
        >>> probes.norm_weighted_attention(run)["norm"].dims
        ('layer', 'head', 'query', 'key')
    """
    lens = run.lens
    check_single(run, "norm-weighted attention is computed", covariates=True)
    stack, attention, layers = pick_attention(lens, None, kind)
    prefixes = [f"{stack.prefix}.{layer}.{attention}" for layer in layers]
    gated = stack.attention(attention, layers[0]).gate is not None
    names = ["hook_pattern", "hook_v"]
    if gated:
        names.append("hook_gate")
    points = [f"{prefix}.{name}" for prefix in prefixes for name in names]
    activations = run.in_one_pass().record(points)
    norms = []
    with torch.no_grad():
        for layer, prefix in zip(layers, prefixes, strict=True):
            weights = lens.weights.heads(layer, attention, stack.name)
            values = for_every_head(activations[f"{prefix}.hook_v"][0], stack.n_heads)
            gate = activations[f"{prefix}.hook_gate"][0] if gated else None
            writes = _write_norms(values, weights.W_O, gate)
            # the target is the first row of its item
            norms.append(
                activations[f"{prefix}.hook_pattern"][0] * writes * weights.scale
            )
    norm = torch.stack(norms).float().cpu().numpy()
    data = xr.Dataset(
        {"norm": (("layer", "head", "query", "key"), norm)},
        coords=pattern_coords(run, stack, attention, layers),
    )
    return data.assign_attrs(
        stack=stack.name, attention=attention, series=run.batch.ids[0]
    )


def _write_norms(values: Tensor, out: Tensor, gate: Tensor | None) -> Tensor:
    """Return lengths of v · W_O, (head, query, key), of values (key, head, …).

    If the values are gated, the gates are by query; else all queries have one row.
    """
    if gate is None:
        result: Tensor = torch.einsum("khc,hcd->hkd", values, out).norm(dim=-1)[:, None]
        return result
    # the triangular factor of W_O gives the same lengths, with fewer columns; head by
    # head, as gated values need memory for queries times keys
    triangles = torch.linalg.qr(out.mT).R.mT
    heads = zip(gate.sigmoid().unbind(1), values.unbind(1), triangles, strict=True)
    return torch.stack(
        [
            ((factor[:, None] * value) @ triangle).norm(dim=-1)
            for factor, value, triangle in heads
        ]
    )


def _self_attention(stack: Stack) -> str:
    """Return a stack's attention over its own tokens in time.

    It is "" if the stack has none.
    """
    attentions = [
        attention
        for layer in range(stack.n_layers)
        for attention in stack.attentions(layer)
    ]
    return next(
        (
            attention.kind
            for attention in attentions
            if not attention.keys_from and attention.over == "time"
        ),
        "",
    )


@probe(
    "first",
    title="Attention between patches",
    theme="Activations",
    summary="attention between patches, with the stable rank of each head",
    description=(
        "The attention of each forecast token to the context tokens, head by head."
    ),
    source="tsfm-lens paper, appendix D.2 and figure 21 (S3-ROLL, S3-SRANK)",
    paper=("S3-F21",),
    needs="heads",
)
def patch_attention(run: Run, *, kind: str | None = None) -> xr.Dataset:
    """Compute a matrix of attention per head, forecast × context tokens.

    The stable rank of the head, and the patch with the most attention, come with it.

    Beyond one pass, every pass has its own rows, and keys are positions in its window,
    as in the paper.

    Args:
        run: the forecast to explain, of exactly one series.
        kind: kind of attention of the output stack; its last one over time if None.

    Returns:
        Dataset of kind "patch_attention":

        - ``attention`` (layer, head, query, key): weights; each row sums to 1.
        - ``stable_rank`` (layer, head): of W_Q W_Kᵀ.
        - ``entropy`` (layer, head): in nats.
        - ``argmax_key`` (layer, head): the key over time of the largest mean weight
          over the tokens that forecast.
        - ``argmax_weight`` (layer, head): that weight.
        - ``argmax_start`` (layer, head): first step that the key covers in the first
          pass.
        - ``context`` (series, time), ``truth`` (series, step), ``quantile_forecast``
          (series, quantile, step): in data units.

    Raises:
        InputError: several series or variates, or a horizon beyond one pass where
            nothing is re-read.
        UnknownNameError: no such kind of attention.

    Source:
        tsfm-lens paper, appendix D.2 and figure 21 (S3-ROLL, S3-SRANK).

    Example:
        >>> bolt = tsfm_lens.load("bolt-nano").run(run.batch, 12)
        >>> probes.patch_attention(bolt)["attention"].dims
        ('layer', 'head', 'query', 'key')
    """
    maps = autoregressive_attention(run, kind=kind, keys="window")
    attention = str(maps.attrs["attention"])
    stack = str(maps.attrs["stack"])
    data = run.dataset().assign_coords(quantile=list(run.forecast.levels))
    data["quantile_forecast"] = (("series", "quantile", "step"), run.forecast.quantiles)
    data["attention"] = maps["attention"].transpose("layer", "head", "query", "key")
    data["entropy"] = maps["entropy"]
    spectra = head_spectra(run.lens, kind=attention, stack=stack, products=["QK"])
    data["stable_rank"] = (
        # spectra are of all layers with this attention, maps of those where it is over
        # time
        spectra["stable_rank"].sel(product="QK", drop=True).sel(layer=maps["layer"])
    )
    # special tokens cover no time, so that none of them can be marked in a series
    timed = np.flatnonzero([not str(label) for label in maps["key_special"].values])
    # a causal model has rows for its context too, which read only what is before them
    rows = data["attention"].values[:, :, forecast_queries(data)]
    mean = rows.mean(axis=2)[..., timed]
    strongest = timed[mean.argmax(axis=-1)]
    data["argmax_weight"] = (("layer", "head"), mean.max(axis=-1))
    data["argmax_key"] = (("layer", "head"), strongest)
    data["argmax_start"] = (("layer", "head"), maps["key_start"].values[strongest])
    return data.assign_attrs(stack=stack, attention=attention)
