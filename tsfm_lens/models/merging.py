"""Adapters of peft (such as LoRA), merged into the matrices that they change.

An adapter may be stored in a folder, in files of its own (:class:`StoredAdapter`), or
be part of an opened model, whose layers keep it beside their matrix (:func:`merged`).
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsfm_lens.core.errors import CheckpointError, MissingExtraError, install_command
from tsfm_lens.models.checkpoint import (
    CONFIG,
    as_checkpoint_errors,
    read_settings,
    unwrap_module,
)

# torch is imported where weights are merged: an adapter that cannot be opened is
# refused without it
if TYPE_CHECKING:
    from torch import nn

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"


@dataclass(frozen=True)
class StoredAdapter:
    """Adapter in a folder.

    Attributes:
        folder: where its two files are, ``ADAPTER_CONFIG`` and ``ADAPTER_WEIGHTS``.
        settings: content of ``ADAPTER_CONFIG``.
    """

    folder: Path
    settings: Mapping[str, Any]

    @property
    def base(self) -> str | None:
        """Folder or hub id of the model that the adapter was trained on.

        It is None if the adapter's configuration names none.
        """
        name = self.settings.get("base_model_name_or_path")
        if name:
            return str(name)
        return None

    def merge(self, module: nn.Module) -> None:
        """Add the adapter to the matrices of a module, in place.

        Raises:
            MissingExtraError: peft is not installed.
            CheckpointError: peft cannot read the adapter, or it changes no weight of
                this module.
        """
        try:
            from peft import PeftModel
        except ImportError as error:
            raise MissingExtraError(
                f"{self.folder} holds an adapter ({ADAPTER_CONFIG}), which peft merges"
                f" into the weights; it is not installed here ({error}). Install it:"
                f" {install_command('adapters')}"
            ) from error
        import torch

        # cloned, since peft writes into the module's own weights
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        fault = (
            f"{self.folder}: the adapter cannot be merged into a"
            f" {type(module).__name__}"
        )
        with (
            as_checkpoint_errors(fault),
            self._staged() as folder,
            _embeddings_named(module),
        ):
            wrapped: Any = PeftModel.from_pretrained(module, str(folder))
            # ``safe_merge`` refuses an adapter that makes weights other than finite
            merged_module = wrapped.merge_and_unload(safe_merge=True)
        after = merged_module.state_dict()
        # an adapter that cannot be added to matrices leaves a wrapper or new tensors
        if merged_module is not module or set(after) != set(before):
            raise CheckpointError(
                f"{fault}: it adds parts that no weight of the model can hold (its kind"
                f" is {self.settings.get('peft_type')!r}); expected one that peft"
                " merges, such as LORA"
            )
        if all(torch.equal(after[name], tensor) for name, tensor in before.items()):
            raise CheckpointError(
                f"{fault}: it changes no weight. Was it trained on this model? Its base"
                f" is {self.base or 'not named'}"
            )

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """Make a folder with the adapter's two files alone, while the block runs.

        Peft then finds no other file of the adapter's own folder.

        Yields:
            The folder.
        """
        with tempfile.TemporaryDirectory(prefix="tsfm-lens-") as name:
            for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                shutil.copyfile(self.folder / file, Path(name, file))
            yield Path(name)


def read_adapter(folder: Path) -> StoredAdapter | None:
    """Read the configuration of the adapter in a folder.

    Returns:
        The adapter, or None where there is none.

    Raises:
        CheckpointError: the adapter has a configuration without weights or the reverse,
            its weights are a pickle, or its configuration is no JSON.
    """
    has_config, has_weights = (
        os.path.lexists(folder / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    )
    if not has_config and not has_weights:
        return None
    if not has_config:
        raise CheckpointError(
            f"{folder} holds {ADAPTER_WEIGHTS} without {ADAPTER_CONFIG}, which says"
            " what the adapter adds; copy that file there too, or take the adapter out"
            " of the folder"
        )
    if not has_weights and os.path.lexists(folder / _PICKLED):
        raise CheckpointError(
            f"{folder} holds an adapter only as pickle ({_PICKLED}), which can run code"
            " when read. Convert it once in a place you trust:"
            " model.save_pretrained(folder, safe_serialization=True)."
        )
    if not has_weights:
        raise CheckpointError(
            f"{folder} holds {ADAPTER_CONFIG} without {ADAPTER_WEIGHTS}, the weights of"
            f" the adapter; copy that file there too, or take {ADAPTER_CONFIG} out of"
            " the folder"
        )
    return StoredAdapter(folder, read_settings(folder / ADAPTER_CONFIG))


def has_model_weights(folder: Path) -> bool:
    """Return whether an adapter's folder also holds a model, as transformers tests."""
    return os.path.lexists(folder / CONFIG)


@contextmanager
def _embeddings_named(module: nn.Module) -> Iterator[None]:
    """Give a module input embeddings that peft can ask for, while the block runs.

    Some models of transformers raise NotImplementedError when asked for theirs.
    """
    from torch import nn

    get_embeddings = getattr(module, "get_input_embeddings", None)
    try:
        if get_embeddings is not None:
            get_embeddings()
    except NotImplementedError:
        # peft looks for weights that are tied to embeddings. A model that cannot name
        # its embeddings ties none; calling the class nn.Module returns an empty module
        module.get_input_embeddings = nn.Module  # type: ignore[assignment]
        try:
            yield
        finally:
            del module.get_input_embeddings
        return
    yield


def find_wrapped(native: Any) -> Any:
    """Return the ``PeftModel`` that an object is, or holds as a pipeline.

    Chronos-2's ``fit(finetune_mode="lora")`` returns a pipeline with one.

    Returns:
        The ``PeftModel``, or None if there is none.
    """
    for candidate in (native, getattr(native, "model", None)):
        if hasattr(candidate, "peft_config") and hasattr(candidate, "get_base_model"):
            return candidate
    return None


def beside(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield path and module of every layer with an adapter beside its matrix."""
    from torch import nn

    for name, part in model.named_modules():
        if (
            isinstance(getattr(part, "base_layer", None), nn.Module)
            # ``merged`` is an attribute of peft's layers; other modules may have a base
            # layer, too
            and getattr(part, "merged", None) is False
        ):
            yield name, part


def merged(native: Any) -> tuple[Any, list[str]]:
    """Merge the adapters of a native model.

    Returns:
        The model, and the paths of the layers that had an adapter. A model without
        adapters is returned itself, with no paths; of another, a copy. A ``PeftModel``
        is replaced by the model inside it, also where a pipeline holds it.
    """
    from torch import nn

    wrapped = find_wrapped(native)
    if wrapped is native:
        native = wrapped.get_base_model()
    elif wrapped is not None:
        # of the caller's pipeline, which keeps its own model
        native = copy.copy(native)
        native.model = wrapped.get_base_model()
    if not isinstance(native, nn.Module) and not hasattr(native, "model"):
        # neither a module nor a pipeline around one: ``load`` raises an error that says
        # so
        return native, []
    paths = [name for name, _ in beside(unwrap_module(native))]
    if not paths:
        return native, []
    # a copy, since the caller's own model must keep its adapters apart
    native = copy.deepcopy(native)
    model = unwrap_module(native)
    for name in paths:
        parent, _, leaf = name.rpartition(".")
        layer: Any = model.get_submodule(name)
        # adds the adapter to the base layer's matrix
        layer.merge()
        # hooks and wirings look for the matrix under the layer's own path
        setattr(model.get_submodule(parent), leaf, layer.base_layer)
    return native, paths
