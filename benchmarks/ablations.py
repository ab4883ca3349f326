"""All single-head ablations of a decoder: replay and fan-out against one full forward
per head.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from tsfm_lens.ablation import Variant, run_variants
from tsfm_lens.compress.timing import make_clock
from tsfm_lens.hooks import Component
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack
from tsfm_lens.models import Encoded, Lens


@dataclass(frozen=True)
class Comparison:
    """What was measured.

    Attributes:
        speed: time of one full forward per head over the time of ours.
        heads, timed: heads in all, and full forwards that were really timed.
        error: largest deviation of the outputs on the timed heads, relative to the
            largest output.
        effect: median movement of the output by a head, relative to the largest output;
            at 0 the error would mean nothing.
        limit: the ratio of multiply-accumulates of both ways.
        memory: peak resident memory of the process in GiB.
    """

    speed: float
    heads: int
    timed: int
    error: float
    effect: float
    limit: float
    memory: float


def compare(
    lens: Lens,
    encoded: Encoded,
    *,
    sample: int | None,
    heads_per_layer: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Run ours once, and full forwards for a sample of heads before and after it.

    Args:
        lens, encoded: the model and its input.
        sample: heads whose full forward is timed; all if None.
        heads_per_layer: ablate so many heads of every attention; all if None.
        seed: of the sample.
    """
    name = lens.wiring.output_stack.name
    heads = [c for c in lens.components() if c.stack == name and c.head is not None]
    if heads_per_layer is not None:
        heads = [
            head
            for head in heads
            if head.head is not None and head.head < heads_per_layer
        ]
    rng = np.random.default_rng(seed)
    if sample is None:
        count = len(heads)
    else:
        count = min(sample, len(heads))
    chosen = sorted(rng.choice(len(heads), size=count, replace=False).tolist())
    with torch.no_grad():
        plain = lens.forward(encoded)
        first, outputs = _full(lens, encoded, heads, chosen[::2])
        variants = [Variant.zero(head) for head in heads]
        clock = make_clock(lens.device)
        if lens.device.type == "cuda":
            # kernels are loaded, and memory is taken, at the first call
            run_variants(lens, encoded, variants)
        start = clock()
        ours = run_variants(lens, encoded, variants)
        spent = clock() - start
        second, more = _full(lens, encoded, heads, chosen[1::2])
    full = (first + second) / count * len(heads)
    outputs |= more
    error = max(
        float((ours[i] - out).abs().max() / out.abs().max())
        for i, out in outputs.items()
    )
    moved = float(
        np.median(
            [float((out - plain).abs().max() / plain.abs().max()) for out in ours]
        )
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Comparison(
        full / spent,
        len(heads),
        count,
        error,
        moved,
        arithmetic_limit(lens, encoded, heads),
        memory,
    )


def _full(
    lens: Lens, encoded: Encoded, heads: list[Component], chosen: list[int]
) -> tuple[float, dict[int, torch.Tensor]]:
    outputs = {}
    clock = make_clock(lens.device)
    start = clock()
    for index in chosen:
        with lens.ablate(heads[index]):
            outputs[index] = lens.forward(encoded)
    return clock() - start, outputs


def arithmetic_limit(lens: Lens, encoded: Encoded, heads: list[Component]) -> float:
    """Floating-point operations of one full forward per head, over those that no exact
    method can avoid.

    Unavoidable are one plain forward and, for every head, the output projection behind
    it, the branches after it in its block, all later blocks, and the head; keys and
    values that a decoder takes from the encoder are computed once. Counted by torch's
    own counter, attention products included.
    """
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        lens.adapter.run(encoded.inputs)
    counts = _by_path(
        lens,
        {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()},
    )
    root = sum(counter.get_flop_counts()["Global"].values())
    stack = lens.wiring.output_stack
    blocks = [
        counts.get(stack.block(layer), 0) - _from_elsewhere(stack, layer, counts)
        for layer in range(stack.n_layers)
    ]
    before = sum(counts.get(path, 0) for path in {*stack.upstream, *lens.wiring.unread})
    crossing = sum(
        _from_elsewhere(stack, layer, counts) for layer in range(stack.n_layers)
    )
    head = root - before - crossing - sum(blocks)
    assert all(blocks), "the counter did not see the blocks"

    def unavoidable(component: Component) -> int:
        rows = stack.rows(component.layer)
        kinds = [row.kind for row in rows]
        position = kinds.index(component.kind or "")
        block = stack.block(component.layer)
        attention = rows[position]
        assert isinstance(attention, Attention)
        here = counts.get(f"{block}.{attention.o.module}", 0)
        for row in rows[position + 1 :]:
            if isinstance(row, Attention):
                if row.keys_from:
                    cross = (row.k.module, row.v.module)
                else:
                    cross = ()
                here += counts.get(f"{block}.{row.module}", 0) - sum(
                    counts.get(f"{block}.{path}", 0) for path in cross
                )
            else:
                here += sum(counts.get(f"{block}.{path}", 0) for path in _matrices(row))
        return here + sum(blocks[component.layer + 1 :]) + head

    return (
        len(heads) * root / (root + sum(unavoidable(component) for component in heads))
    )


def _by_path(lens: Lens, counts: dict[str, int]) -> dict[str, int]:
    """Operations by path below the native model; the counter names modules from the
    outermost one that was called.
    """
    operations = {}
    for path, _ in lens.adapter.model.named_modules():
        parts = path.split(".")
        for trimmed in range(len(parts)):
            outer = lens.adapter.model.get_submodule(".".join(parts[:trimmed]))
            name = ".".join([type(outer).__name__, *parts[trimmed:]])
            if name in counts:
                operations[path] = counts[name]
                break
    return operations


def _matrices(row: Mlp) -> set[str]:
    return {row.i.module, row.o} | (
        {row.gate.module} if row.gate is not None else set()
    )


def _from_elsewhere(stack: Stack, layer: int, counts: dict[str, int]) -> int:
    """Operations of a block on what another stack computed: keys and values of its
    cross-attention.
    """
    cross = [row for row in stack.attentions(layer) if row.keys_from]
    return sum(
        counts.get(f"{stack.block(layer)}.{part.module}", 0)
        for row in cross
        for part in (row.k, row.v)
    )
