"""Arguments and outputs of native modules, as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.native import get_input, get_output
from tsfm_lens.hooks.replay import map_tensors
from tsfm_lens.hooks.torch_hooks import TorchHook, hooked


class NativeCall(NamedTuple):
    """One call of a native module, its tensors detached.

    Attributes:
        args, kwargs: its arguments.
        output: its return value.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def given(self, arg: int | str = 0) -> Tensor:
        """Return one tensor among the arguments; WiringError if there is none."""
        return get_input(self.args, self.kwargs, arg)

    def gave(self, arg: int | str = 0) -> Tensor:
        """Return one tensor of the output; WiringError if there is none."""
        return get_output(self.output, arg)


def recorded_calls(model: nn.Module, paths: Iterable[str]) -> Block[dict[str, list[NativeCall]]]:
    """Keep every call of each module while the block runs.

    Args:
        model: the native module.
        paths: dotted paths below it.
    """
    calls: dict[str, list[NativeCall]] = {path: [] for path in paths}

    def keep(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            calls[path].append(NativeCall(*(map_tensors(part, Tensor.detach) for part in (args, kwargs, output))))

        return hook

    return hooked((TorchHook(model.get_submodule(path), "out", keep(path)) for path in calls), calls)


def seen_inputs(model: nn.Module, paths: Iterable[str], look: Callable[[str, Tensor], None]) -> Block[None]:
    """Pass the input of each module to a function, at every call, while the block runs; nothing is kept.

    Args:
        model: the native module.
        paths: dotted paths below it.
        look: called with the path and the first argument, detached.
    """

    def show(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            look(path, get_input(args, kwargs, 0).detach())

        return hook

    return hooked((TorchHook(model.get_submodule(path), "in", show(path)) for path in paths), None)
