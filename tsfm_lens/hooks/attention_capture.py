"""Attention with hooks on its inside: scores, pattern and heads.

An :class:`Interceptor`, a torch function mode, catches the calls of scaled dot-product
attention inside modules that have hooks. Attention stays fused unless a hook uses
scores or pattern; then the softmax is explicit. Read ``Interceptor.__torch_function__``
first; an attention function of a model's own takes part by :func:`declare_scores`.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
    handle_torch_function,
    has_torch_function,
)

from tsfm_lens.core.errors import WiringError
from tsfm_lens.hooks.native import explicit_attention, softmax_rows

Observers = list[tuple[Any, str]]
"""Pairs of a dispatcher and the path of the attention that it observes."""


def brackets(path: str, module: nn.Module) -> Iterator[str]:
    """Yield the paths of the modules in which the interceptor must be on.

    For one attention these are the module itself, and if it is torch's own, also all
    modules around it.
    """
    if isinstance(module, nn.MultiheadAttention):
        # nn.TransformerEncoder takes its fused path, or nested tensors, unless a mode
        # is on when it is entered
        parts = path.split(".")
        yield from (".".join(parts[:depth]) for depth in range(len(parts)))
    yield path


class Interceptor(TorchFunctionMode):
    """Interceptor of one thread's attention calls.

    It serves every dispatcher that observes the calling module.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dispatchers: list[Any] = []
        # the entered modules, outermost first; the mode is on while there are any. An
        # interrupt may leave some behind, which sync_hooks() removes
        self._inside: list[nn.Module] = []

    def listen(self, dispatcher: Any) -> None:
        """Show attention calls to a dispatcher as long as it observes any module."""
        dispatchers = [known for known in self._dispatchers if known is not dispatcher]
        if dispatcher.attentions:
            dispatchers.append(dispatcher)
        self._dispatchers = dispatchers
        self.sync_hooks()

    def enter(self, module: nn.Module) -> None:
        """Note that the thread has entered a module, and switch the mode on."""
        if self._inside:
            self.sync_hooks()
        # a new list, since __torch_function__ may hold the former one to restore it
        self._inside = [*self._inside, module]
        self._switch()

    def leave(self, module: nn.Module) -> None:
        """Note that the thread has left a module; after the last, switch off."""
        # enter() was not called if another hook on the module raised before
        if module in self._inside:
            # modules that were entered after it, and broken off, are removed with it
            last = len(self._inside) - 1 - self._inside[::-1].index(module)
            self._inside = self._inside[:last]
            self._switch()

    def sync_hooks(self) -> None:
        """Forget entered modules that no longer run, and switch the mode to match."""
        if self._inside:
            running = set(_running_modules(sys._getframe(1)))
            self._inside = [module for module in self._inside if module in running]
        self._switch()

    def _switch(self) -> None:
        """Put this mode on torch's stack while a module is entered, or off."""
        modes = _get_current_function_mode_stack()
        if self._inside and self not in modes:
            _push_mode(self)
        elif not self._inside and self in modes:
            above = []
            # torch takes modes off from the top only, and other modes may have come on
            # since
            while self in _get_current_function_mode_stack():
                mode = _pop_mode()
                above += [mode] if mode is not self else []
            for mode in reversed(above):
                _push_mode(mode)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; attention runs with hooks if its caller is observed."""
        kwargs = kwargs or {}
        scores_of = getattr(func, "scores_of", None)
        if scores_of is None and func not in (
            F.scaled_dot_product_attention,
            F.multi_head_attention_forward,
        ):
            return func(*args, **kwargs)
        # the arguments of an attention call do not tell which module made it
        observers = self._find_observers(sys._getframe(1))
        if not observers:
            return func(*args, **kwargs)
        for dispatcher, path in observers:
            dispatcher.called[path] = True
        # torch has this mode off during the call. A hook may run the model again, and
        # modules that are then entered must switch it on from a fresh start
        inside = self._inside
        self._inside = []
        try:
            if scores_of is not None:
                query, key, value, *rest = args
                return _with_hooks(
                    observers,
                    query,
                    key,
                    value,
                    lambda q, k: scores_of(q, k, *rest),
                    lambda q, k, v: func(q, k, v, *rest),
                )
            if func is F.multi_head_attention_forward:
                return _multi_head(observers, args, kwargs)
            return _attend(observers, *args, **kwargs)
        finally:
            self._inside = inside

    def _find_observers(self, frame: FrameType | None) -> Observers:
        """Return the observers of the innermost running module that has any."""
        for module in _running_modules(frame):
            observers = [
                (dispatcher, dispatcher.attentions[module])
                for dispatcher in self._dispatchers
                if module in dispatcher.attentions
            ]
            if observers:
                return observers
        return []


def _running_modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """Yield the modules that the thread is inside of, the innermost first.

    They are read from the frames: a counter would be wrong after an interrupt.
    """
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:
            yield frame.f_locals["self"]
        frame = frame.f_back


class _Local(threading.local):
    """The running thread's interceptor: torch keeps its modes by thread."""

    def __init__(self) -> None:
        self.interceptor = Interceptor()


LOCAL = _Local()


def _multi_head(
    observers: Observers, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run torch's own multi-head attention with hooks on the attention inside it."""
    native = F.multi_head_attention_forward
    call = inspect.signature(native).bind(*args, **kwargs)
    call.apply_defaults()
    if call.arguments["need_weights"]:
        raise WiringError(
            f"{observers[0][1]} (MultiheadAttention) was called with need_weights=True,"
            " under which torch computes attention without"
            " scaled_dot_product_attention, so that its inside cannot be seen. Call it"
            " with need_weights=False, as nn.TransformerEncoderLayer does;"
            " `hook_pattern` has the weights."
        )
    # torch's function finds scaled_dot_product_attention among its globals. A copy of
    # the function gets other globals; patching torch's module would affect all threads
    namespace = {
        **vars(F),
        "has_torch_function": lambda _tensors: False,
        "scaled_dot_product_attention": partial(_attend, observers),
    }
    function = FunctionType(
        native.__code__,
        namespace,
        native.__name__,
        native.__defaults__,
        native.__closure__,
    )
    return function(*call.args, **call.kwargs)


def _attend(
    observers: Observers,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run scaled dot-product attention with hooks."""

    def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # in_two() sets this on masks of modules that natively call attention twice
        first = getattr(attn_mask, "first", 0)
        if attn_mask is None or not first:
            return plain(query, key, value, attn_mask)
        q, k, v = (tensor[..., :first, :] for tensor in (query, key, value))
        rest = plain(query[..., first:, :], key, value, attn_mask[..., first:, :])
        return torch.cat([plain(q, k, v, attn_mask[..., :first, :first]), rest], dim=-2)

    def scores(query: Tensor, key: Tensor) -> Tensor:
        return explicit_attention(query, key, attn_mask, is_causal, scale)

    return _with_hooks(
        observers, query, key, value, scores, fused, dropout_p, enable_gqa
    )


def in_two(mask: Tensor, first: int) -> Tensor:
    """Mark a mask so that attention under it runs as two fused calls.

    One call is of the ``first`` queries over as many keys, the other of the remaining
    queries over all keys.

    Returns:
        The mask itself, marked.
    """
    # one call would round differently from the model's own two
    mask.first = first  # type: ignore[attr-defined]
    return mask


def _with_hooks(
    observers: Observers,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Callable[[Tensor, Tensor], Tensor],
    fused: Callable[[Tensor, Tensor, Tensor], Tensor],
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention with hooks, by the fused function if possible.

    It is possible unless a hook is on scores or pattern; else the softmax is explicit.

    Returns:
        The attention's output, (batch, head, query, d_head).
    """

    def fire(how: str, tensor: Tensor) -> Tensor:
        for dispatcher, path in observers:
            tensor = dispatcher.fire_inside(path, how, tensor)
        return tensor

    query = fire("q", query)
    key = fire("k", key)
    value = fire("v", value)
    if not any(
        dispatcher.in_use_inside(path, how)
        for dispatcher, path in observers
        for how in ("scores", "pattern")
    ):
        return fire("result", fire("z", fused(query, key, value)))
    # the axis of heads is the third from the end, whatever comes before it
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    pattern = softmax_rows(fire("scores", scores(query, key)))
    pattern = fire("pattern", pattern)
    if dropout_p > 0.0:
        pattern = F.dropout(pattern, dropout_p)
    return fire("result", fire("z", pattern @ value))


def declare_scores(
    scores: Callable[..., Tensor],
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Declare how an attention function computes its scores.

    The function can then be hooked like torch's own attention.

    Args:
        scores: (query, key, …the arguments after value) -> (…, query, key), before the
            softmax, with -inf where a key may not be seen.

    Returns:
        A decorator of ``fused(query, key, value, …)``, which returns softmax(scores) ·
        value.
    """

    def declare(fused: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(fused)
        def attend(query: Tensor, key: Tensor, value: Tensor, *args: Any) -> Tensor:
            tensors = (query, key, value)
            # modes see a Python function only if it calls handle_torch_function()
            # itself, as torch's own functions do
            if has_torch_function(tensors):
                out: Tensor = handle_torch_function(attend, tensors, *tensors, *args)
                return out
            return fused(query, key, value, *args)

        attend.scores_of = scores  # type: ignore[attr-defined]
        return attend

    return declare
