"""A callback that watches any torch training without changing it.

Read :class:`Watch` first. Its record is ``watch.jsonl`` and ``patterns/`` in a folder,
and :func:`read_watch` reads it as a dataset; :func:`together` joins those of several
runs. How the training is kept undisturbed is in :mod:`.guard`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor, nn

from tsfm_lens.core.errors import CheckpointError, InputError, unknown_name
from tsfm_lens.core.io import replacing
from tsfm_lens.models.lens import Lens
from tsfm_lens.training.state import append, cut, read_log
from tsfm_lens.training.watch.attention import (
    EPSILON,
    SIZES,
    Patterns,
    attention_measures,
    by_head,
    checked,
    count_positions,
)
from tsfm_lens.training.watch.guard import Loss, Losses, listed, undisturbed
from tsfm_lens.training.watch.sharpness import gradient_noise, sharpness

__all__ = ["Watch", "read_watch", "together"]

RECORD = "watch.jsonl"
PATTERNS = "patterns"
_FILE = "step-{:08d}.npz"
_SETTINGS_STEP = -1  # in place of a step in the first line, which has the settings
_SOURCE = "SAMformer, figures 3, 6 and 7 (S1-LMAX, S1-AENT, S1-NUC, S1-DIAG)"
Row = dict[str, Any]

Measure = Callable[[], Mapping[str, float]]
"""Numbers by name, of the model as it is."""


class Watch:
    """Watch on a model that any loop trains.

    The trained weights are the same with and without it, bit for bit.

    Call ``watch(step)`` or ``watch(step, loss=loss)`` after each optimiser step.

    Args:
        model: the module that is trained, or a lens on it.
        measures: names among "sharpness", "gradient_noise" and "attention", and
            functions that give numbers by name; if None, all that the arguments below
            allow.
        every: steps between two measurements, from step 0 on.
        out: folder of the record, ``watch.jsonl`` and ``patterns/``; only in memory if
            None.
        loss: function that returns the scalar loss of fixed data, or a list of them;
            the sharpness of a list is that of their mean.
        patterns: function that returns attention patterns by name of the layer, each
            (…, head, query, key); for a lens
            ``lambda: training.compute_patterns(lens, series)``.
        snapshots: steps between two records of whole patterns; none if None.
        inputs: number of inputs whose patterns a snapshot keeps, the first ones.
        products: largest number of Hessian-vector products of a measurement.
        tolerance: the sharpness is done if both residuals are at most this share of
            the larger absolute eigenvalue.
        epsilon: a singular value counts for the numerical rank of attention if it is
            above this share of the largest.
        seed: seed of the random numbers of the measures.
        name: name of the run; that of the model if "".
        resume: continue the record in ``out``; lines after the step of the first call
            are dropped.

    Raises:
        InputError: a number is out of range, or a measure lacks its argument.
        CheckpointError: ``out`` has the record of another run, or ``resume`` is not
            set.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> loss = lambda: model(torch.eye(3)).square().mean()
        >>> watch = training.Watch(model, every=2, loss=loss)
        >>> for step in range(5):
        ...     seen = watch(step)
        >>> watch.dataset()["sharpness"].dims, watch.dataset()["step"].values.tolist()
        (('step',), [0, 2, 4])
    """

    def __init__(
        self,
        model: nn.Module | Lens,
        measures: Sequence[str | Measure] | None = None,
        *,
        every: int = 100,
        out: str | Path | None = None,
        loss: Losses | None = None,
        patterns: Patterns | None = None,
        snapshots: int | None = None,
        inputs: int = 1,
        products: int = 20,
        tolerance: float = 1e-3,
        epsilon: float = EPSILON,
        seed: int = 0,
        name: str = "",
        resume: bool = False,
    ) -> None:
        counts = {"every": every, "inputs": inputs, "products": products}
        if snapshots is not None:
            counts["snapshots"] = snapshots
        for option, count in counts.items():
            if count < 1:
                raise InputError(f"{option}={count}; expected 1 or more")
        if snapshots is not None and patterns is None:
            raise InputError("snapshots keep attention: give patterns=…")
        model_name = type(model).__name__
        if isinstance(model, Lens):
            model_name = model.model_id
            model = model.adapter.model
        self.model: nn.Module = model
        self.every = every
        self.snapshots = snapshots
        self.epsilon = epsilon
        self.seed = seed
        self._patterns = patterns
        self._inputs = inputs
        losses = [] if loss is None else listed(loss)
        options = {"steps": products, "tolerance": tolerance, "seed": seed}
        builtin: dict[str, Measure] = {}
        if losses:
            builtin["sharpness"] = partial(_sharpness, losses, model, **options)
        if len(losses) > 1:
            builtin["gradient_noise"] = partial(_gradient_noise, losses, model)
        if patterns is not None:
            # a placeholder, dict() giving no numbers: __call__ measures attention
            # itself, since snapshots share its forward pass
            builtin["attention"] = dict
        self.measures = _select(measures, builtin)
        # a checksum, as the names of all weights would make the first line very long
        shapes = [(key, tuple(part.shape)) for key, part in model.named_parameters()]
        # a record can only be resumed with the same settings
        self.settings: dict[str, Any] = {
            "model": name or model_name,
            "measures": [*self.measures],
            "weights": zlib.crc32(str(shapes).encode()),
            "products": products,
            "tolerance": tolerance,
            "epsilon": epsilon,
            "seed": seed,
        }
        self.rows: list[Row] = []
        # the snapshots: patterns (input, head, query, key) by step and layer
        self.seen: dict[int, dict[str, np.ndarray]] = {}
        self.folder = None if out is None else Path(out)
        if self.folder is not None:
            self._open(self.folder, resume=resume)
        self._resume_pending = resume
        self._last = -1

    def __call__(
        self, step: Any, loss: Tensor | float | None = None
    ) -> dict[str, Any] | None:
        """Measure if the step is due.

        Args:
            step: optimiser steps done; or what has them as ``step``, such as
                :class:`tsfm_lens.training.Training`.
            loss: the training loss of this step, which is only recorded.

        Returns:
            The line of the record, or None.

        Raises:
            InputError: steps do not increase, a loss is not finite, or a measure fails.
        """
        current = int(getattr(step, "step", step))
        if self._resume_pending:
            self._resume_pending = False
            self._drop_after(current)
        if current <= self._last:
            raise InputError(
                f"step {current} after step {self._last}; steps grow, unless a run is"
                " resumed"
            )
        self._last = current
        is_due = current % self.every == 0
        is_snapshot = self.snapshots is not None and current % self.snapshots == 0
        # a resumed record may hold this step already, written before the training
        # stopped
        is_recorded = bool(self.rows) and self.rows[-1]["step"] >= current
        if is_recorded or not (is_due or is_snapshot):
            return None
        row: Row = {"step": current, "values": {}, "attention": {}}
        patterns: dict[str, Tensor] = {}
        has_attention = is_due and "attention" in self.measures
        with undisturbed(self.model, seed=self.seed):
            if is_due:
                row["values"] = self._measured(current, loss)
            if self._patterns is not None and (is_snapshot or has_attention):
                with torch.no_grad():
                    patterns = checked(self._patterns())
        if has_attention:
            row["attention"] = self._attention(patterns)
        # numpy has no bfloat16
        arrays = {
            name: pattern[: self._inputs].float().cpu().numpy()
            for name, pattern in patterns.items()
        }
        if self.folder is not None:
            if is_snapshot:
                # before the line, so that every line has its patterns
                path = self.folder / PATTERNS / _FILE.format(current)
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as part, part.open("wb") as file:
                    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            append(self.folder / RECORD, row)
        # after the files, so that a full disk leaves nothing here that the record lacks
        if is_snapshot:
            self.seen[current] = arrays
        self.rows.append(row)
        return row

    def _measured(
        self, step: int, loss: Tensor | float | None
    ) -> dict[str, float | None]:
        values: dict[str, float | None] = {}
        if loss is not None:
            values["loss"] = float(loss)
            if not math.isfinite(float(loss)):
                raise InputError(
                    f"the loss is {float(loss)} at step {step}; what was seen until"
                    " then is kept"
                )
        for name, measure in self.measures.items():
            numbers = measure()
            try:
                values |= {key: plain(float(numbers[key])) for key in numbers}
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"the measure {name!r} gave {numbers!r}; expected numbers by name"
                ) from error
        return values

    def _attention(self, patterns: Mapping[str, Tensor]) -> dict[str, Any]:
        """Measure attention by layer, a mean over inputs for each head."""
        layers = {}
        for name, pattern in patterns.items():
            # a measure is NaN for all inputs of a layer or for none, so that the mean
            # over inputs is of all of them or NaN
            measures = attention_measures(pattern, epsilon=self.epsilon)
            means = {
                # numbers are (input, head)
                key: [plain(value) for value in numbers.mean(axis=0)]
                for key, numbers in measures.items()
            }
            layers[name] = count_positions(pattern) | means
        return layers

    def dataset(self) -> xr.Dataset:
        """Return all that was recorded so far.

        It is the dataset of :func:`tsfm_lens.training.read_watch`.
        """
        return as_dataset(self.settings, self.rows, self.seen)

    def _open(self, folder: Path, *, resume: bool) -> None:
        """Begin a record in a folder, or go on with the one that it holds."""
        file = folder / RECORD
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{folder} is not a folder to write to ({error}); give another"
            ) from error
        # patterns are written before their line, so they may be all that a stopped run
        # left
        if file.exists() or any((folder / PATTERNS).glob("*.npz")):
            if not resume:
                raise CheckpointError(
                    f"{folder} holds the record of another run; continue with"
                    " resume=True, or give another folder"
                )
            former, rows = read_lines(folder)
            if former is None:
                # stopped before the first line was whole
                file.unlink(missing_ok=True)
            else:
                for key in self.settings:
                    if former.get(key) != self.settings.get(key):
                        raise CheckpointError(
                            f"{file} was written with {key}={former.get(key)!r}, not"
                            f" {self.settings.get(key)!r}; continue with that, or give"
                            " another folder"
                        )
                # the first call tells from which step the training goes on, and drops
                # the lines after it
                self.rows = rows
                self.seen = read_patterns(folder)
        if not file.exists():
            append(file, {"step": _SETTINGS_STEP, "settings": self.settings})

    def _drop_after(self, step: int) -> None:
        """Drop what was recorded after a step, which the training goes on from."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        for later in [snapshot for snapshot in self.seen if snapshot > step]:
            del self.seen[later]
            if self.folder is not None:
                (self.folder / PATTERNS / _FILE.format(later)).unlink(missing_ok=True)
        if self.folder is not None:
            cut(self.folder / RECORD, step)


def _select(
    measures: Sequence[str | Measure] | None, builtin: Mapping[str, Measure]
) -> dict[str, Measure]:
    """Select measures, given as names of built-in ones or as functions."""
    if measures is None:
        return dict(builtin)
    selection: dict[str, Measure] = {}
    for position, measure in enumerate(measures):
        if callable(measure):
            selection[getattr(measure, "__name__", f"measure_{position}")] = measure
            continue
        if measure not in _NEEDS:
            raise unknown_name("measure", measure, _NEEDS)
        if measure not in builtin:
            raise InputError(f"the measure {measure!r} needs {_NEEDS[measure]}")
        selection[measure] = builtin[measure]
    return selection


# names of the measures, and what each of them has to be given
_NEEDS = {
    "sharpness": "loss=…, a function that gives the loss of fixed data",
    "gradient_noise": "loss=[…], functions that give the loss of a batch each",
    "attention": "patterns=…",
}


def _sharpness(losses: Losses, model: nn.Module, **options: Any) -> dict[str, float]:
    result = sharpness(losses, model, **options)
    return {
        "sharpness": result.largest,
        "sharpness_residual": result.largest_residual,
        "lowest_curvature": result.smallest,
        "lowest_curvature_residual": result.smallest_residual,
        "watched_loss": result.loss,
        "hessian_trace": result.trace,
        "hessian_trace_error": result.trace_error,
    }


def _gradient_noise(losses: Sequence[Loss], model: nn.Module) -> dict[str, float]:
    result = gradient_noise(losses, model)
    return {
        "gradient_variance": result.variance,
        "gradient_squared_norm": result.squared_norm,
        "noise_scale": result.scale,
    }


def read_watch(folder: str | Path) -> xr.Dataset:
    """Read the record of a :class:`Watch` from its folder.

    This is possible while the training runs.

    Args:
        folder: ``out`` of the watch.

    Returns:
        Dataset of kind "training_watch" over ``step``: ``loss``, ``sharpness`` and
        ``lowest_curvature`` with their ``_residual``, ``noise_scale`` and other
        measures. For attention: ``entropy`` (nats), ``nuclear_norm``,
        ``diagonal_mass``, ``numerical_rank`` and ``stable_rank`` over (step, layer,
        head), means over the inputs, with coordinates ``n_queries`` and ``n_keys`` of
        each layer. For snapshots: ``pattern`` (snapshot, input, layer, head, query,
        key). NaN where nothing was measured.

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
        raise CheckpointError(
            f"no {RECORD} in {path}; expected the out folder of a Watch"
        )
    settings, rows = read_lines(path)
    if settings is None:
        raise CheckpointError(
            f"{path / RECORD} does not say what was watched; expected the out folder of"
            " a Watch"
        )
    return as_dataset(settings, rows, read_patterns(path))


def read_lines(folder: Path) -> tuple[dict[str, Any] | None, list[Row]]:
    """Read settings and rows of a record.

    Settings are None where not even the first line is complete.

    Returns:
        The settings, and the rows.
    """
    if (folder / RECORD).exists():
        lines = read_log(folder / RECORD)
    else:
        lines = []
    if not lines:
        return None, []
    if (
        not isinstance(lines[0], dict)
        or lines[0].get("step") != _SETTINGS_STEP
        or "settings" not in lines[0]
    ):
        raise CheckpointError(
            f"{folder / RECORD} is not the record of a Watch; give another folder"
        )
    return lines[0]["settings"], lines[1:]


def read_patterns(folder: Path) -> dict[int, dict[str, np.ndarray]]:
    """Read patterns by step and layer."""
    patterns = {}
    for path in sorted((folder / PATTERNS).glob("step-*.npz")):
        with np.load(path) as arrays:
            patterns[int(path.stem.split("-")[1])] = {
                name: arrays[name] for name in arrays.files
            }
    return patterns


def as_dataset(
    settings: Mapping[str, Any],
    rows: Iterable[Row],
    patterns: Mapping[int, Mapping[str, np.ndarray]],
) -> xr.Dataset:
    """Build the dataset of a record; see :func:`read_watch`."""
    # a line may belong to a snapshot alone; nothing was measured at its step
    measured = [row for row in rows if row["values"] or row["attention"]]
    data = xr.Dataset(coords={"step": [row["step"] for row in measured]})
    # a dict, since measures must keep the order in which they first occur
    for name in dict.fromkeys(name for row in measured for name in row["values"]):
        numbers = [row["values"].get(name) for row in measured]
        data[name] = ("step", np.array(numbers, dtype=float))
    data = data.assign(by_head("step", [row["attention"] for row in measured]))
    if patterns:
        pattern = _stack_patterns(patterns)
        if "layer" in data.dims:
            # an outer join would sort the names of layers, 10 before 2
            layers = dict.fromkeys([*data["layer"].values, *pattern["layer"].values])
            data = data.reindex(layer=list(layers))
            pattern = pattern.reindex_like(data)
        data["pattern"] = pattern
    metadata = {
        key: value
        for key, value in settings.items()
        # what netCDF can hold as an attribute
        if type(value) in (str, int, float) and value != ""
    }
    return data.assign_attrs(
        metadata, kind="training_watch", title="Watching a training", source=_SOURCE
    )


def _stack_patterns(patterns: Mapping[int, Mapping[str, np.ndarray]]) -> xr.DataArray:
    """Arrange patterns (input, head, query, key) by snapshot and layer.

    NaN where a layer is smaller.

    Returns:
        The patterns, (snapshot, input, layer, head, query, key).
    """
    axes = ("input", "head", "query", "key")
    layers = dict.fromkeys(
        layer for by_layer in patterns.values() for layer in by_layer
    )
    by_step = []
    for by_layer in patterns.values():
        arrays = [xr.DataArray(value, dims=axes) for value in by_layer.values()]
        labelled = [
            # xarray joins axes of different lengths only by labels
            array.assign_coords({axis: range(array.sizes[axis]) for axis in axes})
            for array in arrays
        ]
        by_step.append(
            xr.concat(labelled, pd.Index(list(by_layer), name="layer"), join="outer")
        )
    pattern = xr.concat(
        by_step, pd.Index(list(patterns), name="snapshot"), join="outer"
    )
    # the outer join over snapshots may have sorted the layers
    pattern = pattern.reindex(layer=list(layers)).drop_vars(["query", "key"])
    return pattern.transpose("snapshot", "input", "layer", "head", "query", "key")


def plain(value: float) -> float | None:
    """Return a number that JSON can hold, None for one that is not finite."""
    if math.isfinite(value):
        return float(value)
    return None


def together(runs: Mapping[str, xr.Dataset | Sequence[xr.Dataset]]) -> xr.Dataset:
    """Join datasets of one kind over a new axis ``run``.

    There is an axis ``seed``, too, where a run has several datasets.

    Args:
        runs: by name of the run, its dataset, or a list of datasets, one for each seed;
            all of kind "training_watch", or all of kind "attention_norms".

    Returns:
        Dataset of the same kind over all steps, layers and heads that occur; NaN where
        a run has none. ``run`` is the first axis, then ``seed``, counted from 0.

    Raises:
        InputError: there is no dataset, or they are of several kinds.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> watch = training.Watch(model, every=1)
        >>> _ = watch(0, loss=1.0)
        >>> runs = {"Adam": watch.dataset(), "SAM": [watch.dataset()] * 2}
        >>> dict(training.together(runs)["loss"].sizes)
        {'run': 2, 'seed': 2, 'step': 1}
    """
    by_run = {
        name: [datasets] if isinstance(datasets, xr.Dataset) else list(datasets)
        for name, datasets in runs.items()
    }
    all_datasets = [ds for datasets in by_run.values() for ds in datasets]
    if not all_datasets or not all(by_run.values()):
        raise InputError("no dataset of a run; expected at least one for each name")
    kinds = {str(ds.attrs.get("kind")) for ds in all_datasets}
    if len(kinds) > 1:
        raise InputError(
            f"datasets of kinds {', '.join(sorted(kinds))}; runs are laid over each"
            " other of one kind"
        )
    options: dict[str, Any] = {
        "data_vars": "all",
        "join": "outer",
        "combine_attrs": "override",
    }
    joined = []
    for datasets in by_run.values():
        seeds = pd.RangeIndex(len(datasets), name="seed")
        joined.append(xr.concat(map(_with_labels, datasets), seeds, **options))
    data = xr.concat(joined, pd.Index(list(by_run), name="run"), **options)
    if "layer" in data.dims:
        # in the order of the first dataset that has them
        layers = dict.fromkeys(
            layer for ds in all_datasets for layer in ds["layer"].values.tolist()
        )
        data = data.reindex(layer=list(layers))
    sizes = {name: _shared_size(data[name]) for name in SIZES if name in data}
    data = data.drop_vars(list(sizes)).assign_coords(sizes)
    if len(data["seed"]) == 1:
        data = data.isel(seed=0, drop=True)
    data.attrs = {**all_datasets[0].attrs, "model": ", ".join(by_run)}
    return data


def _shared_size(sizes: xr.DataArray) -> xr.DataArray:
    """Return the size of each layer, of each run where runs differ in it."""
    # both pass over the NaN of runs that lack the layer
    largest = sizes.max(("run", "seed"))
    if (sizes.min(("run", "seed")) < largest).any():
        return sizes
    return largest.astype(int)


def _with_labels(ds: xr.Dataset) -> xr.Dataset:
    """Label axes that have no labels by position, so that xarray can join them.

    The sizes of layers, which are coordinates, become variables, as runs differ in
    them.

    Returns:
        The dataset.
    """
    axes = {axis: range(n) for axis, n in ds.sizes.items() if axis not in ds.coords}
    return ds.assign_coords(axes).reset_coords(set(SIZES) & set(ds.coords))
