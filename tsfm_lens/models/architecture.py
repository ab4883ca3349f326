"""What an architecture file provides: a wiring table and the few functions that a table cannot hold."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Wiring


@dataclass(frozen=True)
class Encoded:
    """A batch of series as one native forward takes it.

    Attributes:
        inputs: keyword arguments of the native model.
        spans: by stack, the time steps that each token covers.
        loc, scale: (batch,), so that data = normalised * scale + loc.
        batch: the series.
    """

    inputs: dict[str, Tensor]
    spans: dict[str, TokenSpans]
    loc: Tensor
    scale: Tensor
    batch: SeriesBatch

    def repeated(self, copies: int) -> dict[str, Tensor]:
        """The inputs with all series repeated, copy-major."""
        return {key: value.repeat(copies, *[1] * (value.ndim - 1)) for key, value in self.inputs.items()}


class Adapter(Protocol):
    """One opened native model behind the common face. Series in, forecasts out."""

    architecture: str
    native: Any
    model: Any
    wiring: Wiring
    readout: Literal["token", "quantile"]
    context_length: int
    prediction_length: int

    def encode(self, batch: SeriesBatch, future: Tensor | None = None, tokens: Tensor | None = None) -> Encoded:
        """Series to native input, as the library's own pipeline does it."""

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """One differentiable native forward: logits, or quantiles in data units."""

    def predict(
        self, batch: SeriesBatch, horizon: int, levels: tuple[float, ...], num_samples: int | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The library's own forecast: quantiles (series, step, quantile), samples or None, mean."""

    def final_norm(self, resid: Tensor, like: Tensor | None = None) -> Tensor:
        """The norm before the head; with ``like`` its scale is frozen to that of another stream."""

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Normalised stream (…, batch, pos, d_model) to logits or to quantiles in data units."""

    def values(self, encoded: Encoded) -> Tensor:
        """Token models: the value of every output bin in data units, (batch, bin)."""


@dataclass(frozen=True)
class Architecture:
    """One entry of ``tsfm-lens models``.

    Attributes:
        name: key of the wiring.
        title: as its authors call it.
        readout: what the head emits.
        published: size -> hub id.
        claims: does a checkpoint's config.json belong to this architecture?
        claims_object: is this object one of its native models or pipelines?
        check: refuses a config.json with keys that the wiring does not understand.
        open: local folder, dtype and device -> native object, through the library's own loader.
        adapt: native object -> adapter.
        tiny: builds a small random native object for the conformance suite.
        build: size -> native object of published size with random weights.
    """

    name: str
    title: str
    readout: Literal["token", "quantile"]
    published: Mapping[str, str]
    claims: Callable[[Mapping[str, Any]], bool]
    claims_object: Callable[[object], bool]
    check: Callable[[Mapping[str, Any], str], None]
    open: Callable[[Path, torch.dtype, str], Any]
    adapt: Callable[[Any], Adapter]
    tiny: Callable[[], Any]
    build: Callable[[str], Any]
    notes: str = field(default="")


@cache
def architectures() -> dict[str, Architecture]:
    """Every architecture known, by name: one for each module of ``tsfm_lens.models.wirings``."""
    from tsfm_lens.models import wirings as room

    found = {}
    for module in pkgutil.iter_modules(room.__path__):
        if not module.name.startswith("_"):
            entry = importlib.import_module(f"{room.__name__}.{module.name}").ARCHITECTURE
            found[entry.name] = entry
    return found
