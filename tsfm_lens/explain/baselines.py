"""Attention as an explanation: roll-out and flow from input segments to the forecast's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from tsfm_lens.errors import InputError
from tsfm_lens.explain.segments import Segment
from tsfm_lens.explain.shapley import Array
from tsfm_lens.explain.values import Masks
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models.run import Run

# capacities are whole numbers of this share
_UNIT = 10**6


Part = tuple[np.ndarray, np.ndarray, Array]


@dataclass(frozen=True)
class Graph:
    """Tokens of all stacks, and the pattern of each attention between them, in order of execution.

    Attributes:
        updates: for each attention, in parts that touch no common token, the tokens that it writes, those that it
            reads, and its mean pattern over heads between them, whose rows sum to 1.
        tokens: how many there are.
        inputs: (segment, token) the share of each token's steps that a segment covers.
        readout: (step, token) weights of the tokens from which a step of the target's forecast is read; they sum to 1.
    """

    updates: tuple[tuple[Part, ...], ...]
    tokens: int
    inputs: Array
    readout: Array


def rollout_shares(masks: Masks) -> Array:
    """Compute Abnar and Zuidema's attention roll-out, as shares of the forecast: (segment, step).

    In each attention a token keeps half of its own mass; the other half goes to the tokens that it attends to: over
    time, between series, and from a decoder to its encoder. Mass that ends at no segment is dropped, and the shares of
    a step sum to 1.

    Args:
        masks: the forecast to explain, by masks.

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3; over several stacks as in Chefer et al. 2021,
        arXiv:2103.15679.

    Raises:
        InputError: one pass does not cover the horizon.
    """
    graph = graph_of(masks)
    mix = np.eye(graph.tokens)
    for attention in graph.updates:
        for targets, sources, pattern in attention:
            mix[targets] = 0.5 * mix[targets] + 0.5 * pattern @ mix[sources]
    return _shares((graph.readout @ mix @ graph.inputs.T).T)


def flow_shares(masks: Masks) -> Array:
    """Compute Abnar and Zuidema's attention flow, as shares of the forecast: (segment, step), alike at all steps.

    The most that can flow from a segment's tokens to all tokens that the forecast is read from, where each connection
    carries at most half of its attention, and a token's own connection a half.

    Args:
        masks: the forecast to explain, by masks.

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3.

    Raises:
        InputError: one pass does not cover the horizon.
    """
    return _shares(np.tile(largest_flows(graph_of(masks))[:, None], masks.run.horizon))


def largest_flows(graph: Graph) -> Array:
    """Compute the largest flow from each segment to the tokens that the forecast is read from, (segment,)."""
    layers = len(graph.updates) + 1
    starts, ends, most = [], [], []

    def join(start: np.ndarray, end: np.ndarray, share: np.ndarray) -> None:
        starts.append(start.ravel())
        ends.append(end.ravel())
        most.append(np.round(share.ravel() * _UNIT).astype(np.int32))

    every = np.arange(graph.tokens)
    for layer, attention in enumerate(graph.updates):
        here, after = layer * graph.tokens, (layer + 1) * graph.tokens
        own = np.ones(graph.tokens)
        for targets, sources, pattern in attention:
            own[targets] = 0.5
            end, start = np.meshgrid(targets + after, sources + here, indexing="ij")
            join(start, end, 0.5 * pattern)
        join(every + here, every + after, own)
    source, sink = layers * graph.tokens, layers * graph.tokens + 1
    outputs = np.flatnonzero(graph.readout.sum(0))
    join(outputs + (layers - 1) * graph.tokens, np.full(len(outputs), sink), np.ones(len(outputs)))
    flows = []
    for coverage in graph.inputs:
        tokens = np.flatnonzero(coverage)
        edges = (
            np.concatenate([*most, np.round(coverage[tokens] * _UNIT).astype(np.int32)]),
            (np.concatenate([*starts, np.full(len(tokens), source)]), np.concatenate([*ends, tokens])),
        )
        flows.append(maximum_flow(csr_array(edges, shape=(sink + 1, sink + 1)), source, sink).flow_value)
    return np.array(flows, dtype=float) / _UNIT


def _shares(mass: Array) -> Array:
    """Normalise (segment, step) to sum to 1 over segments; 0 where no segment contributes."""
    total = mass.sum(0)
    return np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)


def graph_of(masks: Masks) -> Graph:
    """Build the graph of one item's tokens and their attention; errors as in :func:`rollout_shares`."""
    run = masks.run.in_one_pass()
    stacks, series = run.lens.wiring.stacks, len(masks.batch)
    spans = run.encoded.spans
    packed = run.encoded.packed
    rows = {stack.name: 1 if packed else series for stack in stacks}
    first, offset = {}, 0
    for stack in stacks:
        first[stack.name] = offset
        offset += rows[stack.name] * len(spans[stack.name])
    layers = [
        (stack, layer, row) for stack in stacks for layer in range(stack.n_layers) for row in stack.attentions(layer)
    ]
    points = [f"{stack.prefix}.{layer}.{row.kind}.hook_pattern" for stack, layer, row in layers]
    acts = run.record(points)
    updates = []
    for (stack, _, row), point in zip(layers, points, strict=True):
        pattern = acts[point].double().cpu().numpy().mean(1)
        own, keys = first[stack.name], first[row.keys_from or stack.name]
        sizes = (len(spans[stack.name]), len(spans[row.keys_from or stack.name]))
        updates.append(tuple(_parts(row, pattern, own, keys, sizes)))
    inputs = _inputs(masks.segments, masks.batch.lengths, spans[stacks[0].name], first[stacks[0].name], offset, packed)
    output = run.lens.wiring.output_stack.name
    readout = _readout_tokens(run, spans[output], first[output], offset, masks.row, packed)
    return Graph(tuple(updates), offset, inputs, readout)


def _parts(row: Attention, pattern: Array, own: int, keys: int, sizes: tuple[int, int]) -> list[Part]:
    """Split one attention into its independent parts: one for each series, or for each position over the series."""
    parts: list[Part] = []
    for index, rows in enumerate(pattern):
        total = rows.sum(-1, keepdims=True)
        # a token that may attend to nothing keeps to itself
        alone = np.eye(*rows.shape) if rows.shape[0] == rows.shape[1] else np.full(rows.shape, 1 / rows.shape[1])
        mean = np.where(total > 0, rows / np.maximum(total, 1e-30), alone)
        if row.over == "variate":
            targets = sources = own + index + sizes[0] * np.arange(len(mean))
        else:
            targets = own + index * sizes[0] + np.arange(sizes[0])
            sources = keys + index * sizes[1] + np.arange(sizes[1])
        parts.append((targets, sources, mean))
    return parts


def _places(spans: TokenSpans, series: int, packed: bool) -> np.ndarray:
    """Return positions of a series' tokens among those of its row."""
    special = np.array([bool(word) for word in spans.special])
    if packed and spans.variate:
        return np.flatnonzero((np.array(spans.variate) == series) & ~special)
    return np.flatnonzero(~special)


def _inputs(
    segments: Sequence[Segment], lengths: Sequence[int], spans: TokenSpans, first: int, count: int, packed: bool
) -> Array:
    """Compute the share of each token's steps that belong to a segment, (segment, token)."""
    shares = np.zeros((len(segments), count))
    for index, part in enumerate(segments):
        offset = first if packed else first + part.row * len(spans)
        for token in _places(spans, part.row, packed):
            start, stop = spans.start[token], spans.stop[token]
            common = min(stop, part.stop) - max(start, part.start)
            if common > 0:
                shares[index, offset + token] = common / (stop - start)
    return shares


def _readout_tokens(run: Run, spans: TokenSpans, first: int, count: int, row: int, packed: bool) -> Array:
    """Return the tokens that each step is read from, (step, token): those that cover it, else the series' last one."""
    tokens = _places(spans, row, packed)
    if not len(tokens):
        raise InputError(f"no token of {run.lens.wiring.architecture} covers series {row}")
    readout = np.zeros((run.horizon, count))
    offset = first if packed else first + row * len(spans)
    for step in range(run.horizon):
        covering_tokens = [token for token in tokens if spans.start[token] <= step < spans.stop[token]]
        readout[step, offset + np.array(covering_tokens or [tokens[-1]])] = 1 / max(len(covering_tokens), 1)
    return readout
