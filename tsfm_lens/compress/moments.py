"""Second moments of the inputs of a model's matrices over calibration series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tsfm_lens.compress.matrices import matrices
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.replay import seen_inputs
from tsfm_lens.models.run import Run

__all__ = ["second_moments"]

# series in one forward; what enters is added up at once and never held
_AT_ONCE = 32


def second_moments(run: Run, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Compute the mean of x xᵀ over what enters each matrix in single forwards over a run's series.

    Series of one length go through the model together, so that no padding is counted. Memory does not grow with their
    number. Of a token model the decoder follows the run's path.

    Args:
        run: a forecast of the calibration series, over a horizon of one pass.
        names: of the matrices (see :func:`matrices`); those of all attentions if None.

    Returns:
        By name, (in, in) in double precision, on the CPU.

    Raises:
        UnknownNameError: no such matrix.
        InputError: one pass of the model does not cover the horizon, nothing entered a matrix, or what entered is not
            finite.

    Example:
        >>> moments = compress.second_moments(run, ["decoder_blocks.0.cross_attn.q"])
        >>> moments["decoder_blocks.0.cross_attn.q"].shape == (lens.d_model, lens.d_model)
        True
    """
    lens = run.lens
    by_name = matrices(lens)
    keys = list(by_name if names is None else names)
    if not set(keys) <= set(by_name):
        by_name = matrices(lens, mlps=True)
    for name in keys:
        if name not in by_name:
            raise unknown_name("matrix", name, by_name)
    of_path = {by_name[name].path: name for name in keys}
    sums = {name: torch.zeros(by_name[name].shape[1], by_name[name].shape[1], dtype=torch.float64) for name in keys}
    counts = dict.fromkeys(keys, 0)
    # queries, keys and values read one tensor, whose moment is taken once
    last: list[tuple[Tensor, Tensor]] = []

    def look(path: str, x: Tensor) -> None:
        name = of_path[path]
        # what is held cannot be another tensor's memory
        if not (last and _same(last[0][0], x)):
            rows = x.reshape(-1, x.shape[-1]).double()
            last[:] = [(x, (rows.T @ rows).cpu())]
        sums[name] += last[0][1]
        counts[name] += x.numel() // x.shape[-1]

    with torch.no_grad(), seen_inputs(lens.adapter.model, of_path, look):
        for part in alike(run):
            lens.adapter.run(part.encoded.inputs)
    for name in keys:
        if not counts[name] or not bool(torch.isfinite(sums[name]).all()):
            what = "is not finite" if counts[name] else "is nothing: the forward never calls it"
            raise InputError(f"what enters {name} on the calibration series {what}; give other series")
    return {name: sums[name] / counts[name] for name in keys}


def _same(one: Tensor, other: Tensor) -> bool:
    return all(of(one) == of(other) for of in (Tensor.data_ptr, Tensor.size, Tensor.stride, lambda x: x._version))


def alike(run: Run) -> Iterator[Run]:
    """Split a run into parts, each of series of one length and one number of variates."""
    items: dict[str, list[int]] = {}
    for index, group in enumerate(run.batch.groups):
        items.setdefault(group, []).append(index)
    alike: dict[tuple[int, ...], list[list[int]]] = {}
    for members in items.values():
        alike.setdefault(tuple(run.batch.lengths[index] for index in members), []).append(members)
    for same in alike.values():
        for first in range(0, len(same), _AT_ONCE):
            rows = [index for members in same[first : first + _AT_ONCE] for index in members]
            along = run.path[rows] if run.tokens_read else None
            yield run.lens.run(run.batch.select(rows), run.horizon, along=along)
