"""What Moirai 1.1 and Moirai 2 share: uni2ts's encoder over one packed sequence of all variates of an item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack
from tsfm_lens.models.adapter import PatchAdapter
from tsfm_lens.models.wirings import _series


class PackedAdapter(PatchAdapter):
    """Base of the adapters of both Moirai: the variates of an item share one sequence."""

    packed = True
    _made: tuple[dict[str, int], Any] | None = None

    def made(self, kind: type, **sizes: int) -> Any:
        """The library's forecast object for these sizes, kept until others are asked for."""
        if self._made is None or self._made[0] != sizes:
            forecast = kind(**sizes, feat_dynamic_real_dim=0, past_feat_dynamic_real_dim=0, module=self.model)
            self._made = sizes, forecast.eval()
        return self._made[1]


PACKED = ("target", "observed_mask", "sample_id", "time_id", "variate_id", "prediction_mask")


def stack(model: Any) -> Stack:
    """The rows of a uni2ts ``TransformerEncoder`` at ``model.encoder``.

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


def native_input(
    batch: SeriesBatch, length: int, device: torch.device, *, causal_fill: bool = False
) -> dict[str, Tensor]:
    """Arguments of a uni2ts forecast: (item, time, variate), missing values filled as its own transform does.

    Args:
        batch: items with equally many variates.
        length: context steps; shorter series are padded on the left.
        device: of the tensors.
        causal_fill: fill with the mean of what came before (Moirai 2), not with 0.
    """
    values = _series.by_item(batch, length).transpose(1, 2)
    observed = ~torch.isnan(values)
    lengths = torch.tensor([len(series) for series in batch.values][:: values.shape[2]])
    padding = torch.arange(length)[None] < (length - lengths.clamp(max=length))[:, None]
    filled = torch.where(observed, values, 0.0)
    if causal_fill and any(np.isnan(series).any() for series in batch.values):
        # gluonts takes seconds to import
        from gluonts.transform import CausalMeanValueImputation

        impute = CausalMeanValueImputation()
        for index, series in enumerate(batch.values):
            # of all that is known, before it is cut to the context
            tail = np.asarray(impute(np.array(series, dtype=np.float32)), dtype=np.float32)[-length:]
            item, variate = divmod(index, values.shape[2])
            filled[item, length - len(tail) :, variate] = torch.from_numpy(tail)
    return {
        "past_target": filled.to(device),
        "past_observed_target": observed.to(device),
        "past_is_pad": padding.to(device),
    }


def packed(model: Any, forecast: Any, shown: dict[str, Tensor], patch: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """A forecast object's packed sequence, and the location and scale of every token, (item, pos, 1) each."""
    parts = dict(zip(PACKED, forecast._convert(patch, *shown.values()), strict=True))
    known = parts["observed_mask"] * ~parts["prediction_mask"].unsqueeze(-1)
    loc, scale = model.scaler(parts["target"], known, parts["sample_id"], parts["variate_id"])
    return parts, loc, scale


def spans(n_variates: int, n_context: int, n_future: int, patch: int) -> TokenSpans:
    """Tokens of a packed sequence: every variate's context, then every variate's future."""
    context = TokenSpans.patches(-n_context * patch, n_context, patch)
    future = TokenSpans.patches(0, n_future, patch)
    total = TokenSpans((), (), ())
    for part in (context, future):
        for variate in range(n_variates):
            total += replace(part, variate=(variate,) * len(part))
    return total
