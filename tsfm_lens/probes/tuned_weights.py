"""Weights that carry a fine-tuning, as one nested list of rows.

:func:`tuned_weights` scores every row of every changed matrix by a trained mask, and
certifies on held-out series how few of them keep the gain. The training of scores is
that of ``learned_scores``; what whole components carry is in ``weight_effects``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import Result, add_estimates, check_share
from tsfm_lens.hooks.wiring import Attention, Mlp
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import Measure, noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.learned_scores import (
    MaskLoss,
    divide,
    hard_masks,
    train_scores,
)
from tsfm_lens.probes.weight_effects import (
    log_error_change,
    named_pair,
    open_lens,
    rerun,
)

__all__ = ["tuned_weights"]

_SOURCE = (
    "rows of the weight change scored by a learned mask: Matryoshka Attribution,"
    " arXiv:2609.25518"
)


def tuned_weights(
    base: Any,
    tuned: Any,
    run: Run,
    *,
    carried: float = 0.9,
    steps: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    """List the rows of weights that fine-tuning changed, those that matter most first.

    A row is what one unit reads or writes: a row of a matrix that reads the stream, and
    a column of one that writes to it, W_O or the output matrix of an MLP; of a vector
    each entry. The model between both has the weights W_base + m (W_tuned - W_base),
    with a mask m over rows, whose scores are chosen as in :func:`learned_scores`: the
    loss is 0 for the forecast of the tuned model, and 1 for that of the base. The norm
    of each row's change is one more candidate.

    The series are divided at random into three parts. Scores are learned on the first,
    the second chooses the scores and the shortest list that keeps the share ``carried``
    of the gain, and the third, which nothing was chosen by, says what this list keeps.
    Windows of one series are divided, too; they are not independent of each other.

    Args:
        base: lens, name or folder of the model, or the model of its own library.
        tuned: the same, without unmerged adapters.
        run: three series or more, horizon, and truth; of any lens. A token model
            follows the path of the tuned one.
        carried: share of the gain that the list has to keep.
        steps: of each training; 60 are enough for the rows of small models.
        seed: of the training and the division of the series.
        progress: called with (done, of), in steps.

    Returns:
        Dataset of kind "tuned_weights" over ``row``, the highest score first, and the
        held-out series of the third part:

        - ``score`` (row): less that of the lowest.
        - ``norm`` (row): of its change.
        - ``cumulative_weights`` (row): share of the changed weights up to this row.
        - ``kept`` (size, series): share of the change of the forecast that so many rows
          keep, 1 - ‖ŷ(m) - ŷ‖² / ‖ŷ_base - ŷ‖².
        - ``gain`` (size): share of the gain that they keep. With a truth it is that of
          the mean logarithm of the absolute error; without one, or if the tuned model
          is no better than the base, the mean of ``kept``.
        - ``error_change`` (size, series): with a truth, logarithm of the error over
          that of the tuned model.
        - ``cost`` (series): with a truth, that of the list, with what
          :func:`.estimates.add_estimates` adds.

        Coordinates of a row are its ``matrix`` and its ``index`` there, those of a size
        the ``share`` of the changed weights. Attributes: ``rows``, the length of the
        list; ``weights``, the share of the changed weights that are in it; ``changed``,
        their number; ``gain_of``, "error" or "forecast"; ``best_method`` and
        ``best_step``.

    Raises:
        InputError: the models are not of one architecture and size, or equal; fewer
            than three series; tuning changes no forecast; and what
            :func:`learned_scores` refuses.

    Source:
        Matryoshka Attribution, arXiv:2609.25518.

    Example:
        >>> import copy
        >>> tuned = copy.deepcopy(lens)
        >>> _ = next(tuned.model.parameters()).data.mul_(1.1)
        >>> three = lens.run([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 4.0, 2.0]], 2)
        >>> found = probes.tuned_weights(lens, tuned, three, steps=2)
        >>> bool(found["gain"][-1] == 1)
        True
    """
    check_share(carried, "carried")
    base_lens, _ = open_lens(base)
    tuned_lens, adapters = open_lens(tuned)
    if adapters:
        raise InputError(
            f"the tuned model has {len(adapters)} adapters that are not merged; merge"
            " them first: model.merge_and_unload()"
        )
    changes = _list_changes(base_lens, tuned_lens)
    count = sum(len(change.rows) for change in changes)
    mixed = _Mixed(tuned_lens, changes)
    losses = [
        MaskLoss(part, partial(mixed.forecast, part), count)
        for part, _ in divide(rerun(tuned_lens, run), 3, seed)
    ]
    learning, choosing, certifying = losses
    norms = torch.cat([torch.from_numpy(change.norms) for change in changes])
    trained = train_scores(
        learning,
        choosing,
        count,
        steps,
        seed,
        progress,
        known={"norm": norms.to(learning.full)},
    )
    scores = trained.scores
    masks = hard_masks(learning.full.new_tensor(scores), trained.sizes)
    gain_of = "forecast"
    # an error that tuning does not lower has no gain to share, nor has an unknown one
    if _error_gain(choosing) > 0 and _error_gain(certifying) > 0:
        gain_of = "error"
    gain = _curve(choosing, masks, gain_of)["gain"].values
    # the first size from which on all lists keep enough; the full one keeps all
    chosen = len(gain) - int(np.argmin(np.append(gain[::-1] >= carried, False)))
    rows = trained.sizes[chosen]
    data = _with_rows(_curve(certifying, masks, gain_of), changes, scores)
    share = np.concatenate([[0.0], data["cumulative_weights"].values])
    data = data.assign_coords(size=trained.sizes, share=("size", share[trained.sizes]))
    part = certifying.run
    if gain_of == "error":
        floor = noise_floor(part, _error_change(part))
        data["cost"] = data["error_change"][chosen]
        data = add_estimates(data, "cost", floor=floor, signed=True)
    data.attrs = part.describe(
        "tuned_weights",
        "Weights that carry a fine-tuning",
        _SOURCE,
        base=base_lens.model_id,
        carried=carried,
        steps=steps,
        **trained.attributes,
        rows=rows,
        weights=float(share[rows]),
        changed=int(sum(change.weights.sum() for change in changes)),
        gain_of=gain_of,
        learned_on=len(learning.run.batch),
        chosen_on=len(choosing.run.batch),
    )
    return Result(data.data_vars, data.coords, data.attrs)


@dataclass(frozen=True, eq=False)
class _Change:
    """Change of one parameter, and its rows that differ.

    Attributes:
        name: of the parameter.
        axis: along which its rows are counted.
        base, tuned: its values.
        rows: indices along the axis (row,).
        weights: number of weights of each row that differ.
        norms: of the change of each row.
    """

    name: str
    axis: int
    base: Tensor
    tuned: Tensor
    rows: Tensor
    weights: np.ndarray
    norms: np.ndarray

    def mixed(self, mask: Tensor) -> Tensor:
        """Return the parameter with a mask (row,) over the rows that differ."""
        shape = [1] * self.tuned.ndim
        shape[self.axis] = self.tuned.shape[self.axis]
        kept = mask.new_ones(shape[self.axis]).index_copy(0, self.rows, mask)
        # lerp is exact at both ends
        return torch.lerp(self.base, self.tuned, kept.to(self.tuned).reshape(shape))


class _Mixed(nn.Module):
    """Model between base and tuned, which can be run with other weights."""

    def __init__(self, lens: Lens, changes: Sequence[_Change]) -> None:
        super().__init__()
        self.model = lens.model
        self.run_forward = lens.forward
        self.changes = changes

    def forward(self, encoded: Encoded) -> Tensor:
        """Run the model, with the weights that it has at this time."""
        return self.run_forward(encoded)

    def forecast(self, run: Run, mask: Tensor) -> Tensor:
        """Forecast with the rows of a mask tuned, and the others as in the base."""
        parts = mask.split([len(change.rows) for change in self.changes])
        weights = {
            f"model.{change.name}": change.mixed(part)
            for change, part in zip(self.changes, parts, strict=True)
        }
        output = torch.func.functional_call(self, weights, (run.encoded,))
        return run.read(output, run.encoded)


def _list_changes(base: Lens, tuned: Lens) -> list[_Change]:
    """List the parameters that differ, in the order of the model."""
    old, new = named_pair(base, tuned)
    writing = {id(weight) for weight in _list_writing(tuned)}
    changes = []
    for name, parameter in new.items():
        after = parameter.detach()
        before = old[name].detach().to(after)
        if not after.ndim or torch.equal(before, after):
            continue
        axis = int(id(parameter) in writing)
        difference = (after - before).double().movedim(axis, 0)
        difference = difference.reshape(len(difference), -1)
        weights = (difference != 0).sum(1)
        rows = weights.nonzero()[:, 0]
        norms = difference.norm(dim=1)[rows]
        changes.append(
            _Change(
                name,
                axis,
                before,
                after,
                rows,
                weights[rows].cpu().numpy(),
                norms.cpu().numpy(),
            )
        )
    if not changes:
        raise InputError(
            f"nothing differs: {tuned.model_id} is the base model {base.model_id},"
            " weight for weight"
        )
    return changes


def _list_writing(lens: Lens) -> Iterator[Tensor]:
    """Yield the matrices whose columns belong to units that write to the stream."""
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for writer in stack.rows(layer):
                if isinstance(writer, Attention):
                    path, name = writer.o.module, writer.o.weight
                elif isinstance(writer, Mlp):
                    path, name = writer.o, "weight"
                else:
                    continue
                module = lens.model.get_submodule(f"{stack.block(layer)}.{path}")
                weight = getattr(module, name, None)
                if isinstance(weight, Tensor) and weight.ndim > 1:
                    yield weight


def _error_change(run: Run) -> Measure:
    """Return the measure of a change of the error, NaN where no truth is known."""
    truth = run.truth
    if truth is None:
        truth = np.full((len(run.batch), run.horizon), np.nan)
    return log_error_change(run, truth)


def _error_gain(loss: MaskLoss) -> float:
    """Return how far tuning lowers the mean logarithm of the error; NaN unknown."""
    full, nothing = (part.cpu().double().numpy() for part in (loss.full, loss.nothing))
    change = xr.DataArray(_error_change(loss.run)(nothing, full))
    # xarray leaves out series whose truth is not known
    return float(change.mean())


def _curve(loss: MaskLoss, masks: Sequence[Tensor], gain_of: str) -> xr.Dataset:
    """Return what the rows of each mask keep of the change, and of the gain."""
    with torch.no_grad():
        forecasts = torch.stack([loss.forecast(mask) for mask in masks])
        lost = loss.of(forecasts)
    data = loss.run.dataset()
    data["kept"] = (("size", "series"), 1 - lost.cpu().double().numpy())
    data["gain"] = data["kept"].mean("series")
    if gain_of == "error":
        full = loss.full.cpu().double().numpy()
        change = _error_change(loss.run)(forecasts.cpu().double().numpy(), full)
        data["error_change"] = (("size", "series"), change)
        data["gain"] = 1 - data["error_change"].mean("series") / _error_gain(loss)
    return data


def _with_rows(
    data: xr.Dataset, changes: Sequence[_Change], scores: np.ndarray
) -> xr.Dataset:
    """Add the rows of all changes, the highest score first."""
    order = np.argsort(-scores, kind="stable")
    matrices = np.repeat(
        [change.name for change in changes], [len(change.rows) for change in changes]
    )[order]
    indices = torch.cat([change.rows for change in changes]).cpu().numpy()[order]
    weights = np.concatenate([change.weights for change in changes])[order]
    norms = np.concatenate([change.norms for change in changes])[order]
    data = data.assign_coords(
        row=[f"{name} {at}" for name, at in zip(matrices, indices, strict=True)],
        matrix=("row", matrices),
        index=("row", indices),
    )
    return data.assign(
        score=("row", scores[order]),
        norm=("row", norms),
        cumulative_weights=("row", weights.cumsum() / weights.sum()),
    )
