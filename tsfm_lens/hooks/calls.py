"""What modules were given and what they gave back, as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from tsfm_lens.hooks.native import get_input, get_output
from tsfm_lens.hooks.replay import map_tensors


class NativeCall(NamedTuple):
    """One call of a native module, its tensors detached.

    Attributes:
        args, kwargs: its arguments.
        output: what it returned.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def given(self, arg: int | str = 0) -> Tensor:
        """One tensor among the arguments; WiringError if there is none."""
        return get_input(self.args, self.kwargs, arg)

    def gave(self, arg: int | str = 0) -> Tensor:
        """One tensor of the output; WiringError if there is none."""
        return get_output(self.output, arg)


@contextmanager
def recorded_calls(model: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, list[NativeCall]]]:
    """Keep every call of each module while the block runs.

    Args:
        model: the native module.
        paths: dotted paths below it.
    """
    kept: dict[str, list[NativeCall]] = {path: [] for path in paths}
    modules = {path: model.get_submodule(path) for path in kept}

    def keep(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            kept[path].append(NativeCall(*(map_tensors(part, Tensor.detach) for part in (args, kwargs, output))))

        return hook

    handles = []
    try:
        for path, module in modules.items():
            handles.append(module.register_forward_hook(keep(path), with_kwargs=True))
        yield kept
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def seen_inputs(model: nn.Module, paths: Iterable[str], look: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Show what enters each module, at every call, while the block runs; nothing is kept.

    Args:
        model: the native module.
        paths: dotted paths below it.
        look: called with the path and the first argument, detached.
    """

    def show(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            look(path, get_input(args, kwargs, 0).detach())

        return hook

    handles = []
    try:
        for path in paths:
            handles.append(model.get_submodule(path).register_forward_pre_hook(show(path), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
