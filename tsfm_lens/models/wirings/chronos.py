"""Chronos: T5 over quantised values, sampled token by token (Ansari et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Architecture, Encoded, Levels, Prediction, rows_apart
from tsfm_lens.models.wirings import _series, _t5
from tsfm_lens.models.wirings._checks import keys

KEYS = _t5.KEYS | {
    "chronos_config": keys(
        "context_length eos_token_id model_type n_special_tokens n_tokens num_samples pad_token_id prediction_length "
        "temperature tokenizer_class top_k top_p use_eos_token",
        tokenizer_kwargs=keys("high_limit low_limit"),
    )
}
# the library looks the tokenizer's class up by this name
INNER = {"tokenizer_class": "MeanScaleUniformBins", "model_type": "seq2seq"}


class ChronosAdapter(Adapter):
    """Adapter of a ``ChronosPipeline`` of sequence-to-sequence type."""

    architecture = "chronos"
    readout = "token"
    rollout = "tokens"
    package = "chronos-forecasting"
    draw_axis = 0

    def __init__(self, native: Any) -> None:
        if native.model.config.model_type != "seq2seq":
            raise WiringError(
                f"this Chronos model is of type {native.model.config.model_type!r}; the wiring 'chronos' "
                "describes encoder-decoder (seq2seq) models"
            )
        self.native = native
        self.model: Any = native.inner_model
        config = self.model.config
        self.settings = native.model.config
        self.context_length = int(self.settings.context_length)
        self.prediction_length = int(self.settings.prediction_length)
        self.samples = int(self.settings.num_samples)
        self.wiring = Wiring(
            "chronos",
            _t5.stacks(config, encoder_upstream=("encoder.embed_tokens",)),
            unembed=Site("lm_head", layout="batch pos d_vocab"),
            embed="shared",
            steps_per_readout=1,
        )
        self._rescale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0

    def encode(
        self,
        batch: SeriesBatch,
        horizon: int | None = None,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Encoded:
        """Tokenise the context and the teacher-forced future (start token alone if there is none)."""
        context = self.native._prepare_and_validate_context(self.lengthened(_series.contexts(batch.values)))
        ids, mask, scale = self.native.tokenizer.context_input_transform(context)
        start = torch.full((len(batch), 1), self.model.config.decoder_start_token_id)
        if future is not None and tokens is not None:
            raise InputError("give either future values or decoder tokens, not both")
        if future is not None:
            tokens, _, _ = self.native.tokenizer._input_transform(future.to(torch.float32), scale)
        elif tokens is not None:
            self._check_ids(tokens)
        decoder = start if tokens is None else torch.cat([start, tokens[:, :-1].long()], dim=1)
        n_eos = int(self.settings.use_eos_token)
        n_context = ids.shape[1] - n_eos
        spans = {
            "encoder": TokenSpans.patches(-n_context, n_context, 1, ("EOS",) * n_eos),
            "decoder": TokenSpans.patches(0, decoder.shape[1], 1),
        }
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder}
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        scale = scale.to(self.device)
        return Encoded(inputs, spans, torch.zeros_like(scale), scale, batch)

    def _check_ids(self, tokens: Tensor) -> None:
        """Refuse values that are no token ids."""
        size = self.model.config.vocab_size
        wrong = (tokens != tokens.round()) | (tokens < 0) | (tokens >= size)
        if bool(wrong.any()):
            raise InputError(f"decoder tokens are ids from 0 to {size - 1}; got {float(tokens[wrong][0]):g}")

    def encode_tokens(self, ids: Tensor, decoder: Tensor) -> Encoded:
        """Encode token ids as they are, (batch, pos) each; the decoder's begin with its start token."""
        spans = {
            "encoder": TokenSpans.patches(-ids.shape[1], ids.shape[1], 1),
            "decoder": TokenSpans.patches(0, decoder.shape[1], 1),
        }
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": decoder}
        ones = torch.ones(len(ids))
        names = SeriesBatch(
            tuple(row.numpy().astype(float) for row in ids), tuple(f"sequence-{i}" for i in range(len(ids)))
        )
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        return Encoded(inputs, spans, torch.zeros_like(ones), ones, names)

    @property
    def first_value_token(self) -> int:
        """Id of the lowest value bin; all lower ids are special."""
        return int(self.settings.n_special_tokens) + 1

    def tokens_of(self, values: Tensor, encoded: Encoded) -> Tensor:
        """Return the token ids of values (batch, step) under the scale of a batch."""
        return self.native.tokenizer._input_transform(values.float(), encoded.scale.cpu())[0]

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute logits (batch, step, vocabulary)."""
        return self.model(**inputs, use_cache=False).logits

    @rows_apart
    def predict(self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None) -> Prediction:
        """Draw sample paths, and take their empirical quantiles as ``ChronosPipeline.predict_quantiles`` does."""
        contexts = self.lengthened(_series.contexts(batch.values))
        paths = self.native.predict(contexts, prediction_length=horizon, num_samples=num_samples)
        return self.of_paths(paths, levels)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute logits (…, batch, step, vocabulary)."""
        return self.model.lm_head(normalized * self._rescale)

    def values(self, encoded: Encoded) -> Tensor:
        """Return the value that each token decodes to, (batch, vocabulary), special tokens included."""
        vocabulary = torch.arange(self.settings.n_tokens).reshape(1, 1, -1)
        values = self.native.tokenizer.output_transform(
            vocabulary.expand(len(encoded.batch), 1, -1), encoded.scale.cpu()
        )
        return values[:, 0]


def _claims_object(native: object) -> bool:
    if type(native).__name__ == "ChronosPipeline":
        return True
    config = getattr(native, "config", None)
    return type(native).__name__ == "T5ForConditionalGeneration" and hasattr(config, "chronos_config")


def _wrap(native: Any) -> Any:
    if type(native).__name__ == "ChronosPipeline":
        return native
    from chronos.chronos import ChronosConfig, ChronosModel, ChronosPipeline

    settings = ChronosConfig(**native.config.chronos_config)
    return ChronosPipeline(settings.create_tokenizer(), ChronosModel(settings, native))


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from chronos import ChronosPipeline

    return ChronosPipeline.from_pretrained(folder, dtype=dtype, device_map=device)


def _settings(n_tokens: int, limit: float, context: int, horizon: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "MeanScaleUniformBins",
        "tokenizer_kwargs": {"low_limit": -limit, "high_limit": limit},
        "n_tokens": n_tokens,
        "n_special_tokens": 2,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "use_eos_token": True,
        "model_type": "seq2seq",
        "context_length": context,
        "prediction_length": horizon,
        "num_samples": 20,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }


def _native(kwargs: dict[str, Any]) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(**_t5.deep(kwargs))).eval()


def _tiny() -> Any:
    kwargs = {**_t5.tiny_kwargs(), "vocab_size": 64, "chronos_config": _settings(64, 15.0, 64, 8)}
    return _t5.spread_weights(_native(kwargs))


def _build(size: str) -> Any:
    kwargs = {**_t5.t5_kwargs(size), "vocab_size": 4096, "chronos_config": _settings(4096, 15.0, 512, 64)}
    return _t5.spread_weights(_native(kwargs), std=0.5)


ARCHITECTURE = Architecture(
    name="chronos",
    title="Chronos (T5)",
    published={size: f"amazon/chronos-t5-{size}" for size in _t5.PUBLISHED_SIZES},
    claims=lambda config: (
        "chronos_config" in config and config.get("chronos_pipeline_class", "ChronosPipeline") == "ChronosPipeline"
    ),
    claims_object=_claims_object,
    keys=KEYS,
    values=_t5.VALUES | {"chronos_config": INNER},
    open=_open,
    blank=lambda config: _t5.blank("T5ForConditionalGeneration", config),
    adapter=ChronosAdapter,
    wrap=_wrap,
    tiny=_tiny,
    build=_build,
)
