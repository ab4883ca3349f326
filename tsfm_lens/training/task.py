"""Protocol of a task that the training loop trains, and the plan of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

__all__ = ["Plan", "Task"]


@runtime_checkable
class Task(Protocol):
    """A model and its losses.

    Attributes:
        name: what is trained, in words.
        model: the module, on the device where it is trained.
        identity: JSON of all settings that the weights depend on; a run is resumed only by a task of the same.
    """

    model: nn.Module

    @property
    def name(self) -> str:
        """Name in words."""

    @property
    def identity(self) -> str:
        """JSON of all settings."""

    def loss(self, step: int) -> Tensor:
        """Compute the scalar loss of the batch of a step; the batch depends on the step and the task's seed alone."""

    def evaluate(self) -> Mapping[str, float]:
        """Measure the model as it is, such as the validation error, the one to stop by first; {} for none."""


class Plan(BaseModel):
    """Plan of a run.

    Attributes:
        steps: of the optimiser.
        save_every: steps between two saved states, each with a line of the mean loss since the last one in the log.
        evaluate_every: steps between two evaluations; 0 for none.
        patience: evaluations in a row without a lower first measure after which the run ends with the best weights;
            None for never.
        snapshots: steps at which the weights are kept in the history, 0 for the untrained ones.
        clip: largest norm of a gradient, over all weights; None for any.
        dropout: whether the model is in training mode, with its dropout.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(gt=0)
    save_every: int = Field(default=200, gt=0)
    evaluate_every: int = Field(default=0, ge=0)
    patience: int | None = Field(default=None, ge=1)
    snapshots: tuple[int, ...] = ()
    clip: float | None = Field(default=None, gt=0)
    dropout: bool = True
