"""Moirai 2: a causal decoder over all variates, emitting quantiles of several patches.

Read :class:`PackedAdapter` first, the base of the adapters of Moirai 1 and 2: all
variates of an item share one token sequence, whose order is :class:`Layout`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Projection, Site, Stack, Wiring
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
    copied,
    keys,
    mlp_row,
    projections,
)

LIBRARY = cards.MOIRAI


class PackedAdapter(Adapter):
    """Base of the adapters of Moirai 1 and 2: an item is one sequence of tokens.

    Attributes:
        patch: steps of a token.
    """

    packed = True
    multivariate = True
    covariates = ("past", "known")
    package = "timecopilot-uni2ts"
    context_length = 4096
    patch: int
    _forecaster: tuple[dict[str, int], Any] | None = None

    @abstractmethod
    def library_input(
        self, batch: SeriesBatch, horizon: int
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return the library's forecast object and the arguments of its call."""

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Pack each item into one sequence: context and future of every variate.

        The future of targets is masked.

        Returns:
            The encoded batch.
        """
        steps = self.prediction_length if horizon is None else horizon
        forecast, native = self.library_input(batch, steps)
        inputs: dict[str, Any] = dict(
            zip(PACKED, forecast._convert(self.patch, **native), strict=True)
        )
        in_context = ~inputs["prediction_mask"].unsqueeze(-1)
        # as in the library's forward, statistics are those of the observed context
        context_mask = inputs["observed_mask"] * in_context
        loc, scale = self.model.scaler(
            inputs["target"], context_mask, inputs["sample_id"], inputs["variate_id"]
        )
        layout = Layout(
            batch.roles[: batch.n_variates],
            forecast.context_token_length(self.patch),
            forecast.prediction_token_length(self.patch),
            self.patch,
        )
        return Encoded(
            {**inputs, "layout": layout},
            {"": layout.spans},
            loc[:, layout.last_context, 0].flatten(),
            scale[:, layout.last_context, 0].flatten(),
            batch,
            horizon=steps,
            items=len(inputs["target"]),
            packed=True,
            stats={"loc": loc, "scale": scale},
        )

    def forecaster(self, kind: type, roles: tuple[str, ...], **sizes: int) -> Any:
        """Return the library's forecast object for these sizes, cached for next time.

        ``kind`` is its class; ``roles`` are those of the series of an item.
        """
        sizes |= {
            "target_dim": roles.count("target"),
            "feat_dynamic_real_dim": roles.count("known"),
            "past_feat_dynamic_real_dim": roles.count("past"),
        }
        # the object depends on the sizes alone, so passes of equal sizes share one
        if self._forecaster is None or self._forecaster[0] != sizes:
            self._forecaster = sizes, kind(**sizes, module=self.model).eval()
        forecaster = self._forecaster[1]
        # it makes tensors on the device that it was itself moved to, even if its module
        # is on another one
        if forecaster.device == self.device:
            return forecaster
        return forecaster.to(self.device)


# Arguments of the library for covariates: role, values, and mask of known values.
_FEATURES = (
    ("known", "feat_dynamic_real", "observed_feat_dynamic_real"),
    ("past", "past_feat_dynamic_real", "past_observed_feat_dynamic_real"),
)
# Inputs of the model, in the order in which ``_convert`` of the library returns them.
PACKED = (
    "target",
    "observed_mask",
    "sample_id",
    "time_id",
    "variate_id",
    "prediction_mask",
)


def describe_stack(model: Any) -> Stack:
    """Describe the uni2ts ``TransformerEncoder`` at ``model.encoder``."""
    layer = model.encoder.layers[0]
    self_attn = layer.self_attn
    if self_attn.attn_dropout_p > 0:
        raise WiringError(
            f"this Moirai has attn_dropout_p={self_attn.attn_dropout_p}, which uni2ts"
            " applies in evaluation mode too, so that no two forwards agree; set"
            " attn_dropout_p = 0.0 on every layer's self_attn"
        )
    if self_attn.num_groups != self_attn.num_heads:
        raise WiringError(
            f"this Moirai groups {self_attn.num_heads} heads in {self_attn.num_groups},"
            " expected no grouping"
        )
    # the axis of length 1 is that of heads within a group
    layouts: dict[str, Any] = {
        "qkv_layout": "batch head 1 pos d_head",
        "pattern_layout": "batch head 1 query key",
    }
    matrices = projections("self_attn.{}_proj", "q k v out")
    attention = attention_row("attn", "self_attn", matrices, **layouts, norm="norm1")
    rest: dict[str, Any] = {
        "gate": Projection("ffn.fc1", "d_mlp"),
        "norm": "norm2",
        "aside": True,
    }
    mlp = mlp_row(
        "ffn",
        "norm2",
        ("ffn.fc_gate", "ffn.fc2"),
        layer.ffn.activation.__name__,
        **rest,
    )
    return Stack(
        "",
        "encoder.layers",
        n_layers=model.num_layers,
        n_heads=self_attn.num_heads,
        d_model=model.d_model,
        d_head=self_attn.head_dim,
        d_mlp=layer.ffn.hidden_dim,
        writers=(attention, mlp),
        ln_final="encoder.norm",
        upstream=("in_proj",),
    )


@dataclass(frozen=True)
class Layout:
    """Order of an item's series in its packed sequence.

    Attributes:
        roles: of the series, in the order of the batch.
        n_context, n_future: tokens of one series in the past and in the future.
        patch: steps of a token.
    """

    roles: tuple[str, ...]
    n_context: int
    n_future: int
    patch: int

    @property
    def blocks(self) -> list[tuple[int, bool]]:
        """Blocks of the sequence: index of a series, and whether it is its future."""
        blocks: list[tuple[int, bool]] = []
        # in the order in which ``_convert`` of uni2ts appends them; past covariates
        # have no future
        for role in ("target", "known", "past"):
            rows = [row for row, name in enumerate(self.roles) if name == role]
            blocks += [(row, False) for row in rows]
            blocks += [(row, True) for row in rows if role != "past"]
        return blocks

    @property
    def last_context(self) -> list[int]:
        """Position of the last context token of each series."""
        # the position after each block
        stops = accumulate(
            self.n_future if is_future else self.n_context
            for _, is_future in self.blocks
        )
        last = {
            row: stop - 1
            for (row, is_future), stop in zip(self.blocks, stops, strict=True)
            if not is_future
        }
        return [last[row] for row in range(len(self.roles))]

    @property
    def spans(self) -> TokenSpans:
        """Time steps of every token."""
        context = TokenSpans.patches(
            -self.n_context * self.patch, self.n_context, self.patch
        )
        future = TokenSpans.patches(0, self.n_future, self.patch)
        total = TokenSpans((), (), ())
        for row, is_future in self.blocks:
            part = future if is_future else context
            total += replace(part, variate=(row,) * len(part))
        return total

    @property
    def targets(self) -> list[int]:
        """Indices of the series that are forecast."""
        return [row for row, role in enumerate(self.roles) if role == "target"]


def native_input(
    batch: SeriesBatch,
    length: int,
    horizon: int,
    device: torch.device,
    *,
    causal_fill: bool = False,
) -> dict[str, Tensor]:
    """Make the arguments of a uni2ts forecast, (item, time, variate).

    ``length`` is that of the context. Gaps are filled with 0; with ``causal_fill``
    (Moirai 2) those of targets are filled with the mean of earlier values.

    Returns:
        Tensors by the name of the argument.
    """
    parts = {
        role: values.transpose(1, 2)
        for role, values in _common.by_role(batch, length, horizon).items()
    }
    values = parts["target"]
    is_value = ~torch.isnan(values)
    lengths = torch.tensor([len(series) for series in batch.values])
    # of the first variate of each item, as all its variates have the same length
    item_lengths = lengths[:: batch.n_variates].clamp(max=length)
    padding = torch.arange(length)[None] < (length - item_lengths)[:, None]
    complete = torch.where(is_value, values, 0.0)
    targets = [
        series
        for series, role in zip(batch.values, batch.roles, strict=True)
        if role == "target"
    ]
    if causal_fill and any(np.isnan(series).any() for series in targets):
        # gluonts takes seconds to import
        from gluonts.transform import CausalMeanValueImputation

        impute = CausalMeanValueImputation()
        for index, series in enumerate(targets):
            # before the cut to the context, so that means are over all earlier values
            filled = impute(np.array(series, dtype=np.float32))
            tail = np.asarray(filled, dtype=np.float32)[-length:]
            # targets are listed item by item
            item, variate = divmod(index, values.shape[2])
            complete[item, length - len(tail) :, variate] = torch.from_numpy(tail)
    inputs = {
        "past_target": complete,
        "past_observed_target": is_value,
        "past_is_pad": padding,
    }
    for role, name, mask in _FEATURES:
        if role in parts:
            observed = ~torch.isnan(parts[role])
            inputs |= {name: torch.where(observed, parts[role], 0.0), mask: observed}
    return {name: tensor.to(device) for name, tensor in inputs.items()}


NAME = "moirai-2"
KEYS = keys(
    "attn_dropout_p d_ff d_model dropout_p max_seq_len num_layers num_predict_token"
    " patch_size quantile_levels scaling"
)


class Moirai2Adapter(PackedAdapter):
    """Adapter of a ``Moirai2Module``, or of the module of a ``Moirai2Forecast``."""

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
        self.wiring = Wiring(
            NAME,
            (describe_stack(self.model),),
            unembed,
            "in_proj",
            self.prediction_length,
        )

    def library_input(
        self, batch: SeriesBatch, horizon: int
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return a ``Moirai2Forecast`` and its arguments."""
        length = self.longest(batch)
        roles = batch.roles[: batch.n_variates]
        forecast = self.forecaster(
            _library().Moirai2Forecast,
            roles,
            prediction_length=horizon,
            context_length=length,
        )
        # where there are several targets, the library's own transform fills with 0
        causal = roles.count("target") == 1
        return forecast, native_input(
            batch, length, horizon, self.device, causal_fill=causal
        )

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles at the last context token of each variate.

        Returns:
            Quantiles in data units, (batch, quantile, step).
        """
        # without the layout, which is no input of the model: we read its output by it
        native = {name: inputs[name] for name in PACKED}
        return self._quantiles(
            self.model(**native, training_mode=False), inputs["layout"]
        )

    def _quantiles(self, output: Tensor, layout: Layout) -> Tensor:
        """Turn the output (…, item, pos, output) of the head into quantiles.

        Returns:
            Quantiles (…, item · variate, quantile, step). Forecasts of covariates,
            which the model does not make, are NaN.
        """
        # each target's last context token emits all of its future patches
        positions = [layout.last_context[row] for row in layout.targets]
        rows = rearrange(
            output[..., positions, :],
            "... item variate (token quantile patch) -> ... (item variate) quantile"
            " (token patch)",
            quantile=len(self.levels),
            patch=self.patch,
        )
        return _common.with_covariates(rows, layout.roles, -3)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        return encoded.in_data_units(
            self._quantiles(self.model.out_proj(normalized), encoded.inputs["layout"])
        )

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``Moirai2Forecast.forward``.

        Beyond one pass, the library rolls out univariate items only.

        Returns:
            Quantiles in data units.

        Raises:
            InputError: a horizon beyond one pass of an item with several variates.
        """
        roles = batch.roles[: batch.n_variates]
        if horizon > self.prediction_length and len(roles) > 1:
            raise InputError(
                f"horizon {horizon} is longer than the {self.prediction_length} steps"
                " of one pass, and uni2ts rolls out items with one variate only;"
                " shorten the horizon or forecast the variates one by one"
            )
        forecast, inputs = self.library_input(batch, horizon)
        with torch.no_grad():
            output = forecast(**inputs).cpu()
        # (item, quantile, step, variate); the library drops the last axis where there
        # is a single variate
        if output.ndim < 4:
            output = output.unsqueeze(-1)
        quantiles = rearrange(
            output, "item quantile step variate -> (item variate) step quantile"
        )
        quantiles = _common.with_covariates(quantiles, roles, 0)
        return self.at(quantiles, levels)


def _library() -> Any:
    return LIBRARY.require("uni2ts.model.moirai2")


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("Moirai2Module", "Moirai2Forecast"),
        keys=KEYS,
        open=lambda folder, dtype, device: (
            _library()
            .Moirai2Module.from_pretrained(folder, strict=True)
            .to(device, dtype)
        ),
        blank=lambda config: _library().Moirai2Module(**copied(config)),
        adapter=Moirai2Adapter,
    )
)
