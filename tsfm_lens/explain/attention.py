"""Attention rollout and attention flow (Abnar and Zuidema) as explanations.

Both follow attention patterns from the tokens of each input segment to the tokens that
the forecast is read from. Read :func:`build_graph` first, then :func:`rollout_shares`
and :func:`flow_shares`. They measure no effect on the forecast: see
:mod:`tsfm_lens.explain.attribution`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import ratio
from tsfm_lens.explain.shapley import Array
from tsfm_lens.explain.values import Masks

# scipy's maximum flow takes integers, so capacities are counted in millionths
_UNIT = 10**6

Update = tuple[np.ndarray, np.ndarray, Array]
"""Tokens that an attention writes, tokens that it reads, and its mean pattern."""


@dataclass(frozen=True)
class Graph:
    """Tokens of all stacks and the attention between them.

    Attributes:
        updates: of each attention in the order of the model, its independent parts.
        tokens: number of tokens of all stacks.
        inputs: (segment, token), the share of a token's steps that a segment covers.
        readout: (step, token), the weights of the tokens that a step is read from.
    """

    updates: tuple[tuple[Update, ...], ...]
    tokens: int
    inputs: Array
    readout: Array


def rollout_shares(masks: Masks) -> Array:
    """Return attention rollout over all stacks, in shares (segment, step).

    The shares of each step of the forecast sum to 1 over segments.
    """
    graph = build_graph(masks)
    # half of a token's mass stays with it, as the residual stream carries it past
    mix = np.eye(graph.tokens)
    for attention in graph.updates:
        for targets, sources, pattern in attention:
            # the right side is computed before it is written, so that a self-attention
            # reads the tokens as they were
            mix[targets] = 0.5 * mix[targets] + 0.5 * pattern @ mix[sources]
    return _shares((graph.readout @ mix @ graph.inputs.T).T)


def flow_shares(masks: Masks) -> Array:
    """Return attention flow over all stacks, in shares (segment, step).

    The shares sum to 1 over segments, and are the same at all steps.
    """
    return _shares(
        np.tile(largest_flows(build_graph(masks))[:, None], masks.run.horizon)
    )


def largest_flows(graph: Graph) -> Array:
    """Compute the largest flow from each segment to the tokens read out, (segment,)."""
    # one layer of nodes before each attention, and one after the last
    layers = len(graph.updates) + 1
    edge_starts = []
    edge_ends = []
    capacities = []

    def join(start: np.ndarray, end: np.ndarray, share: np.ndarray) -> None:
        edge_starts.append(start.ravel())
        edge_ends.append(end.ravel())
        capacities.append(np.round(share.ravel() * _UNIT).astype(np.int32))

    indices = np.arange(graph.tokens)
    # a node is a token after some attentions, so that flow runs in one direction only
    for layer, attention in enumerate(graph.updates):
        offset = layer * graph.tokens
        next_offset = (layer + 1) * graph.tokens
        kept_share = np.ones(graph.tokens)
        for targets, sources, pattern in attention:
            kept_share[targets] = 0.5
            end, start = np.meshgrid(
                targets + next_offset, sources + offset, indexing="ij"
            )
            # an edge from a token to itself is also among those that keep the residual
            # stream; csr_array adds both
            join(start, end, 0.5 * pattern)
        join(indices + offset, indices + next_offset, kept_share)
    source = layers * graph.tokens
    sink = layers * graph.tokens + 1
    outputs = np.flatnonzero(graph.readout.sum(0))
    join(
        outputs + (layers - 1) * graph.tokens,
        np.full(len(outputs), sink),
        np.ones(len(outputs)),
    )
    flows = []
    for coverage in graph.inputs:
        tokens = np.flatnonzero(coverage)
        edges = (
            np.concatenate(
                [*capacities, np.round(coverage[tokens] * _UNIT).astype(np.int32)]
            ),
            (
                np.concatenate([*edge_starts, np.full(len(tokens), source)]),
                np.concatenate([*edge_ends, tokens]),
            ),
        )
        flows.append(
            maximum_flow(
                csr_array(edges, shape=(sink + 1, sink + 1)), source, sink
            ).flow_value
        )
    return np.array(flows, dtype=float) / _UNIT


def _shares(mass: Array) -> Array:
    """Normalise (segment, step) over segments; 0 where no segment contributes."""
    return ratio(mass, mass.sum(0), 0.0)


def build_graph(masks: Masks) -> Graph:
    """Return the graph of one item's tokens and their attention.

    Raises:
        InputError: no token covers the target's series.
    """
    run = masks.run.in_one_pass()
    stacks = run.lens.wiring.stacks
    spans = run.encoded.spans
    packed = run.encoded.packed
    first = {}
    count = 0
    for stack in stacks:
        first[stack.name] = count
        # a packed model has the tokens of all series in one row, others a row for each
        # series
        count += (1 if packed else len(masks.batch)) * len(spans[stack.name])
    layers = {
        f"{stack.prefix}.{layer}.{row.kind}.hook_pattern": (
            stack.name,
            row.keys_from or stack.name,
            row.over,
        )
        for stack in stacks
        for layer in range(stack.n_layers)
        for row in stack.attentions(layer)
    }
    activations = run.record(list(layers))
    updates = []
    for point, (queries, keys, over) in layers.items():
        # (part, query, key), the mean over heads
        pattern = activations[point].double().cpu().numpy().mean(1)
        sizes = (len(spans[queries]), len(spans[keys]))
        parts = _parts(over == "variate", pattern, first[queries], first[keys], sizes)
        updates.append(tuple(parts))

    def find_tokens(stack: str, row: int) -> list[tuple[int, int, int, str]]:
        """Return index in the graph, start, stop and kind of a series' tokens."""
        token_spans = spans[stack]
        indices = [
            token
            for token in range(len(token_spans))
            if not packed
            or not token_spans.variate
            or token_spans.variate[token] == row
        ]
        if packed:
            offset = first[stack]
        else:
            offset = first[stack] + row * len(token_spans)
        return [
            (
                offset + token,
                token_spans.start[token],
                token_spans.stop[token],
                token_spans.special[token],
            )
            for token in indices
        ]

    inputs = np.zeros((len(masks.segments), count))
    for segment, part in enumerate(masks.segments):
        for token, start, stop, _ in find_tokens(stacks[0].name, part.row):
            common = min(stop, part.stop) - max(start, part.start)
            if common > 0:
                # a token may cover steps of two segments, or some before the context
                # began
                inputs[segment, token] = common / (stop - start)
    output_stack = run.lens.wiring.output_stack.name
    tokens = [
        (token, start, stop)
        for token, start, stop, special in find_tokens(output_stack, masks.row)
        # special tokens cover no step, or are not read (see TokenSpans)
        if not special
    ]
    if not tokens:
        raise InputError(
            f"no token of {run.lens.wiring.architecture} covers series {masks.row}"
        )
    readout = np.zeros((run.horizon, count))
    for step in range(run.horizon):
        # the tokens that cover a step, else the series' last one
        covering = [token for token, start, stop in tokens if start <= step < stop] or [
            tokens[-1][0]
        ]
        readout[step, covering] = 1 / len(covering)
    return Graph(tuple(updates), count, inputs, readout)


def _parts(
    over_variates: bool,
    pattern: Array,
    first_target: int,
    first_source: int,
    sizes: tuple[int, int],
) -> list[Update]:
    """Return the parts of one attention that do not attend to each other.

    There is one part for each series, or, for attention over variates, one for each
    position.
    """
    parts = []
    for index, rows in enumerate(pattern):
        total = rows.sum(-1, keepdims=True)
        # a token that may attend to nothing keeps to itself, or reads all of another
        # stack alike
        if rows.shape[0] == rows.shape[1]:
            alone = np.eye(*rows.shape)
        else:
            alone = np.full(rows.shape, 1 / rows.shape[1])
        weights = np.where(total > 0, rows / np.maximum(total, 1e-30), alone)
        if over_variates:
            # one position in every series, whose rows are sizes[0] tokens apart
            targets = sources = (
                first_target + index + sizes[0] * np.arange(len(weights))
            )
        else:
            targets = first_target + index * sizes[0] + np.arange(sizes[0])
            sources = first_source + index * sizes[1] + np.arange(sizes[1])
        parts.append((targets, sources, weights))
    return parts
