"""Common parts of Moirai 1.1 and Moirai 2: uni2ts's encoder over one packed sequence of all variates of an item."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.wirings import _series


class PackedAdapter(Adapter):
    """Base of the adapters of both Moirai: the variates of an item share one sequence."""

    packed = True
    multivariate = True
    covariates = ("past", "known")
    package = "timecopilot-uni2ts"
    dtypes = ("float32",)
    context_length = 4096
    patch: int
    _forecaster: tuple[dict[str, int], Any] | None = None

    @abstractmethod
    def library_input(self, batch: SeriesBatch, horizon: int) -> tuple[Any, dict[str, Tensor]]:
        """Return the library's forecast object for a batch and a horizon, and its arguments."""

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Pack one sequence per item: the context of every variate, then places for its future."""
        steps = self.prediction_length if horizon is None else horizon
        forecast, native = self.library_input(batch, steps)
        inputs: dict[str, Any] = dict(zip(PACKED, forecast._convert(self.patch, **native), strict=True))
        context_mask = inputs["observed_mask"] * ~inputs["prediction_mask"].unsqueeze(-1)
        loc, scale = self.model.scaler(inputs["target"], context_mask, inputs["sample_id"], inputs["variate_id"])
        n_context, n_future = forecast.context_token_length(self.patch), forecast.prediction_token_length(self.patch)
        layout = Layout(batch.roles[: batch.n_variates], n_context, n_future, self.patch)
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
        """Return the library's forecast object for these sizes, kept until others are requested."""
        sizes |= {
            "target_dim": roles.count("target"),
            "feat_dynamic_real_dim": roles.count("known"),
            "past_feat_dynamic_real_dim": roles.count("past"),
        }
        if self._forecaster is None or self._forecaster[0] != sizes:
            self._forecaster = sizes, kind(**sizes, module=self.model).eval()
        return self._forecaster[1]


_FEATURES = (
    ("known", "feat_dynamic_real", "observed_feat_dynamic_real"),
    ("past", "past_feat_dynamic_real", "past_observed_feat_dynamic_real"),
)
PACKED = ("target", "observed_mask", "sample_id", "time_id", "variate_id", "prediction_mask")


def stack(model: Any) -> Stack:
    """Describe the rows of a uni2ts ``TransformerEncoder`` at ``model.encoder``.

    Raises:
        WiringError: attention dropout is above 0: the library applies it in evaluation mode too.
    """
    layer = model.encoder.layers[0]
    inside = layer.self_attn
    if inside.attn_dropout_p > 0:
        raise WiringError(
            f"this Moirai has attn_dropout_p={inside.attn_dropout_p}, which uni2ts applies in evaluation mode too, so "
            "that no two forwards agree; set attn_dropout_p = 0.0 on every layer's self_attn"
        )
    if inside.num_groups != inside.num_heads:
        raise WiringError(f"this Moirai groups {inside.num_heads} heads in {inside.num_groups}, expected no grouping")
    q, k, v, o = (Projection(f"self_attn.{name}_proj") for name in ("q", "k", "v", "out"))
    attention = Attention(
        "attn",
        "self_attn",
        Site("self_attn"),
        Site("", "in", 0),
        q,
        k,
        v,
        o,
        # groups of one head each: the axis of length 1
        qkv_layout="batch head 1 pos d_head",
        pattern_layout="batch head 1 query key",
        norm="norm1",
    )
    hidden = "batch pos d_mlp"
    mlp = Mlp(
        Site("ffn"),
        Site("norm2", "in", 0),
        Site("ffn.fc_gate", layout=hidden),
        Site("ffn.fc2", "in", 0, hidden),
        "ffn.fc2",
        Projection("ffn.fc_gate", "d_mlp"),
        Projection("ffn.fc1", "d_mlp"),
        norm="norm2",
        aside=True,
        act=layer.ffn.activation.__name__,
    )
    return Stack(
        "",
        "encoder.layers",
        model.num_layers,
        inside.num_heads,
        model.d_model,
        inside.head_dim,
        layer.ffn.hidden_dim,
        writers=(attention, mlp),
        ln_final="encoder.norm",
        upstream=("in_proj",),
    )


@dataclass(frozen=True)
class Layout:
    """Places of an item's series in its packed sequence.

    Targets come first, then known covariates, then past ones; of the first two kinds the context of every series, then
    the future of every series; past covariates have no tokens of the future.

    Attributes:
        roles: of an item's series, in the order of the batch.
        n_context, n_future: tokens of a series.
        patch: steps of a token.
    """

    roles: tuple[str, ...]
    n_context: int
    n_future: int
    patch: int

    @property
    def blocks(self) -> list[tuple[int, bool]]:
        """Place of the series, and whether it is its future, block by block."""
        out: list[tuple[int, bool]] = []
        for role in ("target", "known", "past"):
            rows = [row for row, each in enumerate(self.roles) if each == role]
            out += [(row, False) for row in rows]
            out += [(row, True) for row in rows if role != "past"]
        return out

    def first(self, row: int, *, future: bool) -> int | None:
        """Return the first token of a block; None where there is none."""
        at = 0
        for block in self.blocks:
            if block == (row, future):
                return at
            at += self.n_future if block[1] else self.n_context
        return None

    @property
    def last_context(self) -> list[int]:
        """Last token of each series' context."""
        firsts = [self.first(row, future=False) for row in range(len(self.roles))]
        return [first + self.n_context - 1 for first in firsts if first is not None]

    @property
    def spans(self) -> TokenSpans:
        """Time steps of every token."""
        context = TokenSpans.patches(-self.n_context * self.patch, self.n_context, self.patch)
        future = TokenSpans.patches(0, self.n_future, self.patch)
        total = TokenSpans((), (), ())
        for row, ahead in self.blocks:
            part = future if ahead else context
            total += replace(part, variate=(row,) * len(part))
        return total

    @property
    def targets(self) -> list[int]:
        """Places of the series that are forecast."""
        return [row for row, role in enumerate(self.roles) if role == "target"]


def with_covariates(targets: Tensor, roles: tuple[str, ...], axis: int) -> Tensor:
    """Return rows of all series, item by item: forecasts, and NaN for covariates, which the library does not forecast.

    Args:
        targets: the axis counts the targets of all items.
        roles: of an item's series.
        axis: of the rows.
    """
    if set(roles) == {"target"}:
        return targets
    by_item = targets.movedim(axis, 0).unflatten(0, (-1, roles.count("target")))
    whole = by_item.new_full((len(by_item), len(roles), *by_item.shape[2:]), float("nan"))
    whole[:, [row for row, role in enumerate(roles) if role == "target"]] = by_item
    return whole.flatten(0, 1).movedim(0, axis)


def native_input(
    batch: SeriesBatch, length: int, horizon: int, device: torch.device, *, causal_fill: bool = False
) -> dict[str, Tensor]:
    """Make the arguments of a uni2ts forecast: (item, time, variate), missing values filled as its own transform does.

    Args:
        batch: items with equally many variates of each role.
        length: context steps; shorter series are padded on the left.
        horizon: steps of the known future.
        device: of the tensors.
        causal_fill: fill with the mean of earlier values (Moirai 2), not with 0.
    """
    parts = {role: values.transpose(1, 2) for role, values in _series.by_role(batch, length, horizon).items()}
    values = parts["target"]
    is_value = ~torch.isnan(values)
    lengths = torch.tensor([len(series) for series in batch.values][:: batch.n_variates])
    padding = torch.arange(length)[None] < (length - lengths.clamp(max=length))[:, None]
    complete = torch.where(is_value, values, 0.0)
    targets = [series for series, role in zip(batch.values, batch.roles, strict=True) if role == "target"]
    if causal_fill and any(np.isnan(series).any() for series in targets):
        # gluonts takes seconds to import
        from gluonts.transform import CausalMeanValueImputation

        impute = CausalMeanValueImputation()
        for index, series in enumerate(targets):
            # of all known values, before the cut to the context
            tail = np.asarray(impute(np.array(series, dtype=np.float32)), dtype=np.float32)[-length:]
            item, variate = divmod(index, values.shape[2])
            complete[item, length - len(tail) :, variate] = torch.from_numpy(tail)
    inputs = {"past_target": complete, "past_observed_target": is_value, "past_is_pad": padding}
    for role, name, mask in _FEATURES:
        if role in parts:
            there = ~torch.isnan(parts[role])
            inputs |= {name: torch.where(there, parts[role], 0.0), mask: there}
    return {name: tensor.to(device) for name, tensor in inputs.items()}
