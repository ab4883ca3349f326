"""Native calls, recorded as they are, and modules that hand back stored outputs instead of computing them again.

All modules before the first changed component give the same outputs in every variant. These are recorded once, call by
call; while :func:`replayed` is open, those modules return them in the same order, repeated for as many variants as run
side by side. Only the instance attribute ``forward`` is shadowed, and it is restored however the block ends.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tsfm_lens.hooks.block import Block, Scope
from tsfm_lens.hooks.native import get_input, get_output, put_output
from tsfm_lens.hooks.repeated import Repeated
from tsfm_lens.hooks.state import ONE_RUN
from tsfm_lens.hooks.torch_hooks import Side, TorchHook, hooked

# numbers that are copied in less time than it takes to do without
_FEW = 2**16


T = TypeVar("T")


class OtherCalls(Exception):
    """Error of a pass that calls a module more or less often than the recorded one, so that nothing can be replayed."""


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


def _listening(model: nn.Module, paths: Iterable[str], side: Side, note: Callable[..., None], value: T) -> Block[T]:
    """Call ``note(path, module, args, kwargs[, output])`` at every call of modules while the block runs."""
    return hooked([TorchHook(model.get_submodule(path), side, partial(note, path)) for path in paths], value)


def recorded_calls(model: nn.Module, paths: Iterable[str]) -> Block[dict[str, list[NativeCall]]]:
    """Keep every call of each module, by dotted path below the model, while the block runs."""
    calls: dict[str, list[NativeCall]] = {path: [] for path in paths}

    def keep(path: str, _module: nn.Module, *call: Any) -> None:
        calls[path].append(NativeCall(*(map_tensors(part, Tensor.detach) for part in call)))

    return _listening(model, calls, "out", keep, calls)


def recorded_outputs(model: nn.Module, paths: Iterable[str]) -> Block[dict[str, list[Any]]]:
    """Record the full output of each call of each module, detached, while the block runs."""
    outputs: dict[str, list[Any]] = {}

    def keep(path: str, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        outputs.setdefault(path, []).append(map_tensors(output, Tensor.detach))

    return _listening(model, paths, "out", keep, outputs)


def recorded_inputs(model: nn.Module, paths: Iterable[str]) -> Block[dict[str, Tensor]]:
    """Record the first input of each module, detached, while the block runs; the last call counts."""
    inputs: dict[str, Tensor] = {}

    def keep(path: str, _module: nn.Module, args: tuple[Any, ...], _kwargs: Any) -> None:
        inputs[path] = args[0].detach()

    return _listening(model, paths, "in", keep, inputs)


def seen_inputs(model: nn.Module, paths: Iterable[str], look: Callable[[str, Tensor], None]) -> Block[None]:
    """Pass path and first input, detached, of each module to ``look`` at every call while the block runs."""

    def show(path: str, _module: nn.Module, args: Any, kwargs: Any) -> None:
        look(path, get_input(args, kwargs, 0).detach())

    return _listening(model, paths, "in", show, None)


def called_once(model: nn.Module, path: str) -> Block[None]:
    """Make sure that a module is called exactly once while the block runs.

    Raises:
        OtherCalls: when the block ends, and the module was not called once.
    """
    calls: list[None] = []

    def check() -> None:
        if len(calls) != 1:
            raise OtherCalls(f"{path} was called {len(calls)} times in what should be one pass")

    count = TorchHook(model.get_submodule(path), "in", lambda *_call: calls.append(None))
    return hooked([count], None, check)


def only(outputs: Mapping[str, Sequence[Any]], path: str) -> Any:
    """Return the one output that was recorded of a module.

    Raises:
        OtherCalls: there are several, or none.
    """
    calls = outputs.get(path, ())
    if len(calls) != 1:
        raise OtherCalls(f"{path} was called {len(calls)} times in what should be one pass")
    return calls[0]


def replayed(
    model: nn.Module,
    outputs: Mapping[str, Sequence[Any]],
    *,
    rows: int,
    copies: int,
    partial: Mapping[str, tuple[nn.Module, Tensor, Any]] | None = None,
) -> Block[None]:
    """Let modules return stored outputs while the block runs, in this thread; blocks of several take turns.

    Args:
        model: the native module.
        outputs: module path -> stored outputs, one per call, from :func:`recorded_outputs`.
        rows: items in the batch of the recorded run.
        copies: how many variants run side by side; tensors whose first axis is a multiple of ``rows`` are
            repeated, variant-major: row ``v * rows + r`` is row r of variant v.
        partial: module path -> (its last inner layer, that layer's stored input, the module's stored output), of
            modules that were called once. Such a module runs its last layer alone, with whatever hooks that layer has.

    Raises:
        OtherCalls: when the block ends, or at the call too many: a module was not called as often as was recorded.
    """
    queues: dict[str, Iterator[Any]] = {path: iter(calls) for path, calls in outputs.items()}
    resumed = partial or {}
    queues |= {path: iter([(entered, output)]) for path, (_last, entered, output) in resumed.items()}

    def repeated(value: Any) -> Any:
        return map_tensors(value, lambda tensor: repeat_rows(tensor, rows, copies))

    def stored(path: str) -> Any:
        for value in queues[path]:
            return value
        raise OtherCalls(f"{path} was called more often than in the plain pass")

    def hand_back(path: str) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: repeated(stored(path))

    def resume(path: str) -> Callable[..., Any]:
        def forward(*_args: Any, **_kwargs: Any) -> Any:
            entered, output = stored(path)
            new, rest = resumed[path][0](repeated(entered)), repeated(output)
            return put_output(rest, 0, new.reshape(get_output(rest, 0).shape))

        return forward

    def check() -> None:
        for path, calls in queues.items():
            # what lies inside a module that hands back is not called at all
            inside = any(path.startswith(f"{other}.") for other in queues)
            if not inside and next(calls, None) is not None:
                raise OtherCalls(f"{path} was called less often than in the plain pass")

    forwards = {path: (resume if path in resumed else hand_back)(path) for path in queues}
    shadows = [(model.get_submodule(path), lambda _forward, new=new: new) for path, new in forwards.items()]
    return shadowed(shadows, check, turn=True)


Shadow = tuple[nn.Module, Callable[[Callable[..., Any]], Callable[..., Any]]]
"""(module, makes its new forward from the one that it has)."""


class _Shadows(Scope[None]):
    """Forwards of modules that are shadowed in one thread."""

    def __init__(self, shadows: Iterable[Shadow], check: Callable[[], None], turn: bool) -> None:
        self.check = check  # type: ignore[method-assign]
        self._shadows, self._turn = tuple(shadows), turn
        self._set: list[tuple[nn.Module, Any, Any]] = []

    def open(self) -> None:
        self.is_open = True
        if self._turn:
            ONE_RUN.take(self)
        for module, make in self._shadows:
            new = _in_this_thread(module.forward, make(module.forward))
            # noted before it is set, so that it is taken off whenever an interrupt comes
            self._set.append((module, module.__dict__.get("forward"), new))
            module.__dict__["forward"] = new

    def close(self) -> None:
        for module, before, new in reversed(self._set):
            if module.__dict__.get("forward") is not new:
                continue
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before
        ONE_RUN.give(self)
        self.is_open = False


def shadowed(shadows: Iterable[Shadow], check: Callable[[], None] = lambda: None, *, turn: bool = False) -> Block[None]:
    """Shadow forwards of modules in this thread while the block runs.

    Args:
        shadows: the modules, each once.
        check: called after the block, without an error.
        turn: whether blocks of several threads take turns.
    """
    return Block(_Shadows(shadows, check, turn))


def _in_this_thread(forward: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that calls ``new`` in the calling thread and ``forward`` in every other."""
    mine = threading.get_ident()

    def choose(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == mine else forward)(*args, **kwargs)

    return choose


def repeat_rows(tensor: Tensor, rows: int, copies: int) -> Tensor:
    """Repeat a tensor variant-major along its first axis if that axis is the batch; many rows are stored once."""
    if copies == 1 or tensor.ndim == 0 or tensor.shape[0] % rows:
        return tensor
    repeated = Repeated(tensor, copies)
    return repeated if repeated.numel() > _FEW else repeated.whole()


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested output (tuples, lists, mappings, model outputs)."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(item, function) for item in value)
    if hasattr(value, "items"):
        return type(value)(**{key: map_tensors(item, function) for key, item in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{key: map_tensors(item, function) for key, item in parts.items()})
    return value
