"""Attention as an explanation: rollout and flow from input segments to the forecast's
tokens.
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

# capacities are whole numbers of this share
_UNIT = 10**6

Update = tuple[np.ndarray, np.ndarray, Array]
"""Tokens that an attention writes, tokens that it reads, and its mean pattern between
them.
"""


@dataclass(frozen=True)
class Graph:
    """Tokens of all stacks, attention between them in order, segments of tokens, and
    readout weights (step, token).
    """

    updates: tuple[tuple[Update, ...], ...]
    tokens: int
    inputs: Array
    readout: Array


def rollout_shares(masks: Masks) -> Array:
    """Compute Abnar and Zuidema's attention rollout over all stacks, as shares of the
    forecast: (segment, step).
    """
    graph = build_graph(masks)
    mix = np.eye(graph.tokens)
    for attention in graph.updates:
        for targets, sources, pattern in attention:
            mix[targets] = 0.5 * mix[targets] + 0.5 * pattern @ mix[sources]
    return _shares((graph.readout @ mix @ graph.inputs.T).T)


def flow_shares(masks: Masks) -> Array:
    """Compute Abnar and Zuidema's attention flow, as shares of the forecast: (segment,
    step), alike at all steps.
    """
    return _shares(
        np.tile(largest_flows(build_graph(masks))[:, None], masks.run.horizon)
    )


def largest_flows(graph: Graph) -> Array:
    """Compute the largest flow from each segment to the tokens that the forecast is
    read from, (segment,).
    """
    layers = len(graph.updates) + 1
    starts = []
    bounds = []
    most = []

    def join(start: np.ndarray, end: np.ndarray, share: np.ndarray) -> None:
        starts.append(start.ravel())
        bounds.append(end.ravel())
        most.append(np.round(share.ravel() * _UNIT).astype(np.int32))

    every = np.arange(graph.tokens)
    for layer, attention in enumerate(graph.updates):
        here = layer * graph.tokens
        after = (layer + 1) * graph.tokens
        own = np.ones(graph.tokens)
        for targets, sources, pattern in attention:
            own[targets] = 0.5
            end, start = np.meshgrid(targets + after, sources + here, indexing="ij")
            join(start, end, 0.5 * pattern)
        join(every + here, every + after, own)
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
                [*most, np.round(coverage[tokens] * _UNIT).astype(np.int32)]
            ),
            (
                np.concatenate([*starts, np.full(len(tokens), source)]),
                np.concatenate([*bounds, tokens]),
            ),
        )
        flows.append(
            maximum_flow(
                csr_array(edges, shape=(sink + 1, sink + 1)), source, sink
            ).flow_value
        )
    return np.array(flows, dtype=float) / _UNIT


def _shares(mass: Array) -> Array:
    """Normalise (segment, step) to sum to 1 over segments; 0 where no segment
    contributes.
    """
    return ratio(mass, mass.sum(0), 0.0)


def build_graph(masks: Masks) -> Graph:
    """Build the graph of one item's tokens and their attention; errors as in
    :func:`rollout_shares`.
    """
    run = masks.run.in_one_pass()
    stacks = run.lens.wiring.stacks
    spans = run.encoded.spans
    packed = run.encoded.packed
    first = {}
    count = 0
    for stack in stacks:
        first[stack.name] = count
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
    for point, (own, keys, over) in layers.items():
        pattern = activations[point].double().cpu().numpy().mean(1)
        sizes = (len(spans[own]), len(spans[keys]))
        updates.append(
            tuple(_parts(over == "variate", pattern, first[own], first[keys], sizes))
        )

    def find_tokens(stack: str, row: int) -> list[tuple[int, int, int, str]]:
        """Return place in the graph, start, stop and kind of the tokens of one series."""
        of = spans[stack]
        own = [
            token
            for token in range(len(of))
            if not packed or not of.variate or of.variate[token] == row
        ]
        if packed:
            offset = first[stack]
        else:
            offset = first[stack] + row * len(of)
        return [
            (offset + token, of.start[token], of.stop[token], of.special[token])
            for token in own
        ]

    inputs = np.zeros((len(masks.segments), count))
    for index, part in enumerate(masks.segments):
        for position, start, stop, _ in find_tokens(stacks[0].name, part.row):
            common = min(stop, part.stop) - max(start, part.start)
            if common > 0:
                inputs[index, position] = common / (stop - start)
    tokens = [
        item[:3]
        for item in find_tokens(run.lens.wiring.output_stack.name, masks.row)
        if not item[3]
    ]
    if not tokens:
        raise InputError(
            f"no token of {run.lens.wiring.architecture} covers series {masks.row}"
        )
    readout = np.zeros((run.horizon, count))
    for step in range(run.horizon):
        # the tokens that cover a step, else the series' last one
        covering = [
            position for position, start, stop in tokens if start <= step < stop
        ] or [tokens[-1][0]]
        readout[step, covering] = 1 / len(covering)
    return Graph(tuple(updates), count, inputs, readout)


def _parts(
    over_variates: bool, pattern: Array, own: int, keys: int, sizes: tuple[int, int]
) -> list[Update]:
    """Split one attention into its independent parts: one for each series, or for each
    position over the series.
    """
    parts = []
    for index, rows in enumerate(pattern):
        total = rows.sum(-1, keepdims=True)
        # a token that may attend to nothing keeps to itself
        if rows.shape[0] == rows.shape[1]:
            alone = np.eye(*rows.shape)
        else:
            alone = np.full(rows.shape, 1 / rows.shape[1])
        mean = np.where(total > 0, rows / np.maximum(total, 1e-30), alone)
        if over_variates:
            targets = sources = own + index + sizes[0] * np.arange(len(mean))
        else:
            targets = own + index * sizes[0] + np.arange(sizes[0])
            sources = keys + index * sizes[1] + np.arange(sizes[1])
        parts.append((targets, sources, mean))
    return parts
