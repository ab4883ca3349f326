"""Chronos-Bolt: T5 over patches, all quantiles of all steps in one decoder token.

Read :class:`BoltAdapter` first; the wiring table is that of T5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import ALL_DTYPES, Adapter, check_tails
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
        "context_length input_patch_size input_patch_stride prediction_length quantiles"
        " use_reg_token"
    )
}
MODEL = "ChronosBoltModelForForecasting"


class BoltAdapter(Adapter):
    """Adapter of a ``ChronosBoltPipeline``."""

    architecture = "chronos-bolt"
    rollout = "refeed"
    dtypes = ALL_DTYPES
    package = "chronos-forecasting"

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = native.inner_model
        self.settings = self.model.chronos_config
        self.context_length = int(self.settings.context_length)
        self.prediction_length = int(self.settings.prediction_length)
        self.levels = tuple(float(level) for level in self.settings.quantiles)
        self.wiring = Wiring(
            "chronos-bolt",
            t5.stacks(self.model.config, ("input_patch_embedding",)),
            unembed=Site("output_patch_embedding", layout="batch pos d_out"),
            embed="input_patch_embedding",
            steps_per_readout=self.prediction_length,
        )

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Prepare the context as the pipeline does; the decoder takes no future."""
        context = self.native._prepare_and_validate_context(
            self.lengthened(_common.contexts(batch.values))
        )
        # as the library's ``predict``, which cuts before the first pass
        context = context[..., -self.context_length :].to(
            device=self.device, dtype=torch.float32
        )
        width = self.settings.input_patch_size
        stride = self.settings.input_patch_stride
        length = width * -(-context.shape[-1] // width)
        special = ("REG",) if self.settings.use_reg_token else ()
        spans = {
            "encoder": TokenSpans.patches(
                -length, (length - width) // stride + 1, width, special, stride=stride
            ),
            # one token, from which the head reads every step of the horizon
            "decoder": TokenSpans.patches(0, 1, self.prediction_length),
        }
        _, (loc, scale) = self.model.instance_norm(context)
        return Encoded({"context": context}, spans, loc[:, 0], scale[:, 0], batch)

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        result: Tensor = self.model(**inputs).quantile_preds
        return result

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run the pipeline for its own quantiles; it draws no samples."""
        # beyond its levels the library returns the nearest one, with a warning alone
        check_tails(self.levels, levels)
        quantiles, mean = self.native.predict_quantiles(
            self.lengthened(_common.contexts(batch.values)),
            prediction_length=horizon,
            quantile_levels=list(levels),
        )
        return Prediction(quantiles, None, mean)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        output = self.model.output_patch_embedding(normalized[..., -1, :])
        # as the library, which goes back to data units in single precision
        flat = output.to(torch.promote_types(output.dtype, torch.float32))
        return encoded.in_data_units(
            flat.unflatten(-1, (len(self.levels), self.prediction_length))
        )


register(
    Architecture(
        **cards.CARDS["chronos-bolt"].fields,
        classes=("ChronosBoltPipeline", MODEL),
        keys=KEYS,
        values=t5.VALUES | {"architectures": [MODEL]},
        blank=lambda config: t5.blank(f"chronos.chronos_bolt:{MODEL}", config),
        adapter=BoltAdapter,
        **t5.pipeline("ChronosBoltPipeline"),
    )
)
