"""T5, the language model: the contrast that the papers on Chronos draw. A series is its sequence of token ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Architecture, Encoded, Levels, Prediction, rows_apart
from tsfm_lens.models.wirings import _series, _t5

SIZES = ("small", "base", "large")
VOCABULARY = 32128


class T5Adapter(Adapter):
    """Adapter of a ``T5ForConditionalGeneration``: token ids in and out; tokenise text with its own tokenizer."""

    architecture = "t5"
    readout = "token"
    rollout = "tokens"
    package = "transformers"
    draw_axis = 0
    integers = True
    restarts = False
    context_length = 512
    prediction_length = 64
    first_value_token = 2

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        config = native.config
        unembed = Site("lm_head", layout="batch pos d_vocab")
        stacks = _t5.stacks(config, encoder_upstream=("encoder.embed_tokens",))
        self.wiring = Wiring("t5", stacks, unembed, "shared", steps_per_readout=1)
        self._rescale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0

    def encode(
        self,
        batch: SeriesBatch,
        horizon: int | None = None,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Encoded:
        """Pad token ids on the left under the mask, and add the teacher-forced decoder input."""
        ids = _series.padded(batch, self.longest(batch))
        mask = ~torch.isnan(ids)
        ids = self._ids(torch.where(mask, ids, float(self.model.config.pad_token_id)))
        if future is not None and tokens is not None:
            raise InputError("give either future values or decoder tokens, not both")
        target = tokens if future is None else future
        start = torch.full((len(batch), 1), self.model.config.decoder_start_token_id)
        decoder = start if target is None else torch.cat([start, self._ids(target)[:, :-1]], dim=1)
        spans = {
            "encoder": TokenSpans.patches(-ids.shape[1], ids.shape[1], 1),
            "decoder": TokenSpans.patches(0, decoder.shape[1], 1),
        }
        inputs = {"input_ids": ids, "attention_mask": mask.long(), "decoder_input_ids": decoder}
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        ones = torch.ones(len(batch), device=self.device)
        return Encoded(inputs, spans, torch.zeros_like(ones), ones, batch)

    def _ids(self, values: Tensor) -> Tensor:
        """Return the token ids of values; InputError names the first that is none."""
        size = self.model.config.vocab_size
        wrong = (values != values.round()) | (values < 0) | (values >= size)
        if bool(wrong.any()):
            raise InputError(
                f"T5 is a language model: a series is its token ids, integers from 0 to {size - 1}; got "
                f"{float(values[wrong][0]):g}. Tokenise text with its own tokenizer first; if this is a Chronos "
                "checkpoint, its config.json lacks chronos_config."
            )
        return values.long()

    def tokens_of(self, values: Tensor, encoded: Encoded) -> Tensor:
        """Return the token ids of values (batch, step)."""
        return self._ids(values)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute logits (batch, step, vocabulary)."""
        return self.model(**inputs, use_cache=False).logits

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute logits (…, batch, step, vocabulary)."""
        return self.model.lm_head(normalized * self._rescale)

    def values(self, encoded: Encoded) -> Tensor:
        """Return the ids themselves, (batch, vocabulary)."""
        ids = torch.arange(self.model.config.vocab_size, dtype=torch.float32)
        return ids.expand(len(encoded.batch), -1)

    @rows_apart
    def predict(self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None) -> Prediction:
        """Generate continuations in token ids by ``generate`` with sampling."""
        inputs = self.encode(batch).inputs
        draws = self.samples if num_samples is None else num_samples
        paths = self.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=True,
            min_new_tokens=horizon,
            max_new_tokens=horizon,
            num_return_sequences=draws,
        )
        samples = paths[:, 1:].unflatten(0, (len(batch), draws)).float().cpu()
        return self.of_paths(samples, levels)

    def example(self, n_series: int, longest: int) -> SeriesBatch:
        """Draw random token ids for the conformance suite."""
        rng = np.random.default_rng(0)
        lengths = [longest - 7 * index for index in range(n_series)] + [longest]
        return as_series([rng.integers(2, self.model.config.vocab_size, size) for size in lengths])


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device)


def _native(kwargs: Mapping[str, Any]) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return _t5.spread_weights(T5ForConditionalGeneration(T5Config(**kwargs)), std=0.5)


ARCHITECTURE = Architecture(
    name="t5",
    title="T5 (language model)",
    published={size: f"google-t5/t5-{size}" for size in SIZES},
    claims=lambda config: (
        config.get("model_type") == "t5" and "chronos_config" not in config and "chronos_pipeline_class" not in config
    ),
    claims_object=lambda native: (
        type(native).__name__ == "T5ForConditionalGeneration" and not hasattr(native.config, "chronos_config")  # type: ignore[attr-defined]
    ),
    keys=_t5.KEYS,
    values=_t5.VALUES,
    open=_open,
    blank=lambda config: _t5.blank("T5ForConditionalGeneration", config),
    adapter=T5Adapter,
    tiny=lambda: _native({**_t5.tiny_kwargs(), "vocab_size": 50, "feed_forward_proj": "gated-gelu"}),
    build=lambda size: _native({**_t5.t5_kwargs(size), "vocab_size": VOCABULARY}),
    notes="series are token ids",
)
