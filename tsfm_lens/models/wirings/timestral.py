"""Timestral: queries for the horizon beside an encoded context.

Layers attend over time, and some of them over variates, too. Read
:class:`TimestralAdapter` first. One pass is one block of the library's forecast.
"""

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
from tsfm_lens.hooks.wiring import (
    Attention,
    Inputs,
    Projection,
    Site,
    Stack,
    Wiring,
    Writer,
)
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.extras import Extra
from tsfm_lens.models.wirings import _common
from tsfm_lens.models.wirings._common import (
    attention_row,
    fused,
    keys,
    mlp_row,
    write_checkpoint,
)

NAME = "timestral"
# the library's numbers of roles
TARGET = 0
KNOWN = 2
KEYS = keys(
    "attend_missing_patches attn_bias block_schedule block_size context_length"
    " covariate_enabled d_model minimum_scale mlp_bias mlp_hidden_dim norm_eps"
    " num_heads patch_size quantile_knots quantile_width_factor rope_partial_factor"
    " rope_theta split_context_horizon_attn stabilize_with_global time_attn_gate"
    " use_asinh variate_attn_gate"
)
LIBRARY = Extra(
    name=NAME,
    title="Timestral",
    imports=("timestral",),
    distributions={"timecopilot-timestral": "0.1.0"},
    proofs=("timestral:TimestralForecaster",),
    alone=False,
)


def _joined(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """Let an attention over time make one call.

    The library makes one for the queries of the context and one for those of the
    horizon.
    """
    x, mask, *rest = args
    if hasattr(mask, "enc_len"):
        mask = in_two(mask.mask, mask.enc_len)
    return (x, mask, *rest), kwargs


def _attention(index: int, over_time: bool, gate: str) -> Attention:
    at = f"attns.{index}"
    norm = f"attn_norms.{index}"
    kind = "time_attn"
    fields: dict[str, Any] = {"joined": _joined}
    if not over_time:
        kind = "variate_attn"
        # rows and positions are swapped up to the output projection, which has them
        # back
        fields = {
            "over": "variate",
            "x_layout": "pos batch d_model",
            "qkv_layout": "pos head batch d_head",
            "pattern_layout": "pos head query key",
        }
    # the first attention of a block reads the block's input, later ones a stream in
    # between, which is the input of their norm
    if index:
        fields |= {"reads": Site(norm, "in", 0), "aside": True}
    if gate != "none":
        fields["gate"] = Projection(f"{at}._gate")
    return attention_row(
        kind,
        at,
        fused(f"{at}.wQKV", "(part d_head head)", Projection(f"{at}.wO")),
        norm=norm,
        **fields,
    )


def _rows(config: Any, axes: tuple[bool, ...]) -> tuple[Writer, ...]:
    # indexed by ``over_time``, False and True
    gates = (config.variate_attn_gate, config.time_attn_gate)
    attentions = [
        _attention(index, over_time, gates[over_time])
        for index, over_time in enumerate(axes)
    ]
    # both halves of the gated layer; the second goes through the activation
    gate, first = (Projection("mlp.w12", "(part d_mlp)", part, 2) for part in range(2))
    mlp = mlp_row(
        "mlp",
        "mlp_norm",
        ("mlp.w12", "mlp.w3"),
        "silu",
        first=first,
        gate=gate,
        norm="mlp_norm",
        aside=True,
    )
    return (*attentions, mlp)


def _wiring(config: Any, steps: int) -> Wiring:
    axes = LIBRARY.require("timestral.config").LAYER_KIND_AXES
    by_kind = {kind: _rows(config, axes[kind]) for kind in config.block_schedule}
    writers, *rest = (by_kind[kind] for kind in config.block_schedule)
    stack = Stack(
        "",
        "transformer.layers",
        n_layers=len(config.block_schedule),
        n_heads=config.num_heads,
        d_model=config.d_model,
        d_head=config.head_dim,
        d_mlp=config.mlp_hidden_dim,
        writers=writers,
        ln_final="transformer.out_norm",
        upstream=("representation",),
        # ``by_kind`` has one tuple of rows per kind, so that identity tells kinds apart
        exceptions={
            layer: rows for layer, rows in enumerate(rest, 1) if rows is not writers
        },
    )
    return Wiring(
        NAME,
        (stack,),
        Site("head.projection", layout="batch pos d_out"),
        "representation",
        steps,
    )


class TimestralAdapter(Adapter):
    """Adapter of a ``TimestralForecaster``.

    One pass is one block, in the library's advancing frame.

    Attributes:
        clampsym: whether forecasts are averaged with those of -x and clipped at 0 where
            the context is, as the library's own default has it.
    """

    architecture = NAME
    rollout = "refeed"
    multivariate = True
    covariates = ("past", "known", "categories")
    # attention over variates compares every two rows of a batch, whatever their groups
    rows_at_once = 128
    package = "timecopilot-timestral"
    # the library feeds the median back
    unrolled = (0.5,)
    # off, since a recorded run has to make one forward per pass
    clampsym = False

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = native.model
        self.patch = int(native.patch_size)
        self.context_length = int(native.max_context)
        self.prediction_length = int(native.per_shot_horizon_patches) * self.patch
        self.levels = tuple(float(level) for level in native.quantile_levels)
        self.wiring = _wiring(native.config, self.prediction_length)
        # checkpoints differ in the covariates that they were trained with
        ahead = ("known",) if native.supports_known_covariates else ()
        self.covariates = (
            ("past", *ahead, "categories") if native.supports_covariates else ()
        )

    @property
    def passes(self) -> int:
        """Number of forwards of one forecast.

        Two where it is averaged with the forecast of -x.
        """
        if self.clampsym:
            return 2
        return 1

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Stack items with their variates.

        Known covariates have values in the patches to forecast.
        """
        steps = self.prediction_length if horizon is None else horizon
        n_future = -(-steps // self.patch)
        library = self.native
        native = self._native_input(batch, steps)
        # what is left in the dictionary are the covariates
        values, mask = library._as_context(native.pop("context"), None)
        # known covariates continue over the horizon
        lengths = {
            name: values.shape[-1] + steps * name.startswith("known") for name in native
        }
        covariates = [
            library._as_covariates(covariate, len(values), lengths[name], name)
            for name, covariate in native.items()
        ]
        values, mask, *rest, _ = library._assemble_rows(
            values, mask, steps, *covariates
        )
        inputs = {
            "inputs": values.flatten(0, 1),
            "observed": mask.flatten(0, 1),
            "horizon_patches": n_future,
        }
        inputs |= dict(
            zip(("role_ids", "known_future", "known_future_mask"), rest, strict=True)
        )
        inputs["group_ids"] = torch.as_tensor(batch.group_index, device=self.device)
        loc, scale = self._anchor(inputs)
        spans = self._spans(
            values.shape[-1] // self.patch, n_future, batch.has_covariates
        )
        horizon = n_future * self.patch
        return Encoded(
            inputs, {"": spans}, loc, scale, batch, horizon=horizon, ids=("group_ids",)
        )

    def _spans(self, n_context: int, n_future: int, has_covariates: bool) -> TokenSpans:
        """Return the tokens of the context, then the queries.

        With covariates, both cover context and horizon.
        """
        context = TokenSpans.patches(-n_context * self.patch, n_context, self.patch)
        queries = TokenSpans.patches(0, n_future, self.patch)
        if not has_covariates:
            return context + queries
        idle = TokenSpans.patches(0, 0, self.patch, ("IDLE",) * n_context)
        return (
            context + replace(queries, special=("KNOWN",) * n_future) + idle + queries
        )

    def _native_input(self, batch: SeriesBatch, horizon: int) -> dict[str, Any]:
        """Make the arguments of ``forecast``, (item, variate, time).

        They hold the whole series, since the library fills gaps before it cuts.
        """
        parts = _common.by_role(
            self.numbered(batch), self.padded_length(batch), horizon
        )
        return {"context": parts["target"]} | {
            f"{role}_covariates": parts.get(role) for role in ("past", "known")
        }

    def numbered(self, batch: SeriesBatch) -> SeriesBatch:
        """Replace categories by the library's numbers.

        They are smoothed means of the target if there is one target, else the
        categories' own numbers.
        """
        if not any(batch.categories):
            return batch
        values = list(batch.values)
        futures = list(batch.futures)
        for rows in batch.rows_by_group().values():
            targets = np.stack(
                [values[row] for row in rows if batch.roles[row] == "target"]
            )
            target = self.native._encoding_target(
                *self.native._as_context(targets[None], None)
            )
            for row in (row for row in rows if batch.categories[row]):
                future = batch.futures[row]
                codes = torch.tensor(
                    np.concatenate([values[row], () if future is None else future])
                )
                encoded = self.native._encode_categorical(codes[None, None], target)
                numbers = encoded[0, 0].cpu().double().numpy()
                # past and future were encoded as one row
                values[row], ahead = np.split(numbers, [len(values[row])])
                futures[row] = None if future is None else ahead
        return replace(
            batch,
            values=tuple(values),
            futures=tuple(futures),
            categories=(None,) * len(batch),
        )

    def _anchor(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute mean and scale of the last context patch, (batch,) each.

        The head's output is in their units.
        """
        rows = inputs["inputs"]
        mask = inputs["observed"]
        last = rows.shape[1] - 1
        if inputs["known_future"] is not None:
            rows = torch.cat([rows, inputs["known_future"]], -1)
            mask = torch.cat([mask, inputs["known_future_mask"]], -1)
        statistics = self.model.scale(rows, mask)
        if inputs["role_ids"] is not None:
            statistics = self.model._known_cov_scaling(
                rows, mask, *statistics, inputs["role_ids"] == KNOWN
            )
        _, loc, scale = statistics
        return loc[:, last], scale[:, last]

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step).

        Steps are whole patches; covariates have quantiles, too.
        """
        return self._refined(self.model.predict_block(**inputs), inputs)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        # the queries of the horizon are the last tokens
        raw = self.model.head(normalized[..., -encoded.inputs["horizon_patches"] :, :])
        loc = encoded.loc[:, None, None]
        scale = encoded.scale[:, None, None]
        denormalize = LIBRARY.require("timestral.scaler").denormalize_quantiles
        quantiles = denormalize(raw, loc, scale, self.model.config.use_asinh)
        leading = quantiles.shape[:-3]
        # the frame that refinement moves to depends on each row's context
        inputs = encoded.repeated(math.prod(leading))
        flat = quantiles.reshape(-1, *quantiles.shape[-2:])
        refined = self._refined(flat, inputs)
        return refined.reshape(*leading, len(encoded.batch), *refined.shape[1:])

    def _refined(self, quantiles: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Move quantiles to the library's advancing frame.

        They are (batch, step, quantile) before and (batch, quantile, step) after.
        """
        targets = None
        if inputs["role_ids"] is not None:
            targets = inputs["role_ids"] == TARGET
        refined = self.native._refine_block(
            quantiles, inputs["inputs"], inputs["observed"], targets
        )
        result: Tensor = refined.transpose(1, 2)
        return result

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``TimestralForecaster.forecast``.

        It gives no forecast of covariates, which are NaN.
        """
        options = {
            "symmetric_averaging": self.clampsym,
            "clip_nonnegative": self.clampsym,
        }
        forecast = self.native.forecast(
            prediction_length=horizon, **self._native_input(batch, horizon), **options
        )
        quantiles = _common.with_covariates(
            forecast.quantiles.cpu().flatten(0, 1), batch.roles[: batch.n_variates], 0
        )
        return self.at(quantiles, levels)


def _wrap(native: Any) -> Any:
    """Build the library's forecaster around a model."""
    if isinstance(native, torch.nn.Module):
        return LIBRARY.require().TimestralForecaster(native)
    return native


def _model(config: Mapping[str, Any]) -> Any:
    return LIBRARY.require().TimestralModel(
        LIBRARY.require().TimestralConfig.from_dict(dict(config))
    )


register(
    Architecture(
        title="Timestral",
        published={
            size: f"mistralai/Timestral-{size}"
            for size in ("5M", "28M", "123M", "209M")
        },
        claims=lambda config: "block_schedule" in config and "quantile_knots" in config,
        classes=("TimestralForecaster", "TimestralModel"),
        keys=KEYS,
        open=lambda folder, dtype, device: _wrap(
            LIBRARY.require().load_model(folder, device=device, dtype=dtype)
        ),
        blank=_model,
        adapter=TimestralAdapter,
        wrap=_wrap,
        notes=(
            "forecasts run without the library's averaging over x and -x and its"
            " clipping at 0 unless lens.adapter.clampsym = True"
        ),
        save=lambda native, folder: write_checkpoint(
            native.model, native.config.to_dict(), folder
        ),
        library=LIBRARY,
        table_traits={"attention", "additive", "gradients"},
    )
)
