"""Grids of training runs: trained in turn, resumable, gathered, and measured.

Read :func:`run_arms` and :func:`gathered` first: one trains the runs below a folder,
the other collects their results in one dataset. :func:`record` loads what ships. One
run is :mod:`tsfm_lens.studies.experiments.running`, the list of arms
:mod:`tsfm_lens.studies.experiments.grids`.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from safetensors.torch import load_file

from tsfm_lens.core.errors import CheckpointError, InputError, unknown_name
from tsfm_lens.studies.experiments.running import (
    RESULT,
    WEIGHTS,
    make_attention,
    make_losses,
    make_task,
    train,
)
from tsfm_lens.studies.samformer.tasks import BenchmarkTask
from tsfm_lens.studies.train_config import FileData, TrainConfig
from tsfm_lens.training import attention_measures, read_log, read_watch, sharpness
from tsfm_lens.training.state import LOG, STATE

__all__ = [
    "Arm",
    "end_norms",
    "ends",
    "gathered",
    "of_seeds",
    "record",
    "record_names",
    "run_arms",
]

WATCH = "watch.jsonl"
MEANS = ("entropy", "numerical_rank")
BY_WINDOW = ("nuclear_norm", "diagonal_mass")
WATCHED = ("sharpness", "sharpness_residual", "lowest_curvature", *MEANS, *BY_WINDOW)
_RECORDS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Arm:
    """One run: the name of its arm and its configuration.

    Runs of one arm differ in their seed alone.
    """

    name: str
    config: TrainConfig

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.name.replace(' ', '-').replace('/', '-')}-{self.config.seed}"


def of_seeds(arms: Mapping[str, TrainConfig], seeds: Iterable[int]) -> Iterator[Arm]:
    """Yield every arm under every seed, seed by seed.

    A grid that was stopped then has as many arms as possible to compare.

    Example:
        >>> runs = list(experiments.of_seeds(experiments.toy_arms(), range(2)))
        >>> len(runs), runs[0].folder
        (8, 'transformer-0')
    """
    for seed in seeds:
        for name, config in arms.items():
            yield Arm(name, config.model_copy(update={"seed": seed}))


def run_arms(
    arms: Sequence[Arm],
    out: str | Path,
    *,
    quiet: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> bool:
    """Train the runs below a folder that have no result, and resume stopped ones.

    Returns:
        True if all have ended; False if one was stopped by a signal.

    Raises:
        CheckpointError, InputError: as :func:`tsfm_lens.studies.experiments.train`
            says; what has ended is kept.

    Example:
        >>> sizes = {"length": 8, "horizon": 2, "channels": 2}
        >>> rows = {"training": 32, "validation": 32}
        >>> arms = experiments.toy_arms(epochs=1, **sizes, **rows)
        >>> runs = list(experiments.of_seeds(arms, range(1)))
        >>> experiments.run_arms(runs, folder / "grid", quiet=True)
        True
    """
    for index, arm in enumerate(arms):
        folder = Path(out) / arm.folder
        if (folder / RESULT).exists():
            _check_settings(folder, arm.config)
            continue
        if progress is not None:
            progress(arm.folder, index, len(arms))
        ended = train(
            arm.config, folder, resume=(folder / STATE).exists(), quiet=quiet
        )["ended"]
        # a run holds its data through circles of references
        gc.collect()
        if not ended:
            return False
    return True


def _check_settings(folder: Path, config: TrainConfig) -> None:
    previous = TrainConfig.model_validate_json(
        (folder / "config.json").read_text(encoding="utf-8")
    )
    if previous != config:
        names = [
            name
            for name in TrainConfig.model_fields
            if getattr(previous, name) != getattr(config, name)
        ]
        raise CheckpointError(
            f"{folder} holds a run of other settings ({', '.join(names)}); give another"
            " folder"
        )


def _ended(arms: Sequence[Arm], out: str | Path) -> list[Arm]:
    """List the runs that have ended."""
    ended = [arm for arm in arms if (Path(out) / arm.folder / RESULT).exists()]
    if not ended:
        raise InputError(f"no run in {out} has ended; train them first")
    return ended


def _joined(runs: Sequence[Arm], parts: Iterable[xr.Dataset]) -> xr.Dataset:
    """Join the values of runs over arm and seed, NaN where a run has none."""
    placed = []
    for arm, part in zip(runs, parts, strict=True):
        positions = {str(dim): range(size) for dim, size in part.sizes.items()}
        of_run = {"arm": [arm.name], "seed": [arm.config.seed]}
        placed.append(part.assign_coords(positions).expand_dims(of_run))
    data = xr.merge(placed, join="outer", compat="no_conflicts")
    # merging sorts labels; they stay in the order in which they came
    names = list(dict.fromkeys(arm.name for arm in runs))
    seeds = list(dict.fromkeys(arm.config.seed for arm in runs))
    others = [dim for dim in data.dims if dim not in ("arm", "seed", "epoch")]
    return data.drop_vars(others).reindex(arm=names, seed=seeds)


def gathered(arms: Sequence[Arm], out: str | Path) -> xr.Dataset:
    """Collect the errors of finished runs by arm and seed.

    Their validation errors by epoch are collected too.

    Returns:
        Dataset of kind "lab_runs" over ``arm`` and ``seed``, NaN where a run has not
        ended: ``validation_mse``, ``validation_mae``, ``epochs``, ``best_epoch``,
        ``seconds``, ``parameters`` and ``curve`` (arm, seed, epoch). Runs on files also
        have ``test_mse`` and ``test_mae``, with ``horizon`` and ``rho`` of each arm as
        coordinates. Runs with a watch have its measures over ``look`` (``look_step`` is
        the optimiser step) and ``pattern`` (arm, snapshot, query, key). Runs on prompts
        have ``validation_last``, and ``by_pairs`` over ``pairs``.

    Raises:
        InputError: no run has ended.

    Example:
        >>> experiments.record("toy")["validation_mse"].dims
        ('arm', 'seed')
    """
    runs = _ended(arms, out)
    first = runs[0].config.seed
    parts = (
        _of_run(Path(out) / arm.folder, patterns=arm.config.seed == first)
        for arm in runs
    )
    data = _joined(runs, parts).assign_attrs(kind="lab_runs", title="Runs of the lab")
    if "look_step" in data:
        steps = data["look_step"].max(("arm", "seed")).astype(int)
        data = data.assign(look_step=steps)
    if "pattern" in data:
        data = data.assign(pattern=data["pattern"].isel(seed=0, drop=True))
    configs = {arm.name: arm.config for arm in runs}.values()
    files = [config.data for config in configs if isinstance(config.data, FileData)]
    if len(files) < len(configs):
        return data
    return data.assign_coords(
        horizon=("arm", [file.horizon for file in files]),
        rho=("arm", [config.optimizer.rho for config in configs]),
    )


def _of_run(folder: Path, *, patterns: bool) -> xr.Dataset:
    """Read the result, the curve and the watch of a run."""
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
    if not (folder / WATCH).exists():
        return data
    watch = read_watch(folder)
    data["look_step"] = ("look", watch["step"].values)
    for name in WATCHED:
        if name in watch and watch[name].notnull().any():
            dims = {"layer", "head"}.intersection(watch[name].dims)
            data[name] = ("look", watch[name].mean(dims).values)
    if patterns and "pattern" in watch:
        pattern = watch["pattern"].isel(input=0, layer=0, head=0)
        data["pattern"] = (("snapshot", "query", "key"), pattern.values)
    return data


def ends(
    arms: Sequence[Arm], out: str | Path, *, windows: int = 32, products: int = 20
) -> xr.Dataset:
    """Measure sharpness and attention of finished runs on benchmarks.

    The weights are those that the runs below a folder ended with.

    Args:
        windows: number of test windows to measure attention on; sharpness takes twice
            as many training windows.
        products: number of products with the Hessian for the sharpness.

    Returns:
        Dataset over ``arm`` and ``seed``, NaN where a model has none. ``end_sharpness``
        is the largest eigenvalue, with ``end_sharpness_residual``; ``end_entropy`` and
        ``end_numerical_rank`` are those of the attention between channels;
        ``end_nuclear_norm`` and ``end_diagonal_mass`` are (…, window), and
        ``end_pattern`` (…, query, key).

    Raises:
        InputError: no run has ended, or one is of no benchmark.

    Example:
        >>> experiments.record("benchmarks")["end_pattern"].dims
        ('arm', 'seed', 'query', 'key')
    """
    runs = _ended(arms, out)
    parts = (_end(arm, Path(out) / arm.folder, windows, products) for arm in runs)
    return _joined(runs, parts)


def measured(arms: Sequence[Arm], out: str | Path) -> xr.Dataset:
    """Collect the errors of finished runs on benchmarks, and what :func:`ends` does."""
    parts = [gathered(arms, out), ends(arms, out)]
    return xr.merge(parts, combine_attrs="override")


def _end(arm: Arm, folder: Path, windows: int, products: int) -> xr.Dataset:
    task = make_task(arm.config)
    if not isinstance(task, BenchmarkTask):
        raise InputError(f"run {arm.name!r} is of no benchmark; expected one on a file")
    task.model.load_state_dict(load_file(folder / WEIGHTS))
    task.model.eval()
    x, y = task.training.take(_even_indices(len(task.training), 2 * windows))
    weights = [weight for weight in task.model.parameters() if weight.requires_grad]
    curvature = sharpness(make_losses(task, x, y), weights, steps=products)
    columns: dict[str, Any] = {
        "end_sharpness": curvature.largest,
        "end_sharpness_residual": curvature.largest_residual,
    }
    # only attention between channels is measured below
    if getattr(task.model, "over", "time") == "time":
        return xr.Dataset(columns).astype(np.float32)
    patterns = make_attention(
        task, task.data.test.take(_even_indices(len(task.data.test), windows))[0]
    )
    pattern = patterns()["0"][:, 0].double()
    measures = attention_measures(pattern)
    columns |= {f"end_{name}": float(measures[name].mean()) for name in MEANS}
    columns |= {f"end_{name}": ("window", measures[name]) for name in BY_WINDOW}
    columns["end_pattern"] = (("query", "key"), pattern.mean(0).cpu())
    return xr.Dataset(columns).astype(np.float32)


def _even_indices(count: int, some: int) -> torch.Tensor:
    """Return evenly spaced indices from 0 to below a count, each once."""
    return torch.linspace(0, count - 1, min(some, count), dtype=torch.float64).long()


def end_norms(data: xr.Dataset, arms: Sequence[str]) -> xr.Dataset:
    """Return nuclear norms of arms with attention between channels.

    Raises:
        UnknownNameError: there is no such arm.

    Example:
        >>> arms = ["ETTh1 96 SAMformer", "ETTh1 96 Transformer"]
        >>> norms = experiments.end_norms(experiments.record("benchmarks"), arms)
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
    """Return the names of the results in the package, sorted.

    ``results/README.md`` describes them.

    Example:
        >>> "toy" in experiments.record_names()
        True
    """
    return tuple(sorted(file.stem for file in _RECORDS.glob("*.nc")))


def record(name: str) -> xr.Dataset:
    """Load the results of a grid, see :func:`gathered`.

    ``python -m tsfm_lens.studies.experiments`` wrote them.

    ``results/README.md`` describes the :func:`record_names`. Records of the queue are
    in a folder of their own, "queue/samformer_runs".

    Raises:
        UnknownNameError: no such record.

    Example:
        >>> experiments.record("toy")["curve"].dims
        ('arm', 'seed', 'epoch')
    """
    file = _RECORDS / f"{name}.nc"
    if not file.exists():
        raise unknown_name("record of the lab", name, record_names())
    with xr.open_dataset(file, engine="scipy") as data:
        return data.load()
