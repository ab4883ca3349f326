"""Chronos: T5 over quantised values, sampled token by token (Ansari et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models.adapter import PatchAdapter
from tsfm_lens.models.architecture import Architecture, Encoded, Prediction, rows_apart
from tsfm_lens.models.wirings import _checks, _series, _t5

SETTINGS = _checks.settings(
    steps="context_length prediction_length num_samples",
    size="n_tokens",
    count="n_special_tokens top_k",
    token="eos_token_id pad_token_id",
    flag="use_eos_token",
    positive="temperature top_p",
    word="model_type tokenizer_class",
    parts={"tokenizer_kwargs": _checks.settings(real="high_limit low_limit")},
)


class ChronosAdapter(PatchAdapter):
    """Adapter of a ``ChronosPipeline`` of sequence-to-sequence type."""

    architecture = "chronos"
    readout: Literal["token", "quantile", "distribution"] = "token"
    rollout: Literal["tokens", "cache", "refeed", "single"] = "tokens"
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
        self.wiring = Wiring(
            "chronos",
            _t5.stacks(config, encoder_upstream=("encoder.embed_tokens",), head_upstream=()),
            unembed=Site("lm_head", layout="batch pos d_vocab"),
            embed="shared",
            steps_per_readout=1,
        )
        self._rescale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0

    def encode(
        self,
        batch: SeriesBatch,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
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
        device = next(self.model.parameters()).device
        inputs = {
            "input_ids": ids.to(device),
            "attention_mask": mask.to(device),
            "decoder_input_ids": decoder.to(device),
        }
        scale = scale.to(device)
        return Encoded(inputs, spans, torch.zeros_like(scale), scale, batch)

    def _check_ids(self, tokens: Tensor) -> None:
        """Refuse values that are no token ids.

        Raises:
            InputError: names the first such value.
        """
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
        device = next(self.model.parameters()).device
        return Encoded(
            {key: value.to(device) for key, value in inputs.items()}, spans, torch.zeros_like(ones), ones, names
        )

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
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: tuple[float, ...], num_samples: int | None
    ) -> Prediction:
        """Draw sample paths, and take their empirical quantiles as ``ChronosPipeline.predict_quantiles`` does."""
        samples = self.native.predict(
            self.lengthened(_series.contexts(batch.values)), prediction_length=horizon, num_samples=num_samples
        )
        probabilities = torch.tensor(levels, dtype=samples.dtype)
        quantiles = torch.quantile(samples.swapaxes(1, 2), q=probabilities, dim=-1).permute(1, 2, 0)
        return Prediction(quantiles, samples, samples.mean(dim=1))

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


def _adapt(native: Any) -> ChronosAdapter:
    if type(native).__name__ == "ChronosPipeline":
        return ChronosAdapter(native)
    from chronos.chronos import ChronosConfig, ChronosModel, ChronosPipeline

    settings = ChronosConfig(**native.config.chronos_config)
    return ChronosAdapter(ChronosPipeline(settings.create_tokenizer(), ChronosModel(settings, native)))


def _check(config: Mapping[str, Any], where: str) -> None:
    _t5.check_keys(config, where, SETTINGS)
    inner = config["chronos_config"]
    # the library looks the tokenizer's class up by this name
    expected = {"tokenizer_class": "MeanScaleUniformBins", "model_type": "seq2seq"}
    _checks.refuse_values(inner, where, expected, inside="chronos_config.")
    vocabulary = {"vocab_size": config.get("vocab_size")}
    _checks.refuse_above({**inner, **vocabulary}, where, "n_tokens", "vocab_size", or_at=False)
    limits = {"low_limit": -1.0, "high_limit": 1.0, **inner.get("tokenizer_kwargs", {})}
    _checks.refuse_above(limits, where, "low_limit", "high_limit")
    _checks.refuse_above(inner, where, "n_special_tokens eos_token_id pad_token_id", "n_tokens")


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
    readout="token",
    published={size: f"amazon/chronos-t5-{size}" for size in _t5.PUBLISHED_SIZES},
    claims=lambda config: (
        "chronos_config" in config and config.get("chronos_pipeline_class", "ChronosPipeline") == "ChronosPipeline"
    ),
    claims_object=_claims_object,
    check=_check,
    open=_open,
    blank=lambda config: _t5.blank("T5ForConditionalGeneration", config),
    adapt=_adapt,
    tiny=_tiny,
    build=_build,
)
