"""Chronos-Bolt: T5 over patches, all quantiles of all steps in one decoder token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models.adapter import PatchAdapter, refuse_tails
from tsfm_lens.models.architecture import Architecture, Encoded, Prediction, rows_apart
from tsfm_lens.models.wirings import _series, _t5
from tsfm_lens.models.wirings._checks import settings

SETTINGS = settings(
    steps="context_length prediction_length input_patch_size input_patch_stride",
    levels="quantiles",
    flag="use_reg_token",
)
MODEL = "ChronosBoltModelForForecasting"


class BoltAdapter(PatchAdapter):
    """Adapter of a ``ChronosBoltPipeline``."""

    architecture = "chronos-bolt"
    readout: Literal["token", "quantile", "distribution"] = "quantile"
    rollout: Literal["tokens", "cache", "refeed", "single"] = "refeed"
    package = "chronos-forecasting"

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model: Any = native.inner_model
        self.settings = self.model.chronos_config
        self.context_length = int(self.settings.context_length)
        self.prediction_length = int(self.settings.prediction_length)
        self.levels = tuple(float(level) for level in self.settings.quantiles)
        self.wiring = Wiring(
            "chronos-bolt",
            _t5.stacks(self.model.config, encoder_upstream=("input_patch_embedding",)),
            unembed=Site("output_patch_embedding", layout="batch pos d_out"),
            embed="input_patch_embedding",
            steps_per_readout=self.prediction_length,
        )

    def encode(
        self,
        batch: SeriesBatch,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
    ) -> Encoded:
        """Prepare the context as the pipeline does; the decoder takes no future."""
        if future is not None or tokens is not None:
            raise InputError(
                "Chronos-Bolt emits all steps from one decoder token and takes no future values; leave `future` out"
            )
        device = next(self.model.parameters()).device
        context = self.native._prepare_and_validate_context(self.lengthened(_series.contexts(batch.values)))
        context = context[..., -self.context_length :].to(device=device, dtype=torch.float32)
        width, stride = self.settings.input_patch_size, self.settings.input_patch_stride
        length = width * -(-context.shape[-1] // width)
        special = ("REG",) if self.settings.use_reg_token else ()
        spans = {
            "encoder": TokenSpans.patches(-length, (length - width) // stride + 1, width, special, stride=stride),
            "decoder": TokenSpans.patches(0, 1, self.prediction_length),
        }
        _, (loc, scale) = self.model.instance_norm(context)
        return Encoded({"context": context}, spans, loc[:, 0], scale[:, 0], batch)

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        return self.model(**inputs).quantile_preds

    @rows_apart
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: tuple[float, ...], num_samples: int | None
    ) -> Prediction:
        """Run the pipeline for its own quantiles; it draws no samples."""
        if num_samples is not None:
            raise InputError("Chronos-Bolt forecasts quantiles and draws no samples; leave num_samples out")
        refuse_tails(self.levels, levels)
        quantiles, mean = self.native.predict_quantiles(
            self.lengthened(_series.contexts(batch.values)), prediction_length=horizon, quantile_levels=list(levels)
        )
        return Prediction(quantiles, None, mean)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        output = self.model.output_patch_embedding(normalized[..., -1, :])
        # as the library, which goes back to data units in single precision
        flat = output.to(torch.promote_types(output.dtype, torch.float32))
        shape = (*flat.shape[:-1], len(self.levels), self.prediction_length)
        scale, loc = (part.to(flat)[:, None, None] for part in (encoded.scale, encoded.loc))
        return flat.reshape(shape) * scale + loc


def _claims_object(native: object) -> bool:
    return type(native).__name__ in ("ChronosBoltPipeline", "ChronosBoltModelForForecasting")


def _adapt(native: Any) -> BoltAdapter:
    if type(native).__name__ == "ChronosBoltPipeline":
        return BoltAdapter(native)
    from chronos.chronos_bolt import ChronosBoltPipeline

    return BoltAdapter(ChronosBoltPipeline(native))


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from chronos import ChronosBoltPipeline

    return ChronosBoltPipeline.from_pretrained(folder, dtype=dtype, device_map=device)


def _native(kwargs: dict[str, Any], context: int, horizon: int, patch: int) -> Any:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    settings = {
        "context_length": context,
        "prediction_length": horizon,
        "input_patch_size": patch,
        "input_patch_stride": patch,
        "quantiles": [level / 10 for level in range(1, 10)],
        "use_reg_token": True,
    }
    names = {
        "architectures": ["ChronosBoltModelForForecasting"],
        "chronos_pipeline_class": "ChronosBoltPipeline",
    }
    config = T5Config(**_t5.deep({**kwargs, **names, "vocab_size": 2, "reg_token_id": 1, "chronos_config": settings}))
    return ChronosBoltModelForForecasting(config).eval()


ARCHITECTURE = Architecture(
    name="chronos-bolt",
    title="Chronos-Bolt",
    readout="quantile",
    published={size: f"amazon/chronos-bolt-{size}" for size in ("tiny", "mini", "small", "base")},
    claims=lambda config: config.get("chronos_pipeline_class") == "ChronosBoltPipeline",
    claims_object=_claims_object,
    check=lambda config, where: _t5.check_keys(config, where, SETTINGS, MODEL),
    open=_open,
    blank=lambda config: _t5.blank(f"chronos.chronos_bolt:{MODEL}", config),
    adapt=_adapt,
    tiny=lambda: _t5.spread_weights(_native(_t5.tiny_kwargs(decoder_layers=3), 64, 16, 4)),
    build=lambda size: _t5.spread_weights(_native(_t5.t5_kwargs(size), 2048, 64, 16), std=0.5),
)
