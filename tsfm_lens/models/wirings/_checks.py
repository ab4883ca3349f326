"""Refusing configurations that a wiring does not understand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tsfm_lens.errors import CheckpointError, WiringError

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


def refuse_tensors(found: Iterable[str], model: Any, where: str, *, optional: str = "") -> None:
    """Refuse a checkpoint that lacks a tensor of the model or holds one that the model has not.

    For libraries whose loader skips what does not fit.

    Args:
        found: names in the checkpoint.
        model: the loaded module.
        where: name of the checkpoint, for the message.
        optional: part of the names of tensors that may be absent.

    Raises:
        WiringError: names the tensors that differ.
    """
    have, need = set(found), set(model.state_dict())
    missing = sorted(name for name in need - have if not (optional and optional in name))
    unknown = sorted(name for name in have - need if not (optional and optional in name))
    if missing or unknown:
        raise WiringError(
            f"{where} does not fit {type(model).__name__}: it lacks {', '.join(missing[:3]) or 'nothing'} and has "
            f"{', '.join(unknown[:3]) or 'nothing'} besides. The library would load it all the same, with random "
            "weights in the gaps."
        )


def tensor_names(folder: Path) -> frozenset[str]:
    """Names of all tensors in a checkpoint's safetensors files.

    Raises:
        CheckpointError: a file is none, such as the pointer that a clone without git-lfs leaves.
    """
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                names.update(file.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is no safetensors file ({error}); is the download complete, and was it cloned with git-lfs?"
            ) from error
    return frozenset(names)


def write_checkpoint(model: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Write config.json and model.safetensors, for libraries that can read but not write them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))
