"""Experiments of many runs: arms and seeds, trained one after the other, resumable, and gathered with intervals."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import CheckpointError, InputError
from tsfm_lens.studies.experiments.config import FileData, TrainConfig
from tsfm_lens.studies.experiments.running import RESULT, train
from tsfm_lens.training import read_log, read_watch
from tsfm_lens.training.state import LOG, STATE

WATCH = "watch.jsonl"
WATCHED = (
    "sharpness",
    "sharpness_residual",
    "lowest_curvature",
    "entropy",
    "nuclear_norm",
    "diagonal_mass",
    "numerical_rank",
)

__all__ = ["Arm", "gathered", "of_seeds", "run_arms"]


@dataclass(frozen=True)
class Arm:
    """One run of an experiment.

    Attributes:
        name: of the arm; runs of one name differ in their seed alone.
        config: of the run.
    """

    name: str
    config: TrainConfig

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.name.replace(' ', '-').replace('/', '-')}-{self.config.seed}"


def of_seeds(arms: Mapping[str, TrainConfig], seeds: Iterable[int]) -> Iterator[Arm]:
    """Yield every arm under every seed, seed by seed, so that a grid that was stopped compares as many as there are.

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
    """Train the runs without a result, and resume those that were stopped.

    Args:
        arms: runs.
        out: folder of their folders.
        quiet: no progress bars.
        progress: called with an arm's folder, how many are done, and how many there are, before it is trained.

    Returns:
        True if all have ended; False if one was stopped by a signal.

    Raises:
        CheckpointError, InputError: as :func:`tsfm_lens.studies.experiments.train` says; what has ended is kept.

    Example:
        >>> sizes = {"length": 8, "horizon": 2, "channels": 2, "training": 32, "validation": 32}
        >>> runs = list(experiments.of_seeds(experiments.toy_arms(epochs=1, **sizes), range(1)))
        >>> experiments.run_arms(runs, folder / "grid", quiet=True)
        True
    """
    for place, arm in enumerate(arms):
        folder = Path(out) / arm.folder
        if (folder / RESULT).exists():
            _refuse_other(folder, arm.config)
            continue
        if progress is not None:
            progress(arm.folder, place, len(arms))
        ended = train(arm.config, folder, resume=(folder / STATE).exists(), quiet=quiet)["ended"]
        # a run holds its data through circles of references
        gc.collect()
        if not ended:
            return False
    return True


def _refuse_other(folder: Path, config: TrainConfig) -> None:
    previous = TrainConfig.model_validate_json((folder / "config.json").read_text(encoding="utf-8"))
    if previous != config:
        names = [name for name in TrainConfig.model_fields if getattr(previous, name) != getattr(config, name)]
        raise CheckpointError(f"{folder} holds a run of other settings ({', '.join(names)}); give another folder")


def gathered(arms: Sequence[Arm], out: str | Path) -> xr.Dataset:
    """Collect the errors of finished runs by arm and seed, and their validation errors by epoch.

    Args:
        arms: runs; those that have not ended are left out.
        out: folder of their folders.

    Returns:
        Dataset of kind "lab_runs" over ``arm`` and ``seed``: ``validation_mse``, ``validation_mae`` and, of files,
        ``test_mse`` and ``test_mae``, NaN where a run has not ended; ``epochs``, ``best_epoch``, ``seconds``,
        ``parameters``; and ``curve`` (arm, seed, epoch), the validation error after every epoch from 0 on. Where all
        are on files, ``horizon`` and ``rho`` of each arm are coordinates. Runs with a watch
        also have its measures, over ``look`` (``look_step`` is its optimiser step): ``sharpness`` with its
        residual, and ``entropy``, ``nuclear_norm``, ``diagonal_mass``, ``numerical_rank`` of the attention,
        means over heads; and ``pattern`` (arm, look, query, key) of the first input and seed where it was kept. Of
        prompts ``validation_last`` and, over ``pairs``, ``by_pairs``, the error after so many pairs.

    Raises:
        InputError: no run has ended.

    Example:
        >>> sizes = {"length": 8, "horizon": 2, "channels": 2, "training": 32, "validation": 32}
        >>> runs = list(experiments.of_seeds(experiments.toy_arms(epochs=1, **sizes), range(1)))
        >>> _ = experiments.run_arms(runs, folder / "gathered", quiet=True)
        >>> dict(experiments.gathered(runs, folder / "gathered")["curve"].sizes)
        {'arm': 4, 'seed': 1, 'epoch': 2}
    """
    folders = [(arm, Path(out) / arm.folder) for arm in arms]
    results = [(arm, *_result(folder)) for arm, folder in folders if (folder / RESULT).exists()]
    if not results:
        raise InputError(f"no run in {out} has ended; train them first")
    names = list(dict.fromkeys(arm.name for arm, _, _ in results))
    seeds = list(dict.fromkeys(arm.config.seed for arm, _, _ in results))
    columns = sorted({column for _, row, _ in results for column in row})
    longest = max(len(curve) for _, _, curve in results)
    shape = (len(names), len(seeds))
    values = {column: np.full(shape, np.nan) for column in columns}
    curves = np.full((*shape, longest), np.nan)
    for arm, row, curve in results:
        at = names.index(arm.name), seeds.index(arm.config.seed)
        for column, value in row.items():
            values[column][at] = value
        curves[at][: len(curve)] = curve
    data = xr.Dataset(
        {column: (("arm", "seed"), value) for column, value in values.items()},
        coords={"arm": names, "seed": seeds, "epoch": np.arange(longest)},
        attrs={"kind": "lab_runs", "title": "Runs of the lab"},
    )
    of_arm = {arm.name: arm.config for arm, _, _ in results}
    if all(isinstance(config.data, FileData) for config in of_arm.values()):
        horizons = [config.data.horizon for config in of_arm.values() if isinstance(config.data, FileData)]
        rhos = [config.optimizer.rho for config in of_arm.values()]
        data = data.assign_coords(horizon=("arm", horizons), rho=("arm", rhos))
    data = data.assign(curve=(("arm", "seed", "epoch"), curves), **_by_pairs(results, Path(out), names, seeds))
    watches = {
        (names.index(arm.name), seeds.index(arm.config.seed)): (read_watch(folder), arm.config)
        for arm, folder in folders
        if (folder / RESULT).exists() and (folder / WATCH).exists()
    }
    return data.assign(_watch_columns(watches, shape)) if watches else data


def _by_pairs(results: Sequence[tuple[Arm, Any, Any]], out: Path, names: list[str], seeds: list[int]) -> dict[str, Any]:
    """Collect the errors of prompts by the number of pairs; {} for other runs."""
    cells = {
        (names.index(arm.name), seeds.index(arm.config.seed)): json.loads(
            (out / arm.folder / RESULT).read_text(encoding="utf-8")
        ).get("by_pairs", [])
        for arm, _, _ in results
    }
    longest = max(map(len, cells.values()))
    if not longest:
        return {}
    values = np.full((len(names), len(seeds), longest), np.nan)
    for at, errors in cells.items():
        values[at][: len(errors)] = errors
    return {"by_pairs": (("arm", "seed", "pairs"), values)}


def _watch_columns(
    watches: Mapping[tuple[int, int], tuple[xr.Dataset, TrainConfig]], shape: tuple[int, int]
) -> dict[str, Any]:
    """Collect the measures of watches, over looks."""
    looks = max(watch.sizes["step"] for watch, _ in watches.values())
    out: dict[str, Any] = {}
    for name in WATCHED:
        values = np.full((*shape, looks), np.nan)
        for at, (watch, _) in watches.items():
            if name in watch:
                of = watch[name].mean([dim for dim in ("layer", "head") if dim in watch[name].dims])
                values[at][: watch.sizes["step"]] = of
        if np.isfinite(values).any():
            out[name] = (("arm", "seed", "look"), values)
    longest = max((watch for watch, _ in watches.values()), key=lambda watch: watch.sizes["step"])
    out["look_step"] = ("look", longest["step"].values)
    first = {at[0]: watch for at, (watch, _) in watches.items() if at[1] == 0 and "pattern" in watch}
    if first:
        sizes = next(iter(first.values()))["pattern"].isel(input=0, layer=0, head=0).shape
        patterns = np.full((shape[0], *sizes), np.nan, dtype=np.float32)
        for row, watch in first.items():
            pattern = watch["pattern"].isel(input=0, layer=0, head=0).values
            if pattern.shape == sizes:
                patterns[row] = pattern
        out["pattern"] = (("arm", "snapshot", "query", "key"), patterns)
    return out


def _result(folder: Path) -> tuple[dict[str, float], list[float]]:
    """Read a run's results and its validation errors by epoch."""
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    row = {f"{part}_{name}": value for part in ("validation", "test") for name, value in result.get(part, {}).items()}
    row |= {name: np.nan if result[name] is None else result[name] for name in ("epochs", "best_epoch", "seconds")}
    row["parameters"] = result["parameters"]
    return row, [line["mse"] for line in read_log(folder / LOG) if "mse" in line]
