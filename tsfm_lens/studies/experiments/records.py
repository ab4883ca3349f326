"""What is kept of a training run, measures of its end, and the records of many.

Read :func:`gathered` first: it collects one run, which
:mod:`tsfm_lens.studies.experiments.running` trained. The queue
(:mod:`tsfm_lens.studies.queue`) trains many runs and adds each to a record;
:func:`record` loads what ships.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from safetensors.torch import load_file

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.studies.experiments.running import (
    CONFIG,
    RESULT,
    WEIGHTS,
    make_attention,
    make_losses,
    make_task,
)
from tsfm_lens.studies.queue.driver import RECORDS, read_record
from tsfm_lens.studies.samformer.tasks import BenchmarkTask
from tsfm_lens.studies.train_config import FileData, TrainConfig
from tsfm_lens.training import attention_measures, read_log, read_watch, sharpness
from tsfm_lens.training.state import LOG

__all__ = ["end_norms", "ends", "gathered", "record", "record_names"]

WATCH = "watch.jsonl"
MEANS = ("entropy", "numerical_rank")
BY_WINDOW = ("nuclear_norm", "diagonal_mass")
WATCHED = ("sharpness", "sharpness_residual", "lowest_curvature", *MEANS, *BY_WINDOW)


def read_config(folder: Path) -> TrainConfig:
    """Read the configuration of a run in its folder."""
    text = (folder / CONFIG).read_text(encoding="utf-8")
    return TrainConfig.model_validate_json(text)


def gathered(folder: str | Path, arm: str = "run") -> xr.Dataset:
    """Collect the errors of a finished run, and its validation errors by epoch.

    Args:
        folder: folder of the run.
        arm: name of its configuration; runs of one arm differ in their seed alone.

    Returns:
        Dataset of kind "lab_runs" over ``arm`` and ``seed``, one of each:
        ``validation_mse``, ``validation_mae``, ``epochs``, ``best_epoch``, ``seconds``,
        ``parameters`` and ``curve`` (arm, seed, epoch). A run on a file also has
        ``test_mse`` and ``test_mae``, with ``horizon`` and ``rho`` as coordinates. A
        run with a watch has its measures over ``look`` (``look_step`` is the optimiser
        step) and ``pattern`` (arm, seed, snapshot, query, key). A run on prompts has
        ``validation_last``, and ``by_pairs`` over ``pairs``.

    Raises:
        InputError: the run has not ended.

    Example:
        >>> data = {"kind": "toy", "training": 64, "validation": 32}
        >>> fields = {"model": {"name": "linear"}, "data": data, "plan": {"epochs": 2}}
        >>> config = experiments.TrainConfig.model_validate(fields)
        >>> experiments.train(config, folder / "linear", quiet=True)["ended"]
        True
        >>> experiments.gathered(folder / "linear")["curve"].shape
        (1, 1, 3)
    """
    folder = _ended(folder)
    config = read_config(folder)
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    columns: dict[str, Any] = {
        f"{part}_{name}": error
        for part in ("test", "validation")
        for name, error in result.get(part, {}).items()
    }
    for name in ("epochs", "best_epoch", "seconds", "parameters"):
        columns[name] = result[name]
    data = xr.Dataset(columns).astype(float)
    curve = [line["mse"] for line in read_log(folder / LOG) if "mse" in line]
    data["curve"] = ("epoch", np.array(curve, dtype=float))
    if "by_pairs" in result:
        data["by_pairs"] = ("pairs", result["by_pairs"])
    if (folder / WATCH).exists():
        data = _with_looks(data, read_watch(folder))
    data = data.expand_dims(arm=[arm], seed=[config.seed])
    if isinstance(config.data, FileData):
        data = data.assign_coords(
            horizon=("arm", [config.data.horizon]),
            rho=("arm", [config.optimizer.rho]),
        )
    return data.assign_attrs(kind="lab_runs", title="Runs of the lab")


def _ended(folder: str | Path) -> Path:
    """Return the folder of a run, which has ended."""
    if not (Path(folder) / RESULT).exists():
        raise InputError(f"no run in {folder} has ended; train it first")
    return Path(folder)


def _with_looks(data: xr.Dataset, watch: xr.Dataset) -> xr.Dataset:
    """Add what a watch measured; a step is the same for all arms and seeds."""
    data = data.assign_coords(look_step=("look", watch["step"].values))
    for name in WATCHED:
        if name in watch and watch[name].notnull().any():
            dims = {"layer", "head"}.intersection(watch[name].dims)
            data[name] = ("look", watch[name].mean(dims).values)
    if "pattern" in watch:
        pattern = watch["pattern"].isel(input=0, layer=0, head=0)
        data["pattern"] = (("snapshot", "query", "key"), pattern.values)
    return data


def ends(
    folder: str | Path, arm: str = "run", *, windows: int = 32, products: int = 20
) -> xr.Dataset:
    """Measure sharpness and attention at the weights that a run on a file ended with.

    Args:
        folder: folder of the run.
        arm: name of its configuration.
        windows: number of test windows to measure attention on; sharpness takes twice
            as many training windows.
        products: number of products with the Hessian for the sharpness.

    Returns:
        Dataset over ``arm`` and ``seed``. ``end_sharpness`` is the largest eigenvalue,
        with ``end_sharpness_residual``; ``end_entropy`` and ``end_numerical_rank`` are
        those of the attention between channels; ``end_nuclear_norm`` and
        ``end_diagonal_mass`` are (…, window), and ``end_pattern`` (…, query, key).
        Models without such attention have the sharpness alone.

    Raises:
        InputError: the run has not ended, or is of no benchmark.

    Example:
        >>> experiments.record("samformer_runs")["end_pattern"].dims
        ('arm', 'seed', 'query', 'key')
    """
    folder = _ended(folder)
    config = read_config(folder)
    task = make_task(config)
    if not isinstance(task, BenchmarkTask):
        raise InputError(f"run {arm!r} is of no benchmark; expected one on a file")
    task.model.load_state_dict(load_file(folder / WEIGHTS))
    task.model.eval()
    x, y = task.training.take(_even_indices(len(task.training), 2 * windows))
    weights = [weight for weight in task.model.parameters() if weight.requires_grad]
    curvature = sharpness(make_losses(task, x, y), weights, steps=products)
    columns: dict[str, Any] = {
        "end_sharpness": curvature.largest,
        "end_sharpness_residual": curvature.largest_residual,
    }
    # only attention between channels is measured
    if getattr(task.model, "over", "time") != "time":
        tested = task.data.test.take(_even_indices(len(task.data.test), windows))[0]
        pattern = make_attention(task, tested)()["0"][:, 0].double()
        measures = attention_measures(pattern)
        columns |= {f"end_{name}": float(measures[name].mean()) for name in MEANS}
        columns |= {f"end_{name}": ("window", measures[name]) for name in BY_WINDOW}
        columns["end_pattern"] = (("query", "key"), pattern.mean(0).cpu())
    data = xr.Dataset(columns).astype(np.float32)
    return data.expand_dims(arm=[arm], seed=[config.seed])


def _even_indices(count: int, some: int) -> torch.Tensor:
    """Return evenly spaced indices from 0 to below a count, each once."""
    return torch.linspace(0, count - 1, min(some, count), dtype=torch.float64).long()


def measured(folder: Path, arm: str) -> xr.Dataset:
    """Collect the errors of a finished run on a file, and what :func:`ends` does."""
    return gathered(folder, arm).merge(ends(folder, arm))


def end_norms(data: xr.Dataset, arms: Sequence[str]) -> xr.Dataset:
    """Return nuclear norms of arms with attention between channels.

    Raises:
        UnknownNameError: there is no such arm.

    Example:
        >>> arms = ["ETTh1 96 SAMformer", "ETTh1 96 Transformer"]
        >>> norms = experiments.end_norms(experiments.record("samformer_runs"), arms)
        >>> norms["nuclear_norm"].dims
        ('run', 'layer', 'head', 'input')
    """
    names = [str(name) for name in data["arm"].values]
    for arm in arms:
        if arm not in names:
            raise unknown_name("arm", arm, names)
    of_arms = data.sel(arm=list(arms))
    values = of_arms["end_nuclear_norm"].values.reshape(len(arms), 1, 1, -1)
    channels = int(
        of_arms["end_pattern"].isel(query=0).notnull().any(("arm", "seed")).sum()
    )
    return xr.Dataset(
        {"nuclear_norm": (("run", "layer", "head", "input"), values)},
        coords={
            "run": list(arms),
            "layer": ["0"],
            "head": [0],
            "n_keys": ("layer", [channels]),
        },
        attrs={
            "kind": "attention_norms",
            "title": "Attention input by input",
            "model": ", ".join(arms),
        },
    )


def record_names() -> tuple[str, ...]:
    """Return the names of the records in the package, sorted.

    ``results/queue/README.md`` describes them.

    Example:
        >>> "toy" in experiments.record_names()
        True
    """
    return tuple(sorted(file.stem for file in RECORDS.glob("*.nc")))


def record(name: str) -> xr.Dataset:
    """Load a record that ``python -m tsfm_lens.studies.queue`` made.

    ``results/queue/README.md`` describes the :func:`record_names`. Those of training
    runs are as :func:`gathered` says, NaN where an arm has no run of a seed.

    Raises:
        UnknownNameError: no such record.

    Example:
        >>> experiments.record("toy")["curve"].dims
        ('arm', 'seed', 'epoch')
    """
    data = read_record(RECORDS / f"{name}.nc")
    if data is None:
        raise unknown_name("record", name, record_names())
    return data
