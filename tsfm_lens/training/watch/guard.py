"""Guards for measuring a model during its training without an effect on it.

:func:`undisturbed` restores gradients, modes, buffers and random numbers after a block,
:func:`preserved_generators` random numbers alone. The other functions check losses and
weights before they are differentiated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tsfm_lens.core.errors import InputError

Loss = Callable[[], Tensor]
"""Gives the scalar loss of fixed data on a model as it is."""
Losses = Loss | Sequence[Loss]


def listed(loss: Losses) -> list[Loss]:
    """Return losses as a list."""
    if callable(loss):
        losses = [loss]
    else:
        losses = list(loss)
    wrong = next((item for item in losses if not callable(item)), None)
    if wrong is not None or not losses:
        if not losses:
            got = "no loss"
        else:
            got = f"a {type(wrong).__name__} as loss"
        raise InputError(
            f"got {got}; expected a function without arguments that gives a scalar, or"
            " several"
        )
    return losses


def trainable(parameters: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    """Return the weights to differentiate by.

    They are those of a module that are trained, or all that are listed.
    """
    weights: list[Tensor] = []
    if isinstance(parameters, nn.Module):
        weights += [
            parameter
            for parameter in parameters.parameters()
            if parameter.requires_grad
        ]
    else:
        weights += parameters
    if not weights:
        raise InputError(
            "no parameters that take a gradient; expected at least one, such as"
            " model.parameters()"
        )
    for weight in weights:
        if not weight.requires_grad or weight.dtype not in _TWICE:
            raise InputError(
                f"a parameter of shape {tuple(weight.shape)} is {weight.dtype} with"
                f" requires_grad={weight.requires_grad}; second derivatives need"
                " float32 or float64 that takes a gradient"
            )
    return weights


_TWICE = (torch.float32, torch.float64)


def finite(value: Tensor) -> Tensor:
    """Return a loss that can be used, as a scalar."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        if isinstance(value, Tensor):
            got = f"shape {tuple(value.shape)}"
        else:
            got = type(value).__name__
        raise InputError(
            f"the loss has {got}; expected a tensor with one number, such as its mean"
            " over the batch"
        )
    if not bool(torch.isfinite(value)):
        number = float(value.detach())
        raise InputError(
            f"the loss is {number}; expected a finite number: look for missing values"
            " in the data"
        )
    return value.reshape(())


class _GeneratorStates(TorchFunctionMode):
    """Record of the generators that functions of torch are given in a block.

    It holds the state of each when it first occurred.
    """

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[int, tuple[torch.Generator, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                # the generator is kept beside its state, so that no other takes its id
                self._states.setdefault(id(value), (value, value.get_state()))
        return func(*args, **kwargs)

    def restore(self) -> None:
        for generator, state in self._states.values():
            generator.set_state(state)


@contextmanager
def preserved_generators(seed: int | None = None) -> Iterator[Callable[..., None]]:
    """Restore the global generators of torch, numpy and Python after a block.

    Yields:
        Function that restarts them, and with ``passed`` also the generators that
        functions of torch were given.
    """
    before = _states()
    if seed is not None:
        torch.manual_seed(seed)
        # losses of users may draw from the global generators, which are put back below
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
    start = _states()
    generators = _GeneratorStates()

    def again(*, passed: bool = True) -> None:
        _restore(start)
        if passed:
            generators.restore()

    try:
        with generators:
            yield again
    finally:
        generators.restore()
        _restore(before)


@dataclass(frozen=True)
class _RandomStates:
    """States of the global generators; ``cuda`` is None before its first use."""

    cpu: Tensor
    cuda: list[Tensor] | None
    numpy: Any
    python: Any


def _states() -> _RandomStates:
    # asking for the state would start CUDA in a process that does not use it
    cuda = None
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
    return _RandomStates(
        torch.get_rng_state(),
        cuda,
        np.random.get_state(),  # noqa: NPY002
        random.getstate(),
    )


def _restore(states: _RandomStates) -> None:
    torch.set_rng_state(states.cpu)
    if states.cuda is not None:
        torch.cuda.set_rng_state_all(states.cuda)
    np.random.set_state(states.numpy)  # noqa: NPY002
    random.setstate(states.python)


@contextmanager
def undisturbed(model: nn.Module, *, seed: int = 0) -> Iterator[None]:
    """Restore gradients, modes, buffers and random numbers after a block.

    Raises:
        InputError: the block changed weights.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    # taken away and given back, gradients are neither copied nor added to
    gradients = [(weight, weight.grad) for weight in model.parameters()]
    # torch counts writes in place; comparing the weights would take a copy of all
    versions = [weight._version for weight, _ in gradients]
    try:
        for weight, _ in gradients:
            weight.grad = None
        model.eval()
        with preserved_generators(seed):
            yield
    finally:
        for module, mode in modes:
            # not module.train(mode), which would set the modules inside it as well
            module.training = mode
        for buffer, former in buffers:
            # untouched where nothing has changed: the graph of a pending backward pass
            # may hold it
            if not torch.equal(buffer, former):
                with torch.no_grad():
                    buffer.copy_(former)
        for weight, gradient in gradients:
            weight.grad = gradient
    n_changed = sum(
        weight._version != version
        for (weight, _), version in zip(gradients, versions, strict=True)
    )
    if n_changed:
        raise InputError(
            f"{n_changed} parameters were changed by code that may only read them;"
            " change a copy"
        )
