"""A callback that watches any torch training: it looks now and then, writes what it sees, and changes nothing."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models.lens import Lens
from tsfm_lens.training.watch.attention import EPSILON, Patterns, attention_measures, checked, layer_entry, patterns_of
from tsfm_lens.training.watch.guard import Losses, listed, trainable, undisturbed
from tsfm_lens.training.watch.record import Record, plain
from tsfm_lens.training.watch.sharpness import gradient_noise, sharpness

__all__ = ["Watch"]

Measure = Callable[[], Mapping[str, float]]
"""Numbers by name, of the model as it is."""
Steps = int | Collection[int]


class Watch:
    """Watch on a model while it is trained, by any loop, which ends with the same bits with and without it.

    Call ``watch(step)`` or ``watch(step, loss=loss)`` after each optimiser step.

    Args:
        model: the module that is trained, or a lens on it.
        measures: names among "sharpness", "gradient_noise" and "attention", and functions that give numbers by name;
            all that the arguments below allow if None.
        every: steps between two looks, from step 0 on; or the steps themselves.
        out: folder of the record, ``watch.jsonl`` and ``patterns/``; kept in memory alone if None.
        loss: gives the scalar loss of fixed data; of several batches the sharpness is that of their mean.
        series: what a lens looks at attention on.
        patterns: gives the attention of a model without a lens by layer, (…, head, query, key).
        snapshots: when to keep the patterns themselves, as ``every``, of so many ``inputs``; never if None.
        products, tolerance: see :func:`tsfm_lens.training.sharpness`.
        epsilon: see :func:`tsfm_lens.training.attention_measures`.
        seed: of the random numbers of the measures.
        training: whether the model is measured in training mode (with its dropout).
        name: of the run; that of the model if "".
        resume: go on with the record in ``out``, without what was seen after the step of the first call, or this one.

    Raises:
        InputError: a number is out of range, or a measure lacks what it measures.
        CheckpointError: ``out`` holds the record of another run, or one that is not to be resumed.

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
        self.model: nn.Module = model.adapter.model if isinstance(model, Lens) else model
        self._losses = [] if loss is None else listed(loss)
        if series is not None:
            if patterns is not None:
                raise InputError("got both series and patterns; attention is looked at in one way")
            if not isinstance(model, Lens):
                raise InputError(f"series are for a lens, not for a {type(model).__name__}; give patterns=… instead")
            patterns = partial(patterns_of, model, series)
        self._patterns = patterns
        self.every = _steps(every, "every")
        self.snapshots = frozenset[int]() if snapshots is None else _steps(snapshots, "snapshots")
        if inputs < 1 or products < 1:
            raise InputError(f"inputs={inputs}, products={products}; expected 1 or more")
        if snapshots is not None and self._patterns is None:
            raise InputError("snapshots keep attention: give series to a lens, or patterns=…")
        self.epsilon, self.seed, self.training, self._inputs = epsilon, seed, training, inputs
        self._products, self._tolerance = products, tolerance
        self.measures = self._select_measures(measures)
        model_name = model.model_id if isinstance(model, Lens) else type(model).__name__
        shapes = str([(key, tuple(weight.shape)) for key, weight in self.model.named_parameters()])
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
        self.record = Record(None if out is None else Path(out), settings, resume=resume is not False)
        self._resume_pending = resume is True
        self._last: int | None = None
        if resume is not True and resume is not False:
            self.record.drop_after(int(resume))

    def __call__(self, step: Any, loss: Tensor | float | None = None) -> dict[str, Any] | None:
        """Look, if the step is due; return the line of the record, or None.

        Args:
            step: optimiser steps done; or what has them as ``step``, such as :class:`tsfm_lens.training.Training`.
            loss: of the step, for the record.

        Raises:
            InputError: steps do not grow, a loss is not finite, or a measure cannot be had.
        """
        at = step if isinstance(step, int) else int(getattr(step, "step", step))
        if self._resume_pending:
            self._resume_pending = False
            self.record.drop_after(at)
        if self._last is not None and at <= self._last:
            raise InputError(f"step {at} after step {self._last}; steps grow, unless a run is resumed")
        self._last = at
        due, keep = (
            at % steps == 0 if isinstance(steps, int) else at in steps for steps in (self.every, self.snapshots)
        )
        if not (due or keep) or (self.record.rows and self.record.rows[-1]["step"] >= at):
            return None
        values: dict[str, float | None] = {} if loss is None or not due else {"loss": self._finite_loss(at, loss)}
        row: dict[str, Any] = {"step": at, "values": values, "attention": {}}
        with undisturbed(self.model, seed=self.seed, training=self.training):
            for name, measure in self.measures.items() if due else ():
                if name != "attention":
                    numbers = measure()
                    try:
                        values |= {str(key): plain(float(value)) for key, value in numbers.items()}
                    except (AttributeError, TypeError, ValueError) as error:
                        raise InputError(f"the measure {name!r} gave {numbers!r}; expected numbers by name") from error
            patterns: dict[str, Tensor] = {}
            if self._patterns is not None and (keep or (due and "attention" in self.measures)):
                with torch.no_grad():
                    patterns = checked(self._patterns())
        if due and "attention" in self.measures:
            for name, pattern in patterns.items():
                # rows of one layer are all square or none is, so that a mean is missing or of all
                measures = attention_measures(pattern, epsilon=self.epsilon)
                entry = {key: [plain(value) for value in one.mean(axis=0)] for key, one in measures.items()}
                row["attention"][name] = layer_entry(pattern, entry)
        snapshot = {name: one[: self._inputs].float().cpu().numpy() for name, one in patterns.items()} if keep else None
        self.record.add(row, snapshot)
        return row

    def dataset(self) -> xr.Dataset:
        """Return all that was recorded so far; see :func:`tsfm_lens.training.read_watch`."""
        return self.record.dataset()

    def _select_measures(self, measures: Sequence[str | Measure] | None) -> dict[str, Measure]:
        """Select functions by name; "attention" is looked up by itself, since snapshots share its forward pass."""
        needs_loss = "loss=…, a function that gives the loss of fixed data"
        needs_losses = "loss=[…], functions that give the loss of a batch each"
        builtin: dict[str, tuple[Measure, bool, str]] = {
            "sharpness": (self._sharpness, bool(self._losses), needs_loss),
            "gradient_noise": (self._gradient_noise, len(self._losses) > 1, needs_losses),
            "attention": (dict, self._patterns is not None, "series=… of a lens, or patterns=…"),
        }
        if measures is None:
            return {name: measure for name, (measure, possible, _) in builtin.items() if possible}
        if isinstance(measures, str):
            raise InputError(f"measures={measures!r}; expected several, as in measures=[{measures!r}]")
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
        result = sharpness(self._losses, weights, steps=self._products, tolerance=self._tolerance, seed=self.seed)
        ends = {"sharpness": result.largest, "sharpness_residual": result.largest_residual}
        ends |= {"lowest_curvature": result.smallest, "lowest_curvature_residual": result.smallest_residual}
        trace = {"hessian_trace": result.trace, "hessian_trace_error": result.trace_error}
        return {**ends, "watched_loss": result.loss, **trace}

    def _gradient_noise(self) -> dict[str, float]:
        result = gradient_noise(self._losses, trainable(self.model))
        squared = {"gradient_variance": result.variance, "gradient_squared_norm": result.squared_norm}
        return {**squared, "noise_scale": result.scale}

    def _finite_loss(self, step: int, loss: Tensor | float) -> float:
        value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        if not np.isfinite(value):
            last = "".join(
                f"the last finite one was {row['values']['loss']:.4g} at step {row['step']}; "
                for row in [row for row in self.record.rows if "loss" in row["values"]][-1:]
            )
            raise InputError(f"the loss is {value} at step {step}; {last}what was seen until then is kept")
        return value


def _steps(steps: Steps, what: str) -> int | frozenset[int]:
    if isinstance(steps, bool) or (isinstance(steps, int) and steps < 1):
        raise InputError(f"{what}={steps}; expected a number of steps from 1 on, or the steps themselves")
    if isinstance(steps, int):
        return steps
    step_set = frozenset(int(step) for step in steps)
    if not step_set or min(step_set) < 0:
        raise InputError(f"{what}={sorted(step_set)}; expected steps from 0 on")
    return step_set
