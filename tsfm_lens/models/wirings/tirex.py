"""TiRex: recurrent blocks of xLSTM and gated MLPs over patches; no attention.

Read :class:`TirexAdapter` first. The recurrence computes in bfloat16, which rounds
small changes of its input away, so that finite differences do not confirm gradients.
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
    # reads the input of the block itself, which the empty path stands for
    slstm = Branch("slstm", Site("slstm_layer"), Site("", "in"), norm="norm_slstm")
    gate = Projection("ffn.proj_up", "d_mlp")
    mlp = mlp_row(
        write="ffn",
        reads="norm_ffn",
        layers=("ffn.proj_up_gate", "ffn.proj_down"),
        act="silu",
        gate=gate,
        norm="norm_ffn",
        # the input of norm_ffn is that of the branch alone, not the stream
        aside=True,
    )
    stack = Stack(
        name="",
        blocks="blocks",
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
    return Wiring(
        NAME,
        (stack,),
        unembed,
        embed="input_patch_embedding",
        steps_per_readout=model.config.output_patch_size,
        # finite differences vanish where the recurrence rounds to bfloat16
        precision=torch.bfloat16,
        true_gradients=False,
    )


class TirexAdapter(Adapter):
    """Adapter of a ``TiRexZero``.

    Beyond one patch the library appends patches of gaps and runs again.
    """

    architecture = NAME
    rollout = "refeed"
    feeds_gaps = True
    # what a rollout appends is the same for all levels, so that it has a single path
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
        # gaps are marked as the library does in ``_forward_model_tokenized``, before it
        # calls the model
        observed = torch.isnan(tokens).logical_not().to(tokens.dtype)
        values = torch.nan_to_num(tokens, nan=self.model.config.nan_mask_value)
        inputs = {
            "tokens": torch.cat((values, observed), dim=2),
            "loc": state.loc[:, 0],
            "scale": state.scale[:, 0],
        }
        # patches of the input are as long as those of the output
        steps = self.prediction_length
        n_patches = self.context_length // steps
        spans = {"": TokenSpans.patches(-self.context_length, n_patches, steps)}
        return Encoded(inputs, spans, inputs["loc"], inputs["scale"], batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        raw = self.model._forward_model(inputs["tokens"])
        return self._in_data_units(raw, inputs["loc"], inputs["scale"])

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        raw = self.model.output_patch_embedding(normalized)
        return self._in_data_units(raw, encoded.loc, encoded.scale)

    def _in_data_units(self, raw: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Read quantiles (…, batch, quantile, step) off the last token.

        The last axis of ``raw``, (…, batch, pos, quantile · step), holds the steps of
        each quantile in turn.

        Returns:
            The quantiles in data units, (…, batch, quantile, step).
        """
        quantiles = raw[..., -1, :].unflatten(
            -1, (len(self.levels), self.prediction_length)
        )
        result: Tensor = quantiles * scale[:, None, None] + loc[:, None, None]
        return result

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``TiRexZero.forecast``."""
        # series are padded to the longest; the library pads that to the context length
        context = _common.padded(batch, max(batch.lengths))
        # the library's mean is the median, which ``at`` uses as the mean anyway
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
    # the constructor sets this value itself, and takes no argument for it
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
