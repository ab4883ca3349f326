"""A callback that watches any torch training without changing it, and its record on disk and as a dataset."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
    patterns_of,
    sizes_of,
)
from tsfm_lens.training.watch.guard import Losses, listed, trainable, undisturbed
from tsfm_lens.training.watch.sharpness import gradient_noise, sharpness

__all__ = ["Watch", "read_watch", "together"]

RECORD, PATTERNS, _FILE = "watch.jsonl", "patterns", "step-{:08d}.npz"
_HEAD = -1  # the step of the first line, which says what is watched
_SOURCE = "SAMformer, figures 3, 6 and 7 (S1-LMAX, S1-AENT, S1-NUC, S1-DIAG)"
Row = dict[str, Any]

Measure = Callable[[], Mapping[str, float]]
"""Numbers by name, of the model as it is."""
Steps = int | Collection[int]


class Watch:
    """Watch on a model that any loop trains; the trained weights are the same, bit for bit, without it.

    Call ``watch(step)`` or ``watch(step, loss=loss)`` after each optimiser step.

    Args:
        model: the module that is trained, or a lens on it.
        measures: names among "sharpness", "gradient_noise" and "attention", and functions that give numbers by name; if
            None, all that the arguments below allow.
        every: steps between two measurements, from step 0 on; or the steps themselves.
        out: folder of the record, ``watch.jsonl`` and ``patterns/``; only in memory if None.
        loss: function that returns the scalar loss of fixed data; for several, the sharpness is that of their mean.
        series: series on which a lens measures attention.
        patterns: gives the attention of a model without a lens by layer, (…, head, query, key).
        snapshots: when to keep the patterns of ``inputs`` inputs, given as ``every``; never if None.
        products, tolerance: see :func:`tsfm_lens.training.sharpness`.
        epsilon: see :func:`tsfm_lens.training.attention_measures`.
        seed: of the random numbers of the measures.
        training: whether the model is measured in training mode (with its dropout).
        name: name of the run; that of the model if "".
        resume: continue the record in ``out``; lines after the step of the first call, or after this step, are dropped.

    Raises:
        InputError: a number is out of range, or a measure lacks its argument.
        CheckpointError: ``out`` has the record of another run, or ``resume`` is not set.

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
        every: Steps = 100,
        out: str | Path | None = None,
        loss: Losses | None = None,
        series: Any = None,
        patterns: Patterns | None = None,
        snapshots: Steps | None = None,
        inputs: int = 1,
        products: int = 20,
        tolerance: float = 1e-3,
        epsilon: float = EPSILON,
        seed: int = 0,
        training: bool = False,
        name: str = "",
        resume: bool | int = False,
    ) -> None:
        self.model: nn.Module = (
            model.adapter.model if isinstance(model, Lens) else model
        )
        self._losses = [] if loss is None else listed(loss)
        if series is not None:
            if patterns is not None:
                raise InputError("got both series and patterns; give one of the two")
            if not isinstance(model, Lens):
                raise InputError(
                    f"series are for a lens, not for a {type(model).__name__}; give patterns=… instead"
                )
            patterns = partial(patterns_of, model, series)
        self._patterns = patterns
        self.every = _steps(every, "every")
        self.snapshots = (
            frozenset[int]() if snapshots is None else _steps(snapshots, "snapshots")
        )
        if inputs < 1 or products < 1:
            raise InputError(
                f"inputs={inputs}, products={products}; expected 1 or more"
            )
        if snapshots is not None and self._patterns is None:
            raise InputError(
                "snapshots keep attention: give series to a lens, or patterns=…"
            )
        self.epsilon, self.seed, self.training, self._inputs = (
            epsilon,
            seed,
            training,
            inputs,
        )
        self._products, self._tolerance = products, tolerance
        self.measures = self._select_measures(measures)
        model_name = model.model_id if isinstance(model, Lens) else type(model).__name__
        shapes = str(
            [
                (key, tuple(weight.shape))
                for key, weight in self.model.named_parameters()
            ]
        )
        # of a resumed run these must be the same
        settings = {
            "model": name or model_name,
            "measures": [*self.measures],
            "weights": zlib.crc32(shapes.encode()),
            "products": products,
            "tolerance": tolerance,
            "epsilon": epsilon,
            "seed": seed,
            "training": training,
        }
        self.settings, self.rows = settings, list[Row]()
        self.seen: dict[int, dict[str, np.ndarray]] = {}
        self.folder = None if out is None else Path(out)
        if self.folder is not None:
            self._open(self.folder, resume=resume is not False)
        self._resume_pending = resume is True
        self._last: int | None = None
        if resume is not True and resume is not False:
            self._drop_after(int(resume))

    def __call__(
        self, step: Any, loss: Tensor | float | None = None
    ) -> dict[str, Any] | None:
        """Measure if the step is due; return the line of the record, or None.

        Args:
            step: optimiser steps done; or what has them as ``step``, such as :class:`tsfm_lens.training.Training`.
            loss: of the step, for the record.

        Raises:
            InputError: steps do not increase, a loss is not finite, or a measure fails.
        """
        at = step if isinstance(step, int) else int(getattr(step, "step", step))
        if self._resume_pending:
            self._resume_pending = False
            self._drop_after(at)
        if self._last is not None and at <= self._last:
            raise InputError(
                f"step {at} after step {self._last}; steps grow, unless a run is resumed"
            )
        self._last = at
        due, keep = (
            at % steps == 0 if isinstance(steps, int) else at in steps
            for steps in (self.every, self.snapshots)
        )
        if not (due or keep) or (self.rows and self.rows[-1]["step"] >= at):
            return None
        values: dict[str, float | None] = (
            {} if loss is None or not due else {"loss": self._finite_loss(at, loss)}
        )
        row: Row = {"step": at, "values": values, "attention": {}}
        with undisturbed(self.model, seed=self.seed, training=self.training):
            for name, measure in self.measures.items() if due else ():
                if name != "attention":
                    numbers = measure()
                    try:
                        values |= {
                            str(key): plain(float(value))
                            for key, value in numbers.items()
                        }
                    except (AttributeError, TypeError, ValueError) as error:
                        raise InputError(
                            f"the measure {name!r} gave {numbers!r}; expected numbers by name"
                        ) from error
            patterns: dict[str, Tensor] = {}
            if self._patterns is not None and (
                keep or (due and "attention" in self.measures)
            ):
                with torch.no_grad():
                    patterns = checked(self._patterns())
        if due and "attention" in self.measures:
            for name, pattern in patterns.items():
                # rows of one layer are all square or none is, so that a mean is missing or of all
                measures = attention_measures(pattern, epsilon=self.epsilon)
                means = {
                    key: [plain(value) for value in one.mean(axis=0)]
                    for key, one in measures.items()
                }
                row["attention"][name] = sizes_of(pattern) | means
        if keep:
            self.seen[at] = {
                name: one[: self._inputs].float().cpu().numpy()
                for name, one in patterns.items()
            }
        if self.folder is not None:
            if keep:
                # before the line, so that every line has its patterns
                path = self.folder / PATTERNS / _FILE.format(at)
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as part, part.open("wb") as file:
                    np.savez_compressed(file, **self.seen[at])  # type: ignore[arg-type]
            append(self.folder / RECORD, row)
        self.rows.append(row)
        return row

    def dataset(self) -> xr.Dataset:
        """Return all that was recorded so far; see :func:`tsfm_lens.training.read_watch`."""
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
        if file.exists() or any((folder / PATTERNS).glob("*.npz")):
            if not resume:
                raise CheckpointError(
                    f"{folder} holds the record of another run; continue with resume=True, or give another folder"
                )
            former, rows = lines_of(folder)
            if former is None:
                # stopped before the first line was whole
                file.unlink(missing_ok=True)
            else:
                for key in {**former, **self.settings}:
                    if former.get(key) != self.settings.get(key):
                        raise CheckpointError(
                            f"{file} was written with {key}={former.get(key)!r}, not {self.settings.get(key)!r}; "
                            "continue with that, or give another folder"
                        )
                self.rows, self.seen = rows, patterns_in(folder)
        if not file.exists():
            append(file, {"step": _HEAD, "settings": self.settings})

    def _drop_after(self, step: int) -> None:
        """Drop what was recorded after a step, which the training goes on from."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        for later in [each for each in self.seen if each > step]:
            del self.seen[later]
            if self.folder is not None:
                (self.folder / PATTERNS / _FILE.format(later)).unlink(missing_ok=True)
        if self.folder is not None:
            cut(self.folder / RECORD, step)

    def _select_measures(
        self, measures: Sequence[str | Measure] | None
    ) -> dict[str, Measure]:
        """Select functions by name; "attention" is looked up by itself, since snapshots share its forward pass."""
        needs_loss = "loss=…, a function that gives the loss of fixed data"
        needs_losses = "loss=[…], functions that give the loss of a batch each"
        builtin: dict[str, tuple[Measure, bool, str]] = {
            "sharpness": (self._sharpness, bool(self._losses), needs_loss),
            "gradient_noise": (
                self._gradient_noise,
                len(self._losses) > 1,
                needs_losses,
            ),
            "attention": (
                dict,
                self._patterns is not None,
                "series=… of a lens, or patterns=…",
            ),
        }
        if measures is None:
            return {
                name: measure
                for name, (measure, possible, _) in builtin.items()
                if possible
            }
        if isinstance(measures, str):
            raise InputError(
                f"measures={measures!r}; expected several, as in measures=[{measures!r}]"
            )
        selection: dict[str, Measure] = {}
        for place, each in enumerate(measures):
            if callable(each):
                selection[getattr(each, "__name__", f"measure_{place}")] = each
                continue
            if each not in builtin:
                raise unknown_name("measure", each, builtin)
            selection[each], possible, needs = builtin[each]
            if not possible:
                raise InputError(f"the measure {each!r} needs {needs}")
        return selection

    def _sharpness(self) -> dict[str, float]:
        weights = trainable(self.model)
        result = sharpness(
            self._losses,
            weights,
            steps=self._products,
            tolerance=self._tolerance,
            seed=self.seed,
        )
        ends = {
            "sharpness": result.largest,
            "sharpness_residual": result.largest_residual,
        }
        ends |= {
            "lowest_curvature": result.smallest,
            "lowest_curvature_residual": result.smallest_residual,
        }
        trace = {
            "hessian_trace": result.trace,
            "hessian_trace_error": result.trace_error,
        }
        return {**ends, "watched_loss": result.loss, **trace}

    def _gradient_noise(self) -> dict[str, float]:
        result = gradient_noise(self._losses, trainable(self.model))
        squared = {
            "gradient_variance": result.variance,
            "gradient_squared_norm": result.squared_norm,
        }
        return {**squared, "noise_scale": result.scale}

    def _finite_loss(self, step: int, loss: Tensor | float) -> float:
        value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        if not np.isfinite(value):
            last = "".join(
                f"the last finite one was {row['values']['loss']:.4g} at step {row['step']}; "
                for row in [row for row in self.rows if "loss" in row["values"]][-1:]
            )
            raise InputError(
                f"the loss is {value} at step {step}; {last}what was seen until then is kept"
            )
        return value


def _steps(steps: Steps, what: str) -> int | frozenset[int]:
    if isinstance(steps, bool) or (isinstance(steps, int) and steps < 1):
        raise InputError(
            f"{what}={steps}; expected a number of steps, 1 or more, or the steps themselves"
        )
    if isinstance(steps, int):
        return steps
    step_set = frozenset(int(step) for step in steps)
    if not step_set or min(step_set) < 0:
        raise InputError(f"{what}={sorted(step_set)}; expected steps of 0 or more")
    return step_set


def read_watch(folder: str | Path) -> xr.Dataset:
    """Read the record of a :class:`Watch` from its folder, also while the training runs.

    Returns:
        Dataset of kind "training_watch" over ``step``: ``loss``, ``sharpness`` and ``lowest_curvature`` with their
        ``_residual``, ``noise_scale`` and other measures. For attention: ``entropy`` (nats), ``nuclear_norm``,
        ``diagonal_mass``, ``numerical_rank`` and ``stable_rank`` over (step, layer, head), means over the inputs, with
        coordinates ``n_queries`` and ``n_keys`` of each layer. For snapshots: ``pattern`` (snapshot, input, layer,
        head, query, key). NaN where nothing was measured.

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
    settings, rows = lines_of(path)
    if settings is None:
        raise CheckpointError(
            f"{path / RECORD} does not say what was watched; expected the out folder of a Watch"
        )
    return as_dataset(settings, rows, patterns_in(path))


def lines_of(folder: Path) -> tuple[dict[str, Any] | None, list[Row]]:
    """Read settings and rows of a record; None where not even the first line is whole."""
    lines = read_log(folder / RECORD) if (folder / RECORD).exists() else []
    if not lines:
        return None, []
    if (
        not isinstance(lines[0], dict)
        or lines[0].get("step") != _HEAD
        or "settings" not in lines[0]
    ):
        raise CheckpointError(
            f"{folder / RECORD} is not the record of a Watch; give another folder"
        )
    return lines[0]["settings"], lines[1:]


def patterns_in(folder: Path) -> dict[int, dict[str, np.ndarray]]:
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
    entries = [row for row in rows if row["values"] or row["attention"]]
    data = xr.Dataset(coords={"step": [row["step"] for row in entries]})
    for name in dict.fromkeys(name for row in entries for name in row["values"]):
        data[name] = (
            "step",
            np.array([row["values"].get(name) for row in entries], dtype=float),
        )
    data = data.assign(by_head("step", [row["attention"] for row in entries]))
    if patterns:
        data = _with_patterns(data, patterns)
    facts = {
        key: value
        for key, value in settings.items()
        if isinstance(value, str | int | float) and value != ""
    }
    facts = {
        key: int(value) if isinstance(value, bool) else value
        for key, value in facts.items()
    }
    data.attrs = {
        **facts,
        "kind": "training_watch",
        "title": "Watching a training",
        "source": _SOURCE,
    }
    return data


def _with_patterns(
    data: xr.Dataset, patterns: Mapping[int, Mapping[str, np.ndarray]]
) -> xr.Dataset:
    layers = list(dict.fromkeys(name for one in patterns.values() for name in one))
    shape = np.max(
        [value.shape for one in patterns.values() for value in one.values()], axis=0
    )
    values = np.full((len(patterns), len(layers), *shape), np.nan, dtype=np.float32)
    for place, one in enumerate(patterns.values()):
        for name, value in one.items():
            rows, heads, queries, keys = value.shape
            values[place, layers.index(name), :rows, :heads, :queries, :keys] = value
    data = (
        data.reindex(layer=layers)
        if "layer" in data.dims and set(layers) > set(data["layer"].values)
        else data
    )
    axes = ("snapshot", "layer", "input", "head", "query", "key")
    coords = {
        "snapshot": list(patterns),
        "layer": layers,
        "input": range(shape[0]),
        "head": range(shape[1]),
    }
    pattern = xr.DataArray(values, dims=axes, coords=coords)
    if "layer" in data.dims:
        pattern = pattern.reindex(layer=data["layer"].values, head=data["head"].values)
    data["pattern"] = pattern.transpose(
        "snapshot", "input", "layer", "head", "query", "key"
    )
    return data


def plain(value: float) -> float | None:
    """Return a number that JSON can keep."""
    return float(value) if math.isfinite(value) else None


def together(runs: Mapping[str, xr.Dataset | Sequence[xr.Dataset]]) -> xr.Dataset:
    """Join datasets of one kind over a new axis ``run``, and ``seed`` where a run has several.

    Args:
        runs: a dataset by name, or one a seed; of kind "training_watch" or "attention_norms".

    Returns:
        Dataset of the same kind over all steps, layers and heads that occur; NaN where a run has none. ``run`` is the
        first axis, then ``seed``, counted from 0.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> watch = training.Watch(model, every=1)
        >>> _ = watch(0, loss=1.0)
        >>> dict(training.together({"Adam": watch.dataset(), "SAM": [watch.dataset()] * 2})["loss"].sizes)
        {'run': 2, 'seed': 2, 'step': 1}
    """
    each = {
        name: [datasets] if isinstance(datasets, xr.Dataset) else list(datasets)
        for name, datasets in runs.items()
    }
    every = [ds for datasets in each.values() for ds in datasets]
    if not every or not all(each.values()):
        raise InputError("no dataset of a run; expected at least one for each name")
    kinds = {str(ds.attrs.get("kind")) for ds in every}
    if len(kinds) > 1:
        raise InputError(
            f"datasets of kinds {', '.join(sorted(kinds))}; runs are laid over each other of one kind"
        )
    options: dict[str, Any] = {
        "data_vars": "all",
        "join": "outer",
        "combine_attrs": "override",
    }
    rows = []
    for datasets in each.values():
        # axes without labels are counted, and sizes of layers are no labels of the whole
        plain_axes = [
            {axis: range(n) for axis, n in ds.sizes.items() if axis not in ds.coords}
            for ds in datasets
        ]
        counted = [
            ds.assign_coords(axes)
            for ds, axes in zip(datasets, plain_axes, strict=True)
        ]
        row = xr.concat(
            [ds.reset_coords(set(SIZES) & set(ds.coords)) for ds in counted],
            "seed",
            **options,
        )
        rows.append(row.assign_coords(seed=range(len(datasets))))
    data = xr.concat(rows, "run", **options).assign_coords(run=list(each))
    if "layer" in data.dims:
        # in the order of the first dataset that has them
        data = data.reindex(
            layer=list(
                dict.fromkeys(
                    layer for ds in every for layer in ds["layer"].values.tolist()
                )
            )
        )
    sizes = {
        name: data[name].max(("run", "seed")).astype(int)
        for name in SIZES
        if name in data
    }
    data = data.drop_vars(list(sizes)).assign_coords(sizes)
    data = data.isel(seed=0, drop=True) if len(data["seed"]) == 1 else data
    data.attrs = {**every[0].attrs, "model": ", ".join(each)}
    return data
