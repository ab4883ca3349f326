"""The attention tap: one interceptor of scaled dot-product attention for every architecture.

Fused kernels never form the attention pattern. While a hook on q, k, v, scores or pattern is set, the
tap takes the calls made by the attention modules concerned, computes the softmax explicitly where a
hook needs it, and lets all other calls run fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.native import explicit_attention, softmax_rows

Fire = Callable[[str, str, Tensor], Tensor]
"""(attention module path, "q" | "k" | "v" | "scores" | "pattern", native tensor) -> the tensor to go on with."""


class AttentionTap(TorchFunctionMode):
    """Intercepts attention calls made inside labelled modules.

    Args:
        fire: called with each tensor; returns it, or its replacement.
        wants: (module path, "q" | "k" | "v" | "scores" | "pattern") -> is any hook set there now?
    """

    def __init__(self, fire: Fire, wants: Callable[[str, str], bool]) -> None:
        super().__init__()
        self._fire = fire
        self._wants = wants
        self._inside: list[str] = []
        self._seen: set[str] = set()
        self._labelled: set[str] = set()
        self._active = False

    @contextmanager
    def labelled(self, modules: Iterable[tuple[str, nn.Module]]) -> Any:
        """Intercept the calls of these modules, given as (path, module), while the block runs."""
        with ExitStack() as stack:
            for path, module in modules:
                if path in self._labelled:
                    continue
                stack.callback(self._labelled.discard, path)
                self._labelled.add(path)
                stack.enter_context(self._label(path, module))
            if not self._active:
                stack.callback(setattr, self, "_active", False)
                self._active = True
                stack.enter_context(self)
            yield

    @contextmanager
    def _label(self, path: str, module: nn.Module) -> Any:
        # bound methods cannot carry the path, so small closures do
        def push(_module: nn.Module, _args: Any) -> None:
            self._inside.append(path)
            self._seen.discard(path)

        def check(module: nn.Module, _args: Any, _output: Any) -> None:
            if path not in self._seen:
                raise WiringError(
                    f"{path} ({type(module).__name__}) computed attention without torch's "
                    "scaled_dot_product_attention, so its inside cannot be seen. Load the model with its "
                    "'sdpa' attention, without xformers or "
                    "another fused replacement."
                )

        def pop(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._inside.pop()

        handles = [
            module.register_forward_pre_hook(push),
            module.register_forward_hook(check),
            module.register_forward_hook(pop, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._inside.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, or attention with hooks when the call comes from a labelled module."""
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or not self._inside:
            return func(*args, **kwargs)
        self._seen.add(self._inside[-1])
        return self._attend(self._inside[-1], *args, **kwargs)

    def _attend(
        self,
        path: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        query = self._fire(path, "q", query)
        key = self._fire(path, "k", key)
        value = self._fire(path, "v", value)
        if not (self._wants(path, "scores") or self._wants(path, "pattern")):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = explicit_attention(query, key, attn_mask, is_causal, scale)
        pattern = softmax_rows(self._fire(path, "scores", scores))
        pattern = self._fire(path, "pattern", pattern)
        if dropout_p > 0.0:
            pattern = F.dropout(pattern, dropout_p)
        return pattern @ value
