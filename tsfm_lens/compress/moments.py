"""Second moments over calibration series of what enters each matrix, and of the gradient at what leaves it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.compress.matrices import matrices_by_name
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.replay import seen_inputs
from tsfm_lens.models.adapter import refuse_gradients
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

# series in one forward; what enters is added up at once and never held
_AT_ONCE = 32
DRAWS = 4


def second_moments(run: Run, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Compute the mean of x xᵀ over what enters each matrix in single forwards over a run's series, on its path."""
    by_name = matrices_by_name(run.lens, names)
    name_of = {matrix.path: name for name, matrix in by_name.items()}
    sums = {name: torch.zeros(2 * matrix.shape[1:], dtype=torch.float64) for name, matrix in by_name.items()}
    counts = dict.fromkeys(by_name, 0)
    # queries, keys and values read one tensor, whose moment is taken once
    last: list[tuple[Tensor, Tensor]] = []

    def add(path: str, x: Tensor) -> None:
        if not (last and last[0][0] is x):
            last[:] = [(x, _square(x))]
        sums[name_of[path]] += last[0][1]
        counts[name_of[path]] += x.numel() // x.shape[-1]

    with torch.no_grad(), seen_inputs(run.lens.adapter.model, name_of, add):
        for part in _parts_of_one_length(run):
            run.lens.adapter.run(part.encoded.inputs)
    return _means(sums, counts, "what enters {}", "is nothing: the forward never calls it")


def _means(sums: Mapping[str, Tensor], counts: Mapping[str, int], what: str, missing: str) -> dict[str, Tensor]:
    for name, total in sums.items():
        if not counts[name] or not bool(torch.isfinite(total).all()):
            fault = "is not finite" if counts[name] else missing
            raise InputError(f"{what.format(name)} on the calibration series {fault}; give other series")
    return {name: total / counts[name] for name, total in sums.items()}


def _square(x: Tensor) -> Tensor:
    """Sum x xᵀ over all rows, in double precision, on the CPU."""
    rows = x.reshape(-1, x.shape[-1]).double()
    return (rows.T @ rows).cpu()


def _parts_of_one_length(run: Run) -> Iterator[Run]:
    """Split a run into parts, each of series of one length and one number of variates."""
    items, alike = defaultdict[str, list[int]](list), defaultdict[tuple[int, ...], list[list[int]]](list)
    for index, group in enumerate(run.batch.groups):
        items[group].append(index)
    for members in items.values():
        alike[tuple(run.batch.lengths[index] for index in members)].append(members)
    for same in alike.values():
        for first in range(0, len(same), _AT_ONCE):
            rows = [index for members in same[first : first + _AT_ONCE] for index in members]
            forced_path = run.path[rows] if run.tokens_read else None
            yield run.lens.run(run.batch.select(rows), run.horizon, forced_path=forced_path)


def output_sensitivity(
    run: Run, names: Iterable[str] | None = None, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Tensor]:
    """Compute the mean of g gᵀ over what leaves each matrix; the square of g is the forecast's deviation."""
    refuse_gradients(run.lens.wiring)
    by_name = matrices_by_name(run.lens, names)
    twin = copy.deepcopy(run.lens)
    sums = {name: torch.zeros(2 * matrix.shape[:1], dtype=torch.float64) for name, matrix in by_name.items()}
    counts = dict.fromkeys(by_name, 0)

    def tapped(name: str, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def add(gradient: Tensor) -> None:
            sums[name] += _square(gradient)
            counts[name] += gradient.numel() // gradient.shape[-1]

        def tap(*args: Any, **kwargs: Any) -> Tensor:
            output = forward(*args, **kwargs)
            output.register_hook(add)
            return output

        return tap

    for name, matrix in by_name.items():
        layer: Any = twin.adapter.model.get_submodule(matrix.path)
        layer.__dict__["forward"] = tapped(name, layer.forward)
    generator = torch.Generator().manual_seed(seed)
    for part in _parts_of_one_length(run):
        inputs = part.encoded.inputs
        for _ in range(draws):
            with torch.enable_grad():
                _random_scalar(twin, part, twin.adapter.run(inputs), generator).backward()
    return _means(sums, counts, "the gradient at {}", "never came back")


def _random_scalar(lens: Lens, run: Run, output: Tensor, generator: torch.Generator) -> Tensor:
    """Compute a scalar whose gradient has the deviation's curvature as its mean square."""
    if run.tokens_read:
        logs = output.float().log_softmax(-1)
        flat = logs.detach().exp().flatten(0, -2).cpu()
        tokens = torch.multinomial(flat, 1, generator=generator).reshape(*logs.shape[:-1], 1).to(logs.device)
        return logs.gather(-1, tokens).sum()
    spread = np.array([np.nanstd(series) for series in run.batch.values])
    scale = torch.as_tensor(np.where(spread > 0, spread, 1.0)).to(output)
    signs = (torch.randint(0, 2, output.shape, generator=generator) * 2 - 1).to(output)
    return (output * signs / scale[:, None, None])[..., : run.horizon].sum()
