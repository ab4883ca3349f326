"""Refusing configurations that a wiring does not understand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tsfm_lens.errors import WiringError

HUB_KEYS = frozenset(
    """
    _name_or_path architectures auto_map chunk_size_feed_forward dtype generation_config id2label label2id model_type
    name_or_path output_attentions output_hidden_states problem_type return_dict torch_dtype transformers_version
    """.split()
)
"""Keys that transformers writes into any config.json and that change nothing inside a model."""


def refuse_unknown(config: Mapping[str, Any], where: str, known: Iterable[str], *, inside: str = "") -> None:
    """Refuse a configuration with keys that a wiring does not understand.

    Args:
        config: the checkpoint's config.json, or a part of it.
        where: name of the checkpoint, for the message.
        known: keys that the wiring understands.
        inside: name of that part.

    Raises:
        WiringError: a key is unknown, so activations could be slightly wrong.
    """
    prefix = f"{inside}." if inside else ""
    allowed = set(known) if inside else set(known) | HUB_KEYS
    unknown = [f"{prefix}{key}" for key in sorted(set(config) - allowed)]
    if unknown:
        raise WiringError(
            f"{where} has configuration keys that the wiring does not know: {', '.join(unknown)}. It may compute "
            "something else than the wiring says; refusing rather than showing wrong activations."
        )


def refuse_values(config: Mapping[str, Any], where: str, expected: Mapping[str, Any]) -> None:
    """Refuse a configuration whose keys have values other than the ones that the wiring describes.

    Raises:
        WiringError: names the key, its value, and the one expected.
    """
    for key, value in expected.items():
        if key in config and config[key] != value:
            raise WiringError(f"{where} has {key}={config[key]!r}; the wiring describes models with {value!r} only")
