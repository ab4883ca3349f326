"""The child of a fork forecasts, whatever other threads of its parent were in the
middle of.

Every child has a deadline, after which it is killed: a hang is a failure, not a suite
that stands still.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tsfm_lens
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import Lens
from tsfm_lens.testing import native_traces

PATIENCE = 120
SERIES = [np.sin(np.arange(48) / 4.0)]
POINTS = {
    "chronos-nano": "decoder_blocks.0.mlp.hook_out",
    "bolt-nano": "decoder_blocks.0.mlp.hook_out",
    "chronos2-nano": "blocks.0.mlp.hook_out",
}
pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no forks here"
)


# what a fork must leave behind is the same for all models
@pytest.fixture(
    scope="module",
    params=[
        "chronos-nano",
        pytest.param("bolt-nano", marks=pytest.mark.exhaustive),
        pytest.param("chronos2-nano", marks=pytest.mark.exhaustive),
    ],
)
def lens(request: pytest.FixtureRequest) -> Lens:
    return tsfm_lens.load(request.param)


def forecast(lens: Lens) -> np.ndarray:
    return lens.forecast(SERIES, 3, seed=1).quantiles


def in_child(work: Callable[[], Any]) -> Any:
    """The result of a function that a child runs; fails where it takes too long."""
    context: Any = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=send, args=(sender, work), daemon=True)
    child.start()
    sender.close()
    try:
        assert receiver.poll(PATIENCE), "the child hangs"
        return receiver.recv()
    finally:
        child.kill()
        child.join(PATIENCE)


def send(sender: Any, work: Callable[[], Any]) -> None:
    sender.send(work())


@contextmanager
def held_in_the_middle(run: Callable[[Callable[..., None]], Any]) -> Iterator[None]:
    """While the block runs, another thread stands inside a hook of its own run, which
    it then finishes.
    """
    inside = threading.Event()
    go_on = threading.Event()
    failures = list[BaseException]()

    def wait(*_value: Any, **_hook: Any) -> None:
        inside.set()
        assert go_on.wait(PATIENCE)

    def work() -> None:
        try:
            run(wait)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(PATIENCE)
        yield
    finally:
        go_on.set()
        thread.join(PATIENCE)
    assert not failures


def forecasting(lens: Lens, wait: Callable[..., None]) -> None:
    lens.run_with_hooks(
        SERIES, [(POINTS[lens.model_id], wait)], rollout=True, horizon=3
    )


def forwarding(lens: Lens, wait: Callable[..., None]) -> None:
    with lens.hooks([(POINTS[lens.model_id], lambda value, hook: 0 * value)]):
        lens.run_with_hooks(SERIES, [(POINTS[lens.model_id], wait)])


def ablating(lens: Lens, wait: Callable[..., None]) -> None:
    """Variants side by side, with forwards of modules shadowed."""

    def pattern(value: Tensor) -> Tensor:
        wait()
        return 0.5 * value

    target = str(
        next(part for part in lens.components("**.*attn.*") if part.layer == 1)
    ).rpartition(".")[0]
    forecast_variants(
        lens, SERIES, 3, [Variant("halved", (EditPattern(target, pattern),))]
    )


RUNS = [forecasting, forwarding, ablating]


@pytest.mark.parametrize("run", RUNS)
def test_fork_while_another_thread_runs_model(
    lens: Lens, run: Callable[..., None]
) -> None:
    """A process can be forked while another thread runs the model."""
    plain = forecast(lens)
    state = torch.get_rng_state()

    def work() -> tuple[np.ndarray, int, bool, bool]:
        return (
            forecast(lens),
            native_traces(lens),
            lens.registry.busy,
            torch.equal(torch.get_rng_state(), state),
        )

    with held_in_the_middle(lambda wait: run(lens, wait)):
        found, traces, busy, same_state = in_child(work)
    np.testing.assert_array_equal(found, plain)
    # nothing of the other thread is left in the child: it may copy the lens, too
    assert (traces, busy, same_state) == (0, False, True)
    np.testing.assert_array_equal(forecast(lens), plain)


def test_child_does_not_inherit_threads(lens: Lens) -> None:
    """A thread may get the number of one that the child does not have."""
    plain = forecast(lens)

    def work() -> list[np.ndarray]:
        results: list[np.ndarray] = []
        for _ in range(3):
            thread = threading.Thread(target=lambda: results.append(forecast(lens)))
            thread.start()
            thread.join()
        return results

    with held_in_the_middle(lambda wait: ablating(lens, wait)):
        results = in_child(work)
    assert len(results) == 3
    for found in results:
        np.testing.assert_array_equal(found, plain)


def test_fork_inside_block_keeps_the_block(lens: Lens) -> None:
    """A fork inside a block keeps the edits of the block."""
    part = POINTS[lens.model_id]
    with lens.hooks([(part, lambda value, hook: 0 * value)]):
        here = forecast(lens)
        with held_in_the_middle(lambda wait: forecasting(lens, wait)):
            found = in_child(lambda: forecast(lens))
    np.testing.assert_array_equal(found, here)
    assert not np.array_equal(here, forecast(lens))


def test_a_fork_inside_a_seeded_run(lens: Lens) -> None:
    """The thread that forks holds a turn itself, as a data loader that is asked for a
    batch by a hook.
    """
    found = list[np.ndarray]()
    asked = list[bool]()

    def meet(value: Tensor, hook: object) -> None:
        # the child runs the same hook
        if not asked:
            asked.append(True)
            found.append(in_child(lambda: forecast(lens)))

    lens.run_with_hooks(
        SERIES, [(POINTS[lens.model_id], meet)], rollout=True, horizon=3
    )
    assert found[0].shape == forecast(lens).shape
    assert np.isfinite(found[0]).all()


def test_fork_while_another_thread_loads_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process can be forked while another thread loads a model."""
    from tsfm_lens.models import checkpoint

    output = sys.stdout
    plain = forecast(tsfm_lens.load("bolt-nano"))
    difference = checkpoint.check_loaded_weights
    waits = list[Callable[..., None]]()

    def check_loaded_weights(*args: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            waits[0]()
        difference(*args)

    monkeypatch.setattr(checkpoint, "check_loaded_weights", check_loaded_weights)

    def loading(wait: Callable[..., None]) -> None:
        waits.append(wait)
        tsfm_lens.load("bolt-nano")

    def work() -> tuple[np.ndarray, bool]:
        return forecast(tsfm_lens.load("bolt-nano")), sys.stdout is output

    with held_in_the_middle(loading):
        found, same_output = in_child(work)
    np.testing.assert_array_equal(found, plain)
    assert same_output
    assert sys.stdout is output
