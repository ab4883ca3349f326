"""The sweep engine: single forwards with replay, and sampling rollouts side by side,
against one run per variant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.ablations import Comparison, compare
from tsfm_lens.ablation import (
    Variant,
    VariantForecasts,
    forecast_variants,
    run_variants,
)
from tsfm_lens.compress.timing import make_clock, measured
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks import Component
from tsfm_lens.models import Encoded, Lens

MIB = 2**20


@dataclass(frozen=True)
class Peaks:
    """Peak bytes of the tensors of a run, weights left out.

    Attributes:
        ours: of the variants side by side.
        plain: of one run alone.
    """

    ours: int
    plain: int

    def __str__(self) -> str:
        return (
            f"peak tensors {self.ours / MIB:.0f} MiB, of one run alone"
            f" {self.plain / MIB:.0f} MiB"
        )


def single_passes(
    lens: Lens, encoded: Encoded, *, sample: int | None, heads: int | None
) -> tuple[Comparison, Peaks]:
    """Single-head ablations of the output stack by replay.

    Args:
        lens, encoded: the model and its input.
        sample: heads whose full forward is timed; all if None.
        heads: ablate so many heads of every attention; all if None.
    """
    comparison = compare(lens, encoded, sample=sample, heads_per_layer=heads)
    stack = lens.wiring.output_stack.name
    some = [
        part
        for part in lens.components()
        if part.stack == stack and part.head is not None
    ][:16]
    with torch.no_grad():
        _, ours = measured(
            lambda: run_variants(lens, encoded, [Variant.zero(head) for head in some]),
            lens.device,
        )
        _, plain = measured(lambda: lens.forward(encoded), lens.device)
    return comparison, Peaks(ours, plain)


@dataclass(frozen=True)
class Rollouts:
    """What was measured of rollouts.

    Attributes:
        speed: time of one rollout per variant over the time of ours.
        timed: plain rollouts that were really timed.
        differing: share of sampled values that differ on those.
        effect: median share of sampled values that a variant changes.
        limit: the ratio of multiply-accumulates of both ways, counted as they ran.
        peaks: memory.
    """

    speed: float
    timed: int
    differing: float
    effect: float
    limit: float
    peaks: Peaks


def decoder_variants(lens: Lens) -> list[Variant]:
    """Every layer of the decoder, and every branch of every layer, zeroed."""
    stack = lens.wiring.output_stack
    layers = [Component(stack.name, layer) for layer in range(stack.n_layers)]
    branches = [
        Component(stack.name, layer, row.kind)
        for layer in range(stack.n_layers)
        for row in stack.rows(layer)
    ]
    return [Variant.zero(part) for part in (*layers, *branches)]


def rollouts(
    lens: Lens,
    batch: SeriesBatch,
    *,
    horizon: int,
    samples: int,
    timed: int | None,
    variants: Sequence[Variant],
) -> Rollouts:
    """Run ours once, and plain rollouts for a sample of variants before and after it.

    Args:
        lens, batch: the model and its series.
        horizon: steps.
        samples: paths per series.
        timed: plain rollouts; all if None.
        variants: what is forecast.
    """

    def run(
        chosen: Sequence[Variant], economy: bool, steps: int = horizon
    ) -> VariantForecasts:
        return forecast_variants(
            lens, batch, steps, chosen, num_samples=samples, economy=economy
        )

    if timed is None:
        count = len(variants)
    else:
        count = min(timed, len(variants))
    chosen = sorted(
        set(np.linspace(0, len(variants) - 1, count).round().astype(int).tolist())
    )
    # what the library sets up at the first call is nobody's
    run(variants[:2], True, 2)
    run(variants[:2], False, 2)
    clock = make_clock(lens.device)
    start = clock()
    plain = {index: run([variants[index]], False) for index in chosen[::2]}
    between = clock()
    ours = run(variants, True)
    spent = clock() - between
    plain |= {index: run([variants[index]], False) for index in chosen[1::2]}
    loops = clock() - start - spent
    operations, peak = _counted(lambda: run(variants, True), lens.device)
    alone, peak_alone = _counted(
        lambda: run([Variant("plain", ())], False), lens.device
    )
    assert ours.samples is not None
    bound = 1e-5 * np.abs(ours.samples).max()
    differing = [
        (np.abs(ours.samples[index] - loop.samples[0]) > bound).mean()
        for index, loop in plain.items()
    ]
    unablated = run([Variant("plain", ())], True).samples
    assert unablated is not None
    moved = [
        (np.abs(samples_of_variant - unablated[0]) > bound).mean()
        for samples_of_variant in ours.samples
    ]
    return Rollouts(
        loops / len(plain) * len(variants) / spent,
        len(plain),
        float(np.max(differing)),
        float(np.median(moved)),
        alone * len(variants) / operations,
        Peaks(peak, peak_alone),
    )


def _counted(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Operations, and peak bytes, of a run."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _, peak = measured(work, device)
    return counter.get_total_flops(), peak


def table(
    lens: Lens,
    batch: SeriesBatch | Encoded,
    plan: str,
    target: float,
    sample: int | None,
    heads: int | None,
) -> list[tuple[str, str, str, str, bool | None]]:
    """Rows of ``python -m benchmarks``."""
    if isinstance(batch, Encoded):
        comparison, peaks = single_passes(lens, batch, sample=sample, heads=heads)
        speed = comparison.speed
        limit = comparison.limit
        what = f"{comparison.heads} heads, {comparison.timed} full forwards timed"
        error = (
            "largest deviation of the results",
            f"{comparison.error:.1e}",
            f"a head moves them by {comparison.effect:.1e}",
            "≤ 1e-5",
            comparison.error <= 1e-5,
        )
    else:
        variants = decoder_variants(lens)
        rolled = rollouts(
            lens,
            batch,
            horizon=64,
            samples=20,
            timed=4 if sample else None,
            variants=variants,
        )
        speed = rolled.speed
        limit = rolled.limit
        peaks = rolled.peaks
        what = f"{len(variants)} variants, {rolled.timed} rollouts timed"
        error = (
            "sampled values that differ",
            f"{rolled.differing:.2%}",
            f"a variant changes {rolled.effect:.0%} of them",
            "0 %",
            rolled.differing == 0,
        )
    name = f"(f) {lens.wiring.architecture}, {plan}"
    note = f"{what}; limit {limit:.1f} ×, reached {speed / limit:.0%}; {peaks}"
    label, value, moved, bound, met = error
    return [
        (
            f"{name}: one run per variant / ours",
            f"{speed:.1f} ×",
            note,
            f"≥ {target:g}",
            speed >= target,
        ),
        (f"{name}: {label}", value, moved, bound, met),
    ]
