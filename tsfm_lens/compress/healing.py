"""Healing: a short training of a compressed model on the user's own series.

:func:`healed` trains the compressed layers alone. It uses the loop of
:mod:`tsfm_lens.training` and the losses of :mod:`tsfm_lens.training.losses`, which
exist for two architectures, Chronos and Chronos-Bolt. Others cannot be healed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.compress.layers import Compressed
from tsfm_lens.core.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.training import Plan, Training
from tsfm_lens.training.losses import (
    TrainingStage,
    patch_loss,
    token_loss,
    trapezoid_rate,
)
from tsfm_lens.training.series_source import LENGTH, Corpus, SeriesSource

__all__ = ["healed"]

KINDS = {"chronos": "token", "chronos-bolt": "patch"}
"""Kind of the training loss of each architecture that has one."""
# a corpus is divided into named families; the caller's series are the only one here
_FAMILY = "own"


def healed(
    lens: Lens,
    run: Run,
    *,
    steps: int = 200,
    learning_rate: float = 1e-3,
    rows: int = 32,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Lens:
    """Train the compressed layers of a copy of a model on the contexts of a run.

    Args:
        lens: model returned by :func:`factorised`, :func:`prune` or
            :func:`compressed`.
        run: run whose contexts, cropped and augmented, are trained on, with its
            horizon. Its truth is not used: futures are cut from the contexts.
        steps: number of training steps, by AdamW.
        learning_rate: highest learning rate; it rises over the first twentieth of the
            steps and falls over the second half.
        rows: series in a batch.
        seed: seed by which batches are drawn.
        progress: called with the number of steps done and that of all steps.

    Returns:
        The trained copy.

    Raises:
        InputError: the architecture has no loss, no layer is compressed, a number is
            out of range, or the loss is not finite.
        KeyboardInterrupt: the training was interrupted.

    Example:
        >>> smaller, _ = compress.compressed(run, 0.25, method="svd")
        >>> healed = compress.healed(smaller, run, steps=2, rows=4)
        >>> compress.sizes(healed) == compress.sizes(smaller)
        True
    """
    kind = KINDS.get(lens.wiring.architecture)
    if kind is None:
        raise InputError(
            f"there is no loss to heal {lens.wiring.architecture!r} by; there is one"
            f" for {', '.join(KINDS)}"
        )
    if steps < 1 or rows < 1 or not learning_rate > 0:
        raise InputError(
            f"steps={steps}, rows={rows}, learning_rate={learning_rate}; expected"
            " above 0"
        )
    trained = copy.deepcopy(lens)
    model: Any = trained.adapter.model
    # biases are not compressed and stay as they are
    weights = [
        parameter
        for module in model.modules()
        if isinstance(module, Compressed)
        for name, parameter in module.named_parameters()
        # one is empty where all rows or columns of a layer were removed
        if name != "bias" and parameter.numel()
    ]
    if not weights:
        raise InputError(
            f"no layer of {lens.model_id} is smaller than its matrix; there is nothing"
            " to heal"
        )
    weight_ids = {id(parameter) for parameter in weights}
    frozen = [
        parameter
        for parameter in model.parameters()
        if id(parameter) not in weight_ids and parameter.requires_grad
    ]
    # gradients of parameters that are not trained would only take time and memory
    for parameter in frozen:
        parameter.requires_grad_(False)
    # the losses run a single forward
    horizon = min(run.horizon, lens.adapter.longest_pass)
    # one stage of one family, for the whole training
    stage = TrainingStage(
        start=0,
        # the source cuts context and horizon from rows of LENGTH steps
        context=min(lens.adapter.context_length, LENGTH - horizon),
        horizon=horizon,
        rows=rows,
        mix={_FAMILY: 1.0},
    )
    values = _rows(run, LENGTH)
    source = SeriesSource(
        Corpus(values, {_FAMILY: (0, len(values))}), seed=seed, device=run.lens.device
    )

    def compute_loss(step: int) -> Tensor:
        past, future = source.batch(
            step, mix=stage.mix, rows=rows, context=stage.context, horizon=horizon
        )
        if kind == "token":
            return token_loss(model, past, future, stage, seed=step)
        return patch_loss(model, past, future, stage)

    rate = partial(
        trapezoid_rate,
        peak=learning_rate,
        first=0,
        last=steps,
        warmup=max(1, steps // 20),
        decay=steps // 2,
    )
    optimizer = torch.optim.AdamW(
        weights, lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.98)
    )
    # neither saved nor evaluated: identity and evaluation are empty
    task: Any = SimpleNamespace(
        model=model, loss=compute_loss, name="healing", identity="{}", evaluate=dict
    )
    training = Training(
        task, optimizer, Plan(steps=steps, clip=1.0, dropout=False), rate=rate
    )
    # the loop ends quietly at a signal, so as to save its state; here a half-trained
    # copy is of no use
    if not training.run(quiet=True, progress=progress):
        raise KeyboardInterrupt
    for parameter in weights:
        # gradients would be copied and kept with the model
        parameter.grad = None
    for parameter in frozen:
        parameter.requires_grad_(True)
    return Lens(trained.adapter, f"{lens.model_id}, healed", lens.revision)


def _rows(run: Run, length: int) -> np.ndarray:
    """Standardise the contexts and cut them into pieces, (piece, length).

    A context shorter than ``length`` is padded with NaN on the left.

    Returns:
        The pieces, as float32.
    """
    rows = []
    for series in run.batch.values:
        spread = np.nanstd(series)
        z_scores = (series - np.nanmean(series)) / (spread if spread > 0 else 1.0)
        # as few pieces as cover the series, overlapping rather than partly empty
        count = max(1, -(-len(z_scores) // length))
        for start in np.linspace(0, max(0, len(z_scores) - length), count).astype(int):
            piece = z_scores[start : start + length]
            rows.append(np.concatenate([np.full(length - len(piece), np.nan), piece]))
    return np.stack(rows).astype(np.float32)
