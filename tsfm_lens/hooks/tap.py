"""The attention tap: one interceptor of scaled dot-product attention for every architecture.

Fused kernels never form the attention pattern. While a hook on q, k, v, scores or pattern is set, the
tap takes the calls made by the attention modules concerned, computes the softmax explicitly where a
hook needs it, and lets all other calls run fused.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.native import explicit_attention, softmax_rows
from tsfm_lens.hooks.pool import Pool

Fire = Callable[[str, str, Tensor], Tensor]
"""(attention module path, what, native tensor) -> the tensor to go on with.

What: "q", "k", "v", "scores", "pattern", "z", or "result", which is z after all its hooks.
"""


class AttentionTap:
    """What one thread looks at inside the attention of one model.

    Args:
        fire: called with each tensor; returns it, or its replacement.
        wants: (module path, what) -> is any hook set there now?
        here: whether the running thread is the one that looks.
    """

    def __init__(self, fire: Fire, wants: Callable[[str, str], bool], here: Callable[[], bool]) -> None:
        self.fire, self.wants, self._here = fire, wants, here
        self.inside: list[str] = []
        self._seen: set[str] = set()
        self._pool = Pool()

    def label(self, path: str, module: nn.Module) -> Callable[[], None]:
        """Intercept the attention calls of a module until the function returned is called."""
        with ExitStack() as stack:
            stack.callback(self._pool.acquire("", self._listen))
            stack.callback(self._pool.acquire(path, lambda opened: self._label(opened, path, module)))
            return stack.pop_all().close

    def _listen(self, stack: ExitStack) -> None:
        interceptor = _interceptor()
        interceptor.taps.append(self)
        stack.callback(interceptor.taps.remove, self)
        # a run that was broken off left its modules without their hooks
        stack.callback(self._leave_all)

    def _label(self, stack: ExitStack, path: str, module: nn.Module) -> None:
        # bound methods cannot carry the path, so small closures do
        def push(_module: nn.Module, _args: Any) -> None:
            if self._here():
                self.inside.append(path)
                self._seen.discard(path)
                _interceptor().enter()

        def check(module: nn.Module, _args: Any, _output: Any) -> None:
            if self._here() and path not in self._seen:
                raise WiringError(
                    f"{path} ({type(module).__name__}) computed attention without torch's "
                    "scaled_dot_product_attention, so its inside cannot be seen. Load the model with its "
                    "'sdpa' attention, without xformers or "
                    "another fused replacement."
                )

        def pop(_module: nn.Module, _args: Any, _output: Any) -> None:
            # another hook may have raised before this module was entered
            if self._here() and self.inside and self.inside[-1] == path:
                self.inside.pop()
                _interceptor().leave()

        if isinstance(module, nn.MultiheadAttention):
            # encoders of torch's own leave their fused paths, and nested tensors, where a mode is on around them
            _interceptor().enter()
            stack.callback(_interceptor().leave)
        stack.callback(module.register_forward_pre_hook(push).remove)
        stack.callback(module.register_forward_hook(check).remove)
        stack.callback(module.register_forward_hook(pop, always_call=True).remove)

    def _leave_all(self) -> None:
        while self.inside:
            self.inside.pop()
            _interceptor().leave()

    def saw(self, path: str) -> None:
        """Note that a module made the attention call that was expected of it."""
        self._seen.add(path)


class _Interceptor(TorchFunctionMode):
    """Takes the attention calls of one thread and shows them to every tap that is inside a module of its own.

    One for all taps, since an explicit softmax leaves no call for a second interceptor to see. It is on inside modules
    alone where it can be, since a mode that is on looks at every call of torch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taps: list[AttentionTap] = []
        self._inside = 0

    def enter(self) -> None:
        """One module more is running."""
        if not self._inside:
            self.__enter__()
        self._inside += 1

    def leave(self) -> None:
        """One module less is running."""
        self._inside -= 1
        if not self._inside:
            self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, or attention with hooks when the call comes from a labelled module."""
        kwargs = kwargs or {}
        scores_of = getattr(func, "scores_of", None)
        if scores_of is None and func not in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            return func(*args, **kwargs)
        places = [(tap, tap.inside[-1]) for tap in self.taps if tap.inside]
        if not places:
            return func(*args, **kwargs)
        for tap, path in places:
            tap.saw(path)
        if scores_of is not None:
            query, key, value, *rest = args
            own = (lambda q, k: scores_of(q, k, *rest)), (lambda q, k, v: func(q, k, v, *rest))
            return _with_hooks(places, query, key, value, *own)
        if func is F.multi_head_attention_forward:
            return _multi_head(places, args, kwargs)
        return _attend(places, *args, **kwargs)


_LOCAL = threading.local()


def _interceptor() -> _Interceptor:
    """That of the running thread: torch keeps its modes by thread."""
    if not hasattr(_LOCAL, "interceptor"):
        _LOCAL.interceptor = _Interceptor()
    interceptor: _Interceptor = _LOCAL.interceptor
    return interceptor


def _multi_head(places: Sequence[tuple[AttentionTap, str]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own multi-head attention with the taps in the place of the attention call inside it.

    No torch function mode sees that call: the mode is off while it handles the function around it.

    Raises:
        WiringError: the weights were asked for, under which torch forms the pattern by another road.
    """
    native = F.multi_head_attention_forward
    call = inspect.signature(native).bind(*args, **kwargs)
    call.apply_defaults()
    if call.arguments["need_weights"]:
        raise WiringError(
            f"{places[0][1]} (MultiheadAttention) was called with need_weights=True, under which torch computes "
            "attention without scaled_dot_product_attention, so that its inside cannot be seen. Call it with "
            "need_weights=False, as nn.TransformerEncoderLayer does; `hook_pattern` has the weights."
        )
    names = {
        **vars(F),
        "has_torch_function": lambda _tensors: False,
        "scaled_dot_product_attention": partial(_attend, places),
    }
    tapped = FunctionType(native.__code__, names, native.__name__, native.__defaults__, native.__closure__)
    return tapped(*call.args, **call.kwargs)


def _attend(
    places: Sequence[tuple[AttentionTap, str]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def scores(query: Tensor, key: Tensor) -> Tensor:
        return explicit_attention(query, key, attn_mask, is_causal, scale)

    return _with_hooks(places, query, key, value, scores, fused, dropout_p, enable_gqa)


def _with_hooks(
    places: Sequence[tuple[AttentionTap, str]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Callable[[Tensor, Tensor], Tensor],
    fused: Callable[[Tensor, Tensor, Tensor], Tensor],
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with hooks: fused where no hook looks at scores or pattern, else from the scores on."""

    def fire(how: str, tensor: Tensor) -> Tensor:
        for tap, path in places:
            tensor = tap.fire(path, how, tensor)
        return tensor

    query, key, value = fire("q", query), fire("k", key), fire("v", value)
    if not any(tap.wants(path, how) for tap, path in places for how in ("scores", "pattern")):
        return fire("result", fire("z", fused(query, key, value)))
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    pattern = softmax_rows(fire("scores", scores(query, key)))
    pattern = fire("pattern", pattern)
    if dropout_p > 0.0:
        pattern = F.dropout(pattern, dropout_p)
    return fire("result", fire("z", pattern @ value))
