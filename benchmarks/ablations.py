"""All single-head ablations of a decoder: replay and fan-out against one full forward a head."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import numpy as np
import torch

from tsfm_lens.ablation import Variant, run_variants
from tsfm_lens.hooks import Component
from tsfm_lens.models import Encoded, Lens


@dataclass(frozen=True)
class Comparison:
    """What was measured.

    Attributes:
        speed: time of one full forward a head over the time of ours.
        heads, timed: heads in all, and full forwards that were really timed.
        error: largest deviation of the outputs on the timed heads, relative to the largest output.
        effect: median movement of the output by a head, relative to the largest output; at 0 the error would mean
            nothing.
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


def compare(lens: Lens, encoded: Encoded, *, sample: int | None, seed: int = 0) -> Comparison:
    """Run ours once, and full forwards for a sample of heads before and after it.

    Args:
        sample: heads whose full forward is timed; all if None.
    """
    heads = [c for c in lens.components("decoder.*.*.*") if c.head is not None]
    rng = np.random.default_rng(seed)
    count = len(heads) if sample is None else min(sample, len(heads))
    chosen = sorted(rng.choice(len(heads), size=count, replace=False).tolist())
    with torch.no_grad():
        plain = lens.forward(encoded)
        first, outputs = _full(lens, encoded, heads, chosen[::2])
        start = time.perf_counter()
        ours = run_variants(lens, encoded, [Variant.zero(head) for head in heads])
        spent = time.perf_counter() - start
        second, more = _full(lens, encoded, heads, chosen[1::2])
    full = (first + second) / count * len(heads)
    outputs |= more
    error = max(float((ours[i] - out).abs().max() / out.abs().max()) for i, out in outputs.items())
    moved = float(np.median([float((out - plain).abs().max() / plain.abs().max()) for out in ours]))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Comparison(full / spent, len(heads), count, error, moved, arithmetic_limit(lens, encoded, heads), memory)


def _full(
    lens: Lens, encoded: Encoded, heads: list[Component], chosen: list[int]
) -> tuple[float, dict[int, torch.Tensor]]:
    outputs = {}
    start = time.perf_counter()
    for index in chosen:
        with lens.ablate(heads[index]):
            outputs[index] = lens.forward(encoded)
    return time.perf_counter() - start, outputs


def arithmetic_limit(lens: Lens, encoded: Encoded, heads: list[Component]) -> float:
    """Multiply-accumulates of one full forward a head, over those that no exact method can avoid.

    Unavoidable are one plain forward, and for every head the blocks from its own on for the decoder's own
    tokens; keys and values of the encoder are computed once. Attention products and the input embedding are
    left out: they are below 2 % at these sizes.
    """
    encoder, decoder = lens.wiring.stacks
    rows = len(encoded.batch)
    keys, tokens = rows * len(encoded.spans["encoder"]), rows * len(encoded.spans["decoder"])
    inner = encoder.n_heads * encoder.d_head
    square, mlp = encoder.d_model * inner, 2 * encoder.d_model * encoder.d_mlp
    token = 6 * square + mlp  # self-attention 4, cross-attention query and output 2
    out = sum(w.numel() for w in lens.adapter.model.get_submodule(lens.wiring.unembed.module).parameters())
    full = keys * (encoder.n_layers * (4 * square + mlp) + decoder.n_layers * 2 * square)
    full += tokens * (decoder.n_layers * token + out)
    ours = full + sum(tokens * ((decoder.n_layers - head.layer) * token + out) for head in heads)
    return len(heads) * full / ours
