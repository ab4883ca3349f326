"""Checkpoints of compressed models, opened by the model's own library.

:func:`save_compressed` writes a folder completely or not at all, with a
:class:`CompressionRecord` beside the weights. When such a folder is opened,
:class:`CompressedCheckpoint` puts layers of the stored sizes into the model that the
library builds.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import numpy as np
import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tsfm_lens.compress.layers import (
    Compressed,
    Factors,
    LowRankLinear,
    PartialLinear,
    product,
    replace_layer,
)
from tsfm_lens.compress.matrices import matrices, parameter_share
from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.core.io import WRITTEN, follow_umask
from tsfm_lens.data.checked import Strict
from tsfm_lens.hooks.block import Block, Steps
from tsfm_lens.models.adapter import versions
from tsfm_lens.models.architecture import architectures
from tsfm_lens.models.checkpoint import (
    COMPRESSED,
    COMPRESSION,
    SUFFIX,
    WEIGHTS,
    Checkpoint,
    as_checkpoint_errors,
    name_in_model,
    read_checkpoint,
    read_settings,
    shortened,
    unwrap_module,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.opening import load

__all__ = ["save_compressed"]

# endings of the names of stored tensors: two factors, the rows or columns that are left
# of a matrix, and a full matrix
DOWN = ".down"
UP = ".up"
REST = ".rest"
WEIGHT = ".weight"


class FactorRecord(Strict, allow_inf_nan=False):
    """A layer that stores two factors.

    ``rank`` is that of its matrix or of each head, ``gain`` the factor on its output.
    """

    form: Literal["factors"] = "factors"
    rank: int = Field(ge=1)
    gain: float = 1.0


class PartRecord(Strict, allow_inf_nan=False):
    """A layer that stores some of the rows or columns of its matrix.

    ``size`` counts all of them. ``runs`` are the stored ones, as stretches of
    neighbouring indices (first, one past the last).
    """

    form: Literal["part"] = "part"
    of: Literal["rows", "columns"]
    size: int = Field(ge=1, le=2**31)
    runs: tuple[tuple[int, int], ...]
    gain: float = 1.0

    @model_validator(mode="after")
    def _ascending(self) -> PartRecord:
        # a run may begin where the one before it ends, but must not be empty
        edges = [edge for run in self.runs for edge in run]
        is_inside = not edges or (edges[0] >= 0 and edges[-1] <= self.size)
        if (
            not is_inside
            or any(first >= stop for first, stop in self.runs)
            or edges != sorted(edges)
        ):
            raise ValueError(
                f"runs {self.runs} of {self.size}: expected ascending ones inside it"
            )
        return self

    @property
    def indices(self) -> Tensor:
        """Indices of the rows or columns that are left."""
        return torch.tensor(
            [index for run in self.runs for index in range(*run)],
            dtype=torch.long,
        )


class CompressionRecord(Strict, allow_inf_nan=False):
    """Content of compression.json.

    The keys of ``layers`` are names in the weight files, those of ``ranks`` names of
    matrices, of full rank, too. ``ratio`` is that of :func:`parameter_share`.
    """

    version: Literal[2] = 2
    made_with: str = ""
    model: str = ""
    method: str = ""
    layers: dict[str, Annotated[FactorRecord | PartRecord, Field(discriminator="form")]]
    ranks: dict[str, int] = Field(default_factory=dict)
    ratio: dict[str, float] = Field(default_factory=dict)


def save_compressed(
    lens: Lens,
    folder: str | Path,
    *,
    ranks: Mapping[str, int] | None = None,
    by_head: bool = False,
    method: str = "",
    native: bool = False,
) -> Path:
    """Write a compressed model as a folder.

    It has the native config.json, weights with factors in them, and compression.json.
    The files are opened again and compared before the folder gets its name. The model's
    own library does not look for the weights, ``model.compressed``;
    :func:`tsfm_lens.load` opens them.

    Args:
        lens: a model that :func:`factorised`, :func:`prune` or :func:`compressed` gave.
        folder: where to write; it must not exist yet.
        ranks: rank of every truncated matrix, for the record; if None, the ranks of the
            model's low-rank layers.
        by_head: whether ``ranks`` are those of each head.
        method: name of the method of compression, for the record.
        native: whether the library itself can build the smaller model, see
            :func:`pruned`; then no compression.json is written.

    Returns:
        The folder.

    Raises:
        CheckpointError: the folder exists or cannot be written, or what was written
            does not open as the same model.
        InputError: no layer of the model is compressed.

    Example:
        >>> smaller = compress.factorised(lens, {"decoder_blocks.0.cross_attn.q": 16})
        >>> compress.save_compressed(smaller, folder / "smaller").name
        'smaller'
    """
    target = Path(folder).expanduser()
    # a broken link is refused, too: exists() would follow it and see nothing
    if os.path.lexists(target):
        raise CheckpointError(
            f"{target} exists; name a new folder, since nothing is overwritten"
        )
    by_name = matrices(lens, mlps=True)
    layers = {
        name: lens.adapter.model.get_submodule(matrix.path)
        for name, matrix in by_name.items()
    }
    if not native and not any(
        isinstance(layer, Compressed) for layer in layers.values()
    ):
        raise InputError(
            f"no layer of {lens.model_id} is smaller than its matrix; truncate to lower"
            " ranks, or remove parts"
        )
    ratio = {}
    if ranks is None:
        ranks = {
            name: layer.factors.rank
            for name, layer in layers.items()
            if isinstance(layer, LowRankLinear)
        }
    else:
        ratio = parameter_share(lens, ranks, by_head=by_head)._asdict()
    # beside the target, so that a rename can put it there
    partial = target.with_name(f".{uuid4().hex}.part")
    try:
        with as_checkpoint_errors(f"{target} cannot be written"):
            partial.mkdir(parents=True)
            _write_native(lens, partial)
            if not native:
                record = CompressionRecord(
                    made_with=versions(lens.adapter.package),
                    model=lens.model_id,
                    method=method,
                    layers=_layer_records(partial, lens),
                    ranks=dict(ranks),
                    ratio=ratio,
                )
                _mark_compressed(partial, record, lens.wiring.architecture)
        # before the folder gets its name, so that no checkpoint that opens as another
        # model is ever left behind
        _refuse_other(lens, partial)
        # a rename is atomic, so that the folder is complete or not there
        with as_checkpoint_errors(f"{target} cannot be written"):
            partial.rename(target)
        WRITTEN.append(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_native(lens: Lens, folder: Path) -> None:
    """Let the model's own library write it into a folder."""
    architectures()[lens.wiring.architecture].write(lens.native, folder)
    # large models are written in shards, with an index
    if not (folder / WEIGHTS).exists() and not any(folder.glob("*.index.json")):
        raise CheckpointError(
            f"the library of {lens.wiring.architecture} wrote no {WEIGHTS}"
        )
    for file in folder.iterdir():
        follow_umask(file)


def _mark_compressed(
    folder: Path, record: CompressionRecord, architecture: str
) -> None:
    """Rename weights so that no other library looks for them, and describe them.

    The description is in compression.json and README.md.
    """
    for file in folder.glob(f"*{SUFFIX}*"):
        file.rename(folder / file.name.replace(SUFFIX, COMPRESSED))
    (folder / COMPRESSION).write_text(
        record.model_dump_json(indent=1) + "\n", encoding="utf-8"
    )
    # replaces a card that a library may have written
    (folder / "README.md").write_text(
        f"# {record.model}, compressed\n\nSome matrices of this model ({architecture})"
        " are held as factors or in part. `tsfm_lens.load` of tsfm-lens opens it; the"
        f" model's own library refuses it, as the weights are not in `{WEIGHTS}`.\n",
        encoding="utf-8",
    )


def _layer_records(folder: Path, lens: Lens) -> dict[str, FactorRecord | PartRecord]:
    """Describe the compressed layers, by their names in the files just written."""
    renamed = architectures()[lens.wiring.architecture].renamed
    module = unwrap_module(lens.native)
    records: dict[str, FactorRecord | PartRecord] = {}
    for name in read_checkpoint(folder).tensors:
        # one tensor of each compressed layer ends so: DOWN of factors, REST of a part
        ending = next(
            (ending for ending in (DOWN, REST) if name.endswith(ending)), None
        )
        if ending is None:
            continue
        layer: Any = module.get_submodule(
            name_in_model(name, renamed).removesuffix(ending)
        )
        if isinstance(layer, LowRankLinear):
            records[name.removesuffix(ending)] = FactorRecord(
                rank=layer.factors.rank, gain=layer.gain
            )
            continue
        indices = layer.indices.cpu().numpy()
        pieces = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
        runs = tuple(
            (int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece)
        )
        if layer.of == "rows":
            size = layer.out_features
        else:
            size = layer.in_features
        records[name.removesuffix(ending)] = PartRecord(
            of=layer.of, size=size, runs=runs, gain=layer.gain
        )
    return records


def _refuse_other(lens: Lens, folder: Path) -> None:
    """Raise CheckpointError unless a folder opens as the same model."""
    # an opened model is compared, not the files, so that all steps of opening are
    # tested as well
    read = load(folder, check=False).adapter.model.state_dict()
    for name, weight in lens.adapter.model.state_dict().items():
        if name not in read or not torch.equal(weight.cpu(), read[name]):
            raise CheckpointError(
                f"{folder}: {name} is not read back as it was written; nothing was kept"
            )


@dataclass(frozen=True)
class CompressedCheckpoint(Checkpoint):
    """A checkpoint with compressed layers.

    ``shapes`` has the shape (out, in) of their matrices by name.
    """

    record: CompressionRecord
    shapes: Mapping[str, tuple[int, int]]

    @property
    def names(self) -> frozenset[str]:
        """Names of the tensors of the full model."""
        layers = self.record.layers
        stored_parts = {layer + part for layer in layers for part in (DOWN, UP, REST)}
        full_weights = {layer + WEIGHT for layer in layers}
        return frozenset({*self.tensors, *full_weights} - stored_parts)

    def fit(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Replace a model's layers by uninitialised ones of the sizes in the files."""
        for layer, spec in self.record.layers.items():
            path = name_in_model(layer + WEIGHT, renamed).removesuffix(WEIGHT)
            try:
                old = module.get_submodule(path)
            except AttributeError:
                old = None
            if (
                getattr(old, "weight", None) is None
                or tuple(old.weight.shape) != self.shapes[layer]
            ):
                found = "it has none"
                if old is not None:
                    found = f"it has {type(old).__name__}"
                raise CheckpointError(
                    f"{self.folder}: {COMPRESSION} names the layer"
                    f" {shortened(layer, 80)!r}; expected one of shape"
                    f" {list(self.shapes[layer])} in the model that the configuration"
                    f" describes, and {found}"
                )
            bias: Any = old.bias
            new: Compressed
            if isinstance(spec, PartRecord):
                # only sizes matter here: the library fills the layer from the files by
                # the names of its parameters
                rest = torch.empty(self.tensors[layer + REST].shape)
                new = PartialLinear(
                    rest, spec.indices, spec.size, spec.of, bias, spec.gain
                )
            else:
                down, up = (
                    torch.empty(self.tensors[layer + ending].shape)
                    for ending in (DOWN, UP)
                )
                new = LowRankLinear(Factors(down, up), bias, spec.gain)
            # the old layer may be on the meta device, see building(), so the device on
            # which the model is built is given
            replace_layer(module, path, new, torch.get_default_device())

    def building(
        self, kind: type[nn.Module], renamed: Mapping[str, str]
    ) -> Block[None]:
        """Build models of a class with the layers of the files while the block runs.

        This holds for the thread that opens the block.

        Returns:
            A block in which models get these layers.
        """
        original = kind.__init__
        # if the class only inherits its constructor, end() must delete the attribute
        is_defined_here = "__init__" in vars(kind)
        # the class is shared by all threads, one of which may build a full model
        # meanwhile
        thread = threading.get_ident()

        @functools.wraps(original)
        def init(model: nn.Module, *args: Any, **kwargs: Any) -> None:
            # a subclass calls this constructor before it has built its own layers
            if type(model) is not kind or threading.get_ident() != thread:
                original(model, *args, **kwargs)
                return
            # without memory for the full matrices, which fit() replaces at once
            with _MetaMatrices(self.shapes.values()):
                original(model, *args, **kwargs)
            self.fit(model, renamed)
            # the mode knows matrices by shape alone; those that fit() did not replace
            # are not compressed and get their memory now
            _allocate_full(model)

        def begin() -> None:
            kind.__init__ = init  # type: ignore[method-assign, assignment]

        def end() -> None:
            if is_defined_here:
                kind.__init__ = original  # type: ignore[method-assign]
            # end() may be interrupted and called again, when the attribute is gone
            # already
            elif "__init__" in vars(kind):
                del kind.__init__

        return Block(Steps(None, begin, end))

    def finish(self, module: Any, renamed: Mapping[str, str]) -> None:
        """Restore the indices of stored rows and columns, which only the record has."""
        for layer, spec in self.record.layers.items():
            child = module.get_submodule(
                name_in_model(layer + WEIGHT, renamed).removesuffix(WEIGHT)
            )
            if not isinstance(child, Compressed):
                raise CheckpointError(
                    f"{self.folder}: the library opened {shortened(layer, 80)!r} as a"
                    f" {type(child).__name__}, expected the layer that the files hold"
                )
            if isinstance(child, PartialLinear) and isinstance(spec, PartRecord):
                child.indices = spec.indices.to(child.rest.device)


class _MetaMatrices(TorchFunctionMode):
    """Mode in which matrices of some shapes take no memory.

    What a library first writes into them is lost.
    """

    def __init__(self, shapes: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self._shapes = set(shapes)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # nn.Linear calls torch.empty((out, in), device=None) if it is given no device;
        # others may pass the size as separate numbers
        if func is torch.empty and kwargs.get("device") is None:
            size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            if tuple(size) in self._shapes:
                kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _allocate_full(model: nn.Module) -> None:
    """Allocate full matrices that have the shape of a compressed one.

    The files fill them later.
    """
    device = torch.get_default_device()
    allocated: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.is_meta and device.type != "meta":
                # tied weights stay one
                parameter = allocated.setdefault(
                    id(weight), nn.Parameter(torch.empty_like(weight, device=device))
                )
                setattr(module, name, parameter)


def folded(files: Checkpoint) -> CompressedCheckpoint:
    """Read a compressed checkpoint with its record."""
    path = files.folder / COMPRESSION
    try:
        record = CompressionRecord.model_validate(read_settings(path))
    except ValidationError as error:
        first = error.errors()[0]
        path_in_file = ".".join(map(str, first["loc"])) or "the whole"
        raise CheckpointError(
            f"{path} is not a record of a compression that this version reads:"
            f" {shortened(path_in_file, 80)}: {first['msg']}"
        ) from error
    shapes = {
        layer: _read_shape(files, layer, spec) for layer, spec in record.layers.items()
    }
    # by position, as Checkpoint declares them; dataclasses.astuple() would copy the
    # mappings
    columns = (files.folder, files.files, files.config, files.generation, files.tensors)
    return CompressedCheckpoint(*columns, record=record, shapes=shapes)


def _read_shape(
    files: Checkpoint, layer: str, spec: FactorRecord | PartRecord
) -> tuple[int, int]:
    """Return the shape (out, in) of a layer's matrix, from the headers in the files."""
    endings = (REST,) if isinstance(spec, PartRecord) else (DOWN, UP)
    name = shortened(layer, 80)
    form = spec.model_dump()
    headers = {ending: files.tensors.get(layer + ending) for ending in endings}
    found = {ending: str(header) for ending, header in headers.items()}
    mismatch = CheckpointError(
        f"{files.folder}: {COMPRESSION} names the layer {name!r} as {form}; expected"
        f" its {' and '.join(endings)} of such a form and of one type in the files, and"
        f" no {WEIGHT}, found {found}"
    )
    # on the meta device, shapes are computed without memory
    tensors = [
        torch.empty(header.shape, device="meta")
        for header in headers.values()
        if header
    ]
    types = {header.dtype for header in headers.values() if header}
    # a full weight beside the factors would be ambiguous
    if len(tensors) < len(endings) or len(types) > 1 or layer + WEIGHT in files.tensors:
        raise mismatch
    if isinstance(spec, PartRecord):
        axis = 0 if spec.of == "rows" else 1
        shape = list(tensors[0].shape)
        if len(shape) != 2 or shape[axis] != len(spec.indices):
            raise mismatch
        shape[axis] = spec.size
    else:
        factors = Factors(*tensors)
        # it raises where the forms of the factors do not fit each other
        try:
            shape = list(product(factors).shape)
        except (RuntimeError, ValueError, IndexError):
            raise mismatch from None
        if factors.rank != spec.rank:
            raise mismatch
    if len(shape) != 2 or not math.prod(shape):
        raise mismatch
    return shape[0], shape[1]
