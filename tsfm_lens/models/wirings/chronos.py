"""Chronos: T5 over quantised values, sampled token by token (Ansari et al., 2024).

Read :class:`ChronosAdapter` first; the wiring table and the forward are those of
:class:`tsfm_lens.models.wirings.t5.TokenAdapter`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import cards
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.wirings import _common, t5
from tsfm_lens.models.wirings._common import keys

KEYS = t5.KEYS | {
    "chronos_config": keys(
        "context_length eos_token_id model_type n_special_tokens n_tokens num_samples"
        " pad_token_id prediction_length temperature tokenizer_class top_k top_p"
        " use_eos_token",
        tokenizer_kwargs=keys("high_limit low_limit"),
    )
}
# the library looks the tokenizer's class up by this name
INNER = {"tokenizer_class": "MeanScaleUniformBins", "model_type": "seq2seq"}


class ChronosAdapter(t5.TokenAdapter):
    """Adapter of a ``ChronosPipeline`` of sequence-to-sequence type."""

    architecture = "chronos"
    package = "chronos-forecasting"

    def __init__(self, native: Any) -> None:
        self.settings = native.model.config
        if self.settings.model_type != "seq2seq":
            raise WiringError(
                f"this Chronos model is of type {self.settings.model_type!r}; the"
                " wiring 'chronos' describes encoder-decoder (seq2seq) models"
            )
        self.native = native
        self.model = native.inner_model
        self.context_length = int(self.settings.context_length)
        self.prediction_length = int(self.settings.prediction_length)
        self.samples = int(self.settings.num_samples)
        self.wire()

    def encode(
        self,
        batch: SeriesBatch,
        horizon: int | None = None,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Encoded:
        """Tokenise the context and the teacher-forced future.

        Without a future, the decoder reads the start token alone.

        Returns:
            The encoded batch.
        """
        context = self.native._prepare_and_validate_context(
            self.lengthened(_common.contexts(batch.values))
        )
        ids, mask, scale = self.native.tokenizer.context_input_transform(context)
        if future is not None:
            # the public transform of labels insists on the model's own horizon and
            # appends an end token
            tokens, _, _ = self.native.tokenizer._input_transform(
                future.to(torch.float32), scale
            )
        elif tokens is not None:
            self.check_token_ids(tokens, "decoder tokens are ids")
        decoder = self.shifted(tokens, len(batch))
        return self.of_tokens(
            ids, mask, decoder, scale, batch, n_eos=int(self.settings.use_eos_token)
        )

    def encode_tokens(self, ids: Tensor, decoder: Tensor) -> Encoded:
        """Encode token ids as they are, (batch, pos) each.

        Those of the decoder begin with its start token.

        Returns:
            The encoded batch, with scale 1.
        """
        values = tuple(row.numpy().astype(float) for row in ids)
        names = tuple(f"sequence-{index}" for index in range(len(ids)))
        batch = SeriesBatch(values, names)
        return self.of_tokens(
            ids, torch.ones_like(ids), decoder, torch.ones(len(ids)), batch
        )

    @property
    def first_value_token(self) -> int:
        """Id of the lowest value bin; all lower ids are special."""
        # the id before it would be a value below the lowest boundary, which is -1e20
        return int(self.settings.n_special_tokens) + 1

    def tokenize(self, values: Tensor, encoded: Encoded) -> Tensor:
        """Return the token ids of values (batch, step) under the scale of a batch."""
        # the tokenizer keeps its bins on the CPU
        result: Tensor = self.native.tokenizer._input_transform(
            values.float(), encoded.scale.cpu()
        )[0]
        return result

    def number_step(self, values: np.ndarray) -> float:
        """Return the width of a bin in data units.

        It grows with the mean absolute value of the context.
        """
        # bins are equally wide, in units of the mean absolute value
        low, high = self.native.tokenizer.centers[:2].tolist()
        return float((high - low) * np.nanmean(np.abs(values)))

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Draw sample paths, and take their empirical quantiles.

        ``ChronosPipeline.predict_quantiles`` does the same.

        Returns:
            Quantiles, mean and paths, in data units.
        """
        contexts = self.lengthened(_common.contexts(batch.values))
        paths = self.native.predict(
            contexts, prediction_length=horizon, num_samples=num_samples
        )
        return self.of_paths(paths, levels)

    def values(self, encoded: Encoded) -> Tensor:
        """Return the value that each token decodes to, (batch, vocabulary).

        Special tokens are included.
        """
        # the transform takes (series, sample, step): here the vocabulary is the steps
        vocabulary = torch.arange(self.settings.n_tokens).reshape(1, 1, -1)
        values = self.native.tokenizer.output_transform(
            vocabulary.expand(len(encoded.batch), 1, -1), encoded.scale.cpu()
        )
        result: Tensor = values[:, 0]
        return result


def _wrap(native: Any) -> Any:
    if type(native).__name__ == "ChronosPipeline":
        return native
    from chronos.chronos import ChronosConfig, ChronosModel, ChronosPipeline

    settings = ChronosConfig(**native.config.chronos_config)
    return ChronosPipeline(settings.create_tokenizer(), ChronosModel(settings, native))


register(
    Architecture(
        **cards.CARDS["chronos"].fields,
        classes=("ChronosPipeline", "T5ForConditionalGeneration"),
        among=lambda native: (
            hasattr(native, "tokenizer") or hasattr(native.config, "chronos_config")
        ),
        keys=KEYS,
        values=t5.VALUES | {"chronos_config": INNER},
        open=t5.pipeline("ChronosPipeline")["open"],
        blank=lambda config: t5.blank("T5ForConditionalGeneration", config),
        adapter=ChronosAdapter,
        wrap=_wrap,
    )
)
