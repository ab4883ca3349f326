"""Writer of a compressed model as a checkpoint that :func:`tsfm_lens.load` opens: all of it, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from tsfm_lens.compress.layers import Compressed, LowRank, Part
from tsfm_lens.compress.matrices import matrices
from tsfm_lens.compress.schedule import ratio_of
from tsfm_lens.compress.stored import DOWN, REST, Compression, Kept, Layer
from tsfm_lens.errors import CheckpointError, InputError
from tsfm_lens.models.adapter import versions
from tsfm_lens.models.architecture import architectures
from tsfm_lens.models.checkpoint import (
    COMPRESSED,
    COMPRESSION,
    SUFFIX,
    WEIGHTS,
    in_our_words,
    module_of,
    name_in_model,
    read_checkpoint,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.opening import load
from tsfm_lens.places import follow_umask

__all__ = ["save_compressed"]


def save_compressed(
    lens: Lens,
    folder: str | Path,
    *,
    ranks: Mapping[str, int] | None = None,
    by_head: bool = False,
    method: str = "",
    native: bool = False,
) -> Path:
    """Write a compressed model: the native config.json, weights with factors in them, and compression.json.

    The files are opened again and compared, weight by weight, before the folder gets its name. :func:`tsfm_lens.load`
    opens it. The model's own library knows no factors and would put random matrices in their place. The weights are
    therefore in ``model.compressed``, a safetensors file of another name, so that the library refuses the folder.

    Args:
        lens: of :func:`factorised`, :func:`without` or :func:`compressed`.
        folder: does not exist yet.
        ranks: of every matrix that was cut off, for the record; those of the layers of factors if None.
        by_head: whether they are those of each head.
        method: how they were found, for the record.
        native: the model is one of the library's own, as :func:`taken_out` tells, which the library opens; then there
            is no compression.json.

    Returns:
        The folder.

    Raises:
        CheckpointError: the folder exists or cannot be written, or what was written does not open as the same model.
        InputError: no layer of the model holds less than its matrix.

    Example:
        >>> smaller = compress.factorised(lens, compress.ranks_by_share({"decoder_blocks.0.cross_attn.q": \
compress.Form(1, 64, 64)}, 0.25))
        >>> compress.save_compressed(smaller, folder / "smaller").name
        'smaller'
    """
    target = Path(folder).expanduser()
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists; give the name of a folder that does not, nothing is written over")
    by_name = matrices(lens, mlps=True)
    layers = {name: lens.adapter.model.get_submodule(matrix.path) for name, matrix in by_name.items()}
    if not native and not any(isinstance(layer, Compressed) for layer in layers.values()):
        raise InputError(
            f"no layer of {lens.model_id} holds less than its matrix; cut off to lower ranks, or take parts out"
        )
    factors = {name: layer.factors for name, layer in layers.items() if isinstance(layer, LowRank)}
    final_ranks = dict(ranks) if ranks is not None else {name: pair.rank for name, pair in factors.items()}
    forms = {name: by_name[name].form(by_head=by_head) for name in final_ranks}
    ratio = ratio_of(forms, final_ranks) if ranks is not None else None
    with in_our_words(f"{target} cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{uuid4().hex}.part")
        partial.mkdir()
    try:
        with in_our_words(f"{target} cannot be written"):
            _write_native(lens, partial)
            if not native:
                record = Compression(
                    made_with=versions(lens.adapter.package),
                    model=lens.model_id,
                    method=method,
                    layers=_layers(partial, lens),
                    ranks=final_ranks,
                    ratio={} if ratio is None else ratio._asdict(),
                )
                _seclude(partial, record, lens.wiring.architecture)
        _refuse_other(lens, partial)
        with in_our_words(f"{target} cannot be written"):
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_native(lens: Lens, folder: Path) -> None:
    save = architectures()[lens.wiring.architecture].save
    if save is not None:
        save(lens.native, folder)
    else:
        native: Any = lens.native if hasattr(lens.native, "save_pretrained") else module_of(lens.native)
        native.save_pretrained(folder)
    if not (folder / WEIGHTS).exists() and not any(folder.glob("*.index.json")):
        raise CheckpointError(f"the library of {lens.wiring.architecture} wrote no {WEIGHTS}")
    for file in folder.iterdir():
        follow_umask(file)


def _seclude(folder: Path, record: Compression, architecture: str) -> None:
    """Rename weights so that no other library looks for them, and describe them in files beside them."""
    for file in folder.glob(f"*{SUFFIX}*"):
        file.rename(folder / file.name.replace(SUFFIX, COMPRESSED))
    (folder / COMPRESSION).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    # in the place of a card that a library may have written
    (folder / "README.md").write_text(
        f"# {record.model}, compressed\n\n"
        f"Some matrices of this model ({architecture}) are held as factors or in part. `tsfm_lens.load` of tsfm-lens "
        f"opens it; the model's own library refuses it, as the weights are not in `{WEIGHTS}`.\n",
        encoding="utf-8",
    )


def _layers(folder: Path, lens: Lens) -> dict[str, Layer | Kept]:
    """Describe compressed layers by the names that the library's own files give them."""
    entry = architectures()[lens.wiring.architecture]
    files = read_checkpoint(folder)
    module = module_of(lens.native)
    layers: dict[str, Layer | Kept] = {}
    for name in files.tensors:
        ending = next((ending for ending in (DOWN, REST) if name.endswith(ending)), None)
        if ending is not None:
            layer: Any = module.get_submodule(name_in_model(name, entry.renamed).removesuffix(ending))
            layers[name.removesuffix(ending)] = _layer_record(layer)
    return layers


def _layer_record(layer: LowRank | Part) -> Layer | Kept:
    if isinstance(layer, LowRank):
        return Layer(rank=layer.factors.rank, gain=layer.gain)
    places = layer.places.tolist()
    breaks = [at for at in range(1, len(places)) if places[at] != places[at - 1] + 1]
    runs = tuple((places[first], places[stop - 1] + 1) for first, stop in pairwise([0, *breaks, len(places)]) if stop)
    size = layer.out_features if layer.of == "rows" else layer.in_features
    return Kept(of=layer.of, size=size, runs=runs, gain=layer.gain)


def _refuse_other(lens: Lens, folder: Path) -> None:
    again = load(folder, check=False).adapter.model.state_dict()
    for name, weight in lens.adapter.model.state_dict().items():
        if name not in again or not torch.equal(weight.cpu(), again[name]):
            raise CheckpointError(f"{folder}: {name} is not read back as it was written; nothing was kept")
