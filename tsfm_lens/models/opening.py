"""Opening of models: hub id, local folder, native object, or embedded checkpoint.

Read :func:`load` first. It finds the architecture that claims them,
checks them before and after the library loads them, and wraps the result in a
:class:`tsfm_lens.models.Lens`. The checks themselves are in
:mod:`tsfm_lens.models.checkpoint`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from tsfm_lens.core.errors import CheckpointError, InputError, WiringError
from tsfm_lens.core.foreign_words import answers_arguments
from tsfm_lens.hooks.block import Block, Steps
from tsfm_lens.hooks.replay import Turns
from tsfm_lens.models import checkpoint
from tsfm_lens.models.adapter import check_precision
from tsfm_lens.models.architecture import Architecture, architectures
from tsfm_lens.models.devices import checked_device
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.locating import base_folder, locate
from tsfm_lens.models.merging import (
    ADAPTER_WEIGHTS,
    StoredAdapter,
    find_wrapped,
    read_adapter,
)
from tsfm_lens.models.merging import beside as adapters_beside
from tsfm_lens.models.wirings._common import (
    GENERATION,
    HUB,
    check_config_values,
    check_unknown,
)

# models load one at a time, since loading redirects the output of the process
_ONE_LOADING = Turns()
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@answers_arguments("load")
def load(
    source: Any,
    *,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    check: bool = True,
) -> Lens:
    """Open a model as a lens.

    Args:
        source: name of an embedded checkpoint ("chronos-nano"), a local folder, a hub
            id ("amazon/chronos-bolt-base"), or a native pipeline or model that is
            already built; one of another architecture says by a method
            ``lens_adapter()`` which adapter it takes. An adapter of peft in a folder is
            merged into the weights beside it, or else into the model that it was
            trained on.
        revision: branch, tag or commit of a hub id.
        device: torch device for a checkpoint that is opened here.
        dtype: "float32", "bfloat16" or "float16" for a checkpoint that is opened here.
        check: run the cheap exactness checks on one short series.

    Returns:
        The model as a lens, on the device and in the precision asked for.

    Raises:
        CheckpointError: nothing loadable is there; the message says what to do.
        WiringError: no wiring knows the model, or the model is not as its wiring says.
        InputError: an unknown dtype, or a device that is not here.

    Example:
        >>> tsfm_lens.load("bolt-nano").wiring.architecture
        'chronos-bolt'
    """
    if dtype not in _DTYPES:
        raise InputError(
            f"dtype {dtype!r} is not known, choose one of {', '.join(_DTYPES)}"
        )
    if not isinstance(source, str | Path):
        lens = _from_object(source)
        _check_adapters(lens)
    else:
        checked_device(device)
        folder, model_id, commit = locate(str(source), revision)
        # before the checkpoint: the folder of an adapter need not hold a model
        adapter = read_adapter(folder)
        if adapter is None:
            weights_folder = folder
        else:
            weights_folder = base_folder(adapter)
        files = checkpoint.read_checkpoint(weights_folder)
        if os.path.lexists(weights_folder / checkpoint.COMPRESSION):
            files = files.folded()
        lens = _open(files, adapter, model_id, commit, _DTYPES[dtype], device)
        check_precision(lens.adapter, _DTYPES[dtype])
    if check:
        with checkpoint.as_checkpoint_errors(
            f"{lens.model_id} was loaded, but cannot run"
        ):
            lens.quick_check()
    return lens


def _from_object(native: object) -> Lens:
    wrapped = find_wrapped(native)
    if wrapped is not None:
        kind = type(native).__name__
        merge = "model = model.merge_and_unload()"
        if wrapped is not native:
            kind = f"model of this {kind}"
            merge = "pipeline.model = pipeline.model.merge_and_unload()"
        raise WiringError(
            f"the {kind} is a {type(wrapped).__name__}, whose layers hold an adapter"
            " beside their matrix, which views of weights would leave out. Merge it"
            f" first: `{merge}`. `probes.weight_effects(base, tuned, run)` reads it as"
            " it is."
        )
    for entry in architectures().values():
        if entry.matches_object(native):
            config = getattr(native, "config", None)
            return Lens(
                entry.adapt(native),
                getattr(config, "_name_or_path", "") or type(native).__name__,
            )
    make_adapter = getattr(native, "lens_adapter", None)
    if make_adapter is not None:
        return Lens(make_adapter(), type(native).__name__)
    raise WiringError(
        f"no wiring knows an object of type {type(native).__name__}. load() takes a hub"
        " id, a folder, a model with a method lens_adapter() that gives an adapter of"
        " its own, or a model or pipeline of:"
        f" {', '.join(entry.title for entry in architectures().values())}."
        " docs/howto/own-model.md wires a model of your own."
    )


def _check_adapters(lens: Lens) -> None:
    """Refuse layers with an adapter beside their matrix.

    Peft shows the matrix under the layer's own name, so that the adapter would be left
    out.
    """
    names = [name for name, _ in adapters_beside(lens.model)]
    if names:
        raise WiringError(
            f"{len(names)} layers of {lens.model_id}, the first of them {names[0]},"
            " hold an adapter beside their matrix, which views of weights would leave"
            " out. Merge it first: `model.merge_and_unload()` of peft."
            " `probes.weight_effects(base, model, run)` reads it as it is."
        )


def _open(
    files: checkpoint.Checkpoint,
    adapter: StoredAdapter | None,
    model_id: str,
    commit: str | None,
    dtype: torch.dtype,
    device: str,
) -> Lens:
    try:
        entry = find_architecture(files.config, model_id, files.names)
    except WiringError:
        if checkpoint.CONFIG in files.files:
            raise
        weights = ", ".join(
            sorted(name for name in files.files if name.endswith(".safetensors"))[:3]
        )
        raise CheckpointError(
            f"{model_id} has no {checkpoint.CONFIG}, which says of which architecture"
            f" {weights} is; copy that of the model into the folder"
            # the first error would list every architecture, which is beside the point
        ) from None
    if entry.keys is not None:
        check_unknown(files.config, model_id, HUB | entry.keys)
        check_config_values(files.config, model_id, entry.values)
    entry.check(files.config, model_id)
    check_unknown(
        files.generation, model_id, GENERATION, inside=f"{checkpoint.GENERATION}."
    )
    checkpoint.check_layer_count(files)
    with _quiet():
        with checkpoint.as_checkpoint_errors(
            f"{model_id}: no {entry.title} can be built from its configuration"
        ):
            # the meta device holds no weights, which the configuration may make huge
            with torch.device("meta"):
                blank = entry.blank(files.config)
                files.fit(blank, entry.renamed)
            checkpoint.check_tensors(files, blank, entry.renamed, entry.computed)
        with (
            checkpoint.as_checkpoint_errors(f"{model_id}: the library cannot load it"),
            files.staged() as folder,
        ):
            with files.building(type(blank), entry.renamed):
                native = entry.open(folder, dtype, device)
            module = checkpoint.unwrap_module(native)
            files.finish(module, entry.renamed)
            checkpoint.check_loaded_weights(
                files, module, entry.renamed, entry.computed
            )
            if adapter is not None:
                # after the comparison: merged weights differ from those of the files
                adapter.merge(module)
            # a model of transformers has the name of the folder that it came from, not
            # of the staged one
            for part in (module, getattr(module, "config", None)):
                for attribute in ("name_or_path", "_name_or_path"):
                    if hasattr(part, attribute):
                        setattr(part, attribute, str(files.folder))
            return Lens(
                entry.adapt(native), model_id, commit, _weight_files(files, adapter)
            )


def _weight_files(
    files: checkpoint.Checkpoint, adapter: StoredAdapter | None
) -> tuple[Path, ...]:
    """List the files of weights that a lens was opened from, an adapter's last."""
    weights = [
        files.folder / name for name in files.files if name.endswith(checkpoint.SUFFIX)
    ]
    if adapter is not None:
        weights.append(adapter.folder / ADAPTER_WEIGHTS)
    return tuple(weights)


def _quiet() -> Block[None]:
    """Send to stderr what libraries print on loading, while the block runs.

    It could otherwise end up in the JSON of a command. Threads take turns.

    Returns:
        A block in which nothing goes to stdout.
    """
    token = object()
    before = list[TextIO]()

    def begin() -> None:
        _ONE_LOADING.take(token)
        before.append(sys.stdout)
        sys.stdout = sys.stderr

    def end() -> None:
        for stream in before:
            sys.stdout = stream
        _ONE_LOADING.give(token)

    return Block(Steps(None, begin, end))


def find_architecture(
    config: Mapping[str, Any], where: str, tensors: frozenset[str] = frozenset()
) -> Architecture:
    """Return the architecture that claims a checkpoint.

    It claims the configuration, or else the names of the tensors.
    """
    for entry in architectures().values():
        if entry.claims(config) or entry.claims_tensors(tensors):
            return entry
    raise WiringError(
        f"{where}: no wiring claims this configuration (model_type"
        f" {config.get('model_type')!r}, architectures"
        f" {config.get('architectures')!r}). Known: {', '.join(architectures())}; see"
        " `tsfm-lens models`."
    )
