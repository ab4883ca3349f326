"""Attention capture: scaled dot-product attention with an explicit softmax if a hook
needs it, else fused.
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

Looks = list[tuple[Any, str]]
"""(dispatcher, path of the attention that it looks at)."""


def brackets(path: str, module: nn.Module) -> Iterator[str]:
    """Yield paths of the modules inside which the interceptor must be on, for the
    attention of one to be seen.
    """
    if isinstance(module, nn.MultiheadAttention):
        # encoders of torch's own leave their fused paths, and nested tensors, where a
        # mode is on around them
        parts = path.split(".")
        yield from (".".join(parts[:depth]) for depth in range(len(parts)))
    yield path


class Interceptor(TorchFunctionMode):
    """Interceptor of one thread's attention calls, for every dispatcher that looks at
    the calling module.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dispatchers: list[Any] = []
        # the modules inside which it is on; those of a run that was broken off stay
        # until the next look
        self._inside: list[nn.Module] = []

    def listen(self, dispatcher: Any) -> None:
        """Show attention calls to a dispatcher as long as it looks at any module."""
        rest = [item for item in self._dispatchers if item is not dispatcher]
        self._dispatchers = [*rest, *([dispatcher] if dispatcher.attentions else [])]
        self.settle()

    def enter(self, module: nn.Module) -> None:
        """Be on, inside one module more."""
        if self._inside:
            self.settle()
        self._inside = [*self._inside, module]
        self._switch()

    def leave(self, module: nn.Module) -> None:
        """Be on inside one module less."""
        # another hook may have raised before this module was entered
        if module in self._inside:
            last = len(self._inside) - 1 - self._inside[::-1].index(module)
            self._inside = self._inside[:last]
            self._switch()

    def settle(self) -> None:
        """Be on exactly while an entered module runs."""
        if self._inside:
            running = set(_running_modules(sys._getframe(1)))
            self._inside = [module for module in self._inside if module in running]
        self._switch()

    def _switch(self) -> None:
        modes = _get_current_function_mode_stack()
        if self._inside and self not in modes:
            _push_mode(self)
        elif not self._inside and self in modes:
            above = []
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
        """Run ``func``, or attention with hooks when the call comes from a module that
        is looked at.
        """
        kwargs = kwargs or {}
        scores_of = getattr(func, "scores_of", None)
        if scores_of is None and func not in (
            F.scaled_dot_product_attention,
            F.multi_head_attention_forward,
        ):
            return func(*args, **kwargs)
        modules = self._find_dispatchers(sys._getframe(1))
        if not modules:
            return func(*args, **kwargs)
        for dispatcher, path in modules:
            dispatcher.called[path] = True
        # torch has this mode off until the call returns, so what a hook runs turns it
        # on anew
        inside = self._inside
        self._inside = []
        try:
            if scores_of is not None:
                query, key, value, *rest = args
                own = (
                    (lambda q, k: scores_of(q, k, *rest)),
                    (lambda q, k, v: func(q, k, v, *rest)),
                )
                return _with_hooks(modules, query, key, value, *own)
            if func is F.multi_head_attention_forward:
                return _multi_head(modules, args, kwargs)
            return _attend(modules, *args, **kwargs)
        finally:
            self._inside = inside

    def _find_dispatchers(self, frame: FrameType | None) -> Looks:
        """Return the dispatchers that look at the innermost running module that any
        looks at, with its path.
        """
        for module in _running_modules(frame):
            modules = [
                (dispatcher, dispatcher.attentions[module])
                for dispatcher in self._dispatchers
                if module in dispatcher.attentions
            ]
            if modules:
                return modules
        return []


def _running_modules(frame: FrameType | None) -> Iterator[nn.Module]:
    """Yield the modules that the thread is inside of, the innermost first; counts would
    fail after an interrupt.
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


def _multi_head(modules: Looks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run torch's own multi-head attention with the captures in the place of the
    attention call inside it.
    """
    native = F.multi_head_attention_forward
    call = inspect.signature(native).bind(*args, **kwargs)
    call.apply_defaults()
    if call.arguments["need_weights"]:
        raise WiringError(
            f"{modules[0][1]} (MultiheadAttention) was called with need_weights=True,"
            " under which torch computes attention without"
            " scaled_dot_product_attention, so that its inside cannot be seen. Call it"
            " with need_weights=False, as nn.TransformerEncoderLayer does;"
            " `hook_pattern` has the weights."
        )
    names = {
        **vars(F),
        "has_torch_function": lambda _tensors: False,
        "scaled_dot_product_attention": partial(_attend, modules),
    }
    function = FunctionType(
        native.__code__, names, native.__name__, native.__defaults__, native.__closure__
    )
    return function(*call.args, **call.kwargs)


def _attend(
    modules: Looks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
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
        first = getattr(attn_mask, "first", 0)
        if attn_mask is None or not first:
            return plain(query, key, value, attn_mask)
        q, k, v = (item[..., :first, :] for item in (query, key, value))
        rest = plain(query[..., first:, :], key, value, attn_mask[..., first:, :])
        return torch.cat([plain(q, k, v, attn_mask[..., :first, :first]), rest], dim=-2)

    def scores(query: Tensor, key: Tensor) -> Tensor:
        return explicit_attention(query, key, attn_mask, is_causal, scale)

    return _with_hooks(modules, query, key, value, scores, fused, dropout_p, enable_gqa)


def in_two(mask: Tensor, first: int) -> Tensor:
    """Mark the mask of two calls: of the first queries, over as many keys, and of all
    others, over all keys.
    """
    # the fused kernel leaves other roundings in one call than in two
    mask.first = first  # type: ignore[attr-defined]
    return mask


def _with_hooks(
    modules: Looks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Callable[[Tensor, Tensor], Tensor],
    fused: Callable[[Tensor, Tensor, Tensor], Tensor],
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention with hooks: fused where no hook looks at scores or pattern,
    else from the scores on.
    """

    def fire(how: str, tensor: Tensor) -> Tensor:
        for dispatcher, path in modules:
            tensor = dispatcher.fire_inside(path, how, tensor)
        return tensor

    query = fire("q", query)
    key = fire("k", key)
    value = fire("v", value)
    if not any(
        item.in_use_inside(path, how)
        for item, path in modules
        for how in ("scores", "pattern")
    ):
        return fire("result", fire("z", fused(query, key, value)))
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
    """Declare how an attention function computes its scores, so that it can be hooked
    like torch's own attention.

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
            if has_torch_function(tensors):
                out: Tensor = handle_torch_function(attend, tensors, *tensors, *args)
                return out
            return fused(query, key, value, *args)

        attend.scores_of = scores  # type: ignore[attr-defined]
        return attend

    return declare
