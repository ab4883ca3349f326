"""Measures of trained weights: sharpness of the loss around them, and their attention on test windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from safetensors.torch import load_file

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.studies.experiments.grid import Arm
from tsfm_lens.studies.experiments.running import RESULT, WEIGHTS, attention_of, losses_of, task_of
from tsfm_lens.studies.samformer import BenchmarkTask
from tsfm_lens.training import attention_measures, sharpness

__all__ = ["end_norms", "ends"]

BY_WINDOW = ("nuclear_norm", "diagonal_mass")
MEANS = ("entropy", "numerical_rank")


def ends(arms: Sequence[Arm], out: str | Path, *, windows: int = 32, products: int = 20) -> xr.Dataset:
    """Measure sharpness and attention at the weights that runs on benchmarks ended with.

    Args:
        arms: runs; those that have not ended are left out.
        out: folder of their folders.
        windows: evenly spaced test windows to measure attention on. The loss whose sharpness is measured takes twice
            as many training windows.
        products: with the Hessian.

    Returns:
        Dataset over ``arm`` and ``seed``, NaN where a model has none: ``end_sharpness``, the largest eigenvalue of the
        Hessian, with ``end_sharpness_residual``; ``end_entropy`` and ``end_numerical_rank`` of the attention between
        channels, means over windows; ``end_nuclear_norm`` and ``end_diagonal_mass`` (arm, seed, window); and
        ``end_pattern`` (arm, seed, query, key), the mean pattern.

    Raises:
        InputError: no run has ended, or one is of no benchmark.

    Example:
        >>> waves = folder / "waves.csv"
        >>> rows = np.sin(np.arange(200)[:, None] / np.array([3.0, 7.0]))
        >>> np.savetxt(waves, rows, delimiter=",", header="a,b", comments="")
        >>> data = {"kind": "file", "file": waves, "length": 8, "horizon": 2}
        >>> fields = {"model": {"name": "samformer"}, "data": data, "plan": {"epochs": 1}}
        >>> config = experiments.TrainConfig.model_validate(fields)
        >>> runs = list(experiments.of_seeds({"waves 2 SAMformer": config}, range(1)))
        >>> _ = experiments.run_arms(runs, folder / "ends", quiet=True)
        >>> dict(experiments.ends(runs, folder / "ends", windows=4)["end_pattern"].sizes)
        {'arm': 1, 'seed': 1, 'query': 2, 'key': 2}
    """
    runs = [arm for arm in arms if (Path(out) / arm.folder / RESULT).exists()]
    if not runs:
        raise InputError(f"no run in {out} has ended; train them first")
    names, seeds = (list(dict.fromkeys(part)) for part in zip(*((a.name, a.config.seed) for a in runs), strict=True))
    cells = {
        (names.index(arm.name), seeds.index(arm.config.seed)): _of_run(arm, Path(out) / arm.folder, windows, products)
        for arm in runs
    }
    columns: dict[str, Any] = {}
    for name, dims in _DIMS.items():
        arrays = {place: values[name] for place, values in cells.items() if name in values}
        if arrays:
            columns[f"end_{name}"] = (("arm", "seed", *dims), _stack(arrays, (len(names), len(seeds))))
    return xr.Dataset(columns, coords={"arm": names, "seed": seeds})


_DIMS: Mapping[str, tuple[str, ...]] = {
    "sharpness": (),
    "sharpness_residual": (),
    **dict.fromkeys(MEANS, ()),
    **dict.fromkeys(BY_WINDOW, ("window",)),
    "pattern": ("query", "key"),
}


def _stack(arrays: Mapping[tuple[int, int], np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Stack the values of all runs in one array, those of fewer channels in its corner."""
    sizes = [max(sizes) for sizes in zip(*(np.shape(values) for values in arrays.values()), strict=True)]
    out = np.full((*shape, *sizes), np.nan, dtype=np.float32)
    for place, values in arrays.items():
        corner: tuple[int | slice, ...] = (*place, *(slice(size) for size in np.shape(values)))
        out[corner] = values
    return out


def _of_run(arm: Arm, folder: Path, windows: int, products: int) -> dict[str, np.ndarray]:
    task = task_of(arm.config)
    if not isinstance(task, BenchmarkTask):
        raise InputError(f"run {arm.name!r} is of no benchmark; expected one on a file")
    task.model.load_state_dict(load_file(folder / WEIGHTS))
    task.model.eval()
    x, y = task.training.take(_even_indices(len(task.training), 2 * windows))
    weights = [weight for weight in task.model.parameters() if weight.requires_grad]
    curvature = sharpness(losses_of(task, x, y), weights, steps=products)
    out = {"sharpness": np.array(curvature.largest), "sharpness_residual": np.array(curvature.largest_residual)}
    if getattr(task.model, "over", "time") == "time":
        return out
    patterns = attention_of(task, task.data.test.take(_even_indices(len(task.data.test), windows))[0])
    pattern = patterns()["0"][:, 0].double()
    measures = attention_measures(pattern)
    return {
        **out,
        **{name: measures[name].mean() for name in MEANS},
        **{name: measures[name] for name in BY_WINDOW},
        "pattern": pattern.mean(0).cpu().numpy(),
    }


def _even_indices(count: int, some: int) -> torch.Tensor:
    """Return evenly spaced indices from 0 to below a count, each once."""
    return torch.linspace(0, count - 1, min(some, count), dtype=torch.float64).long()


def end_norms(data: xr.Dataset, arms: Sequence[str]) -> xr.Dataset:
    """Return nuclear norms of some arms' attention, all seeds and windows, for :func:`tsfm_lens.viz.nuclear_norms`.

    Args:
        data: with ``end_nuclear_norm``, such as :func:`tsfm_lens.studies.experiments.record` ("benchmarks").
        arms: of it, with attention between channels.

    Returns:
        Dataset of kind "attention_norms" over (run, layer, head, input); a run is an arm.

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
    of_arms = data["end_nuclear_norm"].sel(arm=list(arms))
    values = of_arms.values.reshape(len(arms), 1, 1, -1)
    channels = int(data["end_pattern"].sel(arm=list(arms)).isel(query=0).notnull().any(("arm", "seed")).sum())
    return xr.Dataset(
        {"nuclear_norm": (("run", "layer", "head", "input"), values)},
        coords={"run": list(arms), "layer": ["0"], "head": [0], "n_keys": ("layer", [channels])},
        attrs={"kind": "attention_norms", "title": "Attention input by input", "model": ", ".join(arms)},
    )
