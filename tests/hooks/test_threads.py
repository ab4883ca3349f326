"""A context acts in the thread and task that opened it, and in tasks started inside it;
seeded runs take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import _len_torch_function_stack

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.core.errors import HookError, WiringError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import Lens
from tsfm_lens.testing import Case, native_traces

MLP = "decoder_blocks.0.mlp.hook_out"
PATTERN = "decoder_blocks.1.cross_attn.hook_pattern"
PARTS = ["decoder.0.mlp", "decoder.1.cross_attn.0", "encoder.0.self_attn.1"]
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
        output, activations = lens.run_with_cache(case.encoded, names_filter=READ)
    return [output, *(activations[name] for name in READ)]


@pytest.mark.parametrize("run", [forward, captured])
def test_contexts_leave_other_threads_alone(
    token_lens: Lens, token_case: Case, run: Callable[[Lens, Case], Any]
) -> None:
    """The other thread runs as a whole while this one stands in the middle of its own
    run.
    """
    plain = run(token_lens, token_case)
    met: list[Any] = []

    def meet(value: Tensor, hook: object) -> Tensor:
        met.append(elsewhere(lambda: run(token_lens, token_case)))
        return 0.5 * value

    for point in (MLP, PATTERN):
        with token_lens.ablate("encoder.1.mlp"):
            alone = token_lens.run_with_hooks(
                token_case.encoded, [(point, lambda value, hook: 0.5 * value)]
            )
            together = token_lens.run_with_hooks(token_case.encoded, [(point, meet)])
        assert torch.equal(together, alone)
    assert len(met) == 2
    for other in met:
        for theirs, ours in zip(
            *(item if isinstance(item, list) else [item] for item in (other, plain)),
            strict=True,
        ):
            assert torch.equal(theirs, ours)
    assert native_traces(token_lens) == 0


def test_two_threads_with_own_contexts(token_lens: Lens, token_case: Case) -> None:
    """Two threads can have contexts of their own."""
    parts = [
        str(one) for one in token_lens.components("**.mlp", "decoder.*.cross_attn.*")
    ]

    def without(part: str) -> list[Tensor]:
        with token_lens.ablate(part):
            return captured(token_lens, token_case)

    alone = [without(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(without, parts * 3))
    for index, found in enumerate(together):
        for theirs, ours in zip(found, alone[index % len(parts)], strict=True):
            assert torch.equal(theirs, ours)
    assert native_traces(token_lens) == 0


def test_context_unused_by_thread_is_refused(
    token_lens: Lens, token_case: Case
) -> None:
    """A context is refused when its model runs in another thread only."""
    with (
        pytest.raises(HookError, match="in another thread only"),
        token_lens.ablate("decoder.0.mlp"),
    ):
        elsewhere(lambda: forward(token_lens, token_case))
    with token_lens.ablate("decoder.0.mlp"):
        elsewhere(lambda: forward(token_lens, token_case))
        forward(token_lens, token_case)


def test_conflicting_backward_hooks_are_refused(
    token_lens: Lens, token_case: Case
) -> None:
    """Backward hooks of two threads at one point are refused."""

    def backward() -> None:
        with token_lens.hooks(bwd_hooks=[(MLP, lambda grad, hook: None)]):
            token_lens.forward(token_case.encoded).sum().backward()

    def meet(value: Tensor, hook: object) -> None:
        with pytest.raises(HookError, match="another thread has backward hooks"):
            elsewhere(backward)

    with token_lens.hooks([(MLP, meet)], bwd_hooks=[(MLP, lambda grad, hook: None)]):
        token_lens.forward(token_case.encoded).sum().backward()
    backward()


def test_seeded_samples_ignore_other_threads(
    token_lens: Lens, token_case: Case
) -> None:
    """Seeded samples do not depend on other threads."""

    def drawn(seed: int) -> np.ndarray:
        samples = token_lens.forecast(
            token_case.batch, 4, num_samples=3, seed=seed
        ).samples
        assert samples is not None
        return samples

    before = torch.random.get_rng_state()
    alone = [drawn(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(drawn, list(range(4)) * 3))
    for index, samples in enumerate(together):
        np.testing.assert_array_equal(samples, alone[index % 4])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_replay_leaves_other_threads_alone(token_lens: Lens, token_case: Case) -> None:
    """While variants run, modules before their first change hand back stored outputs,
    in this thread only.
    """
    plain = forward(token_lens, token_case)
    met = []

    def meet(pattern: Tensor) -> Tensor:
        met.append(elsewhere(lambda: forward(token_lens, token_case)))
        return 0.5 * pattern

    variants = [Variant("met", (EditPattern("decoder.1.cross_attn", meet),))]
    run_variants(token_lens, token_case.encoded, variants)
    assert met
    for other in met:
        assert torch.equal(other, plain)
    assert native_traces(token_lens) == 0


# --- tasks and generators of one thread
# -----------------------------------------------------------------


def ablated(lens: Lens, case: Case, *parts: str) -> Tensor:
    with lens.ablate(*parts):
        return forward(lens, case)


def test_tasks_keep_their_contexts_apart(token_lens: Lens, token_case: Case) -> None:
    """Tasks of one thread keep their contexts apart."""
    plain = forward(token_lens, token_case)
    alone = {part: ablated(token_lens, token_case, part) for part in PARTS}

    async def task(part: str | None) -> list[Tensor]:
        outputs = []
        with ExitStack() as stack:
            if part is not None:
                stack.enter_context(token_lens.ablate(part))
            for _ in range(3):
                outputs.append(forward(token_lens, token_case))
                assert _len_torch_function_stack() == 0
                await asyncio.sleep(0)
        return outputs

    async def main() -> list[list[Tensor]]:
        return await asyncio.gather(*(task(part) for part in (*PARTS, None, *PARTS)))

    for part, outputs in zip((*PARTS, None, *PARTS), asyncio.run(main()), strict=True):
        for output in outputs:
            assert torch.equal(output, plain if part is None else alone[part])
    assert native_traces(token_lens) == 0


def test_tasks_keep_contexts_of_their_start(token_lens: Lens, token_case: Case) -> None:
    both = ablated(token_lens, token_case, *PARTS[:2])
    one = ablated(token_lens, token_case, PARTS[0])

    async def inner(part: str | None) -> Tensor:
        await asyncio.sleep(0)
        if part is None:
            return forward(token_lens, token_case)
        return ablated(token_lens, token_case, part)

    async def main() -> list[Tensor]:
        with token_lens.ablate(PARTS[0]):
            return list(await asyncio.gather(inner(PARTS[1]), inner(None)))

    found = asyncio.run(main())
    assert torch.equal(found[0], both)
    assert torch.equal(found[1], one)


def test_context_outlives_its_notebook_cell(token_lens: Lens, token_case: Case) -> None:
    """A context outlives the task of a notebook cell."""
    expected = ablated(token_lens, token_case, PARTS[0])
    context = token_lens.ablate(PARTS[0])

    async def cells() -> None:
        async def cell(work: Callable[..., Any], *arguments: Any) -> Any:
            return work(*arguments)

        await asyncio.create_task(cell(context.__enter__))
        assert torch.equal(
            await asyncio.create_task(cell(forward, token_lens, token_case)), expected
        )
        await asyncio.create_task(cell(context.__exit__, None, None, None))

    asyncio.run(cells())
    assert native_traces(token_lens) == 0


def test_suspended_generator_in_context_is_refused(
    token_lens: Lens, token_case: Case
) -> None:
    """A generator that waits inside a context is refused."""
    plain = forward(token_lens, token_case)
    alone = ablated(token_lens, token_case, PARTS[0])

    def outputs() -> Generator[Tensor, None, None]:
        with token_lens.ablate(PARTS[0]):
            yield forward(token_lens, token_case)
            yield forward(token_lens, token_case)

    generator = outputs()
    assert torch.equal(next(generator), alone)
    for attempt in (
        lambda: forward(token_lens, token_case),
        lambda: token_lens.native.model.model(
            torch.ones(1, 4, dtype=torch.long),
            decoder_input_ids=torch.ones(1, 1).long(),
        ),
        lambda: ablated(token_lens, token_case, PARTS[1]),
    ):
        with pytest.raises(
            HookError, match=r"open in the generator .*outputs .*before the yield"
        ):
            attempt()
    assert torch.equal(next(generator), alone)
    generator.close()
    assert torch.equal(forward(token_lens, token_case), plain)
    assert native_traces(token_lens) == 0


def test_context_managers_around_a_context_act(
    token_lens: Lens, token_case: Case
) -> None:
    expected = ablated(token_lens, token_case, PARTS[0])

    @contextmanager
    def wrapped() -> Iterator[None]:
        with token_lens.ablate(PARTS[0]):
            yield

    @asynccontextmanager
    async def awaited() -> AsyncIterator[None]:
        with wrapped():
            yield

    async def main() -> Tensor:
        async with awaited():
            return forward(token_lens, token_case)

    with wrapped():
        assert torch.equal(forward(token_lens, token_case), expected)
    with ExitStack() as stack:
        stack.enter_context(wrapped())
        assert torch.equal(forward(token_lens, token_case), expected)
    assert torch.equal(asyncio.run(main()), expected)
    assert native_traces(token_lens) == 0


@pytest.mark.parametrize("point", [MLP, PATTERN, "decoder_blocks.1.cross_attn.hook_z"])
@pytest.mark.parametrize(
    ("change", "returned"),
    [
        (Tensor.double, r"shape \(.*\) of float64 on cpu"),
        (lambda value: value.to("meta"), r"shape \(.*\) of float32 on meta"),
        (lambda value: value[:, :0], r"shape \(.*\) of float32 on cpu"),
        (lambda value: value.numpy(), "a ndarray"),
    ],
)
def test_what_a_hook_returns_is_checked(
    token_lens: Lens,
    token_case: Case,
    point: str,
    change: Callable[[Tensor], Any],
    returned: str,
) -> None:
    with (
        torch.no_grad(),
        pytest.raises(
            WiringError, match=rf"the hook on {point} returned {returned}, expected \("
        ),
    ):
        token_lens.run_with_hooks(
            token_case.encoded, [(point, lambda value, hook: change(value))]
        )
    assert native_traces(token_lens) == 0
