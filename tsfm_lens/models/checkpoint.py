"""Files of a checkpoint, and the checks that they are the model they claim to be.

Read :func:`read_checkpoint` first; it reads names and shapes, no weights.
:func:`check_tensors` compares them with an empty model before the library loads it, and
:func:`check_loaded_weights` the loaded weights with the files. Finding and opening a
checkpoint is in :mod:`tsfm_lens.models.opening`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from safetensors import safe_open

from tsfm_lens.core.errors import CheckpointError, LensError
from tsfm_lens.core.extensions import extensible

# torch is imported where weights are compared: a folder that cannot be opened is
# refused without it
if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
COMPRESSION = "compression.json"
"""File beside weights some of which are factors of the model's matrices.

See ``tsfm_lens.compress``.
"""
SUFFIX = ".safetensors"
COMPRESSED = ".compressed"
"""Suffix of files of weights that stand beside ``COMPRESSION``.

It is not ``SUFFIX`` because libraries fill missing tensors with random numbers, and
some of them open any file with that suffix.
"""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FLOATS = ("F64", "F32", "F16", "BF16")
SPARE = 2**30
"""Bytes of tables and buffers that a model may hold in addition to its weights."""


class Stored(NamedTuple):
    """Header entry of one tensor."""

    file: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        shape = str(list(self.shape))
        if self.dtype in FLOATS:
            return shape
        return f"{shape} of {self.dtype}"


@extensible
@dataclass(frozen=True)
class Checkpoint:
    """Files of a checkpoint, with its settings and the headers of its tensors."""

    folder: Path
    files: Mapping[str, Path]
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    if TYPE_CHECKING:
        folded: ClassVar[Callable[..., Checkpoint]]

    @property
    def numbers(self) -> int:
        """Count of the numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Make a folder of these files alone, which exists while the block runs."""
        # libraries look for files by themselves; here they find only those that were
        # checked
        with tempfile.TemporaryDirectory(prefix="tsfm-lens-") as name:
            for file, path in self.files.items():
                try:
                    os.symlink(path, Path(name, file))
                except OSError:
                    # on Windows links need a privilege that few users have
                    shutil.copyfile(path, Path(name, file))
            yield Path(name)

    @property
    def names(self) -> frozenset[str]:
        """Names of the tensors of the whole model."""
        return frozenset(self.tensors)

    def fit(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Give an empty model the layers of a compressed checkpoint.

        A checkpoint that is not compressed changes nothing.
        """

    def building(
        self, kind: type, renamed: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        """Make the library build models with the layers of a compressed checkpoint.

        While the block runs, this holds for models of the class ``kind``.

        Returns:
            A block; of an ordinary checkpoint, it does nothing.
        """
        return nullcontext()

    def finish(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Give an opened model the parts of compressed layers that are in no file."""


@contextmanager
def as_checkpoint_errors(doing: str) -> Iterator[None]:
    """Turn any error of a library into a CheckpointError.

    The message holds the library's own, and the error is kept as the cause.
    """
    try:
        yield
    except LensError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{doing}: {type(error).__name__}: {shortened(str(error))}"
        ) from error


def shortened(text: str, limit: int = 300) -> str:
    """Return a text on one line, at most ``limit`` characters long."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    return f"{line[: limit - 1]}…"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the files of a checkpoint and their headers; no weight is read."""
    with as_checkpoint_errors(f"{folder} cannot be read"):
        # a link that leads nowhere is there all the same: it is refused by name, not
        # passed over
        files = {
            name: _file(folder, name)
            for name in (CONFIG, GENERATION)
            if os.path.lexists(folder / name)
        }
        config, generation = (
            read_settings(files[name]) if name in files else {}
            for name in (CONFIG, GENERATION)
        )
        is_compressed = os.path.lexists(folder / COMPRESSION)
        suffix = COMPRESSED if is_compressed else SUFFIX
        shards, file_by_tensor = _weight_files(folder, files, suffix)
        files.update(shards)
        tensors = _headers(folder, shards, file_by_tensor)
        return Checkpoint(folder, files, config, generation, tensors)


# settings of a model's origin, without effect on its forecasts
_ORIGIN = ("name_or_path", "_name_or_path", "_commit_hash", "transformers_version")


def without_origin(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the settings that say where a model comes from."""
    return {name: value for name, value in settings.items() if name not in _ORIGIN}


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    # deeply nested brackets exhaust the parser's recursion before they are invalid
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not valid JSON: {shortened(str(error))}"
        ) from error
    if not isinstance(settings, dict):
        raise CheckpointError(
            f"{path} holds a {type(settings).__name__}, expected an object of settings"
        )
    return settings


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise CheckpointError(f"{folder / name} is not a regular file")
    # the hub's cache holds links relative to its own folders
    return (folder / name).resolve()


def _weight_files(
    folder: Path, files: dict[str, Path], suffix: str
) -> tuple[dict[str, Path], dict[str, str] | None]:
    """Return the files with weights by name, and the file of each tensor by name.

    The second is None where there is no index.
    """

    def with_suffix(name: str) -> str:
        # the index has the suffix in the middle of its name
        return name.replace(SUFFIX, suffix)

    native = next(
        (
            name
            for name in (WEIGHTS, INDEX)
            if suffix != SUFFIX and os.path.lexists(folder / name)
        ),
        None,
    )
    if native is not None:
        raise CheckpointError(
            f"{folder} holds {native} beside {COMPRESSION}, expected"
            f" {with_suffix(native)}: other libraries would open it with random weights"
            " in the place of compressed ones; write it again with this version"
        )
    single = os.path.lexists(folder / with_suffix(WEIGHTS))
    if not os.path.lexists(folder / with_suffix(INDEX)):
        if not single:
            raise _no_weights(folder)
        # under the name that libraries look for, whatever the suffix of the file
        return {WEIGHTS: _file(folder, with_suffix(WEIGHTS))}, None
    files[INDEX] = _file(folder, with_suffix(INDEX))
    file_by_tensor = read_settings(files[INDEX]).get("weight_map")
    if not isinstance(file_by_tensor, dict) or not file_by_tensor:
        raise CheckpointError(
            f"{folder / INDEX} has no weight_map, expected an object of tensor names"
            " and their files"
        )
    for tensor, name in file_by_tensor.items():
        # a name with a folder in it could lead out of the checkpoint
        if not isinstance(name, str) or not re.fullmatch(
            r"[^/\\:\0]+\.safetensors", name
        ):
            raise CheckpointError(
                f"{folder / INDEX} puts {shortened(tensor, 80)!r} into"
                f" {shortened(repr(name), 80)}; expected the name of a .safetensors"
                " file in the same folder"
            )
    names = sorted(set(file_by_tensor.values()))
    if single and WEIGHTS not in names:
        raise CheckpointError(
            f"{folder} holds both {WEIGHTS} and {INDEX}, which names {names[0]}; remove"
            " the one that is not meant"
        )
    return {name: _file(folder, with_suffix(name)) for name in names}, file_by_tensor


def _no_weights(folder: Path) -> CheckpointError:
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        return CheckpointError(
            f"{folder} holds weights only as pickle ({', '.join(pickles[:3])}), which"
            f" can run code when read; tsfm-lens loads {WEIGHTS} or what {INDEX} names,"
            " and nothing else. Convert once in a place you trust:"
            " model.save_pretrained(folder, safe_serialization=True)."
        )
    rest = [name for name in names if name.endswith(".safetensors")]
    if rest:
        return CheckpointError(
            f"{folder} has no {WEIGHTS} and no {INDEX}, but {', '.join(rest[:3])};"
            " rename the file that is meant"
        )
    if any(name.endswith(COMPRESSED) for name in names):
        return CheckpointError(
            f"{folder} holds compressed weights, and {COMPRESSION} is missing; copy it"
            " there, too"
        )
    contents = ", ".join(names[:8]) or "nothing"
    return CheckpointError(
        f"{folder} is not a checkpoint: it has no *.safetensors file (found:"
        f" {contents})"
    )


def _headers(
    folder: Path, shards: Mapping[str, Path], file_by_tensor: Mapping[str, str] | None
) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for name, path in shards.items():
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    if key in tensors:
                        raise CheckpointError(
                            f"{folder}: {key!r} is in {tensors[key].file} and in {name}"
                        )
                    # a slice knows dtype and shape from the header, and reads no
                    # numbers
                    part = file.get_slice(key)
                    tensors[key] = Stored(
                        name, part.get_dtype(), tuple(part.get_shape())
                    )
        # the next clause would take it for a fault of the file's format
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{folder / name} is not a safetensors file ({shortened(str(error))});"
                " is the download complete, and was it cloned with git-lfs?"
            ) from error
    found = {key: tensor.file for key, tensor in tensors.items()}
    if file_by_tensor is not None and file_by_tensor != found:
        wrong = sorted(set(file_by_tensor.items()) ^ set(found.items()))
        raise CheckpointError(
            f"{folder / INDEX} does not say what the files hold: {len(wrong)} places"
            f" differ, the first is {shortened(wrong[0][0], 80)!r} in {wrong[0][1]}"
        )
    return tensors


def unwrap_module(native: Any) -> nn.Module:
    """Return the torch module that holds the weights of a library's object."""
    from torch import nn

    if isinstance(native, nn.Module):
        return native
    inner = getattr(native, "inner_model", None)
    if isinstance(inner, nn.Module):
        return inner
    result: nn.Module = native.model
    return result


def list_expected(
    blank: nn.Module,
) -> tuple[dict[str, Tensor], dict[str, frozenset[str]]]:
    """Return the tensors that a model takes from a checkpoint, by name.

    The second dictionary gives all names of the same tensor, for each of its names.
    """
    tie = getattr(blank, "tie_weights", None)
    if callable(tie):
        # transformers ties when it initialises weights, which an empty model never does
        tie()
    # without ``keep_vars`` every entry is a new tensor, and tied weights cannot be told
    # by their identity
    state = blank.state_dict(keep_vars=True)
    groups: dict[int, set[str]] = {}
    for name, tensor in state.items():
        groups.setdefault(id(tensor), set()).add(name)
    return state, {
        name: frozenset(groups[id(tensor)]) for name, tensor in state.items()
    }


def name_in_model(name: str, renamed: Mapping[str, str]) -> str:
    """Translate a tensor's name in a file into its name in the model.

    ``renamed`` holds the parts of names that a library renames.

    Returns:
        The name in the model.
    """
    return reduce(
        lambda translated, pair: translated.replace(*pair), renamed.items(), name
    )


def _model_names(checkpoint: Checkpoint, renamed: Mapping[str, str]) -> dict[str, str]:
    """Map names in the files to names in the model.

    Returns:
        Names in the model, by name in the files.

    Raises:
        CheckpointError: two tensors have one name in the model.
    """
    names = {source: name_in_model(source, renamed) for source in checkpoint.tensors}
    sources: dict[str, str] = {}
    for source, name in names.items():
        if sources.setdefault(name, source) != source:
            raise CheckpointError(
                f"{checkpoint.folder} holds {sources[name]!r} and {source!r}, which are"
                " the same tensor"
            )
    return names


def check_layer_count(checkpoint: Checkpoint) -> None:
    """Refuse a configuration with more layers than the files have tensors.

    This is checked before a model is built from it.
    """
    # each layer takes time to build even on the meta device, and anyone can write a
    # number into a file. The list grows while it is walked.
    nodes: list[Mapping[str, Any]] = [checkpoint.config]
    for node in nodes:
        nodes += [value for value in node.values() if isinstance(value, Mapping)]
        for key, value in node.items():
            if (
                key.endswith("_layers")
                and isinstance(value, int)
                and value > len(checkpoint.tensors)
            ):
                raise CheckpointError(
                    f"{checkpoint.folder}: {CONFIG} has {key}={value}, but the files"
                    f" hold {len(checkpoint.tensors)} tensors in all"
                )


def check_tensors(
    checkpoint: Checkpoint,
    blank: nn.Module,
    renamed: Mapping[str, str],
    computed: tuple[str, ...],
) -> None:
    """Refuse files that are not the tensors of the model.

    A tensor is missing, is unknown to the model, or has another shape or type.
    """
    state, tied = list_expected(blank)
    names = _model_names(checkpoint, renamed)
    have = set(names.values())
    # what transformers leaves out by itself, such as masks of older versions
    ignored = getattr(blank, "_keys_to_ignore_on_load_unexpected", None) or ()
    # an empty pattern would match every name, ``(?!)`` matches none
    unread = re.compile("|".join((*ignored, *map(re.escape, computed))) or r"(?!)")
    missing = sorted(
        name for name in state if not (tied[name] & have or _has_part(name, computed))
    )
    unknown = sorted(name for name in have - set(state) if not unread.search(name))
    wrong = [
        f"{name} is {tensor} and not {list(state[names[name]].shape)}"
        for name, tensor in checkpoint.tensors.items()
        if (expected := state.get(names[name])) is not None
        and (
            tensor.shape != tuple(expected.shape)
            or (tensor.dtype in FLOATS) != expected.is_floating_point()
        )
    ]
    kinds = {
        "missing": missing,
        "unknown to the model": unknown,
        "of another form": wrong,
    }
    if any(kinds.values()):
        complaints = []
        for kind, faults in kinds.items():
            examples = [shortened(fault, 100) for fault in faults[:3]]
            if len(faults) > 3:
                examples.append("…")
            if faults:
                complaints.append(f"{len(faults)} {kind} ({', '.join(examples)})")
        complaint = "; ".join(complaints)
        # names of one tensor count once
        numbers = {tied[name]: tensor.numel() for name, tensor in state.items()}
        raise CheckpointError(
            f"{checkpoint.folder} is not a complete checkpoint of the"
            f" {type(blank).__name__} that its configuration describes: {complaint}."
            f" The configuration describes {sum(numbers.values()):,} parameters, the"
            f" files hold {checkpoint.numbers:,}. Is the download complete, and from"
            " one model?"
        )
    # on the meta device sizes are known and no memory is taken
    tensors: list[Tensor] = [*blank.parameters(), *blank.buffers()]
    sizes = {id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}
    n_bytes = sum(sizes.values())
    # a number takes 8 bytes at most. What goes far beyond is in no file, such as a
    # buffer for an enormous number of positions.
    if n_bytes > 8 * checkpoint.numbers + SPARE:
        raise CheckpointError(
            f"{checkpoint.folder}: the model that {CONFIG} describes takes"
            f" {n_bytes:,} bytes, for {checkpoint.numbers:,} parameters"
            f" in the files; a length in {CONFIG} is far too large"
        )


def check_loaded_weights(
    checkpoint: Checkpoint,
    loaded: nn.Module,
    renamed: Mapping[str, str],
    computed: tuple[str, ...],
) -> None:
    """Refuse a loaded model whose weights are not those of the files.

    They are compared in the type in which the model was loaded, and have to be finite.
    """
    names = _model_names(checkpoint, renamed)
    # tensors that a library computes need not be in its state
    state = {**dict(loaded.named_buffers()), **loaded.state_dict()}
    # each file is opened once, and one tensor at a time is in memory
    for file in dict.fromkeys(tensor.file for tensor in checkpoint.tensors.values()):
        with safe_open(checkpoint.files[file], framework="pt") as weights:
            for name, tensor in checkpoint.tensors.items():
                if tensor.file == file and names[name] in state:
                    _check_loaded(
                        checkpoint.folder,
                        name,
                        stored=weights.get_tensor(name),
                        loaded=state[names[name]],
                        close=_has_part(name, computed),
                    )


def _has_part(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


def _check_loaded(
    folder: Path, name: str, stored: Tensor, loaded: Tensor, close: bool
) -> None:
    import torch

    param = loaded.detach().cpu()
    # the extremes are NaN if one value is, and cost no memory
    extremes = param.aminmax() if param.numel() else ()
    if not all(bool(torch.isfinite(extreme)) for extreme in extremes):
        bad = int((~torch.isfinite(param)).sum())
        raise CheckpointError(
            f"{folder}: {name} has {bad} of {param.numel()} weights that are not finite"
            f" in {param.dtype}; the file is damaged, or its values do not fit that"
            " type"
        )
    # what a library computes by itself may differ from the file by rounding
    equal = torch.allclose if close else torch.equal
    if param.shape != stored.shape or not equal(param, stored.to(param.dtype)):
        raise CheckpointError(
            f"{folder}: the library did not load {name} as the file has it; is another"
            " tensor of the file tied to it?"
        )
