"""Timestral: queries for the horizon beside an encoded context, attention over time and, in some layers, variates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.attention_capture import in_two
from tsfm_lens.hooks.replay import shadowed
from tsfm_lens.hooks.wiring import Attention, Inputs, Projection, Site, Stack, Wiring, Writer
from tsfm_lens.models.adapter import DECILES, Adapter
from tsfm_lens.models.architecture import Architecture, Encoded, Levels, Prediction, rows_apart
from tsfm_lens.models.extras import require
from tsfm_lens.models.wirings import _common
from tsfm_lens.models.wirings._common import (
    attention_row,
    fused,
    keys,
    mlp_row,
    spread_weights,
    write_checkpoint,
)

NAME = "timestral"
KEYS = keys(
    "attend_missing_patches attn_bias block_schedule block_size context_length covariate_enabled d_model "
    "minimum_scale mlp_bias mlp_hidden_dim norm_eps num_heads patch_size quantile_knots quantile_width_factor "
    "rope_partial_factor rope_theta split_context_horizon_attn stabilize_with_global time_attn_gate use_asinh "
    "variate_attn_gate"
)
# no configuration can be read without network: of this shape (heads of 64, MLPs of 8/3 d_model, each fourth layer over
# variates too) are those with the stated sizes of the files, 21, 111, 490 and 837 MB in single precision
SIZES = {"5M": (256, 688, 4), "28M": (384, 1024, 12), "123M": (640, 1712, 20), "209M": (768, 2048, 24)}
LEVELS = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)


def _joined(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """Let an attention over time make one call: the library makes one for context queries, one for the horizon's."""
    x, mask, *rest = args
    return (x, in_two(mask.mask, mask.enc_len) if hasattr(mask, "enc_len") else mask, *rest), kwargs


def _attention(place: int, over_time: bool, gate: str) -> Attention:
    at, norm = f"attns.{place}", f"attn_norms.{place}"
    others: dict[str, Any] = {"joined": _joined}
    if not over_time:
        # rows and positions are swapped up to the output projection, which has them back
        others = {"over": "variate", "x_layout": "pos batch d_model", "qkv_layout": "pos head batch d_head"}
        others["pattern_layout"] = "pos head query key"
    if place:
        others |= {"reads": Site(norm, "in", 0), "aside": True}
    return attention_row(
        "time_attn" if over_time else "variate_attn",
        at,
        fused(f"{at}.wQKV", "(part d_head head)", Projection(f"{at}.wO")),
        norm=norm,
        gate=None if gate == "none" else Projection(f"{at}._gate"),
        **others,
    )


def _rows(config: Any, axes: tuple[bool, ...]) -> tuple[Writer, ...]:
    gates = (config.variate_attn_gate, config.time_attn_gate)
    attentions = [_attention(place, over_time, gates[over_time]) for place, over_time in enumerate(axes)]
    # both halves of the gated layer; the second goes through the activation
    gate, first = (Projection("mlp.w12", "(part d_mlp)", part, 2) for part in range(2))
    others: dict[str, Any] = {"first": first, "gate": gate, "norm": "mlp_norm", "aside": True}
    return (*attentions, mlp_row("mlp", "mlp_norm", ("mlp.w12", "mlp.w3"), "silu", **others))


def _wiring(config: Any, steps: int) -> Wiring:
    axes = require(NAME, "timestral.config").LAYER_KIND_AXES
    by_kind = {kind: _rows(config, axes[kind]) for kind in config.block_schedule}
    writers, *others = (by_kind[kind] for kind in config.block_schedule)
    stack = Stack(
        "",
        "transformer.layers",
        len(config.block_schedule),
        config.num_heads,
        config.d_model,
        config.head_dim,
        config.mlp_hidden_dim,
        writers,
        ln_final="transformer.out_norm",
        upstream=("representation",),
        exceptions={layer: rows for layer, rows in enumerate(others, 1) if rows is not writers},
    )
    return Wiring(NAME, (stack,), Site("head.projection", layout="batch pos d_out"), "representation", steps)


class TimestralAdapter(Adapter):
    """Adapter of a ``TimestralForecaster``; one pass is one block, in the library's advancing frame.

    Attributes:
        clampsym: whether forecasts are averaged with those of -x and clipped at 0 where the context is, as the
            library's own default has it.
    """

    architecture = NAME
    rollout = "refeed"
    multivariate = True
    covariates = ("past", "known", "categories")
    # attention over variates compares every two rows of a batch, whatever their groups
    rows_at_once = 128
    package = "timecopilot-timestral"
    dtypes = ("float32",)
    unrolled = (0.5,)
    clampsym = False

    def __init__(self, native: Any) -> None:
        self.native, self.model = native, native.model
        self.patch = int(native.patch_size)
        self.context_length = int(native.max_context)
        self.prediction_length = int(native.per_shot_horizon_patches) * self.patch
        self.levels = tuple(float(level) for level in native.quantile_levels)
        self.wiring = _wiring(native.config, self.prediction_length)

    @property
    def passes(self) -> int:
        """Number of forwards of one forecast: two where it is averaged with that of -x."""
        return 2 if self.clampsym else 1

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Stack items with their variates; known covariates have values in the patches to forecast."""
        steps = self.prediction_length if horizon is None else horizon
        given, library = self._native_input(batch, steps), self.native
        context, mask = library._as_context(given["context"], None)
        length = context.shape[-1]
        past = library._as_covariates(given["past_covariates"], len(context), length, "past")
        known = library._as_covariates(given["known_covariates"], len(context), length + steps, "known")
        values, mask, roles, future, future_mask, _ = library._assemble_rows(context, mask, steps, past, known)
        n_future = -(-steps // self.patch)
        inputs = {
            "inputs": values.flatten(0, 1),
            "observed": mask.flatten(0, 1),
            "group_ids": torch.as_tensor(batch.group_index, device=self.device),
            "horizon_patches": n_future,
            "role_ids": roles,
            "known_future": future,
            "known_future_mask": future_mask,
        }
        _, loc, scale = self.model.scale(inputs["inputs"], inputs["observed"])
        spans = self._spans(values.shape[-1] // self.patch, n_future, batch.has_covariates)
        horizon = n_future * self.patch
        return Encoded(inputs, {"": spans}, loc[:, -1], scale[:, -1], batch, horizon=horizon, ids=("group_ids",))

    def _spans(self, n_context: int, n_future: int, has_covariates: bool) -> TokenSpans:
        """Return the tokens of the context, then the queries; with covariates, both cover context and horizon."""
        context = TokenSpans.patches(-n_context * self.patch, n_context, self.patch)
        queries = TokenSpans.patches(0, n_future, self.patch)
        if not has_covariates:
            return context + queries
        idle = TokenSpans.patches(0, 0, self.patch, ("IDLE",) * n_context)
        return context + replace(queries, special=("KNOWN",) * n_future) + idle + queries

    def _native_input(self, batch: SeriesBatch, horizon: int) -> dict[str, Any]:
        """Make the arguments of ``forecast``, (item, variate, time), of the whole series: it fills before it cuts."""
        parts = _common.by_role(self._numbered(batch), self.padded_length(batch), horizon)
        return {
            "context": parts["target"],
            "past_covariates": parts.get("past"),
            "known_covariates": parts.get("known"),
        }

    def _numbered(self, batch: SeriesBatch) -> SeriesBatch:
        """Replace categories by the library's numbers: smoothed means of the one target, or their own numbers."""
        if not any(batch.categories):
            return batch
        values, futures = list(batch.values), list(batch.futures)
        for rows in batch.rows_by_group().values():
            targets = np.stack([values[row] for row in rows if batch.roles[row] == "target"])
            target = self.native._encoding_target(*self.native._as_context(targets[None], None))
            for row in (row for row in rows if batch.categories[row]):
                future = batch.futures[row]
                codes = torch.tensor(np.concatenate([values[row], () if future is None else future]))
                numbers = self.native._encode_categorical(codes[None, None], target)[0, 0].double().cpu().numpy()
                values[row], ahead = np.split(numbers, [len(values[row])])
                futures[row] = None if future is None else ahead
        return replace(batch, values=tuple(values), futures=tuple(futures), categories=(None,) * len(batch))

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step), in whole patches; of covariates, too."""
        quantiles = self.model.predict_block(**inputs)
        targets = None if inputs["role_ids"] is None else inputs["role_ids"] == 0
        return self.native._refine_block(quantiles, inputs["inputs"], inputs["observed"], targets).transpose(1, 2)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step); the transformer hands back the stream."""
        leading, stream = normalized.shape[:-3], normalized.reshape(-1, *normalized.shape[-2:])
        with shadowed([(self.model.transformer, lambda _forward: lambda *_: stream)]):
            quantiles = self.run(encoded.repeated(math.prod(leading)))
        return quantiles.reshape(*leading, len(encoded.batch), *quantiles.shape[1:])

    @rows_apart
    def predict(self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None) -> Prediction:
        """Run ``TimestralForecaster.forecast``; it gives no forecast of covariates, which are NaN."""
        options = {"symmetric_averaging": self.clampsym, "clip_nonnegative": self.clampsym}
        forecast = self.native.forecast(prediction_length=horizon, **self._native_input(batch, horizon), **options)
        quantiles = _common.with_covariates(forecast.quantiles.cpu().flatten(0, 1), batch.roles[: batch.n_variates], 0)
        return self.at(quantiles, levels)


def _library() -> Any:
    return require(NAME)


def _wrap(native: Any) -> Any:
    """Build the library's forecaster around a model."""
    return _library().TimestralForecaster(native) if isinstance(native, torch.nn.Module) else native


def _model(config: Mapping[str, Any]) -> Any:
    return _library().TimestralModel(_library().TimestralConfig.from_dict(dict(config)))


def _native(patch: int, context: int, block: int, heads: int, schedule: list[str], *sizes: Any) -> Any:
    names = ("d_model", "mlp_hidden_dim", "quantile_knots")
    config: dict[str, Any] = {"patch_size": patch, "context_length": context, "block_size": block, "num_heads": heads}
    config |= {"block_schedule": schedule, **dict(zip(names, sizes, strict=True))}
    # forecasts are hyperbolic sines of what the head gives
    model = spread_weights(_model(config), {"head.projection": 0.3})
    query = model.representation.forecast_query
    query.data = torch.randn(query.shape, generator=torch.Generator().manual_seed(1))
    return _wrap(model)


def _published(size: str) -> Any:
    d_model, hidden, layers = SIZES[size]
    schedule = (["time"] * 3 + ["time_variate"]) * (layers // 4)
    return _native(32, 32768, 32, d_model // 64, schedule, d_model, hidden, LEVELS)


ARCHITECTURE = Architecture(
    title="Timestral",
    published={size: f"mistralai/Timestral-{size}" for size in SIZES},
    claims=lambda config: "block_schedule" in config and "quantile_knots" in config,
    classes=("TimestralForecaster", "TimestralModel"),
    keys=KEYS,
    open=lambda folder, dtype, device: _wrap(_library().load_model(folder, device=device, dtype=dtype)),
    blank=_model,
    adapter=TimestralAdapter,
    wrap=_wrap,
    tiny=lambda: _native(4, 56, 3, 4, ["variate_time", "time", "time_variate"], 32, 48, DECILES),
    build=_published,
    notes="forecasts run without the library's averaging over x and -x and its clipping at 0 unless "
    "lens.adapter.clampsym = True",
    save=lambda native, folder: write_checkpoint(native.model, native.config.to_dict(), folder),
    extra=NAME,
)
