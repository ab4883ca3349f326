"""Moirai 2: a causal decoder over all variates of an item, emitting quantiles of several patches at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.wiring import Site, Wiring
from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.architecture import Architecture, Encoded, Levels, Prediction, rows_apart
from tsfm_lens.models.extras import require
from tsfm_lens.models.wirings import _moirai
from tsfm_lens.models.wirings._checks import keys
from tsfm_lens.models.wirings._random import spread_weights

NAME = "moirai-2"
KEYS = keys(
    "attn_dropout_p d_ff d_model dropout_p max_seq_len num_layers num_predict_token patch_size quantile_levels scaling"
)


class Moirai2Adapter(_moirai.PackedAdapter):
    """Adapter of a ``Moirai2Module``, or the module of a ``Moirai2Forecast``."""

    architecture = NAME
    rollout = "refeed"
    joint_rollout = False

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = getattr(native, "module", native)
        hparams = getattr(native, "hparams", {})
        self.context_length = int(hparams.get("context_length", self.context_length))
        self.patch = int(self.model.patch_size)
        self.prediction_length = self.patch * int(self.model.num_predict_token)
        self.levels = tuple(float(level) for level in self.model.quantile_levels)
        unembed = Site("out_proj", layout="batch pos d_out")
        self.wiring = Wiring(NAME, (_moirai.stack(self.model),), unembed, "in_proj", self.prediction_length)

    def library_input(self, batch: SeriesBatch, horizon: int) -> tuple[Any, dict[str, Tensor]]:
        """Return a ``Moirai2Forecast`` and its arguments."""
        length, roles = self.longest(batch), batch.roles[: batch.n_variates]
        kind = _library().Moirai2Forecast
        forecast = self.forecaster(kind, roles, prediction_length=horizon, context_length=length)
        # the library's own transform fills gaps with 0 where there are several targets
        causal = roles.count("target") == 1
        return forecast, _moirai.native_input(batch, length, horizon, self.device, causal_fill=causal)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step), from the last context token of each variate."""
        native = {name: inputs[name] for name in _moirai.PACKED}
        return self._quantiles(self.model(**native, training_mode=False), inputs["layout"])

    def _quantiles(self, output: Tensor, layout: _moirai.Layout) -> Tensor:
        """Turn (…, item, pos, raw output) into (…, item · variate, quantile, step); NaN for covariates."""
        places = [layout.last_context[row] for row in layout.targets]
        rows = rearrange(
            output[..., places, :],
            "... item variate (token quantile patch) -> ... (item variate) quantile (token patch)",
            quantile=len(self.levels),
            patch=self.patch,
        )
        return _moirai.with_covariates(rows, layout.roles, -3)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        raw = self._quantiles(self.model.out_proj(normalized), encoded.inputs["layout"])
        scale, loc = (part.to(raw)[:, None, None] for part in (encoded.scale, encoded.loc))
        return raw * scale + loc

    @rows_apart
    def predict(self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None) -> Prediction:
        """Run ``Moirai2Forecast.forward``; beyond one pass, the library rolls out univariate items only.

        Raises:
            InputError: a longer horizon for items with several variates.
        """
        roles = batch.roles[: batch.n_variates]
        if horizon > self.prediction_length and len(roles) > 1:
            raise InputError(
                f"horizon {horizon} is longer than the {self.prediction_length} steps of one pass, and uni2ts rolls "
                "out items with one variate only; shorten the horizon or forecast the variates one by one"
            )
        forecast, inputs = self.library_input(batch, horizon)
        with torch.no_grad():
            output = forecast(**inputs).cpu()
        # (item, quantile, step[, variate]): the library drops the axis of a single variate
        full = output if output.ndim == 4 else output.unsqueeze(-1)
        quantiles = rearrange(full, "item quantile step variate -> (item variate) step quantile")
        quantiles = _moirai.with_covariates(quantiles, roles, 0)
        return self.at(quantiles, levels)


def _library() -> Any:
    return require("moirai", "uni2ts.model.moirai2")


def _native(*sizes: int) -> Any:
    module = _library().Moirai2Module
    names = ("d_model", "d_ff", "num_layers", "patch_size", "max_seq_len", "num_predict_token")
    native = module(
        **dict(zip(names, sizes, strict=True)), attn_dropout_p=0.0, dropout_p=0.0, scaling=True, quantile_levels=DECILES
    )
    return spread_weights(native, {"out_proj.output_layer": 0.3, "out_proj.residual_layer": 0.3})


ARCHITECTURE = Architecture(
    name=NAME,
    title="Moirai 2.0-R",
    published={"small": "Salesforce/moirai-2.0-R-small"},
    claims=lambda config: "num_predict_token" in config and "quantile_levels" in config,
    claims_object=lambda native: type(native).__name__ in ("Moirai2Module", "Moirai2Forecast"),
    keys=KEYS,
    open=lambda folder, dtype, device: _library().Moirai2Module.from_pretrained(folder, strict=True).to(device, dtype),
    blank=lambda config: _library().Moirai2Module(**copy.deepcopy(dict(config))),
    adapter=Moirai2Adapter,
    # the library has d_model // 64 heads
    tiny=lambda: _native(192, 48, 2, 4, 64, 2),
    build=lambda size: _native(384, 1024, 6, 16, 512, 4),
    extra="moirai",
)
