"""Cost of a model beside another one: time, operations and memory of a forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch.utils.flop_counter import FlopCounterMode

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.timing import in_turn, measured

__all__ = ["cost"]

ROUNDS = 9
SHAPES = ((1, 512), (16, 512))
_HORIZON = 16


def cost(
    whole: Lens, other: Lens, *, shapes: Sequence[tuple[int, int]] = SHAPES, rounds: int = ROUNDS, seed: int = 0
) -> xr.Dataset:
    """Measure time, operations and memory of one forward of two models on the same inputs.

    Args:
        whole: the one.
        other: the other, as a rule the compressed one.
        shapes: (series, steps of context); contexts longer than the model's are cut to it.
        rounds: how often each is timed, in turn.
        seed: of the series, random walks.

    Returns:
        Dataset of kind "compression_cost" over ``shape`` ("16 x 512"): ``time_ratio`` with ``time_ratio_low`` and
        ``…_high``, the median, least and largest ratio over rounds; ``operation_ratio``, what multiplications and
        additions allow; and by ``model`` ("whole", "other") ``seconds``, the median, ``operations``,
        ``weight_bytes`` and ``peak_bytes``, weights and the most that a forward held beyond them.

    Raises:
        InputError: no shape, one that is not of positive numbers, or fewer than one round.

    Example:
        >>> found = compress.cost(lens, lens, shapes=[(2, 64)], rounds=1)
        >>> found["operation_ratio"].values.tolist()
        [1.0]
    """
    if not shapes or min(min(shape) for shape in shapes) < 1 or rounds < 1:
        raise InputError(f"shapes {list(shapes)} and {rounds} rounds; expected positive numbers, at least one of each")
    longest = whole.adapter.context_length
    unique_shapes = dict.fromkeys((batch, min(steps, longest)) for batch, steps in shapes)
    rows = [_row(whole, other, *shape, rounds, seed) for shape in unique_shapes]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    data = xr.Dataset(
        {name: (("shape", "model")[: value.ndim], value) for name, value in columns.items()},
        coords={"shape": [f"{batch} x {steps}" for batch, steps in unique_shapes], "model": ["whole", "other"]},
    )
    return data.assign_attrs(
        kind="compression_cost", model=whole.model_id, other=other.model_id, rounds=rounds, device=str(whole.device)
    )


def _row(whole: Lens, other: Lens, batch: int, steps: int, rounds: int, seed: int) -> dict[str, Any]:
    walks = np.random.default_rng(seed).standard_normal((batch, steps)).cumsum(axis=1)
    future = np.zeros((batch, _HORIZON)) if whole.adapter.readout == "token" else None
    inputs = whole.encode(as_series(list(walks)), future=future).inputs
    forwards = [partial(_forward, lens, inputs) for lens in (whole, other)]
    times = np.array(in_turn(forwards, rounds=rounds))
    over = times[1] / times[0]
    operations, peaks = [], []
    for lens, forward in zip((whole, other), forwards, strict=True):
        with FlopCounterMode(display=False) as counter:
            forward()
        operations.append(int(counter.get_total_flops()))
        peaks.append(measured(forward, lens.device)[1] + _weight_bytes(lens))
    return {
        "time_ratio": float(np.median(over)),
        "time_ratio_low": float(over.min()),
        "time_ratio_high": float(over.max()),
        "operation_ratio": operations[1] / operations[0],
        "seconds": np.median(times, axis=1).tolist(),
        "operations": operations,
        "weight_bytes": [_weight_bytes(lens) for lens in (whole, other)],
        "peak_bytes": peaks,
    }


def _forward(lens: Lens, inputs: Any) -> None:
    with torch.no_grad():
        lens.adapter.run(inputs)
    if lens.device.type == "cuda":
        torch.cuda.synchronize(lens.device)


def _weight_bytes(lens: Lens) -> int:
    module = lens.adapter.model
    sizes = {id(part): part.numel() * part.element_size() for part in (*module.parameters(), *module.buffers())}
    return sum(sizes.values())
