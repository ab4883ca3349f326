"""Refusal of configurations that a wiring does not understand."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tsfm_lens.errors import CheckpointError, WiringError


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _real(low: float, high: float) -> Callable[[Any], bool]:
    # NaN fails every comparison
    return lambda value: type(value) in (int, float) and low <= value <= high


def _list_of(kind: Callable[[Any], bool], longest: int = 4096) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and 0 < len(value) <= longest and all(map(kind, value))


KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "size": (_whole(1, 2**31), "a whole number from 1 to 2^31"),
    "steps": (_whole(1, 2**24), "a whole number of steps from 1 to 2^24"),
    "count": (_whole(0, 2**20), "a whole number from 0 to 2^20"),
    "token": (_whole(0, 2**31), "a token id, 0 or more"),
    "real": (_real(-1e30, 1e30), "a finite number"),
    "positive": (_real(1e-30, 1e30), "a number above 0"),
    "tiny": (_real(0.0, 1.0), "a number from 0 to 1"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "word": (lambda value: isinstance(value, str), "a text"),
    "words": (_list_of(lambda value: isinstance(value, str)), "a list of texts"),
    "sizes": (_list_of(_whole(1, 2**31)), "a list of whole numbers above 0"),
    "levels": (_list_of(_real(1e-9, 1 - 1e-9)), "a list of quantile levels between 0 and 1"),
    "free": (lambda value: True, "anything"),
}
"""Kind of a value -> whether a value is of it, and its description for messages."""


@dataclass(frozen=True)
class Settings:
    """Keys of a configuration that a wiring understands.

    Attributes:
        kinds: key -> kind of its value, one of ``KINDS``.
        empty: keys that may be null.
        parts: keys whose value is an object with keys of its own.
    """

    kinds: Mapping[str, str]
    empty: frozenset[str] = frozenset()
    parts: Mapping[str, Settings] = field(default_factory=dict)

    def __or__(self, other: Settings) -> Settings:
        """Join the keys of both; those of ``other`` win."""
        return Settings(self.kinds | other.kinds, self.empty | other.empty, {**self.parts, **other.parts})  # type: ignore[operator]


def settings(parts: Mapping[str, Settings] | None = None, **kinds: str) -> Settings:
    """Write keys by kind, in words; a key that may be null ends in "?"."""
    words = [(word, kind) for kind, text in kinds.items() for word in text.split()]
    return Settings(
        {word.rstrip("?"): kind for word, kind in words},
        frozenset(word[:-1] for word, _ in words if word.endswith("?")),
        dict(parts or {}),
    )


HUB = settings(
    words="architectures?",
    word="_name_or_path? dtype? model_type name_or_path? torch_dtype? transformers_version?",
    count="chunk_size_feed_forward",
    flag="output_attentions output_hidden_states return_dict",
    free="auto_map generation_config id2label label2id problem_type",
)
"""Keys that transformers writes into any config.json and that change nothing inside a model."""

GENERATION = settings(
    flag="_from_model_config do_sample use_cache output_attentions output_hidden_states return_dict_in_generate",
    token="bos_token_id? decoder_start_token_id? eos_token_id? pad_token_id?",
    word="transformers_version?",
    steps="max_length max_new_tokens",
    count="top_k",
    positive="temperature",
    tiny="top_p",
)
"""Keys of a generation_config.json under which the library still samples as the wirings say."""


def refuse_unknown(config: Mapping[str, Any], where: str, keys: Settings, *, inside: str = "") -> None:
    """Refuse a configuration with keys that a wiring does not understand, or values that no model can have.

    Args:
        config: the checkpoint's config.json, or a part of it.
        where: name of the checkpoint, for the message.
        keys: those that the wiring understands.
        inside: name of that part.

    Raises:
        WiringError: a key is unknown, so activations could be slightly wrong.
        CheckpointError: a value is of another kind than its key takes.
    """
    prefix = f"{inside}." if inside else ""
    keys = keys if inside else HUB | keys
    unknown = [f"{prefix}{key}" for key in sorted(set(config) - set(keys.kinds) - set(keys.parts))]
    if unknown:
        raise WiringError(
            f"{where} has configuration keys that the wiring does not know: {', '.join(unknown[:5])}. It may compute "
            "something else than the wiring says; refusing rather than showing wrong activations."
        )
    for key, value in config.items():
        if value is None and key in keys.empty:
            continue
        if key in keys.parts:
            if not isinstance(value, Mapping):
                raise CheckpointError(f"{where} has {prefix}{key}={_short(value)}, expected an object of settings")
            refuse_unknown(value, where, keys.parts[key], inside=f"{prefix}{key}")
            continue
        fits, expected = KINDS[keys.kinds[key]]
        if not fits(value):
            raise CheckpointError(f"{where} has {prefix}{key}={_short(value)}, expected {expected}")


def _short(value: Any) -> str:
    return reprlib.repr(value)


def refuse_values(config: Mapping[str, Any], where: str, expected: Mapping[str, Any], *, inside: str = "") -> None:
    """Refuse a configuration whose keys have values other than the ones that the wiring describes.

    Raises:
        WiringError: names the key, its value, and the one expected.
    """
    for key, value in expected.items():
        if key in config and config[key] != value:
            raise WiringError(
                f"{where} has {inside}{key}={_short(config[key])}; the wiring describes models with {value!r} only"
            )


def refuse_above(config: Mapping[str, Any], where: str, keys: str, limit: str, *, or_at: bool = True) -> None:
    """Refuse a configuration with a value above that of another key, as token ids at or above ``vocab_size``.

    Raises:
        CheckpointError: names both keys and values.
    """
    highest = config.get(limit)
    for key in keys.split():
        value = config.get(key)
        if highest is not None and value is not None and (value > highest or (or_at and value == highest)):
            raise CheckpointError(
                f"{where} has {key}={value}, expected {'less than' if or_at else 'at most'} {limit}={highest}"
            )


def write_checkpoint(model: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Write config.json and model.safetensors, for libraries that can read but not write them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))
