"""TiRex: recurrent blocks of xLSTM and gated MLPs over patches; no attention.

Read :class:`TirexAdapter` first. The recurrence runs in bfloat16, so that there are no
true gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Branch, Projection, Site, Stack, Wiring
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
    keys,
    mlp_row,
    write_checkpoint,
)

NAME = "tirex"
BLOCKS = "embedding_dim num_heads ffn_proj_factor num_states num_gates num_blocks"
MODEL = keys(
    "input_patch_size output_patch_size quantiles input_ff_dim",
    block_kwargs=keys(BLOCKS),
)
KEYS = keys("train_ctx_len", model_config=MODEL)
LIBRARY = cards.TIREX


def _wiring(model: Any) -> Wiring:
    slstm = Branch("slstm", Site("slstm_layer"), Site("", "in"), norm="norm_slstm")
    gate = Projection("ffn.proj_up", "d_mlp")
    mlp = mlp_row(
        "ffn",
        "norm_ffn",
        ("ffn.proj_up_gate", "ffn.proj_down"),
        "silu",
        gate=gate,
        norm="norm_ffn",
        aside=True,
    )
    stack = Stack(
        "",
        "blocks",
        n_layers=len(model.blocks),
        n_heads=0,
        d_model=model.out_norm.weight.shape[0],
        d_head=0,
        d_mlp=model.blocks[0].ffn.proj_down.in_features,
        writers=(slstm, mlp),
        ln_final="out_norm",
        upstream=("input_patch_embedding",),
    )
    unembed = Site("output_patch_embedding", layout="batch pos d_out")
    steps = model.config.output_patch_size
    # small steps vanish in bfloat16, in which the recurrence runs
    inside: dict[str, Any] = {"precision": torch.bfloat16, "true_gradients": False}
    return Wiring(NAME, (stack,), unembed, "input_patch_embedding", steps, **inside)


class TirexAdapter(Adapter):
    """Adapter of a ``TiRexZero``.

    Beyond one patch the library appends patches of gaps and runs again.
    """

    architecture = NAME
    rollout = "refeed"
    feeds_gaps = True
    unrolled = (0.5,)
    package = "tirex-ts"

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        config = native.config
        self.levels = tuple(config.quantiles)
        self.context_length = int(config.train_ctx_len)
        self.prediction_length = int(config.output_patch_size)
        self.wiring = _wiring(native)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Scale and patch each context, padded with gaps to the model's own length."""
        context = _common.padded(batch, self.context_length).to(self.device)
        tokens, state = self.model.tokenizer.input_transform(context)
        # as the library's ``_forward_model_tokenized`` marks gaps, before it calls the
        # model
        observed = torch.isnan(tokens).logical_not().to(tokens.dtype)
        values = torch.nan_to_num(tokens, nan=self.model.config.nan_mask_value)
        inputs = {
            "tokens": torch.cat((values, observed), dim=2),
            "loc": state.loc[:, 0],
            "scale": state.scale[:, 0],
        }
        width = self.prediction_length
        spans = {
            "": TokenSpans.patches(
                -self.context_length, self.context_length // width, width
            )
        }
        return Encoded(inputs, spans, inputs["loc"], inputs["scale"], batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        return self._in_data_units(
            self.model._forward_model(inputs["tokens"]), inputs["loc"], inputs["scale"]
        )

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        return self._in_data_units(
            self.model.output_patch_embedding(normalized), encoded.loc, encoded.scale
        )

    def _in_data_units(self, raw: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Read quantiles (…, batch, quantile, step) off the last token.

        ``raw`` is (…, batch, pos, quantile and step).
        """
        ahead = raw[..., -1, :].unflatten(
            -1, (len(self.levels), self.prediction_length)
        )
        result: Tensor = ahead * scale[:, None, None] + loc[:, None, None]
        return result

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``TiRexZero.forecast``."""
        # the library pads to the model's own length by itself, whatever the batch
        context = _common.padded(batch, max(batch.lengths))
        # the second result is the median, which ``at`` takes for the mean by itself
        quantiles, _ = self.native.forecast(
            context, prediction_length=horizon, batch_size=max(1, len(batch))
        )
        return self.at(quantiles, levels)


def _built(config: Mapping[str, Any]) -> Any:
    # the backend of custom CUDA kernels does not run on a CPU
    return LIBRARY.require("tirex.models.tirex").TiRexZero(
        "torch", **_common.copied(config)
    )


def _config(native: Any) -> dict[str, Any]:
    settings = dict(vars(native.config))
    # the constructor sets it by itself, and takes no such argument
    settings.pop("nan_mask_value")
    context_length = settings.pop("train_ctx_len")
    return {"train_ctx_len": context_length, "model_config": settings}


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    native = _built(_common.settings(folder)).to(device)
    native.load_state_dict(load_file(folder / "model.safetensors", device=device))
    return native.eval()


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("TiRexZero",),
        keys=KEYS,
        open=_open,
        blank=_built,
        adapter=TirexAdapter,
        save=lambda native, folder: write_checkpoint(native, _config(native), folder),
    )
)
