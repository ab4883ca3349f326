"""Files of a checkpoint and the contents of their headers, the same for every architecture.

The library opens a folder that holds these files and nothing else (:meth:`Checkpoint.staged`), so that no loader
finds a pickle or a file outside. Their tensors are compared with the model in ``completeness``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from safetensors import safe_open

from tsfm_lens.errors import CheckpointError, LensError
from tsfm_lens.registry import extensible

WEIGHTS, INDEX, CONFIG, GENERATION = (
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
)
COMPRESSION = "compression.json"
"""Beside weights some of which are factors of the model's matrices; see ``tsfm_lens.compress``."""
SUFFIX, COMPRESSED = ".safetensors", ".compressed"
"""Of files of weights, and of those beside compression.json: libraries fill missing tensors with random numbers, and
some of them open any file of their suffix."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LONGEST_JSON = 16 * 2**20
"""Bytes; the largest published configuration has some 10 kB, an index of a thousand shards some MB."""


class Stored(NamedTuple):
    """Entry of a header for one tensor."""

    file: str
    dtype: str
    shape: tuple[int, ...]


@extensible
@dataclass(frozen=True)
class Checkpoint:
    """Files of a checkpoint.

    Attributes:
        folder: of the files.
        files: name that the library looks for -> resolved path of config.json, generation_config.json, the index and
            the weights, as far as there.
        config: the settings in config.json, empty without one.
        generation: those in generation_config.json.
        tensors: by the name that the files give them.
    """

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
        """Make a folder that holds these files and nothing else, while the block runs."""
        with tempfile.TemporaryDirectory(prefix="tsfm-lens-") as name:
            for file, path in self.files.items():
                try:
                    os.symlink(path, Path(name, file))
                except OSError:
                    # links need a privilege on Windows
                    shutil.copyfile(path, Path(name, file))
            yield Path(name)

    @property
    def names(self) -> frozenset[str]:
        """Names of the tensors of the whole model."""
        return frozenset(self.tensors)

    def fit(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Give an empty model the layers that a compressed checkpoint has in the place of its own; here none."""

    @contextmanager
    def building(self, kind: type, renamed: Mapping[str, str]) -> Iterator[None]:
        """Make the library build models of a class with those layers, while the block runs."""
        yield

    def finish(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Give an opened model the parts of those layers that are not in the files."""


@contextmanager
def in_our_words(doing: str) -> Iterator[None]:
    """Turn any error of a library into a CheckpointError, with the library's own words and the cause kept."""
    try:
        yield
    except LensError:
        raise
    except Exception as error:
        raise CheckpointError(f"{doing}: {type(error).__name__}: {shortened(str(error))}") from error


def shortened(text: str, limit: int = 300) -> str:
    """Return a text on one line, at most ``limit`` characters long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the files of a checkpoint and their headers; no weight is read.

    Raises:
        CheckpointError: there is no safetensors file under the name that loaders look for, a file lies outside the
            folder, is damaged or is not a file, or the index is not that of the files.
    """
    with in_our_words(f"{folder} cannot be read"):
        files = {name: _resolve(folder, name) for name in (CONFIG, GENERATION) if os.path.lexists(folder / name)}
        config, generation = (read_settings(files[name]) if name in files else {} for name in (CONFIG, GENERATION))
        suffix = COMPRESSED if os.path.lexists(folder / COMPRESSION) else SUFFIX
        shards, places = _weight_files(folder, files, suffix)
        files.update(shards)
        return Checkpoint(folder, files, config, generation, _headers(folder, shards, places))


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of settings.

    Raises:
        CheckpointError: it is no JSON object, or larger than any settings are.
    """
    if path.stat().st_size > LONGEST_JSON:
        raise CheckpointError(
            f"{path} has {path.stat().st_size:,} bytes, expected settings of at most {LONGEST_JSON:,}"
        )
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {shortened(str(error))}") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} holds a {type(settings).__name__}, expected an object of settings")
    return settings


def _resolve(folder: Path, name: str) -> Path:
    """Resolve the real path of a file of a folder.

    A folder of the hub cache, ``models--x/snapshots/commit``, links into the ``models--x/blobs`` beside it.

    Raises:
        CheckpointError: outside the folder, nowhere, or it is not a regular file.
    """
    try:
        path, root = (folder / name).resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder / name} cannot be followed: {error}") from error
    is_cached = root.parent.name == "snapshots" and path.parent == (root.parent.parent / "blobs").resolve()
    if not (path.is_relative_to(root) or is_cached):
        raise CheckpointError(
            f"{folder / name} is a link to {path}, outside the checkpoint's folder; copy the file into the folder"
        )
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{folder / name} is not a regular file")
    return path


def _weight_files(folder: Path, files: dict[str, Path], suffix: str) -> tuple[dict[str, Path], dict[str, str] | None]:
    """Return name -> path of the files with weights, and the file of each tensor by the index, if there is one."""

    def file_of(name: str) -> str:
        return name.replace(SUFFIX, suffix)

    native = next((name for name in (WEIGHTS, INDEX) if suffix != SUFFIX and os.path.lexists(folder / name)), None)
    if native is not None:
        raise CheckpointError(
            f"{folder} holds {native} beside {COMPRESSION}, expected {file_of(native)}: other libraries would open "
            "it with random weights in the place of compressed ones; write it again with this version"
        )
    single = os.path.lexists(folder / file_of(WEIGHTS))
    if not os.path.lexists(folder / file_of(INDEX)):
        if not single:
            raise _no_weights(folder)
        return {WEIGHTS: _resolve(folder, file_of(WEIGHTS))}, None
    files[INDEX] = _resolve(folder, file_of(INDEX))
    places = read_settings(files[INDEX]).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{folder / INDEX} has no weight_map, expected an object of tensor names and their files")
    for tensor, name in places.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\:\0]+\.safetensors", name):
            raise CheckpointError(
                f"{folder / INDEX} puts {shortened(tensor, 80)!r} into {shortened(repr(name), 80)}; expected the name "
                "of a .safetensors file in the same folder"
            )
    names = sorted(set(places.values()))
    if single and WEIGHTS not in names:
        raise CheckpointError(
            f"{folder} holds both {WEIGHTS} and {INDEX}, which names {names[0]}; remove the one that is not meant"
        )
    return {name: _resolve(folder, file_of(name)) for name in names}, places


def _no_weights(folder: Path) -> CheckpointError:
    inside = sorted(item.name for item in folder.iterdir())
    pickles = [name for name in inside if name.endswith(PICKLES)]
    if pickles:
        return CheckpointError(
            f"{folder} holds weights only as pickle ({', '.join(pickles[:3])}), which can run code when read; "
            f"tsfm-lens loads {WEIGHTS} or what {INDEX} names, and nothing else. Convert once in a place you trust: "
            "model.save_pretrained(folder, safe_serialization=True)."
        )
    others = [name for name in inside if name.endswith(".safetensors")]
    if others:
        return CheckpointError(
            f"{folder} has no {WEIGHTS} and no {INDEX}, but {', '.join(others[:3])}; rename the file that is meant"
        )
    if any(name.endswith(COMPRESSED) for name in inside):
        return CheckpointError(f"{folder} holds compressed weights, and {COMPRESSION} is missing; copy it there, too")
    contents = ", ".join(inside[:8]) or "nothing"
    return CheckpointError(f"{folder} is no checkpoint: it has no *.safetensors file (found: {contents})")


def _headers(folder: Path, shards: Mapping[str, Path], places: Mapping[str, str] | None) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for name, path in shards.items():
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    if key in tensors:
                        raise CheckpointError(f"{folder}: {key!r} is in {tensors[key].file} and in {name}")
                    part = file.get_slice(key)
                    tensors[key] = Stored(name, part.get_dtype(), tuple(part.get_shape()))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{folder / name} is no safetensors file ({shortened(str(error))}); is the download complete, and was "
                "it cloned with git-lfs?"
            ) from error
    if places is not None and places != {key: tensor.file for key, tensor in tensors.items()}:
        wrong = sorted(set(places.items()) ^ {(key, tensor.file) for key, tensor in tensors.items()})
        raise CheckpointError(
            f"{folder / INDEX} does not say what the files hold: {len(wrong)} places differ, the first is "
            f"{shortened(wrong[0][0], 80)!r} in {wrong[0][1]}"
        )
    return tensors
