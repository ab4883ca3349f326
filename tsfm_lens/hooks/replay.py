"""Record native calls, and replay stored outputs in place of modules.

Read :func:`recorded_outputs`, which keeps the outputs of modules in a plain pass, and
:func:`replayed`, in whose block the modules return these outputs, repeated for every
variant. :func:`shadowed` replaces forwards for one thread. Which modules may be
replayed is decided in :mod:`tsfm_lens.ablation.engine`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tsfm_lens.hooks.block import Block, Side, Steps, TorchHook, hooked
from tsfm_lens.hooks.native import get_input, get_output, put_output
from tsfm_lens.hooks.repeated import Repeated

# tensors up to this many numbers are copied, which takes less time than Repeated
_FEW = 2**16


class Turns:
    """Queue in which one thread at a time holds turns; a token names each turn.

    The queue is only changed by list methods written in C, which no interrupt can break
    off in the middle.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, object]] = []

    def take(self, token: object) -> None:
        """Wait until no other thread holds a turn, and hold one."""
        thread = threading.get_ident()
        self._queue.append((thread, token))
        while self._queue[0][0] != thread:
            # not a lock: after an interrupt right behind its acquire(), nobody would
            # know to release it
            time.sleep(0.001)

    def give(self, token: object) -> None:
        """Give a turn back; a token that holds none is left alone."""
        for turn in tuple(self._queue):
            if turn[1] is token:
                with contextlib.suppress(ValueError):
                    self._queue.remove(turn)


# threads take turns with what they share: torch's generators, and replayed modules
ONE_RUN = Turns()


class OtherCalls(Exception):
    """Error of a pass that calls a module more or less often than the recorded one.

    Nothing can be replayed then.
    """


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


def _recorded(
    model: nn.Module, paths: Iterable[str], side: Side, read: Callable[..., Any]
) -> Block[dict[str, list[Any]]]:
    """Keep ``read(path, args, kwargs[, output])`` of every call of each module.

    Returns:
        The result is by path, and fills while the block runs.
    """
    calls: dict[str, list[Any]] = {path: [] for path in paths}

    def keep(path: str, _module: nn.Module, *call: Any) -> None:
        calls[path].append(read(path, *call))

    return hooked(
        [
            TorchHook(model.get_submodule(path), side, partial(keep, path))
            for path in calls
        ],
        calls,
    )


def recorded_calls(
    model: nn.Module, paths: Iterable[str]
) -> Block[dict[str, list[NativeCall]]]:
    """Keep every call of each module while the block runs.

    Modules are named by their dotted paths below the model.

    Returns:
        A block that yields the calls by path.
    """
    return _recorded(
        model,
        paths,
        "out",
        lambda _path, *call: NativeCall(*map_tensors(call, Tensor.detach)),
    )


def recorded_outputs(
    model: nn.Module, paths: Iterable[str]
) -> Block[dict[str, list[Any]]]:
    """Record the full output of each call of each module while the block runs.

    Tensors are detached.

    Returns:
        A block that yields the outputs by path.
    """
    return _recorded(
        model,
        paths,
        "out",
        lambda _path, _args, _kwargs, output: map_tensors(output, Tensor.detach),
    )


def recorded_inputs(
    model: nn.Module, paths: Iterable[str]
) -> Block[dict[str, list[Tensor]]]:
    """Record the first input of each call of each module while the block runs.

    Tensors are detached.

    Returns:
        A block that yields the inputs by path.
    """
    return _recorded(model, paths, "in", lambda _path, args, _kwargs: args[0].detach())


def called_once(model: nn.Module, path: str) -> Block[None]:
    """Raise OtherCalls at the end of the block unless a module was called just once."""
    calls: list[None] = []
    count = TorchHook(
        model.get_submodule(path), "in", lambda *_call: calls.append(None)
    )
    return hooked([count], None, lambda: only({path: calls}, path))


def only(outputs: Mapping[str, Sequence[Any]], path: str) -> Any:
    """Return the one call that was recorded of a module.

    Returns:
        The output of the call.

    Raises:
        OtherCalls: there are several calls, or none.
    """
    calls = outputs.get(path, ())
    if len(calls) != 1:
        raise OtherCalls(
            f"{path} was called {len(calls)} times in what should be one pass"
        )
    return calls[0]


def replayed(
    model: nn.Module,
    outputs: Mapping[str, Sequence[Any]],
    *,
    rows: int,
    copies: int,
    unfinished: Mapping[str, tuple[nn.Module, Tensor, Any]] | None = None,
) -> Block[None]:
    """Let modules return stored outputs while the block runs.

    Tensors with ``rows`` rows are repeated ``copies`` times, variant-major.

    Args:
        model: native model whose modules are replaced.
        outputs: outputs of each call, by path of the module.
        rows: rows of a stored tensor that is to be repeated.
        copies: how often its rows are repeated.
        unfinished: by path, modules of which only the last layer runs: this layer, its
            stored input, and the stored output of the module.

    Returns:
        A block in which the modules do not compute.
    """
    queues: dict[str, Iterator[Any]] = {
        path: iter(calls) for path, calls in outputs.items()
    }
    resumed = unfinished or {}
    queues |= {
        path: iter([(entered, output)])
        for path, (_layer, entered, output) in resumed.items()
    }

    def repeated(value: Any) -> Any:
        return map_tensors(value, lambda tensor: repeat_rows(tensor, rows, copies))

    def next_stored(path: str) -> Any:
        for value in queues[path]:
            return value
        raise OtherCalls(f"{path} was called more often than in the plain pass")

    def hand_back(path: str, *_args: Any, **_kwargs: Any) -> Any:
        return repeated(next_stored(path))

    def resume(path: str, *_args: Any, **_kwargs: Any) -> Any:
        entered, stored_output = next_stored(path)
        last_layer = resumed[path][0]
        new = last_layer(repeated(entered))
        # the module may return more than the stream, such as a cache
        output = repeated(stored_output)
        return put_output(output, 0, new.reshape(get_output(output, 0).shape))

    def check() -> None:
        for path, calls in queues.items():
            # modules inside a replayed one are not called at all
            inside = any(path.startswith(f"{outer}.") for outer in queues)
            if not inside and next(calls, None) is not None:
                raise OtherCalls(f"{path} was called less often than in the plain pass")

    def shadow(path: str) -> Shadow:
        forward = partial(resume if path in resumed else hand_back, path)
        return model.get_submodule(path), lambda _forward: forward

    return shadowed(map(shadow, queues), check, turn=True)


Shadow = tuple[nn.Module, Callable[[Callable[..., Any]], Callable[..., Any]]]
"""Module, and the function that makes its new forward from its present one."""


def shadowed(
    shadows: Iterable[Shadow],
    check: Callable[[], None] | None = None,
    *,
    turn: bool = False,
) -> Block[None]:
    """Shadow forwards of modules in this thread while the block runs.

    With ``turn``, the block waits until no other thread holds a turn of ``ONE_RUN``.

    Returns:
        A block in which the forwards are shadowed.
    """
    token = object()
    originals = list[tuple[nn.Module, Any, Any]]()
    shadows = tuple(shadows)

    def choose(
        thread: int,
        new: Callable[..., Any],
        forward: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # threads share the module; others keep its present forward
        chosen = new if threading.get_ident() == thread else forward
        return chosen(*args, **kwargs)

    def begin() -> None:
        if turn:
            ONE_RUN.take(token)
        for module, make in shadows:
            new = partial(
                choose, threading.get_ident(), make(module.forward), module.forward
            )
            # noted before it is set, so that it is taken off whenever an interrupt
            # comes
            originals.append((module, module.__dict__.get("forward"), new))
            module.__dict__["forward"] = new

    def end() -> None:
        for module, forward, new in reversed(originals):
            # begin() was interrupted before it set the forward, or a former end() after
            # it took the forward off
            if module.__dict__.get("forward") is not new:
                continue
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward
        ONE_RUN.give(token)

    return Block(Steps(None, begin, end, check))


def repeat_rows(tensor: Tensor, rows: int, copies: int) -> Tensor:
    """Repeat a tensor variant-major along its first axis.

    A tensor whose first axis does not count ``rows``, or a multiple, is returned as it
    is. Large tensors are repeated as :class:`Repeated`.

    Returns:
        The tensor with ``copies`` times as many rows.
    """
    if copies == 1 or tensor.ndim == 0 or tensor.shape[0] % rows:
        return tensor
    repeated = Repeated(tensor, copies)
    if repeated.numel() > _FEW:
        return repeated
    return repeated.whole()


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a nested output.

    Tuples, lists, mappings and model outputs may be nested.

    Returns:
        A value of the same structure.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        items = [map_tensors(element, function) for element in value]
        # fields of a named tuple are arguments of their own
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    if hasattr(value, "items"):
        return type(value)(
            **{key: map_tensors(element, function) for key, element in value.items()}
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(
            value,
            **{key: map_tensors(element, function) for key, element in parts.items()},
        )
    return value
