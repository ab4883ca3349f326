"""Scoring functions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tsfm_lens.errors import unknown_name
from tsfm_lens.studies.structured.forms import BilinearLevels, BilinearTrain, Form, Standard, TokenLevels

__all__ = ["REGRESSORS", "form_of_name"]

REGRESSORS: dict[str, Callable[..., Form]] = {
    "attention": Standard,
    "bilinear-btt": BilinearTrain,
    "bilinear-mlr": BilinearLevels,
    "mlr-attention": TokenLevels,
}
"""Scoring functions of regressors and forecasters by name."""


def form_of_name(name: str, arguments: Mapping[str, Any]) -> Form:
    """Make a scoring function by name; lists among its arguments, as they come from files, become tuples.

    Raises:
        UnknownNameError: an unknown name.
    """
    if name not in REGRESSORS:
        raise unknown_name("model", name, REGRESSORS)
    return REGRESSORS[name](**{key: tuple(v) if isinstance(v, list) else v for key, v in arguments.items()})
