"""Memory of a run: the bytes that it may take, and a guess of those that it takes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping

import torch

from tsfm_lens.errors import InputError
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.base import LensBase

VARIABLE = "TSFM_LENS_MEMORY"
"""Environment variable with the bytes that a run may take, such as 2000000000, 2GB or 1.5GiB."""
LITTLE = 2**28
"""Bytes below which the free memory is not looked up, so that results do not depend on it."""

# of the free memory, left to others
_SHARE = 0.5
# bytes at a time beyond which a larger batch is no faster on a CPU
_COMFORTABLE = 2**30
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def limit_of(memory: int | str | None, device: torch.device) -> int:
    """Return the bytes that a run may take: the argument, the environment variable's, or half of the free ones."""
    if memory is not None:
        return as_bytes(memory, "memory")
    if is_given(None):
        return as_bytes(os.environ[VARIABLE], f"the environment variable {VARIABLE}")
    return int(_SHARE * free_bytes(device))


def is_given(memory: int | str | None) -> bool:
    """Return whether somebody has set a limit."""
    return memory is not None or bool(os.environ.get(VARIABLE, "").strip())


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().available)


def as_bytes(value: int | str, what: str) -> int:
    """Read a number of bytes, maybe as a text with a unit (kB, MB, GB, TB of 1000; KiB, MiB, GiB, TiB of 1024)."""
    if isinstance(value, str):
        form = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", value.lower())
        number = float(form[1]) * (1024 if form[3] else 1000) ** _UNITS[form[2]] if form else 0.0
        if 1 <= number < 2**63:
            return int(number)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise InputError(
        f"{what} is {value!r}, expected a number of bytes from 1 up, such as 2000000000 or '2GB', or None for half of "
        "what is free"
    )


def in_words(size: float) -> str:
    """Format bytes for people."""
    for unit, width in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{int(size)} bytes"


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or in torch's allocator for the CPU."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def fitting(need: int, count: int, memory: int | str | None, device: torch.device, *, comfort: bool = True) -> int:
    """Count the items, of so many, that may run at once: at least one."""
    if need * count <= LITTLE and not is_given(memory):
        return count
    limit = limit_of(memory, device)
    if comfort and device.type != "cuda" and not is_given(memory):
        limit = min(limit, _COMFORTABLE)
    return min(count, max(1, limit // max(need, 1)))


def lengths_of(encoded: Encoded) -> dict[str, int]:
    """Return the tokens of an item by stack; a packed sequence shows every variate's."""
    per_item = 1 if encoded.packed else -(-len(encoded.batch) // encoded.n_items)
    return {stack: len(spans) * per_item for stack, spans in encoded.spans.items()}


def need_of(lens: LensBase, lengths: Mapping[str, int], paths: int = 1, variates: int = 1) -> int:
    """Guess from above the bytes that a run of one item holds at once: attention, stream, cache and output."""
    wiring = lens.wiring
    numbers = 6 * paths * variates * width_of_output(lens)
    for stack in wiring.stacks:
        rows, tokens = paths if stack is wiring.output_stack else 1, lengths[stack.name]
        keys = tokens + sum(lengths[row.keys_from] for row in stack.attentions(0) if row.keys_from)
        width = max(stack.d_model, stack.n_heads * stack.d_head)
        per_token = 3 * stack.n_heads * keys + 12 * width + 4 * stack.d_mlp
        numbers += rows * (tokens * per_token + 2 * stack.n_layers * width * keys)
    return 4 * numbers


def kept_bytes(lens: LensBase, names: Iterable[str], lengths: Mapping[str, int]) -> dict[str, int]:
    """Guess the bytes of the activations of one item at some hook points, by name."""
    points, wiring, wide = lens.registry.points, lens.wiring, width_of_output(lens)
    sizes = {}
    for name in names:
        stack = wiring.stack(points[name].stack)
        tokens = lengths[stack.name]
        keys = tokens if "cross" not in points[name].kind else max(lengths.values())
        axes = {"batch": 1, "pos": tokens, "query": tokens, "key": keys, "head": stack.n_heads}
        axes |= {"d_head": stack.d_head, "d_model": stack.d_model, "d_mlp": stack.d_mlp}
        sizes[name] = 4 * math.prod(axes.get(axis, wide) for axis in points[name].axes)
    return sizes


def width_of_output(lens: LensBase) -> int:
    """Count the numbers that the head emits for a token."""
    unembed = lens.adapter.model.get_submodule(lens.wiring.unembed.module)
    return max((len(weight) for weight in unembed.parameters() if weight.ndim), default=0)
