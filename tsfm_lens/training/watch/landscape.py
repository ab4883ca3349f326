"""Slices through a loss, along directions that are scaled as the weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.training.watch.guard import Losses, draws_kept, finite, listed, trainable

__all__ = ["filter_normalised", "loss_landscape"]

Direction = Sequence[Tensor]
_AXES = ("first", "second")


def loss_landscape(
    loss: Losses,
    parameters: nn.Module | Iterable[Tensor],
    *,
    axes: int = 2,
    directions: Sequence[Direction] | None = None,
    span: float = 1.0,
    points: int = 21,
    seed: int = 0,
    name: str = "",
) -> xr.Dataset:
    """Compute the loss at w + a·d, or at w + a·d + b·e, on a grid around the weights w, which are never written to.

    Args:
        loss: gives the scalar loss of fixed data; the mean of several.
        parameters: the weights, or the model of which all that are trained are meant.
        axes: 1 or 2 random directions.
        directions: one or two of your own, a tensor a weight.
        span: how far the grid goes to each side; 1 is as long as the weights are, filter by filter.
        points: on each axis; an odd number has the weights themselves among them.
        seed: of the directions.
        name: of the model.

    Returns:
        Dataset of kind "loss_landscape": ``loss`` over (first) or (first, second), which count in directions, not
        always finite. ``attrs["centre"]`` is the loss at the weights.

    Raises:
        InputError: a number is out of range, a direction has other shapes than the weights, or the loss at the weights
            is not finite.

    Source:
        Li et al. 2018, Visualizing the loss landscape of neural nets, arXiv:1712.09913, section 4.

    Example:
        >>> w = torch.ones(1, 2, requires_grad=True)
        >>> found = training.loss_landscape(lambda: (w**2).sum(), [w], axes=1, points=3)
        >>> float(found["loss"][1])
        2.0
    """
    losses, weights = listed(loss), trainable(parameters)
    origin = "given" if directions is not None else f"random, seed {seed}"
    if directions is None:
        if axes not in (1, 2):
            raise InputError(f"axes={axes!r}; expected 1 or 2")
        generators = [torch.Generator().manual_seed(2 * seed + axis) for axis in range(axes)]
        directions = [
            [torch.randn(weight.shape, generator=each, dtype=torch.float64) for weight in weights]
            for each in generators
        ]
    if len(directions) not in (1, 2):
        raise InputError(f"got {len(directions)} directions; expected 1 or 2")
    if points < 2 or not 0 < span < np.inf:
        raise InputError(f"points={points}, span={span}; expected 2 points or more and a span above 0")
    unit_directions = [filter_normalised(direction, weights) for direction in directions]
    grid = np.linspace(-span, span, points)
    # the middle of a grid is the weights themselves, to the bit
    grid[np.abs(grid) < 1e-9 * span] = 0.0
    values = np.empty([points] * len(unit_directions))
    with draws_kept() as again, torch.no_grad():

        def height() -> Tensor:
            heights = []
            for each in losses:
                again()
                heights.append(each().reshape(()).double())
            return torch.stack(heights).mean()

        centre = float(finite(height()))
        with _in_place_of(weights) as move:
            for place in np.ndindex(*values.shape):
                move(zip(grid[list(place)], unit_directions, strict=True))
                values[place] = float(height())
    names = _AXES[: len(unit_directions)]
    data = xr.Dataset({"loss": (names, values)}, coords=dict.fromkeys(names, grid))
    facts = {"kind": "loss_landscape", "title": "Loss around the weights", "source": "Li et al. 2018, section 4"}
    data.attrs = {**facts, "model": name, "centre": centre, "directions": origin}
    return data


def filter_normalised(direction: Direction, weights: Sequence[Tensor]) -> list[Tensor]:
    """Scale the rows of a direction to the length of those of the weights, tensor by tensor; vectors get no direction.

    Example:
        >>> weights = [torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.ones(2)]
        >>> [part.tolist() for part in training.filter_normalised([torch.ones(2, 2), torch.ones(2)], weights)]
        [[[3.53..., 3.53...], [1.41..., 1.41...]], [0.0, 0.0]]
    """
    shapes = [[tuple(part.shape) for part in parts] for parts in (direction, weights)]
    if shapes[0] != shapes[1]:
        wrong = next((pair for pair in zip(*shapes, strict=False) if pair[0] != pair[1]), tuple(map(len, shapes)))
        raise InputError(f"the direction has {wrong[0]} where the weights have {wrong[1]}; expected a tensor a weight")
    out = []
    for part, weight in zip(direction, weights, strict=True):
        with torch.no_grad():
            if weight.ndim < 2:
                out.append(torch.zeros_like(weight))
                continue
            part = part.to(weight.device, weight.dtype)
            lengths = [each.flatten(1).norm(dim=1).view(-1, *[1] * (weight.ndim - 1)) for each in (weight, part)]
            out.append(part * torch.where(lengths[1] > 0, lengths[0] / lengths[1], torch.zeros_like(lengths[0])))
    return out


@contextmanager
def _in_place_of(weights: Sequence[Tensor]) -> Iterator[Callable[[Iterable[tuple[float, Direction]]], None]]:
    """Yield a function that moves the weights along directions, and in the end restore the weights."""
    originals = [weight.data for weight in weights]

    def move(steps: Iterable[tuple[float, Direction]]) -> None:
        parts = [originals, *([float(much) * part for part in direction] for much, direction in steps if much)]
        for weight, *summands in zip(weights, *parts, strict=True):
            weight.data = sum(summands[1:], start=summands[0])

    try:
        yield move
    finally:
        try:
            move([])
        except KeyboardInterrupt:
            # a Ctrl-C that falls into this is let through afterwards
            move([])
            raise
