"""What a lens says of its model, so that probes need not reach into an adapter."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from tsfm_lens.models.architecture import Adapter, Encoded


class TokenModel(Protocol):
    """A model that reads and emits tokens, as probes of tokens see it.

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
        """Token ids (sequence, position) of encoder and decoder as native input."""


class Facts:
    """Sizes of a model, what it reads and what it emits; a lens is one of these."""

    adapter: Adapter

    @property
    def model(self) -> Any:
        """The torch module in the library's own pipeline."""
        return self.adapter.model

    @property
    def emits(self) -> Literal["token", "quantile", "distribution"]:
        """What the head gives: logits of a "token", values of a "quantile", or a "distribution", read by its mean."""
        return self.adapter.readout

    @property
    def levels(self) -> tuple[float, ...]:
        """Quantile levels that the head gives, (0.5,) for the mean of a distribution; none of token models."""
        return tuple(getattr(self.adapter, "levels", ()))

    @property
    def context_length(self) -> int:
        """The most steps of context that the model reads."""
        return self.adapter.context_length

    @property
    def prediction_length(self) -> int:
        """The horizon unless another is asked for."""
        return self.adapter.prediction_length

    @property
    def longest_pass(self) -> int:
        """The longest horizon of a single forward."""
        return self.adapter.longest_pass

    @property
    def rereads(self) -> bool:
        """Whether a rollout encodes its longer context anew beyond one pass."""
        adapter = self.adapter
        return adapter.rollout == "refeed" or (adapter.rollout == "tokens" and getattr(adapter, "restarts", True))

    @property
    def takes_ids(self) -> bool:
        """Whether series are token ids, not measurements."""
        return bool(getattr(self.adapter, "integers", False))

    @property
    def example_ids(self) -> np.ndarray:
        """Token ids such as a series of them holds, (id,); of models that take ids."""
        ids: np.ndarray = self.adapter.example(0, 4096).values[0]  # type: ignore[attr-defined]
        return ids

    @property
    def tokens(self) -> TokenModel | None:
        """The model as a token model that takes ids; None if it is not one."""
        return self.adapter if hasattr(self.adapter, "encode_tokens") else None  # type: ignore[return-value]

    @property
    def first_value_token(self) -> int:
        """Id of the lowest value bin of a token model; all lower ids are special."""
        return int(self.adapter.first_value_token)  # type: ignore[attr-defined]

    def bin_values(self, encoded: Encoded) -> Tensor:
        """What each value token of a token model stands for, from the lowest on, in data units, (series, bin)."""
        return self.adapter.values(encoded)[:, self.first_value_token :]

    def final_norm(self, resid: Tensor) -> Tensor:
        """The norm before the head, of any stream (…, d_model)."""
        return self.adapter.final_norm(resid)
