"""Time steps of the tokens of a forward and of a rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.spans import TokenSpans

SpansAt = Callable[[str, int, int, int, int], TokenSpans]
"""(stack, forecast steps read out before, position of the first token, tokens, tokens of the first pass) -> spans."""


def rollout_spans(adapter: Any, batch: SeriesBatch, horizon: int) -> SpansAt:
    """Return a function for the time steps of every pass of a forecast."""
    spans_of_step: dict[int, dict[str, TokenSpans]] = {}

    def spans_at(step: int) -> dict[str, TokenSpans]:
        """Return the spans of a pass whose context has grown by ``step`` steps, from the first forecast start."""
        if step not in spans_of_step:
            longer = tuple(np.zeros(length + step) for length in batch.lengths)
            visible = replace(batch, values=longer).tail(adapter.context_length)
            example = getattr(adapter, "example", None)
            remainder = max(1, min(adapter.longest_pass, horizon - step))
            spans = adapter.encode(visible if example is None else batch, horizon=remainder).spans
            spans_of_step[step] = {stack: tokens.shifted(step) for stack, tokens in spans.items()}
        return spans_of_step[step]

    def at(stack: str, step: int, offset: int, n_tokens: int, n_first: int) -> TokenSpans:
        output = adapter.wiring.output_stack.name
        if adapter.rollout == "tokens":
            # beyond the native horizon the context grows by whole forecasts, and decoding starts anew
            restarts = adapter.restarts
            growth = step // adapter.prediction_length * adapter.prediction_length if restarts else 0
            return TokenSpans.patches(growth + offset, n_tokens, 1) if stack == output else spans_at(growth)[stack]
        if adapter.rollout == "cache" or adapter.decode_block_size:
            base = spans_at(0)[stack]
            width = base.stop[0] - base.start[0]
            # the first pass of a cached rollout ends where the forecast starts, however long a context it was given
            start = -width * n_first if adapter.rollout == "cache" else base.start[0]
            return TokenSpans.patches(start + width * offset, n_tokens, width)
        spans = spans_at(step if adapter.rollout == "refeed" else 0)[stack]
        lack = n_tokens - len(spans)
        if lack > 0:
            width = spans.stop[-1] - spans.start[-1]
            spans += TokenSpans.patches(spans.stop[-1], lack, width)
        return spans

    return at
