"""What the probes cost: time against one plain forward on the same inputs, and peak
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.apart import apart, restart_peak, status
from tsfm_lens import probes, testing
from tsfm_lens.compress.timing import ratios
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import Measurement, measurements
from tsfm_lens.core.results import Results
from tsfm_lens.data import bundled
from tsfm_lens.models import Lens, load
from tsfm_lens.probes.induction import WITHIN, _sequences
from tsfm_lens.probes.weights import core_singular_values

Row = tuple[str, str, str, str, bool | None]
"""measurement, value, range, target, met (None: no target)."""

EMBEDDED = ("chronos-nano", "bolt-nano")
# cost of the whole set of probes on one run, in forwards
MOST_FORWARDS = {"chronos-nano": 350, "bolt-nano": 120}
CONTEXT = 128
HORIZON = 12
SAMPLES = 4
SEQUENCES = 8
SERIES = 2_048


def make_inputs(lens: Lens) -> Results:
    """A run of one real series of 128 steps, 12 steps ahead, whose results are computed
    when asked for.
    """
    context, truth = bundled("co2").tail(CONTEXT + HORIZON).split(HORIZON)
    options: dict[str, Any] = {}
    if lens.adapter.readout == "token":
        options["num_samples"] = SAMPLES
    return Results(lens.run(context, HORIZON, truth=truth, **options))


def timed(lens: Lens) -> dict[str, Measurement]:
    """Measurements of a run that are no search over many runs, and that the model
    allows.
    """
    return {
        kind: entry
        for kind, entry in measurements().items()
        if entry.of_run
        and entry.cost != "search"
        and (not entry.needs or NEEDS[entry.needs].met(lens))
    }


def probe_costs(name: str, rounds: int) -> list[Row]:
    """Every probe by itself, the whole set on one run, and a forecast, over one plain
    forward.
    """
    lens = load(name)
    encoded = make_inputs(lens).run.encoded
    usable = timed(lens)
    # of weights, and of inputs: timed by themselves, and no part of the set whose cost
    # has a limit
    together = [
        kind
        for kind, entry in usable.items()
        if entry.cost == "forwards" and entry.theme != "Inputs"
    ]
    works: dict[str, Callable[[], object]] = {
        kind: partial(_compute, [kind], lens) for kind in usable
    }
    works["whole set but ranks and inputs"] = partial(_compute, together, lens)
    # gradients are left on: some probes differentiate, and the others turn them off
    # themselves
    ratios_to_forward = ratios(
        list(works.values()),
        torch.no_grad()(lambda: lens.adapter.run(encoded.inputs)),
        rounds=rounds,
    )
    note = f"{CONTEXT} steps, {HORIZON} ahead" + (
        f", {SAMPLES} samples" if lens.adapter.readout == "token" else ""
    )
    rows = []
    for work, (median, low, high) in zip(works, ratios_to_forward, strict=True):
        what = f"(d) {name}: {work} / forward"
        most = None
        if work.startswith("whole set"):
            most = MOST_FORWARDS[name]
        target, met = ("", None) if most is None else (f"≤ {most}", median <= most)
        rows.append(
            (what, f"{median:.1f}", f"{low:.1f}–{high:.1f}; {note}", target, met)
        )
    return rows


def _compute(kinds: list[str], lens: Lens) -> list[object]:
    """Compute measurements on one new run."""
    results = make_inputs(lens)
    return [results[kind] for kind in kinds]


def repeated_tokens_cost(rounds: int) -> list[Row]:
    """The repeated-random-tokens test at base size over one plain forward of the same
    sequences.
    """
    lens = load(testing.published("chronos", "base"), check=False)
    ids, motifs = _sequences(lens, 32, 4, SEQUENCES, WITHIN, 0)
    start = torch.full((SEQUENCES, 1), lens.adapter.model.config.decoder_start_token_id)
    encoded = lens.adapter.encode_tokens(ids, torch.cat([start, motifs[:, :-1]], dim=1))  # type: ignore[attr-defined]
    ways = [
        partial(probes.induction_scores, lens, n_sequences=SEQUENCES, decoding=decoding)
        for decoding in ("forced", "rollout")
    ]
    with torch.no_grad():
        ratios_to_forward = ratios(
            ways, lambda: lens.adapter.run(encoded.inputs), rounds=rounds
        )
    return [
        (
            f"(d) chronos base: induction_scores, {way} / forward",
            f"{median:.2f}",
            f"{low:.2f}–{high:.2f}; {SEQUENCES} sequences of 128 tokens, 32 decoded",
            "",
            None,
        )
        for way, (median, low, high) in zip(
            ("forced", "rolled out"), ratios_to_forward, strict=True
        )
    ]


def stable_rank_cost(rounds: int) -> list[Row]:
    """Singular values of W_Q W_Kᵀ of a layer's heads, through the core and of the dense
    product.
    """
    lens = load(testing.published("chronos", "base"), check=False)
    weights = lens.weights.heads(0, "cross_attn", "decoder")
    q = weights.W_Q.detach()
    k = weights.W_K.detach().transpose(-2, -1)

    def dense() -> torch.Tensor:
        return torch.linalg.svdvals(q.double() @ k.double())

    speedup = ratios([dense], lambda: core_singular_values(q, k), rounds=rounds)[0]
    ours, theirs = (
        probes.stable_rank(values.numpy())
        for values in (core_singular_values(q, k), dense())
    )
    error = float(np.abs(ours / theirs - 1).max())
    size = f"{q.shape[0]} heads, {q.shape[1]} × {q.shape[1]}, float64"
    return [
        (
            "(d) stable rank: dense SVD / core",
            f"{speedup[0]:.0f} ×",
            f"{speedup[1]:.0f}–{speedup[2]:.0f}; {size}",
            "≥ 10",
            speedup[0] >= 10,
        ),
        (
            "(d) stable rank: largest relative difference",
            f"{error:.1e}",
            size,
            "≤ 1e-9",
            error <= 1e-9,
        ),
    ]


def weight_spectra_cost() -> list[Row]:
    """Singular values of every matrix of a model of 200 M parameters, in float64."""
    lens = load(testing.published("chronos", "base"), check=False)
    began = time.process_time()
    found = probes.weight_ranks(lens)
    spent = time.process_time() - began
    count = sum(parameter.numel() for parameter in lens.parameters()) / 1e6
    what = f"(d) chronos base: spectra of all weight matrices, {count:.0f} M parameters"
    note = f"{found.sizes['matrix']} matrices, float64, processor time"
    return [(what, f"{spent:.1f} s", note, "≤ 60 s", spent <= 60)]


def rollout_memory() -> list[Row]:
    """Peak memory of 512 × 512 autoregressive attention of 144 heads, over the size of
    the result.
    """
    rows: list[Row] = []
    for keys, forced_path in (("window", True), ("time", True), ("window", False)):
        extra, result = apart(_rollout_peak, keys, forced_path)
        how = "its own forecast, 1 sample"
        if forced_path:
            how = "given values"
        ratio = extra / result
        rows.append(
            (
                (
                    f"(d) chronos base: autoregressive attention, keys in the {keys},"
                    " peak memory / result"
                ),
                f"{ratio:.2f}",
                (
                    f"512 + 512 steps along {how}; result {result / 2**20:.0f} MiB,"
                    f" peak above the loaded model {extra / 2**20:.0f} MiB"
                ),
                "≤ 1.5",
                ratio <= 1.5,
            )
        )
    return rows


def streaming_memory() -> list[Row]:
    """Peak memory of probes that stream over what they would hold else; the run's own
    path is there before.
    """
    rows: list[Row] = []
    for probe, what in (
        ("entropic_rank", "writes of all heads"),
        ("flow_of_ranks", "streams"),
    ):
        (few, _), (many, full) = (
            apart(_streaming_peak, probe, count) for count in (SERIES // 8, SERIES)
        )
        rows.append(
            (
                f"(d) chronos-nano: {probe} of {SERIES} series, peak memory / {what}",
                f"{many / full:.2f}",
                (
                    f"{many / 2**20:.0f} MiB above model and path, {few / 2**20:.0f} of"
                    f" an eighth of the series; {what}: {full / 2**20:.0f} MiB; groups"
                    " of 8"
                ),
                "≤ 0.25",
                many / full <= 0.25,
            )
        )
    return rows


def _rollout_peak(keys: str, forced_path: bool) -> tuple[int, int]:
    lens = load(testing.published("chronos", "base"), check=False)
    steps = np.arange(1024)
    values = np.sin(2 * np.pi * steps / 24)[None] + 0.1 * np.random.default_rng(
        0
    ).standard_normal((1, 1024))
    context = list(values[:, :512])
    future = values[:, 512:]
    with torch.no_grad():
        lens.forward(context, future=future[:, :64])
    options: dict[str, Any] = {"along": future} if forced_path else {"num_samples": 1}
    before = restart_peak()
    maps = probes.autoregressive_attention(lens.run(context, 512, **options), keys=keys)
    return status("VmHWM") - before, maps["attention"].nbytes


def _streaming_peak(probe: str, count: int) -> tuple[int, int]:
    """The peak, and the bytes of what passes: the stream before each layer and after
    the last, or all heads' writes.
    """
    lens = load("chronos-nano")
    steps = np.arange(CONTEXT)
    series = [np.sin(2 * np.pi * steps / (6 + i % 32)) + 0.01 * i for i in range(count)]
    getattr(probes, probe)(lens.run(series[:8], HORIZON, num_samples=SAMPLES))
    run = lens.run(series, HORIZON, num_samples=SAMPLES)
    assert len(run.path) == count
    stacks = {stack.name: stack for stack in lens.wiring.stacks}
    before = restart_peak()
    result = getattr(probes, probe)(run)
    peak = max(0, status("VmHWM") - before)
    if probe == "flow_of_ranks":
        return (
            peak,
            int(result.attrs["tokens"])
            * (stacks["encoder"].n_layers + 1)
            * stacks["encoder"].d_model
            * 4,
        )
    decoder = stacks["decoder"]
    return (
        peak,
        count * HORIZON * decoder.n_layers * decoder.n_heads * decoder.d_model * 4,
    )


def attribution_cost(rounds: int) -> list[Row]:
    """Attribution of 100 series, after their forecast, over that forecast; side by
    side, in processor time.
    """
    rows: list[Row] = []
    for name in ("bolt-nano", "chronos2-nano", "chronos-nano"):
        lens = load(name)
        rng = np.random.default_rng(0)
        steps = np.arange(min(512, lens.adapter.context_length))
        series = [
            50
            + 10 * np.sin(2 * np.pi * steps / (6 + i % 32))
            + rng.normal(size=len(steps))
            for i in range(100)
        ]
        options: dict[str, Any] = (
            {"num_samples": SAMPLES} if lens.adapter.readout == "token" else {}
        )
        make = partial(lens.run, series, HORIZON, **options)
        ready = [make() for _ in range(rounds + 1)]
        for run in ready:
            assert run.forecast is not None
        work = partial(lambda left: probes.attribution(next(left)), iter(ready))
        ratio, low, high = ratios(
            [work],
            lambda make=make: make().forecast,
            rounds=rounds,
            clock=time.process_time,
        )[0]
        what = f"(d) {name}: attribute / forecast, 100 series"
        rows.append(
            (
                what,
                f"{ratio:.1f}",
                f"{low:.1f}–{high:.1f}; {len(steps)} steps",
                "≤ 3",
                ratio <= 3,
            )
        )
    return rows


def measure(rounds: int) -> list[Row]:
    """(d) All of it."""
    rows = [
        *(row for name in EMBEDDED for row in probe_costs(name, rounds)),
        *attribution_cost(rounds),
    ]
    rows += [
        *stable_rank_cost(rounds),
        *weight_spectra_cost(),
        *repeated_tokens_cost(3),
    ]
    if Path("/proc/self/clear_refs").exists():
        rows += [*rollout_memory(), *streaming_memory()]
    return rows
