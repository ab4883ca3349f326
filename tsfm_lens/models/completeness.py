"""Check that a checkpoint is complete and is what was loaded: the same comparison for every architecture.

:func:`refuse_misfit` compares names, shapes and types in the files with an empty model of the configuration, before
any memory is taken; :func:`refuse_difference` compares the loaded weights with the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from tsfm_lens.errors import CheckpointError
from tsfm_lens.models.checkpoint import CONFIG, Checkpoint, Stored, shortened

SPARE = 2**30
"""Bytes of tables and buffers that a model may hold beside its weights."""
FLOATS = ("F64", "F32", "F16", "BF16")
LAYER_KEYS = ("num_layers", "num_decoder_layers", "num_hidden_layers")
MOST_LAYERS = 1000
"""Of a stack; published ones have up to 50, and an empty layer takes some ms to build."""
MOST_NAMES = 2
"""Tensors in the files for each of the model's; some published files also hold those that the library computes."""


def refuse_size(checkpoint: Checkpoint) -> None:
    """Refuse a configuration with more layers than any model, or than the files have tensors, before it is built.

    Widths are compared by :func:`refuse_misfit`, without memory; only layers cost time there.

    Raises:
        CheckpointError: names the key.
    """
    count = len(checkpoint.tensors)
    for key, value in _settings(checkpoint.config):
        if key.rpartition(".")[2] in LAYER_KEYS and isinstance(value, int) and value > min(count, MOST_LAYERS):
            most = f"the files hold {count} tensors in all" if value > count else f"expected at most {MOST_LAYERS}"
            raise CheckpointError(f"{checkpoint.folder}: {CONFIG} has {key}={value}, but {most}")


def _settings(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")


def module_of(native: Any) -> nn.Module:
    """Return the torch module with a checkpoint's weights, in a library's own object."""
    if isinstance(native, nn.Module):
        return native
    inner = getattr(native, "inner_model", None)
    return inner if isinstance(inner, nn.Module) else native.model


class Expected(NamedTuple):
    """Tensors that a model takes from a checkpoint.

    Attributes:
        shapes: name -> shape.
        floating: names of tensors of real numbers.
        tied: name -> all names of the same tensor, of which one in the files is enough.
        unread: patterns of names that the library declares it leaves aside.
    """

    shapes: Mapping[str, tuple[int, ...]]
    floating: frozenset[str]
    tied: Mapping[str, frozenset[str]]
    unread: tuple[str, ...]


def expected_of(blank: nn.Module) -> Expected:
    """Return the tensors that a model takes from a checkpoint, by an empty model on the meta device."""
    tie = getattr(blank, "tie_weights", None)
    if callable(tie):
        # transformers ties when it initialises weights, which an empty model never does
        tie()
    state = blank.state_dict(keep_vars=True)
    groups: dict[int, set[str]] = {}
    for name, tensor in state.items():
        groups.setdefault(id(tensor), set()).add(name)
    return Expected(
        {name: tuple(tensor.shape) for name, tensor in state.items()},
        frozenset(name for name, tensor in state.items() if tensor.is_floating_point()),
        {name: frozenset(groups[id(tensor)]) for name, tensor in state.items()},
        tuple(getattr(blank, "_keys_to_ignore_on_load_unexpected", None) or ()),
    )


def name_in_model(name: str, renamed: Mapping[str, str]) -> str:
    """Translate a name in a file into the model's, by the parts of names that a library renames."""
    for old, new in renamed.items():
        name = name.replace(old, new)
    return name


def model_names(checkpoint: Checkpoint, renamed: Mapping[str, str]) -> dict[str, str]:
    """Map names in the files to names in the model, by the parts of names that a library renames.

    Raises:
        CheckpointError: two tensors have one name in the model.
    """
    names: dict[str, str] = {}
    sources: dict[str, str] = {}
    for source in checkpoint.tensors:
        name = name_in_model(source, renamed)
        if name in sources:
            raise CheckpointError(
                f"{checkpoint.folder} holds {sources[name]!r} and {source!r}, which are the same tensor"
            )
        names[source], sources[name] = name, source
    return names


def refuse_misfit(
    checkpoint: Checkpoint, blank: nn.Module, renamed: Mapping[str, str], computed: tuple[str, ...]
) -> None:
    """Refuse files that lack a tensor of the model, hold another one, or hold one of another shape or type.

    Args:
        checkpoint: the files.
        blank: an empty model of the configuration, on the meta device.
        renamed: parts of names in the files -> those in the model.
        computed: parts of the names of tensors that the library computes and does not read.

    Raises:
        CheckpointError: names the tensors, or says how much larger the configuration is than the files.
    """
    expected = expected_of(blank)
    most = MOST_NAMES * len(expected.shapes)
    if len(checkpoint.tensors) > most:
        raise CheckpointError(
            f"{checkpoint.folder} holds {len(checkpoint.tensors):,} tensors, expected at most {most:,} for the "
            f"{len(expected.shapes):,} of the {type(blank).__name__} that its configuration describes"
        )
    names = model_names(checkpoint, renamed)
    have = set(names.values())
    unread = re.compile("|".join((*expected.unread, *map(re.escape, computed))) or r"(?!)")
    missing = sorted(name for name in expected.shapes if not (expected.tied[name] & have or _among(name, computed)))
    unknown = sorted(name for name in have - set(expected.shapes) if not unread.search(name))
    wrong = [
        f"{name} is {_describe(tensor)} and not {list(expected.shapes[model])}"
        for name, model in names.items()
        if model in expected.shapes
        for tensor in [checkpoint.tensors[name]]
        if tensor.shape != expected.shapes[model] or (tensor.dtype in FLOATS) != (model in expected.floating)
    ]
    kinds = {"missing": missing, "unknown to the model": unknown, "of another form": wrong}
    if any(kinds.values()):
        complaint = "; ".join(
            f"{len(names_of_kind)} {kind} ({_few(names_of_kind)})"
            for kind, names_of_kind in kinds.items()
            if names_of_kind
        )
        # names of one tensor count once
        numbers = {tied: math.prod(expected.shapes[name]) for name, tied in expected.tied.items()}
        raise CheckpointError(
            f"{checkpoint.folder} is not a complete checkpoint of the {type(blank).__name__} that its configuration "
            f"describes: {complaint}. The configuration describes {sum(numbers.values()):,} "
            f"numbers, the files hold {checkpoint.numbers:,}. Is the download complete, and are the files of one model?"
        )
    tensors: list[Tensor] = [*blank.parameters(), *blank.buffers()]
    bytes_of = {id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}
    if sum(bytes_of.values()) > 8 * checkpoint.numbers + SPARE:
        raise CheckpointError(
            f"{checkpoint.folder}: the model that {CONFIG} describes takes {sum(bytes_of.values()):,} bytes, for "
            f"{checkpoint.numbers:,} numbers in the files; a length in {CONFIG} is far too large"
        )


def _describe(tensor: Stored) -> str:
    return f"{list(tensor.shape)}{'' if tensor.dtype in FLOATS else f' of {tensor.dtype}'}"


def _few(names: list[str]) -> str:
    text = ", ".join(shortened(name, 100) for name in names[:3])
    return f"{text}, …" if len(names) > 3 else text


def refuse_difference(
    checkpoint: Checkpoint, loaded: nn.Module, renamed: Mapping[str, str], computed: tuple[str, ...]
) -> None:
    """Refuse a loaded model whose weights are not those of the files, in the type it was loaded in, or not numbers.

    Reads every file once more; about 1 s for a GB that is in the page cache.

    Raises:
        CheckpointError: names the first tensor that differs.
    """
    names = model_names(checkpoint, renamed)
    # tensors that a library computes need not be in its state
    state = {**dict(loaded.named_buffers()), **loaded.state_dict()}
    by_file: dict[str, list[str]] = {}
    for name, tensor in checkpoint.tensors.items():
        by_file.setdefault(tensor.file, []).append(name)
    for file, names_of_file in by_file.items():
        with safe_open(checkpoint.files[file], framework="pt") as weights:
            for name in names_of_file:
                if names[name] in state:
                    values = weights.get_tensor(name)
                    _refuse_other(checkpoint.folder, name, values, state[names[name]], _among(name, computed))


def _among(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


def _refuse_other(folder: Path, name: str, stored: Tensor, loaded: Tensor, close: bool) -> None:
    param = loaded.detach().cpu()
    # the extremes are NaN if one value is, and cost no memory
    if param.numel() and not all(bool(torch.isfinite(extreme)) for extreme in param.aminmax()):
        bad = int((~torch.isfinite(param)).sum())
        raise CheckpointError(
            f"{folder}: {name} has {bad} of {param.numel()} weights that are not finite in {param.dtype}; the file is "
            "damaged, or its values do not fit that type"
        )
    same = param.shape == stored.shape and (
        torch.allclose(param, stored.to(param.dtype)) if close else torch.equal(param, stored.to(param.dtype))
    )
    if not same:
        raise CheckpointError(
            f"{folder}: the library did not load {name} as the file has it; is another tensor of the file tied to it?"
        )
