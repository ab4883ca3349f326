"""TimesFM 3: attention over time and then over variates in every layer.

Every branch stands between two norms. Read :class:`TimesFm3Adapter` first. Series are
prepared as ``decode`` does, not as ``TimesFM3Forecaster`` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.replay import shadowed
from tsfm_lens.hooks.wiring import Attention, Site, Stack, Wiring
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
from tsfm_lens.models.wirings import _common, timesfm_2p5
from tsfm_lens.models.wirings._common import (
    attention_row,
    copied,
    keys,
    projections,
)

NAME = "timesfm-3"
NAMES = {
    "target": ("target", "target_mask"),
    "past": ("past_only_covariates", "past_only_mask"),
    "known": ("past_future_covariates", "past_future_mask"),
}
STREAM = "series variate pos d_model"
LAYER = keys(
    "attention_norm causal_attention debug_no_masking deterministic feedforward_norm"
    " ff_activation hidden_dims max_variates model_dims num_heads"
    " paired_token_skip_second qk_norm training use_bias use_memory_efficient_attention"
    " use_rope_seq use_rope_var use_sdpa v_norm"
)
KEYS = keys(
    "input_patch_len input_transform linear_detrending_threshold output_patch_len"
    " quantiles use_frozen_running_stats use_iterative_cpm_revin use_linear_detrending"
    " use_stitching use_variate_attention value_clip",
    residual_block_config=keys(
        "activation dropout hidden_dims identity_skip output_dims prenorm use_bias"
    ),
    transformer_config=keys("num_layers use_remat", transformer=LAYER),
)


def _attention(kind: str, module: str, short: str, *, across: bool) -> Attention:
    norms = (f"pre_{short}_attn_ln", f"post_{short}_attn_ln")
    layouts: dict[str, Any] = {
        "z_layout": "(series variate) pos (head d_head)",
        "qkv_layout": "(series variate) head pos d_head",
    }
    if across:
        layouts = {
            "z_layout": "(series pos) variate (head d_head)",
            "qkv_layout": "(series pos) head variate d_head",
            "reads": Site(norms[0], "in", 0, STREAM),
            "aside": True,
            "over": "variate",
        }
    matrices = projections(f"{module}.{{}}_proj", "query key value out")
    return attention_row(
        kind, module, matrices, stream=STREAM, **timesfm_2p5.branches(norms), **layouts
    )


def _wiring(model: Any) -> Wiring:
    config = model.transformer_config
    sizes = config.transformer
    if getattr(sizes, "v_norm", "none") not in ("none", None):
        raise WiringError(
            f"this TimesFM 3 normalises values (v_norm={sizes.v_norm!r}), which the"
            " wiring does not know"
        )
    time = _attention("time_attn", "seq_attn", "seq", across=False)
    across: tuple[Attention, ...] = ()
    if model.use_variate_attention:
        across = (_attention("variate_attn", "var_attn", "var", across=True),)
    mlp = timesfm_2p5.describe_mlp(
        ("pre_ff_ln", "post_ff_ln"), ("ff0", "ff1"), sizes.ff_activation, STREAM
    )
    stack = Stack(
        "",
        "transformer_stack.layers",
        n_layers=config.num_layers,
        n_heads=sizes.num_heads,
        d_model=sizes.model_dims,
        d_head=sizes.model_dims // sizes.num_heads,
        d_mlp=sizes.hidden_dims,
        writers=(time, *across, mlp),
        upstream=("pre_transformer_resblock",),
    )
    return Wiring(
        NAME,
        (stack,),
        Site("output_head", layout="series variate pos d_out"),
        "pre_transformer_resblock",
        steps_per_readout=model.output_patch_len,
        sizes_from=Site("transformer_stack", "in", 0, STREAM),
    )


class TimesFm3Adapter(Adapter):
    """Adapter of a ``TimesFM3Torch``, or of the model of a ``TimesFM3Forecaster``.

    The forecaster's preparation of series is left out.
    """

    architecture = NAME
    multivariate = True
    covariates = ("past", "known")
    package = "timesfm"
    context_length = 16384
    longest_pass = 1024

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = native if isinstance(native, torch.nn.Module) else native.model
        self.patch = int(self.model.input_patch_len)
        self.prediction_length = int(self.model.output_patch_len)
        self.levels = tuple(float(level) for level in self.model.quantiles)
        self.wiring = _wiring(self.model)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Stack items with their variates; missing values are 0 under the mask."""
        steps = self.prediction_length if horizon is None else horizon
        inputs = self._native_input(batch, steps)
        length = inputs["target"].shape[-1]
        spans = TokenSpans.patches(
            -length, length // self.patch + self._future_patches(steps), self.patch
        )
        # running statistics of every patch, inside decode: no single scale
        return Encoded(
            inputs,
            {"": spans},
            torch.zeros(len(batch)),
            torch.ones(len(batch)),
            batch,
            horizon=steps,
            items=len(inputs["target"]),
        )

    def _native_input(self, batch: SeriesBatch, horizon: int) -> dict[str, Any]:
        # whole patches, to which the library pads by itself; here spans need the length
        length = -(-self.longest(batch) // self.patch) * self.patch
        inputs: dict[str, Any] = {"horizon": horizon}
        for role, values in _common.by_role(batch, length, horizon).items():
            gaps = torch.isnan(values).to(self.device)
            # masks of this library are True where there is no value
            name, mask = NAMES[role]
            inputs |= {name: torch.where(gaps, 0.0, values.to(self.device)), mask: gaps}
        return inputs

    def _future_patches(self, horizon: int) -> int:
        """Count the masked patches that ``decode`` appends.

        Under stitching, predictions of neighbouring patches overlap.

        Returns:
            The number of patches.
        """
        if not self.model.use_stitching:
            result: int = -(-horizon // self.prediction_length) * self.model.rolls
            return result
        # the arithmetic of ``decode``, which keeps the number to itself
        overlap = self.model._stitching_extract_len - self.patch
        passes: int = (
            max(math.ceil((horizon - overlap) / self.patch), 1) + self.model.rolls - 1
        )
        return passes

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        # the undecorated function: the library's own runs without gradients
        output = type(self.model).decode.__wrapped__(self.model, **inputs)
        result: Tensor = output.flatten(0, 1).transpose(1, 2)
        return result

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step).

        ``decode`` runs with the stream as the output of its transformer.

        Returns:
            Quantiles in data units, (…, batch, quantile, step).
        """
        leading = normalized.shape[:-3]
        copies = math.prod(leading)
        items = len(encoded.inputs["target"])
        # (copy and item, variate, pos, d_model)
        stream = normalized.reshape(copies * items, -1, *normalized.shape[-2:])

        def forward(*_args: Any, **_kwargs: Any) -> tuple[Tensor, None, None]:
            return stream, None, None

        # everything around the transformer depends on the context, so that it runs
        # again
        with shadowed([(self.model.transformer_stack, lambda _plain: forward)]):
            quantiles = self.run(encoded.repeated(copies))
        return quantiles.reshape(*leading, len(encoded.batch), *quantiles.shape[1:])

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``TimesFM3Torch.decode``."""
        output = self.model.decode(**self._native_input(batch, horizon)).cpu()
        return self.at(output.flatten(0, 1), levels)


def _library() -> Any:
    return timesfm_2p5.LIBRARY.require("timesfm3.torch")


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("TimesFM3Torch", "TimesFM3Forecaster"),
        keys=KEYS,
        open=lambda folder, dtype, device: (
            _library()
            .TimesFM3Torch.from_pretrained(folder, strict=True)
            .to(device, dtype)
        ),
        blank=lambda config: _library().TimesFM3Torch(**copied(config)),
        adapter=TimesFm3Adapter,
    )
)
