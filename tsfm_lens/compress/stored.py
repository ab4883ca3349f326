"""Opening a compressed checkpoint: shown to the native library as the whole model, then given its own layers.

No library reads factors. So the products are written into a temporary file, which the library loads and which is
compared with what it loaded like any other; then the layers are put in place. For that moment there must be room for
the whole model, in memory and among temporary files.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tsfm_lens.compress.factors import Factors, product
from tsfm_lens.compress.layers import Compressed, LowRank, Part, replace_layer, widened
from tsfm_lens.errors import CheckpointError
from tsfm_lens.models.checkpoint import COMPRESSION, WEIGHTS, Checkpoint, Stored, read_settings, shortened
from tsfm_lens.models.completeness import model_names

__all__ = ["Compression", "Kept", "Layer", "unfolded"]

DOWN, UP, REST, WEIGHT = ".down", ".up", ".rest", ".weight"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Layer(_Strict):
    """A layer that holds two factors.

    Attributes:
        rank: of its matrix, or of each head.
        gain: factor on what it gives.
    """

    form: Literal["factors"] = "factors"
    rank: int = Field(ge=1)
    gain: float = 1.0


class Kept(_Strict):
    """A layer of whose matrix some rows or columns are left.

    Attributes:
        of: which.
        size: how many the whole has.
        runs: first and one past the last of each run of those that are left, ascending.
        gain: factor on what it gives.
    """

    form: Literal["part"] = "part"
    of: Literal["rows", "columns"]
    size: int = Field(ge=1, le=2**31)
    runs: tuple[tuple[int, int], ...]
    gain: float = 1.0

    @model_validator(mode="after")
    def _ascending(self) -> Kept:
        edges = [edge for run in self.runs for edge in run]
        inside = not edges or (edges[0] >= 0 and edges[-1] <= self.size)
        if not inside or any(first >= stop for first, stop in self.runs) or edges != sorted(edges):
            raise ValueError(f"runs {self.runs} of {self.size}: expected ascending ones inside it")
        return self

    @property
    def count(self) -> int:
        """Rows or columns that are left."""
        return sum(stop - first for first, stop in self.runs)

    @property
    def places(self) -> Tensor:
        """(kept,)."""
        return torch.tensor([place for run in self.runs for place in range(*run)], dtype=torch.long)


class Compression(_Strict):
    """What compression.json says.

    Attributes:
        version: of this format.
        made_with: versions of the libraries.
        model: what was compressed.
        method: how.
        layers: by the name that the files give to the layer.
        ranks: of every matrix that was cut off, by its name in the lens, those that are held whole included.
        ratio: share that is left of ranks, of entries in factors, and of entries that are stored; see
            :class:`tsfm_lens.compress.Ratio`.
    """

    version: Literal[1] = 1
    made_with: str = ""
    model: str = ""
    method: str = ""
    layers: dict[str, Annotated[Layer | Kept, Field(discriminator="form")]]
    ranks: dict[str, int] = Field(default_factory=dict)
    ratio: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Unfolded(Checkpoint):
    """A compressed checkpoint as if it held the whole model.

    Attributes:
        compressed: the files as they are.
        record: what compression.json says.
    """

    compressed: Checkpoint
    record: Compression

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Multiply the factors, then as for any checkpoint."""
        tensors = dict(_read(self.compressed))
        for layer, said in self.record.layers.items():
            shape = self.tensors[layer + WEIGHT].shape
            if isinstance(said, Kept):
                whole = widened(tensors.pop(layer + REST), said.places, (shape[0], shape[1]), said.of)
            else:
                pair = Factors(tensors.pop(layer + DOWN), tensors.pop(layer + UP))
                whole = product(Factors(*(part.double() for part in pair))).to(pair.up.dtype)
            tensors[layer + WEIGHT] = whole.contiguous()
        # loaders ask what library the file is of
        save_file(tensors, self.files[WEIGHTS], metadata={"format": "pt"})
        del tensors
        with super().staged() as folder:
            yield folder

    def refit(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Put layers of factors in the place of those that hold their products."""
        names = model_names(self, renamed)
        tensors = dict(_read(self.compressed, (DOWN, UP, REST)))
        for layer, said in self.record.layers.items():
            path = names[layer + WEIGHT].removesuffix(WEIGHT)
            bias = module.get_submodule(path).bias
            made: Compressed
            if isinstance(said, Kept):
                made = Part(tensors[layer + REST], said.places, said.size, said.of, bias, said.gain)
            else:
                made = LowRank(Factors(tensors[layer + DOWN], tensors[layer + UP]), bias, said.gain)
            replace_layer(module, path, made)


def _read(files: Checkpoint, endings: tuple[str, ...] = ("",)) -> Iterator[tuple[str, Tensor]]:
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(safe_open(files.files[name], framework="pt"))
            for name in {tensor.file for tensor in files.tensors.values()}
        }
        for name, tensor in files.tensors.items():
            if name.endswith(endings):
                yield name, opened[tensor.file].get_tensor(name)


@contextmanager
def unfolded(files: Checkpoint) -> Iterator[Unfolded]:
    """A compressed checkpoint as the model that its configuration describes; nothing is multiplied before it is opened.

    Raises:
        CheckpointError: compression.json is no such record, or does not fit the tensors of the files.
    """
    record = _record(files)
    tensors = dict(files.tensors)
    for layer, said in record.layers.items():
        endings = (REST,) if isinstance(said, Kept) else (DOWN, UP)
        held = [tensor for ending in endings if (tensor := tensors.pop(layer + ending, None)) is not None]
        if len(held) < len(endings) or layer + WEIGHT in tensors:
            raise CheckpointError(
                f"{files.folder}: {COMPRESSION} names the layer {shortened(layer, 80)!r}; expected its "
                f"{' and '.join(endings)} in the files, and no {WEIGHT}"
            )
        shape = _widened(files, layer, said, *held) if isinstance(said, Kept) else _shape(files, layer, said, *held)
        tensors[layer + WEIGHT] = Stored(WEIGHTS, held[-1].dtype, shape)
    kept = {name: path for name, path in files.files.items() if not name.endswith((".safetensors", ".index.json"))}
    with tempfile.TemporaryDirectory(prefix="tsfm-lens-") as folder:
        every = {name: tensor._replace(file=WEIGHTS) for name, tensor in tensors.items()}
        yield Unfolded(
            files.folder,
            {**kept, WEIGHTS: Path(folder, WEIGHTS)},
            files.config,
            files.generation,
            every,
            compressed=files,
            record=record,
        )


def _record(files: Checkpoint) -> Compression:
    path = files.folder / COMPRESSION
    try:
        return Compression.model_validate(read_settings(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise CheckpointError(
            f"{path} is no record of a compression that this version reads: {shortened(where, 80)}: {first['msg']}"
        ) from error


def _shape(files: Checkpoint, layer: str, said: Layer, down: Stored, up: Stored) -> tuple[int, int]:
    """(out, in) of the product of two factors, by their headers."""
    forms = len(down.shape), len(up.shape)
    shape: tuple[int, int] | None = None
    if forms == (2, 2) and down.shape[0] == up.shape[1] == said.rank:
        shape = up.shape[0], down.shape[1]
    elif forms == (2, 3) and up.shape[2] == said.rank and down.shape[0] == up.shape[0] * said.rank:
        shape = up.shape[0] * up.shape[1], down.shape[1]
    elif forms == (3, 2) and down.shape[1] == said.rank and up.shape[1] == down.shape[0] * said.rank:
        shape = up.shape[0], down.shape[0] * down.shape[2]
    if shape is None or down.dtype != up.dtype or not math.prod(shape):
        raise CheckpointError(
            f"{files.folder}: {shortened(layer, 80)!r} has factors {list(down.shape)} and {list(up.shape)} in "
            f"{down.dtype} and {up.dtype}; expected (rank, in) and (out, rank) of rank {said.rank} in one type"
        )
    return shape


def _widened(files: Checkpoint, layer: str, said: Kept, rest: Stored) -> tuple[int, int]:
    """(out, in) of the matrix of which some rows or columns are left."""
    axis = 0 if said.of == "rows" else 1
    if len(rest.shape) != 2 or rest.shape[axis] != said.count:
        raise CheckpointError(
            f"{files.folder}: {shortened(layer, 80)!r} has {list(rest.shape)}, expected {said.count} {said.of} as "
            f"{COMPRESSION} says"
        )
    return (said.size, rest.shape[1]) if axis == 0 else (rest.shape[0], said.size)
