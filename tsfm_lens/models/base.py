"""Base of a lens: the opened model, its hook points, and its properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component, select_components
from tsfm_lens.hooks.component import components as all_components
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.weights import Weights
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models.adapter import Adapter, versions
from tsfm_lens.models.architecture import Encoded


class TokenModel(Protocol):
    """Interface of a model that reads and emits tokens, for probes of tokens.

    Attributes:
        model: the torch module.
        native: the library's own object, with its tokenizer.
        settings: of the tokenizer, special tokens among them.
        first_value_token: id of the lowest value bin; all lower ids are special.
    """

    model: Any
    native: Any
    settings: Any

    @property
    def first_value_token(self) -> int:
        """Id of the lowest value bin."""

    def encode_tokens(self, ids: Tensor, decoder: Tensor) -> Encoded:
        """Encode token ids (sequence, position) of encoder and decoder as native input."""


class LensBase:
    """State of a lens and facts of its model: sizes, inputs, outputs.

    :class:`tsfm_lens.models.Lens` adds runs, forecasts, hooks and interventions. The modules of a lens take this
    class, so that no module imports the one that imports it.
    """

    adapter: Adapter
    registry: HookRegistry
    model_id: str
    revision: str | None

    if TYPE_CHECKING:
        # members of Lens, for the modules that it is made of
        encode: Callable[..., Encoded]
        forward: Callable[..., Tensor]
        forecast: Callable[..., Any]
        run: Callable[..., Any]
        ablate: Callable[..., Block[Any]]
        edit: Callable[..., Block[Any]]
        patch: Callable[..., Block[Any]]
        hooks: Callable[..., Block[Any]]
        run_with_cache: Callable[..., tuple[Any, Activations]]
        run_with_hooks: Callable[..., Any]
        quick_check: Callable[..., Any]

    @property
    def native(self) -> Any:
        """Pipeline of the model's own library."""
        return self.adapter.native

    @property
    def wiring(self) -> Wiring:
        """Table of the model's modules."""
        return self.adapter.wiring

    @property
    def weights(self) -> Weights:
        """Matrices of every head and MLP."""
        return Weights(self.adapter.model, self.wiring)

    @property
    def d_model(self) -> int:
        """Width of the residual stream that is read out."""
        return self.wiring.output_stack.d_model

    @property
    def device(self) -> torch.device:
        """Device of the native model."""
        return next(self.adapter.model.parameters()).device

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Iterate over the parameters of the native model."""
        return self.adapter.model.parameters(recurse)

    def hook_table(self) -> list[tuple[str, str]]:
        """List every hook point with the names of its axes."""
        return [(name, " ".join(point.axes)) for name, point in self.registry.points.items()]

    def components(self, *patterns: str | Component) -> list[Component]:
        """Return components by name or glob; all of them if no pattern is given.

        Raises:
            UnknownNameError: a pattern matches nothing.
        """
        return select_components(self.wiring, *patterns) if patterns else list(all_components(self.wiring))

    def provenance(self) -> dict[str, object]:
        """Return the origin of a result: model, revision, architecture and versions."""
        return {
            "model": self.model_id,
            "revision": self.revision or "",
            "architecture": self.wiring.architecture,
            "versions": versions(self.adapter.package),
        }

    def running(self, rows: int, place: tuple[int, int | None] = (0, None)) -> Block[None]:
        """Count steps and rows of one run of the lens's own; calls of the native object have neither."""
        return self.registry.state.running(rows, place)

    def readout(self, resid: Tensor, encoded: Encoded, *, like: Tensor | None = None) -> Tensor:
        """Apply the native head to any residual stream: the logit lens.

        Args:
            resid: (…, series, pos, d_model) of the stack that is read out.
            encoded: the batch it belongs to.
            like: freeze the final norm's scale to that of this stream (same shape up to broadcasting).

        Returns:
            Token models: logits (…, series, step, vocabulary). Patch models: quantiles in data units
            (…, series, quantile, step).

        Raises:
            InputError: the stream has another width.
        """
        if resid.shape[-1] != self.d_model:
            raise InputError(f"the stream has shape {tuple(resid.shape)}, expected (…, series, pos, {self.d_model})")
        return self.adapter.head(self.adapter.final_norm(resid, like), encoded)

    @property
    def model(self) -> Any:
        """Torch module in the library's own pipeline."""
        return self.adapter.model

    @property
    def emits(self) -> Literal["token", "quantile", "distribution"]:
        """Kind of the head's output: logits of a "token", a "quantile", or a "distribution", read by its mean."""
        return self.adapter.readout

    @property
    def levels(self) -> tuple[float, ...]:
        """Quantile levels that the head gives, (0.5,) for the mean of a distribution; none of token models."""
        return tuple(self.adapter.levels)

    @property
    def context_length(self) -> int:
        """Most steps of context that the model reads."""
        return self.adapter.context_length

    @property
    def prediction_length(self) -> int:
        """Default horizon."""
        return self.adapter.prediction_length

    @property
    def longest_pass(self) -> int:
        """Longest horizon of a single forward."""
        return self.adapter.longest_pass

    @property
    def rereads(self) -> bool:
        """True if a rollout encodes its longer context anew beyond one pass."""
        adapter = self.adapter
        return adapter.rollout == "refeed" or (adapter.rollout == "tokens" and adapter.restarts)

    @property
    def takes_ids(self) -> bool:
        """True if series are token ids, not measurements."""
        return self.adapter.integers

    @property
    def example_ids(self) -> np.ndarray:
        """Token ids of an example series, (id,); of models that take ids."""
        ids: np.ndarray = self.adapter.example(0, 4096).values[0]  # type: ignore[attr-defined]
        return ids

    @property
    def tokens(self) -> TokenModel | None:
        """Token model that takes ids; None if the model is not one."""
        return self.adapter if hasattr(self.adapter, "encode_tokens") else None  # type: ignore[return-value]

    @property
    def first_value_token(self) -> int:
        """Id of the lowest value bin of a token model; all lower ids are special."""
        return int(self.adapter.first_value_token)  # type: ignore[attr-defined]

    def bin_values(self, encoded: Encoded) -> Tensor:
        """Return the value of each value token of a token model, from the lowest on, in data units, (series, bin)."""
        return self.adapter.values(encoded)[:, self.first_value_token :]

    def final_norm(self, resid: Tensor) -> Tensor:
        """Apply the norm before the head to any stream (…, d_model)."""
        return self.adapter.final_norm(resid)
