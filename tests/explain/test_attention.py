"""Attention as an explanation: rollout as the probe has it, flow as networkx has it,
known graphs.
"""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from closeness import close_in_float32
from tiny_lenses import fresh
from tsfm_lens import explain, probes
from tsfm_lens.explain.attention import (
    Graph,
    build_graph,
    largest_flows,
    rollout_shares,
)
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close

DEPTH = 300


def test_one_stack_rollout_equals_the_probe() -> None:
    """Attention rolled out over one stack is that of the probe."""
    run = fresh("timesfm-2.5-transformers").run(5 + np.sin(np.arange(64) / 3), 4)
    flow = probes.attention_rollout(run)["flow"].values[-1][-1]
    parts = explain.segments(run, parts=8)
    found = explain.input_attribution(
        run, method="attention rollout", reference="mean", parts=parts
    )
    by_token = {
        (part.start, part.stop): share
        for part, share in zip(parts, found["share"].values, strict=True)
    }
    starts = run.encoded.spans[""].start
    stops = run.encoded.spans[""].stop
    assert len(by_token) == len(flow)
    for start, stop, expected in zip(starts, stops, flow, strict=True):
        close_in_float32(
            by_token[start, stop], np.full(4, expected), depth=DEPTH, magnitude=1.0
        )


def test_encoder_rollout_precedes_cross_attention(bolt_run: Run) -> None:
    """Attention of an encoder is rolled out behind the cross-attention."""
    rolled = probes.attention_rollout(bolt_run, stack="encoder")["flow"].values[-1]
    held = np.zeros(rolled.shape[-1])
    for layer in range(3):
        cross = bolt_run.record([f"decoder_blocks.{layer}.cross_attn.hook_pattern"])
        mean = (
            cross[f"decoder_blocks.{layer}.cross_attn.hook_pattern"][0, :, 0]
            .double()
            .mean(0)
            .numpy()
        )
        # the one decoder token attends to itself, and its own half stays what it was
        held = 0.5 * held + 0.5 * mean @ rolled
    masks = explain.Masks(bolt_run, explain.segments(bolt_run, parts=4, season=1))
    tokens = build_graph(masks).inputs[:, : len(held)] @ held
    answer = tokens / tokens.sum()
    close_in_float32(rollout_shares(masks)[:, 0], answer, depth=DEPTH, magnitude=1.0)


def by_networkx(graph: Graph, covered: np.ndarray) -> float:
    """The largest flow, by another library over all connections."""
    count = graph.tokens
    layers = len(graph.updates)
    capacity = np.zeros(((layers + 1) * count + 2,) * 2)
    for layer, attention in enumerate(graph.updates):
        block = capacity[
            layer * count : (layer + 1) * count,
            (layer + 1) * count : (layer + 2) * count,
        ]
        residual = np.ones(count)
        for writes, reads, pattern in attention:
            residual[writes] = 0.5
            block[np.ix_(reads, writes)] += 0.5 * pattern.T
        block += np.diag(residual)
    capacity[-2, :count] = covered
    capacity[layers * count : -2, -1] = graph.readout.sum(0) > 0
    network = nx.from_numpy_array(capacity, create_using=nx.DiGraph)
    return float(
        nx.maximum_flow_value(
            network, len(capacity) - 2, len(capacity) - 1, capacity="weight"
        )
    )


@pytest.mark.parametrize("seed", range(6))
def test_flow_through_any_graph_is_maximal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = 4
    every = np.arange(tokens)
    updates = tuple(
        ((every, every, rng.dirichlet(np.ones(tokens), tokens)),) for _ in range(2)
    )
    # the last token is shown, and the forecast is read from it: what it keeps of itself
    # counts
    inputs = np.array([[0, 0, 0, 1.0], [1, 0.5, 0, 0]])
    asking = np.array([[0, 0, 0, 1.0]])
    graph = Graph(updates, tokens, inputs, asking)
    expected = [by_networkx(graph, covered) for covered in inputs]
    # capacities are rounded to millionths, a few units of single precision, over some
    # forty connections
    close_in_float32(largest_flows(graph), np.array(expected), depth=400, magnitude=1.0)
    assert expected[0] < 1


def test_segments_share_tokens_where_they_meet(covariate_run: Run) -> None:
    """A token is shared by the segments that meet in it."""
    full, *rest = explain.segments(covariate_run, 0, parts=1, others="whole")
    edges = [*range(full.start, -6, 7), 0]
    parts = [
        *(
            explain.Segment(f"from {a}", full.row, a, b, "past")
            for a, b in pairwise(edges)
        ),
        *rest,
    ]
    graph = build_graph(explain.Masks(covariate_run, parts, reference="mean", item=0))
    covered = graph.inputs.sum(0)
    # every token of the past, and those of the known future
    assert_close(covered[covered > 0], np.ones(int((covered > 0).sum())), depth=50)
    assert ((graph.inputs > 0) & (graph.inputs < 1)).any()
