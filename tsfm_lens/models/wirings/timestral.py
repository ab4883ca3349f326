"""Timestral: one sequence of context patches and of queries for the horizon.

Layers attend over time, and some of them over variates, too. Read
:class:`TimestralAdapter` first. One pass forecasts one block of patches, and the
library's forecast is made of several blocks.
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
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import Adapter
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
    fused,
    keys,
    mlp_row,
    write_checkpoint,
)

NAME = "timestral"
# numbers by which the library denotes roles of series
TARGET = 0
KNOWN = 2
KEYS = keys(
    "attend_missing_patches attn_bias block_schedule block_size context_length"
    " covariate_enabled d_model minimum_scale mlp_bias mlp_hidden_dim norm_eps"
    " num_heads patch_size quantile_knots quantile_width_factor rope_partial_factor"
    " rope_theta split_context_horizon_attn stabilize_with_global time_attn_gate"
    " use_asinh variate_attn_gate"
)
LIBRARY = cards.TIMESTRAL


def _joined(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """Change the arguments of an attention over time so that it makes a single call.

    The library calls the attention twice, for the queries of the context and for those
    of the horizon.

    Returns:
        The changed arguments.
    """
    x, mask, *rest = args
    if hasattr(mask, "enc_len"):
        mask = in_two(mask.mask, mask.enc_len)
    return (x, mask, *rest), kwargs


def _attention(index: int, over_time: bool, gate: str) -> Attention:
    """Describe the attention of a layer that has this index among its attentions."""
    at = f"attns.{index}"
    norm = f"attn_norms.{index}"
    kind = "time_attn"
    fields: dict[str, Any] = {"joined": _joined}
    if not over_time:
        kind = "variate_attn"
        # the library swaps the axes of rows and positions for it, and swaps them back
        # before the output projection
        fields = {
            "over": "variate",
            "x_layout": "pos batch d_model",
            "qkv_layout": "pos head batch d_head",
            "pattern_layout": "pos head query key",
        }
    # the first attention of a layer reads the layer's input, a later one the stream
    # after the attention before it, which is the input of its norm
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
    """Describe the attentions and the MLP of one kind of layer.

    ``axes`` say of each attention whether it is over time.

    Returns:
        Rows of the wiring, attentions first.
    """
    # indexed by ``over_time``: False is 0, True is 1
    gates = (config.variate_attn_gate, config.time_attn_gate)
    attentions = [
        _attention(index, over_time, gates[over_time])
        for index, over_time in enumerate(axes)
    ]
    # the halves of the one projection ``w12``; the second goes through the activation
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
    """Describe the model; ``steps`` are those of one pass."""
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
        # layers of the same kind share one tuple, so that ``is not`` compares kinds
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

    One pass is one block, refined as the library does in its advancing frame.

    Attributes:
        clampsym: whether forecasts are averaged with those of -x, and clipped at 0 if
            no context value is negative, as is the library's default.
    """

    architecture = NAME
    rollout = "refeed"
    multivariate = True
    covariates = ("past", "known", "categories")
    # few, as attention over variates computes scores for every two rows of a batch, of
    # whatever groups
    rows_at_once = 128
    package = "timecopilot-timestral"
    # the library feeds the median of a block back as context of the next
    unrolled = (0.5,)
    # off, since it takes two forwards, and a recorded run has one forward per pass
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
        known = ("known",) if native.supports_known_covariates else ()
        self.covariates = (
            ("past", *known, "categories") if native.supports_covariates else ()
        )

    @property
    def passes(self) -> int:
        """Number of forwards of one forecast.

        It is 2 with ``clampsym``, for x and -x.
        """
        if self.clampsym:
            return 2
        return 1

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Stack the variates of all items into rows, as the library does.

        Known covariates have values in the patches to forecast, too.

        Returns:
            The encoded batch.
        """
        steps = self.prediction_length if horizon is None else horizon
        n_future = -(-steps // self.patch)
        library = self.native
        native = self._native_input(batch, steps)
        values, mask = library._as_context(native.pop("context"), None)
        # the covariates are left in ``native``; known ones continue over the horizon
        n_past = values.shape[-1]
        lengths = {name: n_past + steps * name.startswith("known") for name in native}
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
        """Return the spans of the context tokens, then those of the queries.

        With covariates, either part has a token for each patch of context and horizon:
        tokens of known values follow the context, and idle queries precede the others.
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
        """Make the arguments of the library's ``forecast``, (item, variate, time).

        They hold whole series, since the library fills gaps before it cuts the context.

        Returns:
            Tensors by the name of the argument.
        """
        parts = _common.by_role(
            self.numbered(batch), self.padded_length(batch), horizon
        )
        return {"context": parts["target"]} | {
            f"{role}_covariates": parts.get(role) for role in ("past", "known")
        }

    def numbered(self, batch: SeriesBatch) -> SeriesBatch:
        """Replace categories by the numbers that the library gives them.

        If the item has one target, these are smoothed means of the target for each
        category, else the codes of the categories.

        Returns:
            The batch with numbers only.
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
                # past and future were encoded as one series
                values[row], known = np.split(numbers, [len(values[row])])
                futures[row] = None if future is None else known
        return replace(
            batch,
            values=tuple(values),
            futures=tuple(futures),
            categories=(None,) * len(batch),
        )

    def _anchor(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute mean and scale of the last context patch, (batch,) each.

        The output of the head is normalised by them.

        Returns:
            Mean and scale, (batch,) each.
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
        """Compute quantiles of whole patches.

        Returns:
            Quantiles in data units, (batch, quantile, step), of covariates, too.
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
        # inputs for each leading index, since refinement depends on each row's context
        inputs = encoded.repeated(math.prod(leading))
        flat = quantiles.reshape(-1, *quantiles.shape[-2:])
        refined = self._refined(flat, inputs)
        return refined.reshape(*leading, len(encoded.batch), *refined.shape[1:])

    def _refined(self, quantiles: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Give each patch of targets mean and scale of its own, as the library does.

        It calls them the advancing frame. Quantiles are (batch, step, quantile) before
        and (batch, quantile, step) after.

        Returns:
            The quantiles in data units, (batch, quantile, step).
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
        """Run ``TimestralForecaster.forecast``; forecasts of covariates are NaN."""
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
    """Build a model without weights from a configuration."""
    return LIBRARY.require().TimestralModel(
        LIBRARY.require().TimestralConfig.from_dict(dict(config))
    )


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("TimestralForecaster", "TimestralModel"),
        keys=KEYS,
        open=lambda folder, dtype, device: _wrap(
            LIBRARY.require().load_model(folder, device=device, dtype=dtype)
        ),
        blank=_model,
        adapter=TimestralAdapter,
        wrap=_wrap,
        save=lambda native, folder: write_checkpoint(
            native.model, native.config.to_dict(), folder
        ),
    )
)
