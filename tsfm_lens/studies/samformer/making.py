"""Models by the names that the paper gives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from tsfm_lens.errors import unknown_name
from tsfm_lens.studies.samformer.baselines import LinearForecaster, TSMixer
from tsfm_lens.studies.samformer.transformer import ChannelTransformer

__all__ = ["MODELS", "make_model"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "transformer": ChannelTransformer,
    "random-transformer": partial(ChannelTransformer, frozen=True),
    "sigma-reparam": partial(ChannelTransformer, sigma_reparam=True),
    "samformer": partial(ChannelTransformer, normalise=True),
    "identity-attention": partial(ChannelTransformer, normalise=True, attention="identity"),
    "temporal-attention": partial(ChannelTransformer, normalise=True, attention="time"),
    "linear": LinearForecaster,
    "tsmixer": TSMixer,
}
"""SAMformer and the transformer of tables 1 and 6 are one network with RevIN; the optimiser makes the difference."""


def make_model(name: str, length: int, horizon: int, channels: int, **options: Any) -> nn.Module:
    """Make a model with drawn weights.

    Args:
        name: of ``MODELS``.
        length, horizon, channels: L, H and D.
        options: those of its class, among them ``normalise`` and ``seed``.

    Raises:
        UnknownNameError: an unknown name.
        InputError: a size is below 1.

    Example:
        >>> samformer.make_model("samformer", 512, 96, 7)(torch.zeros(2, 7, 512)).shape
        torch.Size([2, 7, 96])
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name](length, horizon, channels, **options)
