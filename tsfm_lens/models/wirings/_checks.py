"""Refusal of configurations that a wiring does not understand."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tsfm_lens.errors import CheckpointError, WiringError

Keys = dict[str, Any]
"""Keys of a configuration that a wiring understands; those of an object inside under its own key, else None."""


def keys(words: str, **parts: Keys) -> Keys:
    """Write known keys as words, and objects with keys of their own by name."""
    return {**dict.fromkeys(words.split()), **parts}


HUB = keys(
    "_name_or_path architectures auto_map chunk_size_feed_forward dtype generation_config id2label label2id model_type "
    "name_or_path output_attentions output_hidden_states problem_type return_dict torch_dtype transformers_version"
)
"""Keys that transformers writes into any config.json and that change nothing inside a model."""

GENERATION = keys(
    "_from_model_config bos_token_id decoder_start_token_id do_sample eos_token_id max_length max_new_tokens "
    "output_attentions output_hidden_states pad_token_id return_dict_in_generate temperature top_k top_p "
    "transformers_version use_cache"
)
"""Keys of a generation_config.json under which the library still samples as the wirings say."""


def refuse_unknown(config: Mapping[str, Any], where: str, known: Keys, *, inside: str = "") -> None:
    """Refuse a configuration with keys that a wiring does not understand.

    Args:
        config: the checkpoint's config.json, or a part of it.
        where: name of the checkpoint, for the message.
        known: those that the wiring understands.
        inside: name of that part, with a dot.

    Raises:
        WiringError: a key is unknown, so activations could be slightly wrong.
        CheckpointError: a part is no object.
    """
    unknown = [f"{inside}{key}" for key in sorted(set(config) - set(known))]
    if unknown:
        raise WiringError(
            f"{where} has configuration keys that the wiring does not know: {', '.join(unknown[:5])}. It may compute "
            "something else than the wiring says; refusing rather than showing wrong activations."
        )
    for key, value in config.items():
        if known[key] is not None:
            if not isinstance(value, Mapping):
                raise CheckpointError(
                    f"{where} has {inside}{key}={reprlib.repr(value)}, expected an object of settings"
                )
            refuse_unknown(value, where, known[key], inside=f"{inside}{key}.")


def refuse_values(config: Mapping[str, Any], where: str, expected: Mapping[str, Any], *, inside: str = "") -> None:
    """Refuse a configuration whose keys have values other than the ones that the wiring describes.

    Raises:
        WiringError: names the key, its value, and the one expected.
    """
    for key, value in expected.items():
        if isinstance(value, Mapping):
            refuse_values(config.get(key, {}), where, value, inside=f"{inside}{key}.")
        elif key in config and config[key] != value:
            raise WiringError(
                f"{where} has {inside}{key}={reprlib.repr(config[key])}; the wiring describes models with {value!r} "
                "only"
            )


def write_checkpoint(model: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Write config.json and model.safetensors, for libraries that can read but not write them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))
