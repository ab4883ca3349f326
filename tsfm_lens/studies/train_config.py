"""Configuration of a training run: a YAML file, checked field by field.

:class:`TrainConfig` is the whole configuration, each other class one part of it;
:func:`read_train_config` reads the file. Models and data are only named here and made
in :mod:`tsfm_lens.studies.experiments.running`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.checked import Strict, complaints, read_fields

__all__ = ["TrainConfig", "read_train_config"]

# names alone, as what they stand for imports torch, and a wrong file is refused first
MODELS = (
    "transformer",
    "random-transformer",
    "sigma-reparam",
    "samformer",
    "identity-attention",
    "temporal-attention",
    "linear",
    "tsmixer",
)
"""Keys of ``samformer.MODELS``."""
REGRESSORS = ("attention", "bilinear-btt", "bilinear-mlr", "mlr-attention")
"""Keys of ``structured.REGRESSORS``."""

Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelFields(Strict):
    """Model to train, by name, with the keyword arguments that build it."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in (*MODELS, *REGRESSORS):
            raise ValueError(
                f"there is no model {name!r}; there are"
                f" {', '.join((*MODELS, *REGRESSORS))}"
            )
        return name


class ToyData(Strict):
    """Toy problem of SAMformer, with the fields of ``samformer.LinearToy``.

    ``problem_seed`` is its ``seed``: the problem stays the same when the seed of the
    run changes.
    """

    kind: Literal["toy"]
    length: int = 512
    horizon: int = 96
    channels: int = 7
    training: int = 10_000
    validation: int = 5_000
    noise: float = 1.0
    problem_seed: int = 0


class FileData(Strict):
    """Multivariate series in a CSV, Parquet or text file, plain or .gz.

    The fields are the arguments of ``samformer.benchmark``, which splits them into
    training, validation and test and cuts windows of ``length`` and ``horizon`` steps.
    """

    kind: Literal["file"] = "file"
    file: Path
    length: int = Field(default=512, ge=1)
    horizon: int = Field(default=96, ge=1)
    # keys of ``samformer.SPLITS``
    split: Literal["ett-hourly", "ett-15min", "70/10/20"] = "70/10/20"
    channels: tuple[str, ...] | None = None


class InContextData(Strict):
    """Prompts of linear regression in context, drawn anew for every step.

    Attributes:
        inputs, points, curriculum: dimensions of an input, points of a prompt, and
            steps over which both rise; see ``structured.Prompts``.
        epoch: steps between two evaluations.
        held_out: number of prompts that the model is evaluated on.
    """

    kind: Literal["in-context"]
    inputs: int = Field(default=16, ge=1)
    points: int | None = Field(default=None, ge=1)
    curriculum: int = Field(default=0, ge=0)
    epoch: int = Field(default=500, ge=1)
    held_out: int = Field(default=2048, ge=1)


class OptimizerFields(Strict):
    """Optimiser of a run.

    Attributes:
        rho: radius of sharpness-aware minimisation (SAM); 0 for none.
        schedule: "cosine" lowers the learning rate over the epochs of the plan.
        clip: largest norm of a gradient, over all weights; None for any.
        warm_up: first steps, over which the learning rate rises.
        base_width: width at which the learning rate was tuned; μP derives the rates and
            first weights of other widths from it. 0 for no μP.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    rho: float = Field(default=0.0, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float | None = Field(default=None, gt=0)
    betas: tuple[Beta, Beta] | None = None
    warm_up: int = Field(default=0, ge=0)
    base_width: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_arguments(self) -> OptimizerFields:
        if self.momentum and self.name != "sgd":
            raise ValueError(f"momentum is an argument of sgd, not of {self.name}")
        if self.betas and self.name == "sgd":
            raise ValueError("betas are arguments of adam and adamw, not of sgd")
        return self


class PlanFields(Strict):
    """Length of a run.

    Attributes:
        epochs: the run ends after these at the latest.
        batch: windows or prompts of a step.
        patience: the run ends after this many epochs in a row without a lower
            validation error; None for never.
    """

    epochs: int = Field(default=300, ge=1)
    batch: int = Field(default=32, ge=1)
    patience: int | None = Field(default=5, ge=1)


class WatchFields(Strict):
    """Measures to record during training.

    Attributes:
        every: epochs between two records.
        windows: number of training windows that are measured, the first ones.
        snapshots: whether attention patterns are recorded, too.
        products: most Hessian-vector products of one sharpness.
    """

    every: int = Field(default=1, ge=1)
    measures: tuple[Literal["sharpness", "gradient_noise", "attention"], ...] = (
        "attention",
    )
    windows: int = Field(default=64, ge=2)
    snapshots: bool = False
    products: int = Field(default=20, ge=1)


class TrainConfig(Strict):
    """Configuration of a training run.

    ``seed`` draws the first weights and the batches; ``device`` "auto" takes a GPU if
    there is one.
    """

    model: ModelFields
    data: Annotated[ToyData | FileData | InContextData, Field(discriminator="kind")]
    optimizer: OptimizerFields = OptimizerFields()
    plan: PlanFields = PlanFields()
    watch: WatchFields | None = None
    seed: int = Field(default=0, ge=0)
    device: str = "auto"

    @model_validator(mode="after")
    def _check_model(self) -> TrainConfig:
        # models of REGRESSORS read prompts, or forecast as many steps as a window has;
        # the toy problem forecasts another number of steps
        kind, candidates = {
            "file": ("series", (*MODELS, *REGRESSORS)),
            "in-context": ("prompts in context", REGRESSORS),
            "toy": ("series", MODELS),
        }[self.data.kind]
        if self.model.name not in candidates:
            raise ValueError(
                f"model {self.model.name!r} is not for {kind}; there are"
                f" {', '.join(candidates)}"
            )
        if self.optimizer.base_width and self.model.name not in REGRESSORS:
            raise ValueError(
                "base_width is for models of structured scores,"
                f" {', '.join(REGRESSORS)}"
            )
        if self.data.kind == "in-context" and self.watch is not None:
            raise ValueError(
                "watch looks at models of series alone; leave it out for prompts in"
                " context"
            )
        return self


def read_train_config(path: str | Path) -> TrainConfig:
    """Read a configuration from a YAML file.

    A relative path of its data counts from the folder of the YAML file.

    Raises:
        InputError: the file cannot be read, is no YAML, or a field is wrong; the
            message names every such field.

    Example:
        >>> file = folder / "train.yaml"
        >>> _ = file.write_text("{model: {name: samformer}, data: {kind: toy}}")
        >>> experiments.read_train_config(file).plan.epochs
        300
    """
    file = Path(path)
    content = read_fields(
        file, "the configuration", "the fields of a training run: model, data, …"
    )
    data = content.get("data")
    if isinstance(data, dict):
        data.setdefault("kind", "file")
        if isinstance(data.get("file"), str):
            data["file"] = str(file.parent / Path(data["file"]).expanduser())
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        raise InputError(
            f"{file}: {complaints(error, 'a training run', _find_fields)}"
        ) from error


_PARTS: dict[str, type[Strict]] = {
    "model": ModelFields,
    "optimizer": OptimizerFields,
    "plan": PlanFields,
    "watch": WatchFields,
    # within "data", pydantic locates an error by the kind
    "toy": ToyData,
    "file": FileData,
    "in-context": InContextData,
}


def _find_fields(location: tuple[Any, ...]) -> list[str]:
    """Return the fields of the part of a configuration at an error's location."""
    part = _PARTS.get(str(location[-1])) if location else TrainConfig
    return [] if part is None else list(part.model_fields)
