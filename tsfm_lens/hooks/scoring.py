"""Attention with scores of its own, seen by the tap as scaled dot-product attention is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function


def scored_by(scores: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Declare the scores of a function that computes attention without forming its pattern.

    A model that calls such a function, once in an attention module, is hooked as one that calls torch's own. Its inputs
    are q, k and v; where a hook needs scores or the pattern, ``scores`` forms them.

    Args:
        scores: (query, key, …the arguments after value) -> (…, query, key), before the softmax, with -inf where a key
            may not be seen.

    Returns:
        A decorator of ``fused(query, key, value, …)``, which returns softmax(scores) · value.
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
