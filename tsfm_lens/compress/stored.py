"""Loader of compressed checkpoints: the native library builds its model with the layers of the files, and fills them.

No library knows layers of factors. Each builds a model of its own class, and then fills every parameter by its name.
The model gets the layers of the files in between: after it is built, and before it is filled. No product of factors is
ever computed or allocated.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tsfm_lens.compress.factors import Factors
from tsfm_lens.compress.layers import Compressed, LowRank, Part, replace_layer
from tsfm_lens.errors import CheckpointError
from tsfm_lens.models.checkpoint import COMPRESSION, Checkpoint, Stored, name_in_model, read_settings, shortened

__all__ = ["Compression", "Folded", "Kept", "Layer", "folded"]

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
        """Places of the rows or columns that are left, (kept,)."""
        return torch.tensor([place for run in self.runs for place in range(*run)], dtype=torch.long)


class Compression(_Strict):
    """Content of compression.json.

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

    version: Literal[2] = 2
    made_with: str = ""
    model: str = ""
    method: str = ""
    layers: dict[str, Annotated[Layer | Kept, Field(discriminator="form")]]
    ranks: dict[str, int] = Field(default_factory=dict)
    ratio: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Folded(Checkpoint):
    """A checkpoint some of whose layers hold less than their matrices.

    Attributes:
        record: what compression.json says.
        shapes: (out, in) of the matrices, by the name that the files give to the layer.
    """

    record: Compression
    shapes: Mapping[str, tuple[int, int]]

    @property
    def names(self) -> frozenset[str]:
        """Names of the whole model's tensors."""
        endings = tuple(layer + ending for layer in self.record.layers for ending in (DOWN, UP, REST))
        return frozenset({*self.tensors, *(layer + WEIGHT for layer in self.record.layers)} - set(endings))

    def fit(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Put layers that hold what the files hold, but nothing yet, in the place of a model's own.

        Raises:
            CheckpointError: the model has no such layer, or one of another shape.
        """
        for layer, spec in self.record.layers.items():
            path = name_in_model(layer + WEIGHT, renamed).removesuffix(WEIGHT)
            try:
                old = module.get_submodule(path)
            except AttributeError:
                old = None
            if getattr(old, "weight", None) is None or tuple(old.weight.shape) != self.shapes[layer]:
                has = "it has none" if old is None else f"it has {type(old).__name__}"
                raise CheckpointError(
                    f"{self.folder}: {COMPRESSION} names the layer {shortened(layer, 80)!r}; expected one of shape "
                    f"{list(self.shapes[layer])} in the model that the configuration describes, and {has}"
                )
            replace_layer(module, path, self._empty(layer, spec, old), torch.get_default_device())

    def _empty(self, layer: str, spec: Layer | Kept, old: Any) -> Compressed:
        def room(ending: str) -> Tensor:
            return torch.empty(self.tensors[layer + ending].shape)

        if isinstance(spec, Kept):
            return Part(room(REST), spec.places, spec.size, spec.of, old.bias, spec.gain)
        return LowRank(Factors(room(DOWN), room(UP)), old.bias, spec.gain)

    @contextmanager
    def building(self, kind: type[nn.Module], renamed: Mapping[str, str]) -> Iterator[None]:
        """Build models of a class in this thread with the layers of the files while the block runs."""
        plain, own, thread = kind.__init__, "__init__" in vars(kind), threading.get_ident()

        @functools.wraps(plain)
        def init(model: nn.Module, *args: Any, **kwargs: Any) -> None:
            if type(model) is not kind or threading.get_ident() != thread:
                plain(model, *args, **kwargs)
                return
            with _MetaMatrices(self.shapes.values()):
                plain(model, *args, **kwargs)
            self.fit(model, renamed)
            _make_room(model)

        kind.__init__ = init  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            if own:
                kind.__init__ = plain  # type: ignore[method-assign]
            else:
                del kind.__init__

    def finish(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Set again the rows or columns that are left; they are in no file, and libraries build models without values.

        Raises:
            CheckpointError: the library has built its model in another way than :meth:`building` knows.
        """
        for layer, spec in self.record.layers.items():
            child = module.get_submodule(name_in_model(layer + WEIGHT, renamed).removesuffix(WEIGHT))
            if not isinstance(child, Compressed):
                raise CheckpointError(
                    f"{self.folder}: the library opened {shortened(layer, 80)!r} as a {type(child).__name__}, expected "
                    "the layer that the files hold"
                )
            if isinstance(child, Part) and isinstance(spec, Kept):
                child.places = spec.places.to(child.rest.device)


class _MetaMatrices(TorchFunctionMode):
    """Mode in which matrices of some shapes take no memory; what a library first puts into them is lost."""

    def __init__(self, shapes: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self._shapes = set(shapes)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            if tuple(size) in self._shapes:
                kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _make_room(model: nn.Module) -> None:
    """Allocate matrices that have a shape of some layer of the files, but are whole; the files fill them."""
    device = torch.get_default_device()
    buffers: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.is_meta and device.type != "meta":
                room = buffers.setdefault(id(weight), nn.Parameter(torch.empty_like(weight, device=device)))
                setattr(module, name, room)


def folded(files: Checkpoint) -> Folded:
    """Read a compressed checkpoint with its record.

    Raises:
        CheckpointError: compression.json is no such record, or does not fit the tensors of the files.
    """
    record, shapes = _record(files), {}
    for layer, spec in record.layers.items():
        endings = (REST,) if isinstance(spec, Kept) else (DOWN, UP)
        tensors = [files.tensors[layer + ending] for ending in endings if layer + ending in files.tensors]
        if len(tensors) < len(endings) or layer + WEIGHT in files.tensors:
            raise CheckpointError(
                f"{files.folder}: {COMPRESSION} names the layer {shortened(layer, 80)!r}; expected its "
                f"{' and '.join(endings)} in the files, and no {WEIGHT}"
            )
        shape = _whole(files, layer, spec, *tensors) if isinstance(spec, Kept) else _shape(files, layer, spec, *tensors)
        shapes[layer] = shape
    return Folded(
        files.folder, files.files, files.config, files.generation, files.tensors, record=record, shapes=shapes
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


def _shape(files: Checkpoint, layer: str, spec: Layer, down: Stored, up: Stored) -> tuple[int, int]:
    """Return (out, in) of the product of two factors, by their headers."""
    forms = len(down.shape), len(up.shape)
    shape: tuple[int, int] | None = None
    if forms == (2, 2) and down.shape[0] == up.shape[1] == spec.rank:
        shape = up.shape[0], down.shape[1]
    elif forms == (2, 3) and up.shape[2] == spec.rank and down.shape[0] == up.shape[0] * spec.rank:
        shape = up.shape[0] * up.shape[1], down.shape[1]
    elif forms == (3, 2) and down.shape[1] == spec.rank and up.shape[1] == down.shape[0] * spec.rank:
        shape = up.shape[0], down.shape[0] * down.shape[2]
    if shape is None or down.dtype != up.dtype or not math.prod(shape):
        raise CheckpointError(
            f"{files.folder}: {shortened(layer, 80)!r} has factors {list(down.shape)} and {list(up.shape)} in "
            f"{down.dtype} and {up.dtype}; expected (rank, in) and (out, rank) of rank {spec.rank} in one type"
        )
    return shape


def _whole(files: Checkpoint, layer: str, spec: Kept, rest: Stored) -> tuple[int, int]:
    """Return (out, in) of the matrix of which some rows or columns are left."""
    axis = 0 if spec.of == "rows" else 1
    if len(rest.shape) != 2 or rest.shape[axis] != spec.count:
        raise CheckpointError(
            f"{files.folder}: {shortened(layer, 80)!r} has {list(rest.shape)}, expected {spec.count} {spec.of} as "
            f"{COMPRESSION} says"
        )
    return (spec.size, rest.shape[1]) if axis == 0 else (rest.shape[0], spec.size)
