"""The training loop, against a plain loop of torch; stopped, killed and resumed at any
step.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.training import Plan, Task, Training, read_log
from tsfm_lens.training.state import HISTORY, LOG, STATE, snapshot_files, write_snapshot


class Regression:
    """A small network with dropout, so that the state of random numbers counts."""

    name = "regression"

    def __init__(self, seed: int = 0, width: int = 6) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(4, width), nn.Dropout(0.3), nn.Tanh(), nn.Linear(width, 1)
        )
        self.identity = json.dumps({"seed": seed, "width": width})
        self.errors = []

    def loss(self, step: int) -> Tensor:
        given = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        return (self.model(given) - given.sum(-1, keepdim=True)).square().mean()

    def evaluate(self) -> Mapping[str, float]:
        assert not self.model.training
        if self.errors:
            return {"error": self.errors.pop(0)}
        return {}


def training(
    out: Path | None = None, task: Regression | None = None, **plan: object
) -> Training:
    task = task or Regression()
    return Training(
        task,
        torch.optim.AdamW(task.model.parameters(), lr=0.05),
        Plan(**{"steps": 12, "save_every": 3, **plan}),
        out,
        rate=lambda step: 0.05 / (1 + step),
    )


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(weight, other.state_dict()[name])
        for name, weight in one.state_dict().items()
    )


def test_training_equals_plain_torch_loop() -> None:
    assert isinstance(Regression(), Task)
    run = training(clip=0.5)
    assert run.run(quiet=True)
    plain = Regression()
    optimizer = torch.optim.AdamW(plain.model.parameters(), lr=0.05)
    plain.model.train()
    for step in range(12):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + step)
        optimizer.zero_grad()
        plain.loss(step).backward()
        nn.utils.clip_grad_norm_(plain.model.parameters(), 0.5)
        optimizer.step()
    assert same(run.model, plain.model)


@pytest.mark.parametrize("stops", [(1,), (2, 3, 7), (11,)])
def test_resumed_run_equals_undisturbed_one(
    stops: tuple[int, ...], tmp_path: Path
) -> None:
    """A resumed run ends as an undisturbed one."""
    full = training(tmp_path / "whole")
    assert full.run(quiet=True)
    for stop in (*stops, 12):
        part = training(tmp_path / "parts")
        if (tmp_path / "parts" / STATE).exists():
            # killed later, in the middle of a line
            with (tmp_path / "parts" / LOG).open("a") as log:
                log.write('{"step": 99, "loss": 1.0}\n{"step": 100, "lo')
            part.resume()
        assert part.run(until=stop, quiet=True) == (stop == 12)
        assert part.step == stop
        torch.rand(5)
    assert same(full.model, part.model)
    assert [line["step"] for line in read_log(tmp_path / "whole" / LOG)] == [
        3,
        6,
        9,
        12,
    ]
    assert (tmp_path / "parts" / LOG).read_bytes() == (
        tmp_path / "whole" / LOG
    ).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_after_the_current_step(number: int, tmp_path: Path) -> None:
    """A signal ends the run after the step at hand and saves its state."""
    run = training(tmp_path / "parts")
    former = signal.getsignal(number)

    def stop(now: Training) -> None:
        if now.step == 5:
            os.kill(os.getpid(), number)

    run.callbacks.append(stop)
    assert not run.run(quiet=True)
    assert signal.getsignal(number) is former
    again = training(tmp_path / "parts")
    again.resume()
    assert again.step == run.step < 12
    assert again.run(quiet=True)
    full = training(tmp_path / "whole")
    full.run(quiet=True)
    assert same(again.model, full.model)
    assert (tmp_path / "parts" / LOG).read_bytes() == (
        tmp_path / "whole" / LOG
    ).read_bytes()


def test_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    """The state of a run with other settings is refused."""
    training(tmp_path).run(until=3, quiet=True)
    expect_error("width=6 then, 5 now", training(tmp_path, Regression(width=5)).resume)
    expect_error("start without --resume", training(tmp_path / "other").resume)
    expect_error("without a folder", training().resume)


def changed(state: dict, part: str, value: object) -> dict:
    return {name: held for name, held in state.items() if name != part} | (
        {} if value is None else {part: value}
    )


DAMAGES = [
    (lambda s: changed(s, "optimizer", None), "it holds no optimizer"),
    (lambda s: {}, "it holds no model and no optimizer and no step"),
    (lambda s: [1], "it is not a state of a training run, but a list"),
    (lambda s: changed(s, "model", {}), "model lacks 0.weight and 3 more"),
    (
        lambda s: changed(s, "model", {**s["model"], "x": torch.ones(1)}),
        "model holds, and the model has not, x",
    ),
    (
        lambda s: changed(s, "model", s["model"] | {"0.bias": torch.ones(2)}),
        r"0.bias of model is \[2\], expected",
    ),
    (lambda s: changed(s, "best_weights", {}), "best_weights lacks 0.weight"),
    (
        lambda s: changed(s, "optimizer", {"rho": 1}),
        "its optimizer is not one of AdamW",
    ),
    (
        lambda s: changed(s, "identity", "no JSON"),
        'its identity is "no JSON", expected JSON',
    ),
    (lambda s: changed(s, "identity", 3), "identity is of type int, expected str"),
    (lambda s: changed(s, "step", -4), "it is of step -4"),
    (
        lambda s: changed(s, "random", torch.ones(3)),
        "random is not a state of random numbers",
    ),
]


@pytest.mark.parametrize(
    ("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES]
)
def test_damaged_state_is_named_with_fault(
    damage: Callable[[dict], object], message: str, tmp_path: Path
) -> None:
    """A damaged state is named, with what is wrong in it."""
    training(tmp_path).run(until=3, quiet=True)
    torch.save(
        damage(torch.load(tmp_path / STATE, weights_only=True)), tmp_path / STATE
    )
    run = training(tmp_path)
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    expect_error(
        rf"state\.pt is damaged: {message}.*; put a whole copy of it there, or",
        run.resume,
    )
    if "optimizer" not in message and "random" not in message:
        assert all(
            torch.equal(weight, before[name])
            for name, weight in run.model.state_dict().items()
        )


def test_truncated_states_count_as_damaged(tmp_path: Path) -> None:
    """A state that is cut short is damaged, wherever it ends."""
    training(tmp_path).run(until=3, quiet=True)
    full = (tmp_path / STATE).read_bytes()
    for share in (0.0, 0.01, 0.3, 0.6, 0.9, 0.999):
        (tmp_path / STATE).write_bytes(full[: int(share * len(full))])
        expect_error(
            r"state\.pt is damaged: it is cut short", training(tmp_path).resume
        )
    (tmp_path / STATE).unlink()
    (tmp_path / STATE).mkdir()
    expect_error(r"state\.pt cannot be read: Is a directory", training(tmp_path).resume)


def test_patience_ends_with_the_best_weights(tmp_path: Path) -> None:
    def impatient(folder: Path, errors: list[float]) -> Training:
        run = training(
            folder, task := Regression(), evaluate_every=1, patience=2, save_every=1
        )
        task.errors = errors
        return run

    errors = [5.0, 3.0, 4.0, 3.5, 9.0, 1.0]
    run = impatient(tmp_path, list(errors))
    retained = {}
    run.callbacks.append(
        lambda now: retained.update(
            {now.step: {k: v.clone() for k, v in now.model.state_dict().items()}}
        )
    )
    assert run.run(quiet=True)
    # the second evaluation without a lower error is the last
    assert (run.step, run.best) == (3, (3.0, 1))
    assert all(
        torch.equal(weight, retained[1][name])
        for name, weight in run.model.state_dict().items()
    )
    # a run that is resumed remembers
    impatient(tmp_path / "b", errors[:3]).run(until=2, quiet=True)
    again = impatient(tmp_path / "b", errors[3:])
    again.resume()
    assert again.run(quiet=True)
    assert again.step == 3
    assert same(again.model, run.model)


def test_infinite_loss_ends_run_keeps_state(
    tmp_path: Path,
) -> None:
    """A loss that is not finite ends the run and keeps the state."""
    training(tmp_path).run(until=6, quiet=True)
    before = (tmp_path / STATE).read_bytes()
    run = training(tmp_path)
    run.resume()
    run.callbacks.append(
        lambda now: now.step == 7 and next(now.model.parameters()).data.fill_(torch.nan)
    )
    expect_error("regression at step 7 is not finite", run.run, quiet=True)
    assert (tmp_path / STATE).read_bytes() == before
    assert read_log(tmp_path / LOG)[-1]["step"] == 6


def test_snapshots_hold_tied_weights_once(tmp_path: Path) -> None:
    task = Regression()
    task.model[0].weight = nn.Parameter(torch.zeros(6, 4))
    task.model.twin = nn.Linear(4, 6)
    task.model.twin.weight = task.model[0].weight
    run = training(tmp_path, task, snapshots=(0, 2, 12))
    forward = nn.Sequential(*[task.model[at] for at in range(4)])
    task.loss = lambda step: forward(torch.ones(2, 4)).square().mean()  # type: ignore[method-assign]
    run.run(quiet=True)
    files = snapshot_files(tmp_path)
    assert list(files) == [0, 2, 12]
    held = load_file(files[0])
    assert len([name for name in held if held[name].shape == (6, 4)]) == 1
    assert not list((tmp_path / HISTORY).glob("*.part"))


def test_group_share_scales_its_learning_rate() -> None:
    """A group with a share has that much of the learning rate."""
    task = Regression()
    groups = [
        {"params": list(task.model[0].parameters()), "share": 0.25},
        {"params": list(task.model[3].parameters())},
    ]
    rates = []
    run = Training(
        task,
        torch.optim.SGD(groups, lr=1.0),
        Plan(steps=2),
        rate=lambda step: 0.1 * (step + 1),
        callbacks=[
            lambda now: rates.append(
                [group["lr"] for group in now.optimizer.param_groups]
            )
        ],
    )
    run.run(quiet=True)
    assert rates[1:] == [[0.025, 0.1], [0.05, 0.2]]


@pytest.mark.parametrize("part", ["state", "snapshot", "log"])
def test_full_disk_is_named_loses_nothing(tmp_path: Path, part: str) -> None:
    """A full disk is reported with its file and loses nothing."""
    task = Regression(width=4096)
    run = training(tmp_path / "run", task)
    run.run(until=3, quiet=True)
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # files of this process grow no further, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 if part == "log" else 8192, hard))
    write = partial(run.run, until=6, quiet=True)
    if part == "snapshot":
        write = partial(write_snapshot, tmp_path / "run", task.model, 3)
    try:
        with pytest.raises((InputError, OSError)) as caught:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if part != "log":
        assert str(tmp_path / "run") in str(caught.value)
    after = {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    assert set(after) == set(before)
    for path, content in before.items():
        # a line of the log whose state was not saved is dropped when the run resumes
        assert (
            after[path].startswith(content)
            if path.name == LOG
            else after[path] == content
        )
    again = training(tmp_path / "run", Regression(width=4096))
    again.resume()
    assert again.step == 3


def test_only_the_same_numbers_are_tied(tmp_path: Path) -> None:
    """Empty weights, and different views of one memory, are no tied weights."""
    memory = torch.arange(12.0)
    model = nn.Module()
    views = {
        "whole": memory,
        "front": memory[:4],
        "rows": memory.view(3, 4),
        "columns": memory.view(4, 3).T,
        "tied": memory.view(3, 4),
        "nothing": torch.empty(0, 4),
        "neither": torch.empty(0, 5),
    }
    for name, view in views.items():
        model.register_buffer(name, view)
    write_snapshot(tmp_path, model, 3)
    held = load_file(snapshot_files(tmp_path)[3])
    assert set(views) - set(held) == {"tied"}
    for name, values in held.items():
        assert torch.equal(values, views[name])
