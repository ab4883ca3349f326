"""T5, the language model that papers on Chronos compare it with.

A series holds token ids of a text. Read :class:`TokenAdapter` first, the base of the
adapters of T5 and Chronos. :func:`stacks` describes the encoder and the decoder of T5,
which Chronos-Bolt has, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import (
    Attention,
    Mlp,
    Projection,
    Site,
    Stack,
    Wiring,
    Writer,
)
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import ALL_DTYPES, Adapter
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.wirings import _common
from tsfm_lens.models.wirings._common import (
    attention_row,
    copied,
    keys,
    mlp_row,
    projections,
)

KEYS = keys(
    "bos_token_id chronos_pipeline_class classifier_dropout d_ff d_kv d_model"
    " decoder_start_token_id dense_act_fn dropout_rate eos_token_id feed_forward_proj"
    " initializer_factor is_decoder is_encoder_decoder is_gated_act layer_norm_epsilon"
    " n_positions num_decoder_layers num_heads num_layers output_past pad_token_id"
    " reg_token_id relative_attention_max_distance relative_attention_num_buckets"
    " scale_decoder_outputs task_specific_params tie_encoder_decoder"
    " tie_word_embeddings use_cache vocab_size"
)
VALUES = {"model_type": "t5"}


class TokenAdapter(Adapter):
    """Base of the adapters of models that read and emit tokens."""

    model: Any
    readout = "token"
    dtypes = ALL_DTYPES
    rollout = "tokens"
    draw_axis = 0

    def wire(self) -> None:
        """Set the wiring of the opened model."""
        config = self.model.config
        unembed = Site("lm_head", layout="batch pos d_vocab")
        upstream = ("encoder.embed_tokens",)
        self.wiring = Wiring(
            self.architecture,
            stacks(config, upstream),
            unembed,
            "shared",
            steps_per_readout=1,
        )
        # T5 scales the stream before the output head if that is tied to the embedding
        self._rescale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0

    def of_tokens(
        self,
        ids: Tensor,
        mask: Tensor,
        decoder: Tensor,
        scale: Tensor,
        batch: SeriesBatch,
        *,
        n_eos: int = 0,
    ) -> Encoded:
        """Make the model's input from token ids.

        ``ids``, their ``mask``, and the ids of the ``decoder``, which begin with its
        start token, are (batch, pos). The last ``n_eos`` ids of a row end the sequence.

        Returns:
            The encoded batch, with the steps of its tokens.
        """
        n_context = ids.shape[1] - n_eos
        spans = {
            "encoder": TokenSpans.patches(-n_context, n_context, 1, ("EOS",) * n_eos),
            "decoder": TokenSpans.patches(0, decoder.shape[1], 1),
        }
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": decoder,
        }
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        scale = scale.to(self.device)
        return Encoded(inputs, spans, torch.zeros_like(scale), scale, batch)

    def shifted(self, target: Tensor | None, count: int) -> Tensor:
        """Return the decoder's input for ``count`` rows, (batch, pos).

        It is the start token, followed by all but the last token of a target, if there
        is a target.
        """
        start = torch.full((count, 1), self.model.config.decoder_start_token_id)
        if target is None:
            return start
        # each token is predicted from those before it, so the last one is never read
        return torch.cat([start, target[:, :-1].long()], dim=1)

    def check_token_ids(self, values: Tensor, message: str, hint: str = "") -> None:
        """Refuse values that are no token ids.

        ``message`` and ``hint`` are the beginning and the end of the error's text.
        """
        size = self.model.config.vocab_size
        wrong = (values != values.round()) | (values < 0) | (values >= size)
        if bool(wrong.any()):
            raise InputError(
                f"{message} from 0 to {size - 1}; got {float(values[wrong][0]):g}{hint}"
            )

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute logits (batch, step, vocabulary)."""
        # no cache, since no further pass would read it
        result: Tensor = self.model(**inputs, use_cache=False).logits
        return result

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute logits (…, batch, step, vocabulary)."""
        result: Tensor = self.model.lm_head(normalized * self._rescale)
        return result


def pipeline(name: str) -> dict[str, Any]:
    """Return the fields ``open`` and ``wrap`` of an architecture of Chronos.

    ``name`` is the class of its pipelines in Chronos's library.
    """

    def kind() -> Any:
        return getattr(import_module("chronos"), name)

    def opened(folder: Path, dtype: torch.dtype, device: str) -> Any:
        return kind().from_pretrained(folder, dtype=dtype, device_map=device)

    return {
        "open": opened,
        "wrap": lambda native: (
            native if type(native).__name__ == name else kind()(native)
        ),
    }


def blank(model: str, config: Mapping[str, Any]) -> Any:
    """Build a model without weights from its configuration.

    ``model`` is the name of a T5 class in transformers, or "module:name" of another
    class that takes a ``T5Config``.

    Returns:
        The model, in its native class.
    """
    from transformers import T5Config

    module, _, name = model.rpartition(":")
    return getattr(import_module(module or "transformers"), name)(
        T5Config.from_dict(copied(config))
    )


def stacks(config: Any, encoder_upstream: tuple[str, ...]) -> tuple[Stack, ...]:
    """Describe the encoder and the decoder.

    ``encoder_upstream`` are the modules that make the input of the encoder.

    Returns:
        The tables of encoder and decoder.
    """
    names = {
        "n_heads": "num_heads",
        "d_model": "d_model",
        "d_head": "d_kv",
        "d_mlp": "d_ff",
    }
    sizes = {name: getattr(config, of_library) for name, of_library in names.items()}
    attention = _attention("self_attn", 0, "SelfAttention")
    cross = _attention("cross_attn", 1, "EncDecAttention", keys_from="encoder")

    def stack(
        name: str,
        n_layers: int,
        writers: tuple[Writer, ...],
        upstream: tuple[str, ...],
        **fields: Any,
    ) -> Stack:
        return Stack(
            name,
            f"{name}.block",
            n_layers,
            writers=writers,
            ln_final=f"{name}.final_layer_norm",
            upstream=upstream,
            entry=name,
            **sizes,
            **fields,
        )

    decoder = (attention, cross, _mlp(2, config))
    upstream = (*encoder_upstream, "encoder")
    return (
        stack(
            "encoder", config.num_layers, (attention, _mlp(1, config)), encoder_upstream
        ),
        stack(
            "decoder",
            config.num_decoder_layers,
            decoder,
            upstream,
            cached=_cache_length,
        ),
    )


def _cache_length(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many tokens a pass finds in its cache."""
    cache = kwargs.get("past_key_values")
    if cache is None:
        return 0
    return int(cache.get_seq_length())


def _attention(kind: str, sublayer: int, name: str, keys_from: str = "") -> Attention:
    """Describe an attention, the module ``name`` in a sublayer of a block."""
    at = f"layer.{sublayer}.{name}"
    norm = f"layer.{sublayer}.layer_norm"
    # a sublayer contains the norm too, so that its input is the stream itself
    reads = Site(f"layer.{sublayer}", "in", 0)
    return attention_row(
        kind,
        at,
        projections(f"{at}.{{}}", "q k v o"),
        reads=reads,
        keys_from=keys_from,
        norm=norm,
    )


def _mlp(sublayer: int, config: Any) -> Mlp:
    """Describe the MLP in a sublayer of a block."""
    at = f"layer.{sublayer}.DenseReluDense"
    norm = f"layer.{sublayer}.layer_norm"
    into = f"{at}.wi"
    gate = None
    if config.is_gated_act:
        into = f"{at}.wi_0"
        gate = Projection(f"{at}.wi_1", "d_mlp")
    return mlp_row(
        at,
        f"layer.{sublayer}",
        (into, f"{at}.wo"),
        config.dense_act_fn,
        gate=gate,
        norm=norm,
    )


class T5Adapter(TokenAdapter):
    """Adapter of a ``T5ForConditionalGeneration``, which reads and emits token ids.

    Text has to be tokenised by the tokenizer of the model before.
    """

    architecture = "t5"
    package = "transformers"
    integers = True
    restarts = False
    context_length = 512
    prediction_length = 64
    # ids 0 and 1 are padding and the end of a sequence
    first_value_token = 2

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        self.wire()

    def encode(
        self,
        batch: SeriesBatch,
        horizon: int | None = None,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Encoded:
        """Pad token ids on the left, where they are masked.

        The decoder reads the given tokens (``future`` or ``tokens``), not its own.

        Returns:
            The encoded batch.
        """
        ids = _common.padded(batch, self.longest(batch))
        mask = ~torch.isnan(ids)
        ids = self._ids(torch.where(mask, ids, float(self.model.config.pad_token_id)))
        target = tokens if future is None else future
        if target is not None:
            target = self._ids(target)
        decoder = self.shifted(target, len(batch))
        return self.of_tokens(ids, mask.long(), decoder, torch.ones(len(batch)), batch)

    def _ids(self, values: Tensor) -> Tensor:
        """Return values as integers; refuse those that are no token ids."""
        hint = (
            ". Tokenise text with its own tokenizer first; if this is a Chronos"
            " checkpoint, its config.json lacks chronos_config."
        )
        self.check_token_ids(
            values, "T5 is a language model: a series is its token ids, integers", hint
        )
        return values.long()

    def tokenize(self, values: Tensor, encoded: Encoded) -> Tensor:
        """Return the token ids of values (batch, step)."""
        return self._ids(values)

    def values(self, encoded: Encoded) -> Tensor:
        """Return the value that each token stands for, its id: (batch, vocabulary)."""
        ids = torch.arange(self.model.config.vocab_size, dtype=torch.float32)
        return ids.expand(len(encoded.batch), -1)

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Sample continuations in token ids with the library's ``generate``."""
        inputs = self.encode(batch).inputs
        draws = num_samples
        if num_samples is None:
            draws = self.samples
        paths = self.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=True,
            # equal to the maximum, so that no end of sequence cuts a path short
            min_new_tokens=horizon,
            max_new_tokens=horizon,
            num_return_sequences=draws,
        )
        # without the start token; rows are series by series, as many as draws for each
        samples = paths[:, 1:].unflatten(0, (len(batch), draws)).float().cpu()
        return self.of_paths(samples, levels)

    def example(self, n_series: int, longest: int) -> SeriesBatch:
        """Draw random token ids for the conformance suite."""
        rng = np.random.default_rng(0)
        # of different lengths, so that padding is tested, too
        lengths = [longest - 7 * index for index in range(n_series)] + [longest]
        return as_series(
            # ids from 2 on, as padding and the end of a sequence occur in no series
            [rng.integers(2, self.model.config.vocab_size, size) for size in lengths]
        )


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Load the model from a folder of weights."""
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device)


register(
    Architecture(
        **cards.CARDS["t5"].fields,
        classes=("T5ForConditionalGeneration",),
        among=lambda native: not hasattr(native.config, "chronos_config"),
        keys=KEYS,
        values=VALUES,
        open=_open,
        blank=lambda config: blank("T5ForConditionalGeneration", config),
        adapter=T5Adapter,
    )
)
