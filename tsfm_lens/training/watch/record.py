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

__all__ = ["read_watch", "together"]

RECORD, PATTERNS = "watch.jsonl", "patterns"
_HEAD = -1  # the step of the first line, which says what is watched
UNITS = {"entropy": "nats"}
_SOURCE = "SAMformer, figures 3, 6 and 7 (S1-LMAX, S1-AENT, S1-NUC, S1-DIAG)"
Row = dict[str, Any]


class Record:
    """The lines and patterns of a watch.

    Args:
        folder: of the files; in memory alone if None.
        settings: of the watch, the first line.
        resume: go on with a record in the folder.

    Attributes:
        rows: a mapping a step: "step", "values" by name, and "attention" by layer, where it was measured.
        patterns: by step and layer, (input, head, query, key).

    Raises:
        CheckpointError: the folder holds a record that is not to be resumed, or of another watch; it cannot be made.
    """

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
            self._load(folder)
        if not file.exists():
            append(file, {"step": _HEAD, "settings": self.settings})

    def _load(self, folder: Path) -> None:
        settings, rows = lines_of(folder)
        if settings is None:
            # stopped before the first line was whole
            (folder / RECORD).unlink(missing_ok=True)
            return
        for key in {**settings, **self.settings}:
            if settings.get(key) != self.settings.get(key):
                raise CheckpointError(
                    f"{folder / RECORD} was written with {key}={settings.get(key)!r}, not {self.settings.get(key)!r}; "
                    "go on with that, or give another folder"
                )
        self.rows, self.patterns = rows, patterns_in(folder)

    def drop_after(self, step: int) -> None:
        """Drop what was recorded after a step, which the training goes on from."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        later = [each for each in self.patterns if each > step]
        for each in later:
            del self.patterns[each]
        if self.folder is not None:
            cut(self.folder / RECORD, step)
            for each in later:
                _pattern_file(self.folder, each).unlink(missing_ok=True)

    def add(self, row: Row, patterns: Mapping[str, np.ndarray] | None) -> None:
        """Record a step: the patterns first, so that every line has its own."""
        if patterns is not None:
            self.patterns[row["step"]] = dict(patterns)
        if self.folder is not None:
            if patterns is not None:
                path = _pattern_file(self.folder, row["step"])
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as part, part.open("wb") as file:
                    np.savez_compressed(file, **dict(patterns))  # type: ignore[arg-type]
            append(self.folder / RECORD, row)
        self.rows.append(row)

    def dataset(self) -> xr.Dataset:
        """Return all of it, labelled; see :func:`read_watch`."""
        return as_dataset(self.settings, self.rows, self.patterns)


def read_watch(folder: str | Path) -> xr.Dataset:
    """Read what a :class:`Watch` has written into a folder so far, also while it goes on.

    Args:
        folder: its ``out``.

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


def _pattern_file(folder: Path, step: int) -> Path:
    return folder / PATTERNS / f"step-{step:08d}.npz"


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
        data[name] = ("step", np.array([_number(row["values"].get(name)) for row in entries]))
    data = _with_attention(data, [row["attention"] for row in entries])
    if patterns:
        data = _with_patterns(data, patterns)
    facts = {key: value for key, value in settings.items() if isinstance(value, str | int | float) and value != ""}
    facts = {key: int(value) if isinstance(value, bool) else value for key, value in facts.items()}
    data.attrs = {**facts, "kind": "training_watch", "title": "Watching a training", "source": _SOURCE}
    return data


def _with_attention(data: xr.Dataset, attentions: list[Mapping[str, Any]]) -> xr.Dataset:
    """Add measures of attention over (step, layer, head), where there are any."""
    layers = {name: layer for one in attentions for name, layer in one.items()}
    if not layers:
        return data
    measures = dict.fromkeys(name for layer in layers.values() for name in layer if name not in ("n_queries", "n_keys"))
    heads = max(len(layer[name]) for layer in layers.values() for name in measures)
    for name in measures:
        values = np.full((len(attentions), len(layers), heads), np.nan)
        for place, one in enumerate(attentions):
            for index, layer in enumerate(layers):
                numbers = one.get(layer, {}).get(name, [])
                values[place, index, : len(numbers)] = [_number(value) for value in numbers]
        data[name] = (("step", "layer", "head"), values, {"units": UNITS[name]} if name in UNITS else {})
    sizes: dict[str, Any] = {
        axis: ("layer", [layer[axis] for layer in layers.values()]) for axis in ("n_queries", "n_keys")
    }
    return data.assign_coords(layer=list(layers), head=range(heads), **sizes)


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


def _number(value: float | None) -> float:
    """Return a number as JSON keeps it: nothing stands for NaN."""
    return math.nan if value is None else float(value)


def plain(value: float) -> float | None:
    """Return a number that JSON can keep."""
    return float(value) if math.isfinite(value) else None


_NUMERIC_AXES = ("step", "snapshot", "first", "second")


def together(runs: Mapping[str, xr.Dataset | Sequence[xr.Dataset]]) -> xr.Dataset:
    """Join datasets of one kind over a new axis ``run``, and ``seed`` where a run has several.

    Args:
        runs: a dataset by name, or one a seed; of kind "training_watch", "attention_norms" or "loss_landscape".

    Returns:
        Dataset of the same kind over all steps, layers and heads that occur, NaN where a run has none, with ``run``
        first and then ``seed``, counted from 0.

    Raises:
        InputError: no run, or datasets of several kinds.

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
    labels = {dim: _union(str(dim), every) for dim in dict.fromkeys(dim for ds in every for dim in ds.dims)}
    sizes = {
        name: _of_layers(name, every) for name in ("n_queries", "n_keys") if any(name in ds.coords for ds in every)
    }
    seeds = max(map(len, each.values()))
    rows = []
    for datasets in each.values():
        wide = [_spread(ds.drop_vars(("n_queries", "n_keys"), errors="ignore"), labels) for ds in datasets]
        row = xr.concat(wide, "seed", data_vars="all", join="exact", combine_attrs="override")
        rows.append(row.assign_coords(seed=range(len(datasets))).reindex(seed=range(seeds)))
    data = xr.concat(rows, "run", data_vars="all", join="exact", combine_attrs="override").assign_coords(run=list(each))
    data = data.assign_coords(
        {name: ("layer", [by_layer[layer] for layer in labels["layer"]]) for name, by_layer in sizes.items()}
    )
    data = data.isel(seed=0, drop=True) if seeds == 1 else data
    data.attrs = {**every[0].attrs, "model": ", ".join(each)}
    return data


def _union(dim: str, every: Sequence[xr.Dataset]) -> list:
    """Unite the labels along an axis: numbers sorted, names in the order of the first dataset that has them."""
    columns = [ds[dim].values for ds in every if dim in ds.dims]
    labels = list(dict.fromkeys(label for values in columns for label in values.tolist()))
    return sorted(labels) if dim in _NUMERIC_AXES or not isinstance(labels[0], str) else labels


def _spread(ds: xr.Dataset, labels: Mapping) -> xr.Dataset:
    missing = {dim: np.arange(ds.sizes[dim]) for dim in ds.dims if dim not in ds.coords}
    return ds.assign_coords(missing).reindex({dim: labels[dim] for dim in ds.dims})


def _of_layers(name: str, every: Sequence[xr.Dataset]) -> dict[str, int]:
    """Return queries or keys by layer."""
    sizes: dict[str, int] = {}
    for ds in every:
        if name in ds.coords:
            sizes |= dict(zip(ds["layer"].values.tolist(), ds[name].values.tolist(), strict=True))
    return sizes
