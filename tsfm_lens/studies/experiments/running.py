"""Training runs: from a configuration to weights, a log, and errors at the end.

Read :func:`train` first, which trains to the end and measures; :func:`prepare` builds
the same run without starting it. The loop, its state and its watch are in
:mod:`tsfm_lens.training`; what is gathered of a run in
:mod:`tsfm_lens.studies.experiments.records`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.core.io import replacing, write_atomically
from tsfm_lens.data import as_series
from tsfm_lens.models import load
from tsfm_lens.studies.samformer import benchmark
from tsfm_lens.studies.samformer.models import make_model
from tsfm_lens.studies.samformer.tasks import (
    BenchmarkTask,
    ForecastTask,
    LinearToy,
    ToyTask,
    cosine_by_epoch,
)
from tsfm_lens.studies.structured.forms import REGRESSORS
from tsfm_lens.studies.structured.models import make_forecaster
from tsfm_lens.studies.structured.training import (
    InContextTask,
    Prompts,
    make_regressor,
    parameter_groups,
    redraw,
)
from tsfm_lens.studies.train_config import (
    FileData,
    InContextData,
    OptimizerFields,
    TrainConfig,
)
from tsfm_lens.training import SAM, Plan, Training, Watch
from tsfm_lens.training.state import STATE

__all__ = ["prepare", "train"]

RESULT = "result.json"
CONFIG = "config.json"
WEIGHTS = "best.safetensors"
LATER = ("betas", "warm_up", "base_width")


def make_task(config: TrainConfig) -> ForecastTask | InContextTask:
    """Return the task of a configuration, a drawn model and its data.

    InputError is raised where they do not fit.
    """
    data = config.data
    options = {"batch": config.plan.batch, "seed": config.seed}
    # later fields only where set, so that older runs go on
    of_optimizer = {
        key: value
        for key, value in config.optimizer.model_dump().items()
        if value or key not in LATER
    }
    settings = {
        "optimizer": of_optimizer,
        "plan": config.plan.model_dump(),
        "seed": config.seed,
    }
    if isinstance(data, InContextData):
        prompts = Prompts(data.inputs, data.points, data.curriculum)
        regressor = _model(config, make_regressor, prompts)
        return InContextTask(
            regressor,
            prompts,
            epoch=data.epoch,
            held_out=data.held_out,
            **options,
            settings=settings,
        )
    if isinstance(data, FileData):
        windows = benchmark(
            data.file,
            length=data.length,
            horizon=data.horizon,
            split=data.split,
            channels=data.channels or None,
        )
        make = make_model
        if config.model.name in REGRESSORS:
            make = make_forecaster
        model = _model(config, make, data.length, data.horizon, len(windows.channels))
        return BenchmarkTask(model, windows, **options, settings=settings)
    fields = data.model_dump(exclude={"kind", "problem_seed"})
    model = _model(config, make_model, data.length, data.horizon, data.channels)
    return ToyTask(
        model, LinearToy(**fields, seed=data.problem_seed), **options, settings=settings
    )


def _model(config: TrainConfig, make: Callable[..., Any], *sizes: Any) -> Any:
    try:
        model = make(
            config.model.name, *sizes, seed=config.seed, **config.model.options
        )
    except TypeError as error:
        raise InputError(f"model.options {config.model.options}: {error}") from error
    if config.optimizer.base_width:
        redraw(model, config.seed)
    if config.device != "auto":
        device = config.device
    elif torch.cuda.is_available():
        device = "cuda"
    else:
        device = "cpu"
    return model.to(device)


def make_optimizer(
    model: torch.nn.Module, fields: OptimizerFields
) -> torch.optim.Optimizer:
    """Make the optimiser of a model's weights, by μP where there is a base width."""
    parameters: list[Any] = [
        weight for weight in model.parameters() if weight.requires_grad
    ]
    if fields.base_width:
        # the training loop sets one rate, and gives a group its share of it
        groups = parameter_groups(model, fields.learning_rate, fields.base_width)
        parameters = [
            {**group, "share": group["lr"] / fields.learning_rate} for group in groups
        ]
    kind = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }[fields.name]
    extra: dict[str, Any] = {
        name: value
        for name in ("momentum", "betas")
        if (value := getattr(fields, name))
    }
    base = kind(
        parameters, lr=fields.learning_rate, weight_decay=fields.weight_decay, **extra
    )
    if fields.rho:
        return SAM(base, fields.rho)
    return base


def make_schedule(config: TrainConfig, epoch: int) -> Callable[[int], float] | None:
    """Return the learning rate of each step; None where it is constant.

    ``epoch`` is the number of steps in an epoch.
    """
    fields = config.optimizer
    falling = cosine_by_epoch(fields.learning_rate, epoch, epochs=config.plan.epochs)
    if not fields.warm_up:
        if fields.schedule == "cosine":
            return falling
        return None

    def rate(step: int) -> float:
        if fields.schedule == "cosine":
            full = falling(step)
        else:
            full = fields.learning_rate
        return full * min(1.0, (step + 1) / fields.warm_up)

    return rate


def prepare(
    config: TrainConfig, out: str | Path | None = None
) -> tuple[Training, ForecastTask | InContextTask, Watch | None]:
    """Prepare a run without starting it, with its task and its watch.

    Without a folder ``out``, nothing of it is saved.

    Raises:
        InputError: as :func:`tsfm_lens.studies.samformer.benchmark` and the models say.

    Example:
        >>> data = {"kind": "toy", "training": 64, "validation": 32}
        >>> fields = {"model": {"name": "linear"}, "data": data}
        >>> config = experiments.TrainConfig.model_validate(fields)
        >>> run, task, watch = experiments.prepare(config)
        >>> run.step, task.batches_per_epoch
        (0, 2)
    """
    task = make_task(config)
    fields = config.optimizer
    epoch = task.batches_per_epoch
    plan = Plan(
        steps=config.plan.epochs * epoch,
        save_every=epoch,
        evaluate_every=epoch,
        patience=config.plan.patience,
        clip=fields.clip,
    )
    run = Training(
        task,
        make_optimizer(task.model, fields),
        plan,
        out,
        rate=make_schedule(config, epoch),
    )
    watch = None
    if isinstance(task, ForecastTask):
        watch = _watch(config, task, run.out)
    if watch is not None:
        run.callbacks.append(watch)
    return run, task, watch


def _watch(config: TrainConfig, task: ForecastTask, out: Path | None) -> Watch | None:
    fields = config.watch
    if fields is None:
        return None
    x, y = task.training.take(torch.arange(min(fields.windows, len(task.training))))
    patterns: dict[str, Any] = (
        {"patterns": make_attention(task, x)} if "attention" in fields.measures else {}
    )
    return Watch(
        task.model,
        fields.measures,
        every=fields.every * task.batches_per_epoch,
        out=out,
        loss=make_losses(task, x, y),
        snapshots=fields.every * task.batches_per_epoch if fields.snapshots else None,
        products=fields.products,
        name=config.model.name,
        resume=out is not None and (out / CONFIG).exists(),
        **patterns,
    )


def make_losses(task: ForecastTask, x: Tensor, y: Tensor) -> list[Callable[[], Tensor]]:
    """Return the losses of both halves of some windows.

    Sharpness is that of their mean.
    """
    halves = [
        (part.to(task.device) for part in pair)
        for pair in zip(x.chunk(2), y.chunk(2), strict=True)
    ]

    def compute_loss(inputs: Tensor, targets: Tensor) -> Callable[[], Tensor]:
        return lambda: (task.model(inputs) - targets).square().mean()

    return [compute_loss(*half) for half in halves]


def make_attention(task: ForecastTask, x: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Return a function that computes a model's attention over some windows.

    It reads the attention through the model's lens.
    """
    lens = load(task.model, check=False)
    (stack,) = lens.wiring.stacks
    point = f"{stack.prefix}.0.attn.hook_pattern"
    encoded = lens.encode(as_series(x.double().numpy()))

    def patterns() -> dict[str, Tensor]:
        return {"0": lens.run_with_cache(encoded, names_filter=[point])[1][point]}

    return patterns


def train(
    config: TrainConfig, out: str | Path, *, resume: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Train to the end and measure, or go on with a run that was stopped.

    Args:
        config: configuration of the run.
        out: folder of the run, for config.json, log.jsonl, state.pt, watch.jsonl, and
            at the end best.safetensors and result.json.
        resume: continue the run in ``out``.
        quiet: show no progress bar.

    Returns:
        ``ended``. If it is true, also ``validation`` and ``test`` with the errors "mse"
        and "mae", by the weights of the lowest validation error where the plan has a
        patience; ``epochs``, ``best_epoch``, ``seconds`` and ``parameters``. For
        prompts, ``validation`` has "mse" and "last", and ``by_pairs`` is the error
        after 0, 1, … pairs.

    Raises:
        CheckpointError: the folder holds a run and it is not to be resumed, or one of
            another configuration.
        InputError: as :func:`prepare` says, or the loss is not finite.

    Example:
        >>> data = {"kind": "toy", "training": 64, "validation": 32}
        >>> fields = {"model": {"name": "linear"}, "data": data, "plan": {"epochs": 2}}
        >>> config = experiments.TrainConfig.model_validate(fields)
        >>> experiments.train(config, folder / "run", quiet=True)["epochs"]
        2
    """
    folder = Path(out)
    config_file = folder / CONFIG
    state = folder / STATE
    if state.exists() and not resume:
        raise CheckpointError(
            f"{folder} holds a run; go on with it by --resume (resume=True), or give"
            " another folder"
        )
    if resume and not state.exists():
        raise CheckpointError(
            f"{folder} holds no run to go on with; start without --resume, or give its"
            " folder"
        )
    # dropout draws from torch's own generator: it starts at the run's seed, or where a
    # stopped run left it, and is the caller's again afterwards
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        run, task, _ = prepare(config, folder)
        if resume:
            run.resume()
        _write(config_file, config.model_dump_json(indent=1))
        ended = run.run(quiet=quiet)
    if not ended:
        return {"ended": False, "step": run.step}
    result: dict[str, Any] = {"ended": True, "validation": task.evaluate()}
    if isinstance(task, BenchmarkTask):
        result["test"] = task.test()
    if isinstance(task, InContextTask):
        result["by_pairs"] = task.by_pairs()
    epoch = task.batches_per_epoch
    result |= {
        "epochs": run.step // epoch,
        "best_epoch": None if run.best is None else run.best[1] // epoch,
        "seconds": round(run.seconds, 2),
        "parameters": sum(weight.numel() for weight in task.model.parameters()),
    }
    weights = {
        name: value.contiguous().cpu()
        for name, value in task.model.state_dict().items()
    }
    write_atomically(folder / WEIGHTS, save(weights))
    _write(folder / RESULT, json.dumps(result, indent=1))
    return result


def _write(file: Path, text: str) -> None:
    with replacing(file) as part:
        part.write_text(text + "\n", encoding="utf-8")
