"""Record of a watch: lines of JSON and files of patterns on disk, one labelled dataset in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import CheckpointError, InputError
from tsfm_lens.places import replacing
from tsfm_lens.training.state import append, cut, read_log
from tsfm_lens.training.watch.attention import SIZES, by_head

__all__ = ["read_watch", "together"]

RECORD, PATTERNS, _FILE = "watch.jsonl", "patterns", "step-{:08d}.npz"
_HEAD = -1  # the step of the first line, which says what is watched
_SOURCE = "SAMformer, figures 3, 6 and 7 (S1-LMAX, S1-AENT, S1-NUC, S1-DIAG)"
Row = dict[str, Any]


class Record:
    """Lines and patterns of a watch: mappings a step, and (input, head, query, key) by step and layer."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.folder, self.settings = folder, dict(settings)
        self.rows: list[Row] = []
        self.patterns: dict[int, dict[str, np.ndarray]] = {}
        if folder is None:
            return
        file = folder / RECORD
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{folder} is no folder to write to ({error}); give another") from error
        if file.exists() or any((folder / PATTERNS).glob("*.npz")):
            if not resume:
                raise CheckpointError(
                    f"{folder} holds what another run was watched for; go on with resume=True, or give another folder"
                )
            settings_then, rows = lines_of(folder)
            if settings_then is None:
                # stopped before the first line was whole
                file.unlink(missing_ok=True)
            else:
                for key in {**settings_then, **self.settings}:
                    if settings_then.get(key) != self.settings.get(key):
                        raise CheckpointError(
                            f"{file} was written with {key}={settings_then.get(key)!r}, not "
                            f"{self.settings.get(key)!r}; go on with that, or give another folder"
                        )
                self.rows, self.patterns = rows, patterns_in(folder)
        if not file.exists():
            append(file, {"step": _HEAD, "settings": self.settings})

    def drop_after(self, step: int) -> None:
        """Drop what was recorded after a step, which the training goes on from."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        later = [each for each in self.patterns if each > step]
        for each in later:
            del self.patterns[each]
        if self.folder is not None:
            cut(self.folder / RECORD, step)
            for each in later:
                (self.folder / PATTERNS / _FILE.format(each)).unlink(missing_ok=True)

    def add(self, row: Row, patterns: Mapping[str, np.ndarray] | None) -> None:
        """Record a step: the patterns first, so that every line has its own."""
        if patterns is not None:
            self.patterns[row["step"]] = dict(patterns)
        if self.folder is not None:
            if patterns is not None:
                path = self.folder / PATTERNS / _FILE.format(row["step"])
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as part, part.open("wb") as file:
                    np.savez_compressed(file, **dict(patterns))  # type: ignore[arg-type]
            append(self.folder / RECORD, row)
        self.rows.append(row)

    def dataset(self) -> xr.Dataset:
        """Return all of it, labelled; see :func:`read_watch`."""
        return as_dataset(self.settings, self.rows, self.patterns)


def read_watch(folder: str | Path) -> xr.Dataset:
    """Read what a :class:`Watch` has written into its folder so far, also while it goes on.

    Returns:
        Dataset of kind "training_watch" over ``step``: ``loss``, ``sharpness`` and ``lowest_curvature`` with their
        ``_residual``, ``noise_scale`` and what else was measured; of attention ``entropy`` (nats), ``nuclear_norm``,
        ``diagonal_mass``, ``numerical_rank`` and ``stable_rank`` over (step, layer, head), means over rows of the
        inputs, with the coordinates ``n_queries`` and ``n_keys`` of each layer; of snapshots ``pattern`` (snapshot,
        input, layer, head, query, key). NaN where nothing was measured.

    Raises:
        CheckpointError: the folder holds no record, or a line of it is broken.

    Example:
        >>> watch = training.Watch(torch.nn.Linear(2, 1), every=1, out=folder)
        >>> for step in range(3):
        ...     _ = watch(step, loss=1.0 / (step + 1))
        >>> training.read_watch(folder)["loss"].values.round(2).tolist()
        [1.0, 0.5, 0.33]
    """
    path = Path(folder)
    if not (path / RECORD).exists():
        raise CheckpointError(f"no {RECORD} in {path}; expected the out folder of a Watch")
    settings, rows = lines_of(path)
    if settings is None:
        raise CheckpointError(f"{path / RECORD} does not say what was watched; expected the out folder of a Watch")
    return as_dataset(settings, rows, patterns_in(path))


def lines_of(folder: Path) -> tuple[dict[str, Any] | None, list[Row]]:
    """Read settings and rows of a record; None where not even the first line is whole."""
    lines = read_log(folder / RECORD) if (folder / RECORD).exists() else []
    if not lines:
        return None, []
    if not isinstance(lines[0], dict) or lines[0].get("step") != _HEAD or "settings" not in lines[0]:
        raise CheckpointError(f"{folder / RECORD} is not the record of a Watch; give another folder")
    return lines[0]["settings"], lines[1:]


def patterns_in(folder: Path) -> dict[int, dict[str, np.ndarray]]:
    """Read patterns by step and layer."""
    patterns = {}
    for path in sorted((folder / PATTERNS).glob("step-*.npz")):
        with np.load(path) as arrays:
            patterns[int(path.stem.split("-")[1])] = {name: arrays[name] for name in arrays.files}
    return patterns


def as_dataset(
    settings: Mapping[str, Any], rows: Iterable[Row], patterns: Mapping[int, Mapping[str, np.ndarray]]
) -> xr.Dataset:
    """Build the dataset of a record; see :func:`read_watch`."""
    entries = [row for row in rows if row["values"] or row["attention"]]
    data = xr.Dataset(coords={"step": [row["step"] for row in entries]})
    for name in dict.fromkeys(name for row in entries for name in row["values"]):
        data[name] = ("step", np.array([row["values"].get(name) for row in entries], dtype=float))
    data = data.assign(by_head("step", [row["attention"] for row in entries]))
    if patterns:
        data = _with_patterns(data, patterns)
    facts = {key: value for key, value in settings.items() if isinstance(value, str | int | float) and value != ""}
    facts = {key: int(value) if isinstance(value, bool) else value for key, value in facts.items()}
    data.attrs = {**facts, "kind": "training_watch", "title": "Watching a training", "source": _SOURCE}
    return data


def _with_patterns(data: xr.Dataset, patterns: Mapping[int, Mapping[str, np.ndarray]]) -> xr.Dataset:
    layers = list(dict.fromkeys(name for one in patterns.values() for name in one))
    shape = np.max([value.shape for one in patterns.values() for value in one.values()], axis=0)
    values = np.full((len(patterns), len(layers), *shape), np.nan, dtype=np.float32)
    for place, one in enumerate(patterns.values()):
        for name, value in one.items():
            rows, heads, queries, keys = value.shape
            values[place, layers.index(name), :rows, :heads, :queries, :keys] = value
    data = data.reindex(layer=layers) if "layer" in data.dims and set(layers) > set(data["layer"].values) else data
    axes = ("snapshot", "layer", "input", "head", "query", "key")
    coords = {"snapshot": list(patterns), "layer": layers, "input": range(shape[0]), "head": range(shape[1])}
    pattern = xr.DataArray(values, dims=axes, coords=coords)
    if "layer" in data.dims:
        pattern = pattern.reindex(layer=data["layer"].values, head=data["head"].values)
    data["pattern"] = pattern.transpose("snapshot", "input", "layer", "head", "query", "key")
    return data


def plain(value: float) -> float | None:
    """Return a number that JSON can keep."""
    return float(value) if math.isfinite(value) else None


def together(runs: Mapping[str, xr.Dataset | Sequence[xr.Dataset]]) -> xr.Dataset:
    """Join datasets of one kind over a new axis ``run``, and ``seed`` where a run has several.

    Args:
        runs: a dataset by name, or one a seed; of kind "training_watch", "attention_norms" or "loss_landscape".

    Returns:
        Dataset of the same kind over all steps, layers and heads that occur, NaN where a run has none, with ``run``
        first and then ``seed``, counted from 0.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> watch = training.Watch(model, every=1)
        >>> _ = watch(0, loss=1.0)
        >>> dict(training.together({"Adam": watch.dataset(), "SAM": [watch.dataset()] * 2})["loss"].sizes)
        {'run': 2, 'seed': 2, 'step': 1}
    """
    each = {name: [datasets] if isinstance(datasets, xr.Dataset) else list(datasets) for name, datasets in runs.items()}
    every = [ds for datasets in each.values() for ds in datasets]
    if not every or not all(each.values()):
        raise InputError("no dataset of a run; expected at least one for each name")
    kinds = {str(ds.attrs.get("kind")) for ds in every}
    if len(kinds) > 1:
        raise InputError(f"datasets of kinds {', '.join(sorted(kinds))}; runs are laid over each other of one kind")
    options: dict[str, Any] = {"data_vars": "all", "join": "outer", "combine_attrs": "override"}
    rows = []
    for datasets in each.values():
        # axes without labels are counted, and sizes of layers are no labels of the whole
        plain_axes = [{axis: range(n) for axis, n in ds.sizes.items() if axis not in ds.coords} for ds in datasets]
        counted = [ds.assign_coords(axes) for ds, axes in zip(datasets, plain_axes, strict=True)]
        row = xr.concat([ds.reset_coords(set(SIZES) & set(ds.coords)) for ds in counted], "seed", **options)
        rows.append(row.assign_coords(seed=range(len(datasets))))
    data = xr.concat(rows, "run", **options).assign_coords(run=list(each))
    if "layer" in data.dims:
        # in the order of the first dataset that has them
        data = data.reindex(layer=list(dict.fromkeys(layer for ds in every for layer in ds["layer"].values.tolist())))
    sizes = {name: data[name].max(("run", "seed")).astype(int) for name in SIZES if name in data}
    data = data.drop_vars(list(sizes)).assign_coords(sizes)
    data = data.isel(seed=0, drop=True) if len(data["seed"]) == 1 else data
    data.attrs = {**every[0].attrs, "model": ", ".join(each)}
    return data
