"""One training loop, which can be stopped at any time and resumed.

A :class:`Task` has the model and its losses, a :class:`Plan` the length of the run and
what is saved; :class:`Training` puts the two together with an optimiser. :mod:`.state`
reads and writes the files.
"""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor, nn

from tsfm_lens.core.console import progress as progress_display
from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.core.io import write_atomically
from tsfm_lens.data.checked import Strict
from tsfm_lens.training.state import (
    LOG,
    STATE,
    append,
    cut,
    put_back,
    read_state,
    write_snapshot,
)

__all__ = ["Plan", "Task", "Training"]


@runtime_checkable
class Task(Protocol):
    """A model, on the device where it is trained, and its losses.

    A run resumes only with a task of equal identity.
    """

    model: nn.Module

    @property
    def name(self) -> str:
        """What is trained, in words."""

    @property
    def identity(self) -> str:
        """JSON of all settings that the weights depend on."""

    def loss(self, step: int) -> Tensor:
        """Compute the scalar loss of the batch of a step.

        The batch depends on the step and the task's seed alone.

        Args:
            step: number of the step.

        Returns:
            The scalar loss, which is differentiated.
        """

    def evaluate(self) -> Mapping[str, float]:
        """Measure the model, for example by its validation error.

        Returns:
            Measures by name, of which the first decides when patience ends; {} if
            nothing is measured.
        """


class Plan(Strict):
    """Plan of a run.

    Attributes:
        steps: number of optimiser steps.
        save_every: steps between two saved states; with each, the mean loss since the
            previous one goes to the log.
        evaluate_every: steps between two evaluations; 0 for none.
        patience: the run ends, with the best weights, after this many evaluations in a
            row without a lower first measure; None for never.
        snapshots: steps at which the weights are kept in the history, 0 for the
            untrained ones.
        clip: largest norm of the gradient of all weights together; None for no bound.
        dropout: whether the model is in training mode, with its dropout.
    """

    steps: int = Field(gt=0)
    save_every: int = Field(default=200, gt=0)
    evaluate_every: int = Field(default=0, ge=0)
    patience: int | None = Field(default=None, ge=1)
    snapshots: tuple[int, ...] = ()
    clip: float | None = Field(default=None, gt=0)
    dropout: bool = True


class Training:
    """A run of an optimiser on a task.

    Args:
        task: what is trained.
        plan: length of the run, and what is saved.
        optimizer: optimises the weights of the task's model, and takes a closure in
            its ``step``, as :class:`tsfm_lens.training.SAM` does.
        out: new folder for state, log and history; None saves nothing.
        rate: learning rate of each step; that of the optimiser if None. A parameter
            group with the key "share" gets this share of the rate.
        callbacks: called after every step, and before the first, with this run.

    Attributes:
        step: optimiser steps done.
        seconds: duration of these steps, without evaluations and saving.
        last_loss: mean training loss between the last two saved states.
        best: lowest first measure of the evaluations so far, and its step; None before
            the first.

    Example:
        >>> optimizer = torch.optim.Adam(task.model.parameters())
        >>> Training(task, optimizer, Plan(steps=3)).run(quiet=True)
        True
    """

    def __init__(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        out: str | Path | None = None,
        *,
        rate: Callable[[int], float] | None = None,
        callbacks: Sequence[Callable[[Training], object]] = (),
    ) -> None:
        self.task = task
        self.optimizer = optimizer
        self.plan = plan
        self.rate = rate
        self.out = None if out is None else Path(out)
        if self.out is not None:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(
                    f"{str(self.out)!r} cannot be written: {error.strerror}; give a"
                    " folder, new or old"
                ) from error
        self.callbacks = list(callbacks)
        self.step = 0
        self.seconds = 0.0
        self.last_loss = float("nan")
        self.best: tuple[float, int] | None = None
        self._best_weights: dict[str, Tensor] | None = None
        self._losses: list[Tensor] = []
        self._stop_flag = False
        self._patience_over = False

    @property
    def model(self) -> nn.Module:
        """Model of the task."""
        return self.task.model

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def resume(self) -> None:
        """Go back to the last saved state.

        Raises:
            CheckpointError: there is none, or it is damaged or of other settings.
            InputError: the run has no folder.
        """
        if self.out is None:
            raise InputError("a run without a folder cannot be resumed; give out=…")
        state = read_state(self.out, self.task.identity, self.device)
        put_back(self.out, state, self.model, self.optimizer)
        self.step = state["step"]
        self.seconds = state["seconds"]
        self.best = state["best"]
        self._best_weights = state["best_weights"]
        self._losses = list(state["losses"])
        self._patience_over = state["ended"]
        # lines that were written after the state, before the run was killed
        cut(self.out / LOG, self.step)

    def run(
        self,
        *,
        until: int | None = None,
        quiet: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Train to the end, or to a step before it.

        Args:
            until: step to stop at; the plan's last step if None.
            quiet: print nothing.
            progress: called with the number of steps done and that of all steps.

        Returns:
            False if a signal or ``until`` came before the end of the run.

        Raises:
            InputError: the loss is not finite; the last saved state is as it was.
        """
        if until is None:
            last = self.plan.steps
        else:
            last = min(until, self.plan.steps)
        self.model.train(self.plan.dropout)
        self._stop_flag = False
        with (
            taking_signals(self._stop),
            progress_display(eta=True, hidden=quiet) as bar,
        ):
            bar_task = bar.add_task(self.task.name, total=last, completed=self.step)
            # evaluations and snapshots of the untrained model, which a resumed run has
            # had
            if not self.step:
                if self.out is not None:
                    # this log is left from a run that was killed before its first state
                    (self.out / LOG).unlink(missing_ok=True)
                self._follow_up()
            ending = self._patience_over
            while self.step < last and not ending:
                self.train_step()
                self._follow_up()
                bar.update(bar_task, completed=self.step)
                if progress is not None:
                    progress(self.step, last)
                ending = self._stop_flag or self._patience_over
                if self.step % self.plan.save_every == 0 or self.step == last or ending:
                    self._save()
                    bar.update(
                        bar_task,
                        description=f"{self.task.name} loss {self.last_loss:.3g}",
                    )
        # the plan that saved a state may have had a patience, and this one none
        has_patience = self.plan.patience is not None
        if self.ended and has_patience and self._best_weights is not None:
            self.model.load_state_dict(self._best_weights)
        return self.ended

    def finish(self, *, quiet: bool = False) -> bool:
        """Train to the end, from the last saved state if the folder has one.

        Returns:
            False if a signal came before the end of the run.
        """
        if self.out is not None and (self.out / STATE).exists():
            self.resume()
        return self.run(quiet=quiet)

    @property
    def ended(self) -> bool:
        """End of the run: true when all steps are done, or patience is used up."""
        return self.step >= self.plan.steps or self._patience_over

    def train_step(self) -> Tensor:
        """Do one step of the optimiser.

        Returns:
            The loss before the step, a scalar, still on the device.
        """
        began = time.perf_counter()
        if self.rate is not None:
            rate = self.rate(self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group.get("share", 1.0)
        # an optimiser may call the closure again at other weights, as SAM does
        losses: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.task.loss(self.step)
            loss.backward()
            if self.plan.clip is not None:
                # an optimiser that combines two may list a weight twice, and a gradient
                # must be clipped once
                weights = {
                    id(weight): weight
                    for group in self.optimizer.param_groups
                    for weight in group["params"]
                }
                nn.utils.clip_grad_norm_(weights.values(), self.plan.clip)
            losses.append(loss.detach())
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        # of the first call, at the weights themselves; kept on the device, since
        # float() would wait for it in every step
        self._losses.append(losses[0])
        self.step += 1
        self.seconds += time.perf_counter() - began
        return losses[0]

    def _follow_up(self) -> None:
        """Follow up a step: take a snapshot, evaluate, call the callbacks."""
        if self.out is not None and self.step in self.plan.snapshots:
            write_snapshot(self.out, self.model, self.step)
        if self.plan.evaluate_every and self.step % self.plan.evaluate_every == 0:
            self._evaluate()
        for callback in self.callbacks:
            callback(self)

    def _evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            measures = {
                name: float(value) for name, value in self.task.evaluate().items()
            }
        self.model.train(self.plan.dropout)
        if not measures:
            return
        if self.out is not None:
            append(self.out / LOG, {"step": self.step, **measures})
        value = next(iter(measures.values()))
        if self.best is None or value < self.best[0]:
            self.best = (value, self.step)
            if self.plan.patience is not None:
                # the optimiser changes the weights in place
                self._best_weights = {
                    name: part.detach().clone()
                    for name, part in self.model.state_dict().items()
                }
        elif self.plan.patience is not None:
            # counted from steps rather than in a counter, so that a resumed run needs
            # no other state
            since = (self.step - self.best[1]) // self.plan.evaluate_every
            self._patience_over = since >= self.plan.patience

    def _save(self) -> None:
        losses = torch.zeros(0)
        if self._losses:
            losses = torch.stack(self._losses)
            self.last_loss = float(losses.mean())
            infinite = ~torch.isfinite(losses)
            if bool(infinite.any()):
                # step numbers of the losses: the last is of step self.step - 1
                first = self.step - len(losses) + int(infinite.nonzero()[0])
                raise InputError(
                    f"the loss of {self.task.name} at step {first} is not finite; give"
                    " a lower learning rate, or clip the gradient"
                )
        # a run that is stopped between two log lines keeps its losses for the next line
        line_is_due = self.step % self.plan.save_every == 0 or self.ended
        if line_is_due:
            self._losses = []
        if self.out is None:
            return
        # a folder with a state has a log too, even if no line is due yet
        (self.out / LOG).touch()
        if line_is_due and len(losses):
            append(self.out / LOG, {"step": self.step, "loss": self.last_loss})
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": losses[:0] if line_is_due else losses,
            "identity": self.task.identity,
            # dropout goes on as if the run had not been stopped
            "random": torch.get_rng_state(),
            "best": self.best,
            "best_weights": self._best_weights,
            "ended": self._patience_over,
        }
        # via memory: the file is then replaced in one go, and a full disk leaves the
        # former state
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(self.out / STATE, buffer.getbuffer())

    def _stop(self, *_: object) -> None:
        """Let the run end after the step at hand; its state is then saved."""
        # no more than a flag, since a signal may come in the middle of a step
        self._stop_flag = True


@contextmanager
def taking_signals(stop: Callable[..., None]) -> Iterator[None]:
    """Call a function at Ctrl-C and SIGTERM until the block ends.

    Outside the main thread, it changes nothing.
    """
    try:
        former = {
            number: signal.signal(number, stop)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:
        # outside the main thread nobody can take signals
        former = {}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
