"""Nested contexts act in the order in which the model runs, as one context that holds
all of their acts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from homemade_model import HEADS, LAYERS, Forecaster, Wired
from tsfm_lens.data import bundled
from tsfm_lens.hooks import Steer, Zero
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close, native_traces

CASES = int(os.environ.get("TSFM_LENS_CASES", "1500"))

Act = Callable[[Tensor], Tensor]


def own_lens() -> Lens:
    torch.manual_seed(0)
    model = Forecaster().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.3)
    return Lens(Wired(model.double()), "own")


LENS = own_lens()
SINGLE = LENS.encode(bundled("co2").tail(40))
# in double precision, so that what differs by more than single precision differs in
# what was done
ENCODED = replace(SINGLE, inputs={"context": SINGLE.inputs["context"].double()})
POINTS = [name for name, _axes in LENS.hook_table()]


class Step(NamedTuple):
    """One context of a program: hook points (of "ablate" heads and MLPs), a factor, and
    how a hook writes.
    """

    kind: Literal["hooks", "edit", "ablate", "read"]
    names: tuple[str, ...]
    factor: float
    writes: str


CUT = [f"{layer}.attn.{head}" for layer in range(LAYERS) for head in range(HEADS)]
CUT += [f"{layer}.mlp" for layer in range(LAYERS)]
STEERED = [name for name in POINTS if not name.endswith(("scores", "pattern"))]


def steps() -> st.SearchStrategy[Step]:
    kinds = {"hooks": POINTS, "read": POINTS, "edit": STEERED, "ablate": CUT}
    # masked scores are minus infinity, and stay so
    factors = st.sampled_from([0.5, 0.75, 1.25])
    writes = st.sampled_from(["returned", "in place", "past the counter"])
    return st.one_of(
        st.builds(
            Step,
            st.just(kind),
            st.lists(st.sampled_from(names), min_size=1, max_size=3).map(tuple),
            factors,
            writes,
        )
        for kind, names in kinds.items()
    )


def user_hook(step: Step) -> Callable[..., Tensor | None]:
    def hook(value: Tensor, hook: object) -> Tensor | None:
        if step.writes == "returned":
            return value * step.factor
        if step.writes == "in place":
            value *= step.factor
        else:
            value.data.mul_(step.factor)
        return None

    return hook


def do_all(acts: list[Act], value: Tensor, hook: object) -> Tensor:
    """Do all acts of one hook point, one after the other."""
    for act in acts:
        value = act(value)
    return value


def enter(stack: ExitStack, step: Step, seen: list[tuple[str, Tensor]]) -> None:
    """Open the lens's own context for one step."""

    def reader(name: str) -> Callable[..., None]:
        return lambda value, hook: seen.append((name, value.clone()))

    if step.kind == "hooks":
        stack.enter_context(
            LENS.hooks([(name, user_hook(step)) for name in step.names])
        )
    elif step.kind == "read":
        stack.enter_context(LENS.hooks([(name, reader(name)) for name in step.names]))
    elif step.kind == "edit":
        steers = (Steer(name, torch.ones(()), scale=step.factor) for name in step.names)
        stack.enter_context(LENS.edit(*steers))
    else:
        stack.enter_context(
            LENS.ablate(*step.names)
            if step.factor > 1
            else LENS.edit(*map(Zero, step.names))
        )


def plan(
    step: Step, acts: dict[str, list[Act]], seen: list[tuple[str, Tensor]]
) -> None:
    """Write one step into the one context, by hook point."""

    def read(name: str, value: Tensor) -> Tensor:
        seen.append((name, value.clone()))
        return value

    def without(head: int, value: Tensor) -> Tensor:
        return torch.stack(
            [part * (i != head) for i, part in enumerate(value.unbind(2))], dim=2
        )

    for name in step.names:
        at = name
        act = partial(read, name)
        if step.kind == "hooks":
            act = lambda value: value * step.factor  # noqa: E731
        elif step.kind == "edit":
            act = lambda value: value + step.factor  # noqa: E731
        elif step.kind == "ablate" and name.endswith("mlp"):
            at = f"blocks.{name}.hook_out"
            act = torch.zeros_like
        elif step.kind == "ablate":
            at = f"blocks.{name[:-2]}.hook_z"
            act = partial(without, int(name[-1]))
        acts.setdefault(at, []).append(act)


def programs(cases: int) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Runs a test on so many lists of contexts, and names that are recorded inside."""
    how = settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    retained = st.sets(st.sampled_from(POINTS), min_size=1, max_size=3)
    return lambda test: how(
        given(program=st.lists(steps(), min_size=1, max_size=6), read_points=retained)(
            test
        )
    )


def acts_in_order(program: list[Step], read_points: set[str]) -> None:
    activations: dict[str, list[Act]] = {}
    expected: list[tuple[str, Tensor]] = []
    for step in program:
        plan(step, activations, expected)
    names = [name for name in POINTS if name in read_points]
    plan(Step("read", tuple(names), 0.0, ""), activations, expected)
    found: list[tuple[str, Tensor]] = []
    with torch.no_grad(), ExitStack() as stack:
        output = LENS.run_with_hooks(
            ENCODED,
            [
                (name, partial(do_all, activations[name]))
                for name in POINTS
                if name in activations
            ],
        )
        for step in program:
            enter(stack, step, found)
        ours, recorded = LENS.run_with_cache(ENCODED, names_filter=names)
    assert native_traces(LENS) == 0
    # it reads at one point in order of entry too; what is recorded is read last there
    assert [name for name, _value in found] == reading_order(program, expected, names)
    last = dict(expected)
    same(ours, output, "output")
    for name in names:
        same(recorded[name], last[name], name)
    for name in {name for name, _value in found}:
        mine = [value for at, value in found if at == name]
        theirs = [value for at, value in expected if at == name]
        for one, other in zip(mine, theirs, strict=False):
            same(one, other, f"read at {name}")


def same(ours: Tensor, expected: Tensor, what: str) -> None:
    """The same numbers to single precision, and masked in the same places."""
    assert torch.equal(ours == -torch.inf, expected == -torch.inf), what
    ours, expected = (value.nan_to_num(neginf=0.0) for value in (ours, expected))
    assert_close(ours, expected, depth=1, dtype=torch.float32, what=what)


def reading_order(
    program: list[Step], expected: list[tuple[str, Tensor]], names: list[str]
) -> list[str]:
    """Hook points in the order in which the model passes them, those recorded at the
    end left out.
    """
    order = [name for name, _value in expected]
    for name in names:
        order.reverse()
        order.remove(name)
        order.reverse()
    return order


test_any_nesting_acts_in_order_of_execution = pytest.mark.filterwarnings("error")(
    programs(40)(acts_in_order)
)
test_many_nestings_act_in_order_of_execution = pytest.mark.campaign(
    pytest.mark.filterwarnings("error")(programs(CASES)(acts_in_order))
)
