"""A context acts in the task that opened it and in those started inside it; generators that wait are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import _len_torch_function_stack

from tsfm_lens.errors import HookError, WiringError
from tsfm_lens.models import Lens
from tsfm_lens.testing import Case, native_traces

MLP, PATTERN = "decoder_blocks.0.mlp.hook_out", "decoder_blocks.1.cross_attn.hook_pattern"
PARTS = ["decoder.0.mlp", "decoder.1.cross_attn.0", "encoder.0.self_attn.1"]


def run(lens: Lens, case: Case) -> Tensor:
    with torch.no_grad():
        return lens.forward(case.encoded)


def ablated(lens: Lens, case: Case, *parts: str) -> Tensor:
    with lens.ablate(*parts):
        return run(lens, case)


def test_tasks_of_one_thread_keep_their_contexts_apart(token_lens: Lens, token_case: Case) -> None:
    plain, alone = run(token_lens, token_case), {part: ablated(token_lens, token_case, part) for part in PARTS}

    async def task(part: str | None) -> list[Tensor]:
        outputs = []
        with ExitStack() as stack:
            if part is not None:
                stack.enter_context(token_lens.ablate(part))
            for _ in range(3):
                outputs.append(run(token_lens, token_case))
                assert _len_torch_function_stack() == 0
                await asyncio.sleep(0)
        return outputs

    async def main() -> list[list[Tensor]]:
        return await asyncio.gather(*(task(part) for part in (*PARTS, None, *PARTS)))

    for part, outputs in zip((*PARTS, None, *PARTS), asyncio.run(main()), strict=True):
        for output in outputs:
            assert torch.equal(output, plain if part is None else alone[part])
    assert native_traces(token_lens) == 0


def test_a_task_has_the_contexts_in_which_it_was_started(token_lens: Lens, token_case: Case) -> None:
    both, one = ablated(token_lens, token_case, *PARTS[:2]), ablated(token_lens, token_case, PARTS[0])

    async def inner(part: str | None) -> Tensor:
        await asyncio.sleep(0)
        return run(token_lens, token_case) if part is None else ablated(token_lens, token_case, part)

    async def main() -> list[Tensor]:
        with token_lens.ablate(PARTS[0]):
            return list(await asyncio.gather(inner(PARTS[1]), inner(None)))

    found = asyncio.run(main())
    assert torch.equal(found[0], both)
    assert torch.equal(found[1], one)


def test_a_context_whose_model_ran_in_another_task_only(token_lens: Lens, token_case: Case) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def waiting() -> None:
            await entered.wait()
            run(token_lens, token_case)

        task = asyncio.create_task(waiting())
        with token_lens.ablate(PARTS[0]):
            entered.set()
            await task

    with pytest.raises(HookError, match="or in another task"):
        asyncio.run(main())
    assert native_traces(token_lens) == 0


def test_a_context_outlives_the_task_of_a_notebook_cell(token_lens: Lens, token_case: Case) -> None:
    expected = ablated(token_lens, token_case, PARTS[0])
    context = token_lens.ablate(PARTS[0])

    async def cells() -> None:
        async def cell(work: Callable[..., Any], *arguments: Any) -> Any:
            return work(*arguments)

        await asyncio.create_task(cell(context.__enter__))
        assert torch.equal(await asyncio.create_task(cell(run, token_lens, token_case)), expected)
        await asyncio.create_task(cell(context.__exit__, None, None, None))

    asyncio.run(cells())
    assert native_traces(token_lens) == 0


def test_a_generator_that_waits_inside_a_context_is_refused(token_lens: Lens, token_case: Case) -> None:
    plain, alone = run(token_lens, token_case), ablated(token_lens, token_case, PARTS[0])

    def outputs() -> Generator[Tensor, None, None]:
        with token_lens.ablate(PARTS[0]):
            yield run(token_lens, token_case)
            yield run(token_lens, token_case)

    generator = outputs()
    assert torch.equal(next(generator), alone)
    for attempt in (
        lambda: run(token_lens, token_case),
        lambda: token_lens.native.model.model(
            torch.ones(1, 4, dtype=torch.long), decoder_input_ids=torch.ones(1, 1).long()
        ),
        lambda: ablated(token_lens, token_case, PARTS[1]),
    ):
        with pytest.raises(HookError, match=r"open in the generator .*outputs .*before the yield"):
            attempt()
    assert torch.equal(next(generator), alone)
    generator.close()
    assert torch.equal(run(token_lens, token_case), plain)
    assert native_traces(token_lens) == 0


def test_context_managers_around_a_context_act(token_lens: Lens, token_case: Case) -> None:
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
            return run(token_lens, token_case)

    with wrapped():
        assert torch.equal(run(token_lens, token_case), expected)
    with ExitStack() as stack:
        stack.enter_context(wrapped())
        assert torch.equal(run(token_lens, token_case), expected)
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
    token_lens: Lens, token_case: Case, point: str, change: Callable[[Tensor], Any], returned: str
) -> None:
    with torch.no_grad(), pytest.raises(WiringError, match=rf"the hook on {point} returned {returned}, expected \("):
        token_lens.run_with_hooks(token_case.encoded, [(point, lambda value, hook: change(value))])
    assert native_traces(token_lens) == 0
