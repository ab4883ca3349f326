"""Replay: modules hand back stored outputs instead of computing them again.

What lies before the first changed component of a variant is the same in every variant. Its modules'
outputs are recorded once; while :func:`replayed` is open, those modules return them, repeated for as
many variants as run side by side. Only the instance attribute ``forward`` is shadowed, and it is
restored however the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.hooks.native import get_output, put_output


@contextmanager
def recorded_outputs(model: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Keep the full output of each module, detached, while the block runs; the last call counts.

    Args:
        model: the native module.
        paths: dotted paths below it.
    """
    kept: dict[str, Any] = {}
    modules = {path: model.get_submodule(path) for path in paths}
    handles = []

    def keep(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            kept[path] = map_tensors(output, Tensor.detach)

        return hook

    try:
        for path, module in modules.items():
            handles.append(module.register_forward_hook(keep(path)))
        yield kept
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replayed(
    model: nn.Module,
    outputs: Mapping[str, Any],
    *,
    rows: int,
    copies: int,
    resumed: Mapping[str, tuple[nn.Module, Tensor, Any]] | None = None,
) -> Iterator[None]:
    """Let modules return stored outputs while the block runs.

    Args:
        model: the native module.
        outputs: module path -> stored output, from :func:`recorded_outputs`.
        rows: items in the batch of the recorded run.
        copies: how many variants run side by side; tensors whose first axis is a multiple of ``rows`` are
            repeated, variant-major: row ``v * rows + r`` is row r of variant v.
        resumed: module path -> (its last inner layer, that layer's stored input, the module's stored output).
            Such a module runs its last layer alone, with whatever hooks that layer has.
    """
    going_on = resumed or {}
    modules = {path: model.get_submodule(path) for path in (*outputs, *going_on)}
    before = {path: module.__dict__.get("forward") for path, module in modules.items()}
    try:
        for path, module in modules.items():
            if path in going_on:
                module.__dict__["forward"] = _go_on(*going_on[path], rows, copies)
            else:
                module.__dict__["forward"] = _hand_back(outputs[path], rows, copies)
        yield
    finally:
        for path, module in modules.items():
            module.__dict__.pop("forward", None)
            if before[path] is not None:
                module.__dict__["forward"] = before[path]


def _hand_back(output: Any, rows: int, copies: int) -> Callable[..., Any]:
    """A forward that returns the stored output; repeated at the call, so that memory is held only then."""

    def forward(*_args: Any, **_kwargs: Any) -> Any:
        return map_tensors(output, lambda tensor: repeat_rows(tensor, rows, copies))

    return forward


def _go_on(last: nn.Module, entered: Tensor, output: Any, rows: int, copies: int) -> Callable[..., Any]:
    """A forward that runs the module's last layer on its stored input and hands the rest back as stored."""

    def forward(*_args: Any, **_kwargs: Any) -> Any:
        new = last(repeat_rows(entered, rows, copies))
        rest = map_tensors(output, lambda tensor: repeat_rows(tensor, rows, copies))
        return put_output(rest, 0, new.reshape(get_output(rest, 0).shape))

    return forward


def repeat_rows(tensor: Tensor, rows: int, copies: int) -> Tensor:
    """Repeat a tensor variant-major along its first axis if that axis is the batch."""
    if copies == 1 or tensor.ndim == 0 or tensor.shape[0] % rows:
        return tensor
    return tensor.unsqueeze(0).expand(copies, *tensor.shape).reshape(copies * len(tensor), *tensor.shape[1:])


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested output (tuples, lists, mappings, model outputs)."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(item, function) for item in value)
    if hasattr(value, "items"):
        return type(value)(**{key: map_tensors(item, function) for key, item in value.items()})
    return value


@contextmanager
def recorded_inputs(model: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Keep the first input of each module, detached, while the block runs; the last call counts."""
    kept: dict[str, Tensor] = {}
    modules = {path: model.get_submodule(path) for path in paths}
    handles = []

    def keep(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            kept[path] = args[0].detach()

        return hook

    try:
        for path, module in modules.items():
            handles.append(module.register_forward_pre_hook(keep(path)))
        yield kept
    finally:
        for handle in handles:
            handle.remove()
