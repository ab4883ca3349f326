"""An interrupt at any instruction leaves no hook behind, and the lens still works."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import transformer_lens.hook_points
from torch import Tensor
from torch.overrides import _len_torch_function_stack

import tsfm_lens
from homemade_model import Forecaster, Wired
from tsfm_lens.data import bundled
from tsfm_lens.hooks.replay import ONE_RUN, recorded_outputs, replayed
from tsfm_lens.models import Lens
from tsfm_lens.models.draws import seeded
from tsfm_lens.testing import native_traces

SERIES = bundled("co2").tail(24)
PATTERN = "blocks.1.attn.hook_pattern"
STREAM = "blocks.0.hook_resid_post"
PACKAGE = Path(tsfm_lens.__file__).parent
HOOKS = {str(path) for path in (PACKAGE / "hooks").glob("*.py")}
# all code that sets hooks, torch's and TransformerLens's included
SETTING = HOOKS | {
    contextlib.__file__,
    transformer_lens.hook_points.__file__,
    torch.utils.hooks.__file__,
}
SETTING |= {
    str(PACKAGE / "models" / f"{name}.py")
    for name in ("lens", "hooked", "ablating", "recording", "capturing")
}
KINDS = [
    key
    for key in vars(torch.nn.Identity())
    if key.startswith(("_forward_", "_backward_"))
]
Work = Callable[[Lens], object]


def own_lens() -> Lens:
    torch.manual_seed(0)
    return Lens(Wired(Forecaster().eval()), "own")


Instruction = tuple[CodeType, int]
"""A code object and the offset of one of its instructions."""


class Trace:
    """Calls ``each`` at every instruction of the code that ``follows`` names while a
    block runs.
    """

    def __init__(
        self, follows: Callable[[CodeType], bool], each: Callable[[Instruction], None]
    ) -> None:
        self._follows = follows
        self._each = each

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, _event: str, _value: Any) -> Any:
        if not self._follows(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, _value: Any) -> Any:
        if event == "opcode":
            self._each((frame.f_code, frame.f_lasti))
        return self._instruction


def instructions(work: Work, lens: Lens, files: set[str]) -> Counter[Instruction]:
    """How often each instruction of some files runs."""
    times: Counter[Instruction] = Counter()
    with Trace(
        lambda code: code.co_filename in files, lambda item: times.update([item])
    ):
        work(lens)
    return times


def interrupt(
    work: Work, lens: Lens, at: Instruction, turn: int
) -> tuple[bool, BaseException | None]:
    """Raise KeyboardInterrupt where an instruction is about to run for the ``turn``-th
    time; its error keeps frames.
    """
    left = turn

    def each(here: Instruction) -> None:
        nonlocal left
        if here == at:
            left -= 1
            if left == -1:
                raise KeyboardInterrupt

    try:
        with Trace(lambda code: code is at[0], each):
            work(lens)
    except KeyboardInterrupt as error:
        return True, error
    # one that comes inside a destructor is swallowed by Python
    return left < 0, None


def nothing(value: Tensor, hook: object) -> None:
    """Look at nothing."""


def hooks(lens: Lens) -> None:
    with lens.hooks([(STREAM, nothing)]):
        pass


def ablate(lens: Lens) -> None:
    with lens.ablate("1.attn.0"):
        pass


def gradients(lens: Lens) -> None:
    with lens.hooks(bwd_hooks=[(STREAM, nothing)], clear_contexts=True):
        pass


def nested(lens: Lens) -> None:
    with lens.ablate("1.mlp"), lens.hooks([(PATTERN, nothing)]):
        pass


def cache(lens: Lens) -> None:
    with torch.no_grad():
        lens.run_with_cache(SERIES, names_filter=[PATTERN])


def caught(lens: Lens) -> None:
    """The user goes on inside the block, with the native model."""
    seen: list[Tensor] = []
    context = torch.ones(1, 16)
    with (
        torch.no_grad(),
        lens.hooks([(PATTERN, lambda value, hook: seen.append(value))]),
    ):
        try:
            lens.adapter.model(context)
        except KeyboardInterrupt:
            seen.clear()
            lens.adapter.model(context)
            assert len(seen) == 1
            raise


def replays(lens: Lens) -> None:
    model = lens.adapter.model
    context = torch.ones(1, 16)
    with torch.no_grad(), recorded_outputs(model, ["blocks.0"]) as stored:
        model(context)
    with torch.no_grad(), replayed(model, stored, rows=1, copies=1):
        model(context)


def seeds(lens: Lens) -> None:
    with seeded(1, lens.device), lens.running(1):
        torch.rand(1)


class Check:
    """What must hold of a lens after an interrupt."""

    def __init__(self, lens: Lens) -> None:
        self._lens = lens
        self._native = self.forecast()
        self._pattern = self.pattern()

    def forecast(self) -> Any:
        return self._lens.forecast(SERIES, 3).quantiles

    def pattern(self) -> Tensor:
        with torch.no_grad():
            return self._lens.run_with_cache(SERIES, names_filter=PATTERN)[1][PATTERN]

    def traces(self, at: object) -> None:
        lens = self._lens
        assert _len_torch_function_stack() == 0, at
        assert native_traces(lens) == 0, at
        for module in (*lens.adapter.model.modules(), *lens.hook_points()):
            assert not any(module.__dict__[kind] for kind in KINDS), (at, module)
            assert "forward" not in module.__dict__, (at, module)
        assert not lens.registry.busy, at
        assert not ONE_RUN._queue, at

    def works(self, at: object) -> None:
        assert (self.forecast() == self._native).all(), at
        # nor is another thread kept waiting
        with ThreadPoolExecutor(1) as pool:
            assert (
                pool.submit(self.forecast).result(timeout=300) == self._native
            ).all(), at
        assert torch.equal(self.pattern(), self._pattern), at
        self.traces(at)


def interrupted_everywhere(
    work: Work,
    files: set[str],
    *,
    every_turn: bool = False,
    sample: int = 200,
    every: int = 1,
) -> None:
    """Interrupt every so many instructions, the first and the last time that one runs,
    or each time.
    """
    lens = own_lens()
    check = Check(lens)
    work(lens)
    number = 0
    chosen = list(instructions(work, lens, files).items())[::every]
    for at, times in chosen:
        for turn in range(times) if every_turn else {0, times - 1}:
            where = f"{at[0].co_qualname} + {at[1]}, turn {turn} of {times}"
            came, error = interrupt(work, lens, at, turn)
            assert came or turn, where
            # the error keeps the frames of the interrupt until here
            check.traces(where)
            number += 1
            if number % sample == 0:
                check.works(where)
            del error
    assert number > 100
    check.works("the end")


def files(*names: str) -> set[str]:
    return {str(PACKAGE / name) for name in names}


ENTERING = [hooks, ablate, gradients, nested]
# code that runs while the model does, and what is the model's or the process's
RUNNING = [
    (work, files("hooks/attention_capture.py", "hooks/block.py"))
    for work in (cache, caught)
]
SHARED = [
    (
        work,
        files(
            "hooks/block.py", "hooks/replay.py", "hooks/scopes.py", "models/draws.py"
        ),
    )
    for work in (replays, seeds)
]
ignored = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


# of those that take long, a part of the instructions is tried by default
CASES = [
    *((work, HOOKS, 1) for work in (hooks, ablate)),
    *((work, HOOKS, 10) for work in (gradients, nested)),
    *((work, files, 3) for work, files in RUNNING),
    *((work, files, 1) for work, files in SHARED),
    *(
        pytest.param(work, files, 1, marks=pytest.mark.exhaustive)
        for work, files in ((gradients, HOOKS), (nested, HOOKS), *RUNNING)
    ),
]


@ignored
@pytest.mark.parametrize(("work", "files", "every"), CASES)
def test_interrupt_anywhere_leaves_nothing_behind(
    work: Work, files: set[str], every: int
) -> None:
    """An interrupt at any instruction leaves no hook behind."""
    interrupted_everywhere(work, files, every=every)


@ignored
@pytest.mark.campaign
@pytest.mark.parametrize("work", [*ENTERING, cache, caught, replays, seeds])
def test_an_interrupt_whenever_an_instruction_runs(work: Work) -> None:
    """Those of torch and TransformerLens that set hooks are among them, and each time
    that they run.
    """
    interrupted_everywhere(work, SETTING, every_turn=True)
