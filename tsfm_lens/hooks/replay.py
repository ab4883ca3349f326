"""Native calls, recorded as they are, and modules that hand back stored outputs instead of computing them again."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tsfm_lens.hooks.native import Side, get_input, get_output, hooked, put_output
from tsfm_lens.hooks.repeated import Repeated

T = TypeVar("T")
# of torch's generators, and of the forwards of modules that hand back what was stored
ONE_RUN = threading.RLock()
# numbers that are copied in less time than it takes to do without
_FEW = 2**16


class OtherCalls(Exception):
    """Error of a pass that calls a module more or less often than the recorded one, so that nothing can be replayed."""


class NativeCall(NamedTuple):
    """One call of a native module, its tensors detached."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def given(self, arg: int | str = 0) -> Tensor:
        """Return one tensor among the arguments; WiringError if there is none."""
        return get_input(self.args, self.kwargs, arg)

    def gave(self, arg: int | str = 0) -> Tensor:
        """Return one tensor of the output; WiringError if there is none."""
        return get_output(self.output, arg)


Calls = AbstractContextManager[dict[str, list[T]]]
"""Block that gives what was noted of the calls of each module, by path."""


def _noted(model: nn.Module, paths: Iterable[str], side: Side, note: Callable[..., T]) -> Calls[T]:
    """Keep ``note(path, args, kwargs[, output])`` of every call of each module, by path, while the block runs."""
    notes: dict[str, list[T]] = {path: [] for path in paths}

    def keep(path: str, _module: nn.Module, *call: Any) -> None:
        notes[path].append(note(path, *call))

    return hooked([(model.get_submodule(path), side, partial(keep, path)) for path in notes], notes)


def recorded_calls(model: nn.Module, paths: Iterable[str]) -> Calls[NativeCall]:
    """Keep every call of each module, by dotted path below the model, while the block runs."""
    return _noted(model, paths, "out", lambda _path, *call: NativeCall(*map_tensors(call, Tensor.detach)))


def recorded_outputs(model: nn.Module, paths: Iterable[str]) -> Calls[Any]:
    """Record the full output of each call of each module, detached, while the block runs."""
    return _noted(model, paths, "out", lambda _path, _args, _kwargs, output: map_tensors(output, Tensor.detach))


def recorded_inputs(model: nn.Module, paths: Iterable[str]) -> Calls[Tensor]:
    """Record the first input of each call of each module, detached, while the block runs."""
    return _noted(model, paths, "in", lambda _path, args, _kwargs: args[0].detach())


def seen_inputs(model: nn.Module, paths: Iterable[str], look: Callable[[str, Tensor], None]) -> Calls[None]:
    """Pass path and first input, detached, of each module to ``look`` at every call while the block runs."""

    return _noted(model, paths, "in", lambda path, args, kwargs: look(path, get_input(args, kwargs, 0).detach()))


@contextmanager
def called_once(model: nn.Module, path: str) -> Iterator[None]:
    """Raise OtherCalls after the block if a module was not called exactly once in it."""
    with _noted(model, [path], "in", lambda *_call: None) as calls:
        yield
    only(calls, path)


def only(outputs: Mapping[str, Sequence[Any]], path: str) -> Any:
    """Return the one call that was recorded of a module; OtherCalls if there are several, or none."""
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
    unfinished: Mapping[str, tuple[nn.Module, Tensor, Any]] | None = None,
) -> AbstractContextManager[None]:
    """Let modules return stored outputs, rows repeated variant-major; an unfinished one runs its last layer alone."""
    queues: dict[str, Iterator[Any]] = {path: iter(calls) for path, calls in outputs.items()}
    resumed = unfinished or {}
    queues |= {path: iter([(entered, output)]) for path, (_last, entered, output) in resumed.items()}

    def repeated(value: Any) -> Any:
        return map_tensors(value, lambda tensor: repeat_rows(tensor, rows, copies))

    def stored(path: str) -> Any:
        for value in queues[path]:
            return value
        raise OtherCalls(f"{path} was called more often than in the plain pass")

    def hand_back(path: str, *_args: Any, **_kwargs: Any) -> Any:
        return repeated(stored(path))

    def resume(path: str, *_args: Any, **_kwargs: Any) -> Any:
        entered, output = stored(path)
        new, rest = resumed[path][0](repeated(entered)), repeated(output)
        return put_output(rest, 0, new.reshape(get_output(rest, 0).shape))

    def check() -> None:
        for path, calls in queues.items():
            # what lies inside a module that hands back is not called at all
            inside = any(path.startswith(f"{other}.") for other in queues)
            if not inside and next(calls, None) is not None:
                raise OtherCalls(f"{path} was called less often than in the plain pass")

    def shadow(path: str) -> Shadow:
        return model.get_submodule(path), lambda _forward: partial(resume if path in resumed else hand_back, path)

    return shadowed(map(shadow, queues), check, turn=True)


Shadow = tuple[nn.Module, Callable[[Callable[..., Any]], Callable[..., Any]]]
"""(module, makes its new forward from the one that it has)."""


@contextmanager
def shadowed(
    shadows: Iterable[Shadow], check: Callable[[], None] | None = None, *, turn: bool = False
) -> Iterator[None]:
    """Shadow forwards of modules in this thread while the block runs; with ``turn``, blocks of threads take turns."""
    mine = threading.get_ident()

    def choose(new: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == mine else forward)(*args, **kwargs)

    def restore(module: nn.Module, before: Any, new: Any) -> None:
        if module.__dict__.get("forward") is new:
            module.__dict__.pop("forward")
            module.__dict__.update({} if before is None else {"forward": before})

    with ONE_RUN if turn else nullcontext(), ExitStack() as stack:
        for module, make in shadows:
            before, new = module.__dict__.get("forward"), partial(choose, make(module.forward), module.forward)
            stack.callback(restore, module, before, new)
            module.__dict__["forward"] = new
        yield
    if check is not None:
        check()


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
        items = [map_tensors(item, function) for item in value]
        # fields of a named tuple are arguments of their own
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if hasattr(value, "items"):
        return type(value)(**{key: map_tensors(item, function) for key, item in value.items()})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{key: map_tensors(item, function) for key, item in parts.items()})
    return value
