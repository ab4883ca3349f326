"""TimesFM 2.5 in Google's own package: a decoder over patches whose branches end in a norm of their own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Projection, Site, Stack, Wiring
from tsfm_lens.models.adapter import DECILES, Adapter
from tsfm_lens.models.architecture import Architecture, Encoded, Levels, Prediction, rows_apart
from tsfm_lens.models.extras import require
from tsfm_lens.models.wirings import _timesfm, _timesfm_prefixes
from tsfm_lens.models.wirings._random import spread_weights

NAME = "timesfm-2.5"


def _cache_length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    caches = args[2] if len(args) > 2 else kwargs.get("decode_caches")
    return 0 if caches is None else int(caches[0].next_index[0])


def _wiring(model: Any) -> Wiring:
    q, k, v = (Projection("attn.qkv_proj", "(part head d_head)", part, 3) for part in range(3))
    attention = _timesfm.attention("attn", "attn", ("pre_attn_ln", "post_attn_ln"), (q, k, v, Projection("attn.out")))
    act = {"ReLU": "relu", "SiLU": "swish", "Identity": "none"}[type(model.stacked_xf[0].activation).__name__]
    mlp = _timesfm.mlp(("pre_ff_ln", "post_ff_ln"), ("ff0", "ff1"), act)
    d_mlp = model.stacked_xf[0].ff0.out_features
    sizes = (model.x, model.h, model.md, model.hd, d_mlp)
    stack = Stack("", "stacked_xf", *sizes, writers=(attention, mlp), upstream=("tokenizer",), cached=_cache_length)
    unembed = Site("output_projection_point", layout="batch pos d_out")
    unread = ("output_projection_quantiles",)
    return Wiring(NAME, (stack,), unembed, "tokenizer", steps_per_readout=model.o, unread=unread)


class TimesFmAdapter(Adapter):
    """Adapter of a ``TimesFM_2p5_200M_torch``; a single forward reads the point head: deciles of the next patch."""

    architecture = NAME
    rollout = "cache"
    levels = DECILES
    package = "timesfm"
    dtypes = ("float32",)

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = native.model
        if "forward" in self.model.__dict__:
            raise WiringError(
                "this TimesFM was compiled with torch.compile, under which hooks silently do nothing. Load it with "
                "from_pretrained(..., torch_compile=False), or run `del model.model.__dict__['forward']`."
            )
        self.context_length = int(self.model.config.context_limit) - self.model.o
        self.prediction_length = int(self.model.o)
        self.wiring = _wiring(self.model)

    @property
    def passes(self) -> int:
        """Number of forwards of one forecast: two under the library's flip invariance (x and -x)."""
        config = getattr(self.native, "forecast_config", None)
        return 2 if config is not None and config.force_flip_invariance else 1

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Normalise patches by the running statistics, as ``decode`` prefills them."""
        from timesfm.torch import util

        patch = self.model.p
        values, masks = _timesfm.patched(batch, self.longest(batch), patch)
        patches = values.unflatten(1, (-1, patch)).to(self.device)
        masks = masks.unflatten(1, (-1, patch)).to(self.device)
        n_patches = patches.shape[1]
        mu, sigma = _timesfm.running_statistics(patches, masks, lambda *state: util.update_running_stats(*state)[0])
        patches_of_model = torch.where(masks, 0.0, util.revin(patches, mu, sigma))
        spans = {"": TokenSpans.patches(-n_patches * patch, n_patches, patch)}
        return Encoded(
            {"inputs": patches_of_model, "masks": masks, "mu": mu[:, -1], "sigma": sigma[:, -1]},
            spans,
            mu[:, -1],
            sigma[:, -1],
            batch,
        )

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute deciles of the patch after the last one, in data units, (batch, quantile, step)."""
        (_, _, output, _), _ = self.model(inputs["inputs"], inputs["masks"])
        return _timesfm.deciles(output[:, -1], self.model.o, inputs["mu"], inputs["sigma"])

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute deciles in data units, (…, batch, quantile, step)."""
        flat = self.model.output_projection_point(normalized[..., -1, :])
        return _timesfm.deciles(flat, self.model.o, encoded.loc, encoded.scale)

    @rows_apart
    def predict(self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None) -> Prediction:
        """Run ``forecast`` under the object's own configuration, or under a default one if it has none that fits."""
        native = copy.copy(self.native)
        # the library notes a device at construction and sends inputs there, and fills batches up for every device
        self.model.device = self.device
        native.compile(self._forecast_config(batch, horizon))
        native.global_batch_size = len(batch)
        _, values = native.forecast(horizon=horizon, inputs=_timesfm.cleaned(batch))
        quantiles = torch.from_numpy(np.ascontiguousarray(values))
        return self.at(quantiles[..., 1:], levels, mean=quantiles[..., 0])

    def _forecast_config(self, batch: SeriesBatch, horizon: int) -> Any:
        import timesfm

        config = getattr(self.native, "forecast_config", None)
        if config is not None:
            if horizon > config.max_horizon:
                raise InputError(
                    f"horizon {horizon} is longer than the max_horizon {config.max_horizon} that this model was "
                    "compiled for; compile it with a larger ForecastConfig.max_horizon"
                )
            return dataclasses.replace(config, per_core_batch_size=len(batch), return_backcast=False)
        limit = int(self.model.config.context_limit)
        if horizon > limit - self.model.p:
            raise InputError(f"horizon {horizon} is longer than the model's context limit of {limit} steps allows")
        steps = -(-horizon // self.model.o) * self.model.o
        longest = -(-self.padded_length(batch) // self.model.p) * self.model.p
        return timesfm.ForecastConfig(
            max_context=min(longest, (limit - steps) // self.model.p * self.model.p),
            max_horizon=steps,
            normalize_inputs=True,
            use_continuous_quantile_head=steps <= self.model.os,
            force_flip_invariance=False,
            infer_is_positive=True,
            fix_quantile_crossing=True,
            per_core_batch_size=len(batch),
        )

    def sharing(self, prefixes: np.ndarray) -> AbstractContextManager[None]:
        """Let rows that begin alike compute their common patches once; see ``_timesfm_prefixes.shared_prefixes``."""
        return _timesfm_prefixes.shared_prefixes(self.model, prefixes)

    def joined(self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Join the arguments of all passes of a rollout to those of one pass without a cache."""
        return tuple(torch.cat([args[index] for args, _ in calls], dim=1) for index in (0, 1)), {}


def _claims_object(native: object) -> bool:
    names = {base.__name__ for base in type(native).__mro__}
    return bool(names & {"TimesFM_2p5_200M_torch", "TimesFM_2p5_200M_torch_module"})


def _wrap(module: Any) -> Any:
    """Build the library's forecaster around a module, without another 200 million weights."""
    forecaster = require("timesfm").TimesFM_2p5_200M_torch
    native = forecaster.__new__(forecaster)
    native.model, native.torch_compile = module, False
    return native


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    native = require("timesfm").TimesFM_2p5_200M_torch.from_pretrained(folder, torch_compile=False)
    native.model.to(device=device, dtype=dtype).device = torch.device(device)
    return native


def _tiny() -> Any:
    full = require("timesfm", "timesfm.timesfm_2p5.timesfm_2p5_base").TimesFM_2p5_200M_Definition()
    d, patch, out, out_quantiles, change = 40, 8, 16, 32, dataclasses.replace
    n_out = len(full.quantiles) + 1
    layer = change(full.stacked_transformers.transformer, model_dims=d, hidden_dims=24, num_heads=4)
    definition = change(
        full,
        input_patch_len=patch,
        output_patch_len=out,
        output_quantile_len=out_quantiles,
        tokenizer=change(full.tokenizer, input_dims=2 * patch, hidden_dims=d, output_dims=d),
        stacked_transformers=change(full.stacked_transformers, num_layers=3, transformer=layer),
        output_projection_point=change(
            full.output_projection_point, input_dims=d, hidden_dims=d, output_dims=out * n_out
        ),
        output_projection_quantiles=change(
            full.output_projection_quantiles, input_dims=d, hidden_dims=d, output_dims=out_quantiles * n_out
        ),
    )
    object.__setattr__(definition, "context_limit", 2048)
    module = type("TinyTimesFM", (_module_class(),), {"config": definition})()
    return _wrap(spread_weights(module.to("cpu"), _timesfm.GAINS))


def _build(_size: str) -> Any:
    return _wrap(spread_weights(_module_class()(), _timesfm.GAINS))


def _module_class() -> Any:
    return require("timesfm", "timesfm.timesfm_2p5.timesfm_2p5_torch").TimesFM_2p5_200M_torch_module


ARCHITECTURE = Architecture(
    name=NAME,
    title="TimesFM 2.5 (timesfm)",
    published={"200m": "google/timesfm-2.5-200m-pytorch"},
    claims=lambda config: False,
    claims_tensors=lambda names: "stacked_xf.0.attn.qkv_proj.weight" in names,
    claims_object=_claims_object,
    # the library has no configuration beside its code, and no key of a config.json is read
    keys=None,
    open=_open,
    blank=lambda config: _module_class()(),
    adapter=TimesFmAdapter,
    wrap=lambda native: _wrap(native) if isinstance(native, torch.nn.Module) else native,
    tiny=_tiny,
    build=_build,
    notes="forecasts run without flip invariance unless the object was compiled with it; the library's covariates are "
    "a regression outside the model",
    extra="timesfm",
)
