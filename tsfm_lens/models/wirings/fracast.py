"""Fracast: one block of convolution and MLP, used at ten dilations; no attention.

A norm follows each sum, so that the stream is not a sum of writes. Read
:class:`FracastAdapter` first; ``_unrolled`` gives each use of the block a module of its
own, which hooks need.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError
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
from tsfm_lens.models.arguments import DECILES
from tsfm_lens.models.wirings import _common
from tsfm_lens.models.wirings._common import (
    keys,
    mlp_row,
    write_tensors,
)

NAME = "fracast"
LEAST = 8
"""Observations that the library asks of a series."""
KEYS = keys("model pyramid")
LIBRARY = cards.FRACAST
VALUES = {
    "model": {
        "family": NAME,
        "share_stages": True,
        "separable_conv": True,
        "scale_cond": "film",
        "dropout": 0.0,
    }
}


def _wiring(core: Any, steps: int) -> Wiring:
    gate, first = (Projection("ffn.up", "(part d_mlp)", part, 2) for part in (1, 0))
    conv = Branch("conv", Site("pw"), Site("", "in"))
    mlp = mlp_row(
        "ffn", "ffn", ("ffn.up", "ffn.down"), "silu", first=first, gate=gate, aside=True
    )
    stack = Stack(
        "",
        "core.blocks",
        n_layers=core.n_stages,
        n_heads=0,
        d_model=core.d,
        d_head=0,
        d_mlp=core.block.ffn.down.in_features,
        writers=(conv, mlp),
        ln_final="core.norm",
        upstream=("core.in_proj", "core.periodic"),
        sums=False,
    )
    return Wiring(
        NAME,
        (stack,),
        Site("head", layout="batch step d_out"),
        "core.scale",
        steps,
        # the head also reads the context, from which it fills the season ahead
        bypass=True,
    )


class _Head(nn.Module):
    """Head of the library, called as a module, so that hooks see it."""

    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = self.native.forward_horizon(*args, **kwargs)
        return result

    # the library calls this method: it goes through ``__call__``, which runs hooks
    def forward_horizon(self, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = self(*args, **kwargs)
        return result


def _unrolled(native: Any) -> nn.Module:
    """Give every use of the shared block a module of its own.

    The modules share their parameters. The head becomes a module that is called, so
    that hooks see it.

    Returns:
        The model that is wired.
    """
    core = native.core
    head = native.head
    if core.blocks is None:
        shared = {id(parameter): parameter for parameter in core.block.parameters()}
        # a memo that holds the parameters already makes the copies share them
        core.blocks = nn.ModuleList(
            copy.deepcopy(core.block, dict(shared)) for _ in range(core.n_stages)
        )
        # from here on the library calls the blocks one by one
        core.share_stages = False
        native.head = _Head(head)
    return _modules(native)


class FracastParts(nn.ModuleDict):
    """Core and head of a ``FracastModel``, which is no module itself."""

    native: Any = None


def _modules(native: Any) -> nn.Module:
    parts = FracastParts({"core": native.core, "head": native.head})
    parts.native = native
    return parts


class FracastAdapter(Adapter):
    """Adapter of a ``FracastModel``.

    Its only stack is no sum of writes, so it has branches only.
    """

    architecture = NAME
    rollout = "refeed"
    levels = DECILES
    unrolled = (0.5,)
    package = "fracast"

    def __init__(self, native: Any) -> None:
        self.native = native
        self.model = _unrolled(native)
        self.context_length = native.context_length
        self.prediction_length = native.horizon
        self.levels = tuple(native.quantiles)
        self.wiring = _wiring(native.core, native.horizon)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Scale each context to 0 to 1, as the library does; every step is a token."""
        values = self._values(batch)
        mask = np.isfinite(values)
        # precisions are those of the library, step by step: other casts move the last
        # bits
        lowest = np.nanmin(values, axis=1, keepdims=True).astype(np.float64)
        highest = np.nanmax(values, axis=1, keepdims=True)
        width = np.maximum(highest - lowest, 1e-5).astype(np.float64)
        scaled = np.where(mask, (values - lowest) / width, np.float32(0))
        inputs = {
            "values": torch.from_numpy(scaled.astype(np.float32)).to(self.device),
            "valid": torch.from_numpy(mask).to(self.device),
        }
        loc, span = (
            torch.from_numpy(part[:, 0]).to(self.device, torch.float32)
            for part in (lowest, width)
        )
        spans = {"": TokenSpans.patches(-self.context_length, self.context_length, 1)}
        return Encoded(inputs | {"loc": loc, "span": span}, spans, loc, span, batch)

    def _values(self, batch: SeriesBatch) -> np.ndarray:
        values = _common.padded(batch, self.context_length).numpy()
        for name, count in zip(batch.ids, np.isfinite(values).sum(axis=1), strict=True):
            if count < LEAST:
                raise InputError(
                    f"series {name!r} has {count} values in the context; Fracast takes"
                    f" {LEAST} or more (explanations, with reference='mean')"
                )
        return values

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles in data units, (batch, quantile, step)."""
        values = inputs["values"]
        valid = inputs["valid"]
        hidden = self.model["core"](
            values[:, None], valid[:, None], valid[:, None].to(values.dtype)
        )
        return self._in_data_units(
            self._read(hidden, values, valid), inputs["loc"], inputs["span"]
        )

    def _read(self, hidden: Tensor, values: Tensor, valid: Tensor) -> Tensor:
        result: Tensor = self.model["head"](
            hidden, last_obs=values[:, -1:], ctx=values, ctx_mask=valid
        )
        return result

    def _in_data_units(self, raw: Tensor, loc: Tensor, span: Tensor) -> Tensor:
        return raw.transpose(-1, -2) * span[:, None, None] + loc[:, None, None]

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        values = encoded.inputs["values"]
        valid = encoded.inputs["valid"]
        leading = normalized.shape[:-3]
        streams = normalized.reshape(-1, *normalized.shape[-3:])
        # one copy of the batch at a time, since the head also reads the context of the
        # batch
        raw = torch.stack([self._read(stream, values, valid) for stream in streams])
        return self._in_data_units(
            raw.reshape(*leading, *raw.shape[1:]), encoded.loc, encoded.scale
        )

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``FracastModel.forecast_batch``."""
        quantiles = self.native.forecast_batch(self._values(batch), horizon=horizon)
        return self.at(torch.from_numpy(quantiles), levels)


def _built(config: Mapping[str, Any]) -> Any:
    core, head = LIBRARY.require("fracast._core.model").build_from_cfg(
        _common.copied(config)
    )
    return core, head


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    # by default the library takes weights that are quantised to 8 bits
    native = LIBRARY.require().FracastModel.from_pretrained(
        folder, weights="fp32", device=device
    )
    native.config = _common.settings(folder)
    native.model = _modules(native)
    return native


def _save(native: Any, folder: Path) -> None:
    # copies of the shared block, and the wrapper around the head, are ours
    tensors = {
        name.replace("head.native.", "head."): tensor
        for name, tensor in _modules(native).state_dict().items()
        if ".blocks." not in name
    }
    write_tensors(tensors, native.config, folder)


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("FracastModel", "FracastParts"),
        wrap=lambda native: getattr(native, "native", native),
        keys=KEYS,
        values=VALUES,
        open=_open,
        blank=lambda config: nn.ModuleDict(
            dict(zip(("core", "head"), _built(config), strict=True))
        ),
        adapter=FracastAdapter,
        save=_save,
    )
)
