"""Several threads with one lens: a context acts in its own, and seeded runs take turns."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.errors import HookError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import Case, native_traces

MLP = "decoder_blocks.0.mlp.hook_out"
PATTERN = "decoder_blocks.1.cross_attn.hook_pattern"
READ = [MLP, PATTERN, "decoder_blocks.0.self_attn.hook_result"]


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of a function that another thread runs while this one waits."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def forward(lens: Lens, case: Case) -> Tensor:
    with torch.no_grad():
        return lens.forward(case.encoded)


def captured(lens: Lens, case: Case) -> list[Tensor]:
    with torch.no_grad():
        output, acts = lens.run_with_cache(case.encoded, names_filter=READ)
    return [output, *(acts[name] for name in READ)]


@pytest.mark.parametrize("run", [forward, captured])
def test_a_context_leaves_the_runs_of_other_threads_alone(
    token_lens: Lens, token_case: Case, run: Callable[[Lens, Case], Any]
) -> None:
    """The other thread runs as a whole while this one stands in the middle of its own run."""
    plain = run(token_lens, token_case)
    met: list[Any] = []

    def meet(value: Tensor, hook: object) -> Tensor:
        met.append(elsewhere(lambda: run(token_lens, token_case)))
        return 0.5 * value

    for point in (MLP, PATTERN):
        with token_lens.ablate("encoder.1.mlp"):
            alone = token_lens.run_with_hooks(token_case.encoded, [(point, lambda value, hook: 0.5 * value)])
            together = token_lens.run_with_hooks(token_case.encoded, [(point, meet)])
        assert torch.equal(together, alone)
    assert len(met) == 2
    for other in met:
        for theirs, ours in zip(*(each if isinstance(each, list) else [each] for each in (other, plain)), strict=True):
            assert torch.equal(theirs, ours)
    assert native_traces(token_lens) == 0


def test_two_threads_with_contexts_of_their_own(token_lens: Lens, token_case: Case) -> None:
    parts = [str(one) for one in token_lens.components("**.mlp", "decoder.*.cross_attn.*")]

    def ablated(part: str) -> list[Tensor]:
        with token_lens.ablate(part):
            return captured(token_lens, token_case)

    alone = [ablated(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ablated, parts * 3))
    for index, found in enumerate(together):
        for theirs, ours in zip(found, alone[index % len(parts)], strict=True):
            assert torch.equal(theirs, ours)
    assert native_traces(token_lens) == 0


def test_a_context_whose_model_runs_in_another_thread_only(token_lens: Lens, token_case: Case) -> None:
    with pytest.raises(HookError, match="in another thread only"), token_lens.ablate("decoder.0.mlp"):
        elsewhere(lambda: forward(token_lens, token_case))
    with token_lens.ablate("decoder.0.mlp"):
        elsewhere(lambda: forward(token_lens, token_case))
        forward(token_lens, token_case)


def test_backward_hooks_of_two_threads_at_one_point_are_refused(token_lens: Lens, token_case: Case) -> None:
    def backward() -> None:
        with token_lens.hooks(bwd_hooks=[(MLP, lambda grad, hook: None)]):
            token_lens.forward(token_case.encoded).sum().backward()

    def meet(value: Tensor, hook: object) -> None:
        with pytest.raises(HookError, match="another thread has backward hooks"):
            elsewhere(backward)

    with token_lens.hooks([(MLP, meet)], bwd_hooks=[(MLP, lambda grad, hook: None)]):
        token_lens.forward(token_case.encoded).sum().backward()
    backward()


def test_seeded_samples_do_not_depend_on_other_threads(token_lens: Lens, token_case: Case) -> None:
    def drawn(seed: int) -> np.ndarray:
        samples = token_lens.forecast(token_case.batch, 4, num_samples=3, seed=seed).samples
        assert samples is not None
        return samples

    before = torch.random.get_rng_state()
    alone = [drawn(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(drawn, list(range(4)) * 3))
    for index, samples in enumerate(together):
        np.testing.assert_array_equal(samples, alone[index % 4])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_loading_in_threads_leaves_the_output_where_it_was() -> None:
    stdout, ready = sys.stdout, threading.Barrier(3)

    def one(_index: int) -> None:
        ready.wait()
        load("bolt-nano", check=False)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(3)))
    assert sys.stdout is stdout


def test_replay_leaves_the_runs_of_other_threads_alone(token_lens: Lens, token_case: Case) -> None:
    """While variants run, modules before their first change hand back stored outputs, in this thread only."""
    plain, met = forward(token_lens, token_case), []

    def meet(pattern: Tensor) -> Tensor:
        met.append(elsewhere(lambda: forward(token_lens, token_case)))
        return 0.5 * pattern

    variants = [Variant("met", (EditPattern("decoder.1.cross_attn", meet),))]
    run_variants(token_lens, token_case.encoded, variants)
    assert met
    for other in met:
        assert torch.equal(other, plain)
    assert native_traces(token_lens) == 0
