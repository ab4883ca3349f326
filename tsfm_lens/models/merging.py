"""Adapters of peft (such as LoRA), read as what they add to the model's matrices.

There are two kinds: those that a folder holds in files of their own
(:class:`StoredAdapter`), and those that an opened model holds beside its matrices
(:func:`merged`).
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
    """Files of an adapter, and the name of the model that it was trained on."""

    folder: Path
    settings: Mapping[str, Any]

    @property
    def base(self) -> str | None:
        """Model that the adapter was trained on, a folder or a hub id.

        It is the name in the adapter's configuration; None where that has none.
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

        # Peft merges into the weights of the module in place
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        doing = (
            f"{self.folder}: the adapter cannot be merged into a"
            f" {type(module).__name__}"
        )
        with (
            as_checkpoint_errors(doing),
            self._staged() as folder,
            _embeddings_named(module),
        ):
            wrapped: Any = PeftModel.from_pretrained(module, str(folder))
            # ``safe_merge`` refuses an adapter that makes weights other than finite
            merged_module = wrapped.merge_and_unload(safe_merge=True)
        after = merged_module.state_dict()
        if merged_module is not module or set(after) != set(before):
            raise CheckpointError(
                f"{doing}: it adds parts that no weight of the model can hold (its kind"
                f" is {self.settings.get('peft_type')!r}); expected one that peft"
                " merges, such as LORA"
            )
        if all(torch.equal(after[name], tensor) for name, tensor in before.items()):
            raise CheckpointError(
                f"{doing}: it changes no weight. Was it trained on this model? Its base"
                f" is {self.base or 'not named'}"
            )

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """Make a folder with the two files of the adapter and nothing else.

        It exists while the block runs.
        """
        with tempfile.TemporaryDirectory(prefix="tsfm-lens-") as name:
            for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                shutil.copyfile(self.folder / file, Path(name, file))
            yield Path(name)


def read_adapter(folder: Path) -> StoredAdapter | None:
    """Read the configuration of the adapter in a folder; None where there is none.

    Raises:
        CheckpointError: one of its two files is missing, its weights are a pickle, or
            its configuration is no JSON.
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
    """Return whether a folder of an adapter also holds a full model.

    The test is that of transformers.
    """
    return os.path.lexists(folder / CONFIG)


@contextmanager
def _embeddings_named(module: nn.Module) -> Iterator[None]:
    """Answer peft's question for embeddings, while the block runs.

    Some models of transformers have none and raise when asked for them.
    """
    from torch import nn

    get_embeddings = getattr(module, "get_input_embeddings", None)
    try:
        if get_embeddings is not None:
            get_embeddings()
    except NotImplementedError:
        # peft asks for embeddings to find tied ones; a model that cannot name them ties
        # none, and is given an empty module to answer with
        module.get_input_embeddings = nn.Module  # type: ignore[assignment]
        try:
            yield
        finally:
            del module.get_input_embeddings
        return
    yield


def beside(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield path and layer of every adapter that is not merged into its matrix."""
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
    """Return a native model without separate adapters, and the paths of those it had.

    The model itself is returned where it has none, else a copy in which they are added
    to the matrices; a ``PeftModel`` gives the model inside.
    """
    from torch import nn

    if hasattr(native, "peft_config"):
        native = native.get_base_model()
    if not isinstance(native, nn.Module) and not hasattr(native, "model"):
        # no model of a library; opening it raises an error that names the fault
        return native, []
    paths = [name for name, _ in beside(unwrap_module(native))]
    if not paths:
        return native, []
    # the caller's own model keeps its adapters apart
    native = copy.deepcopy(native)
    model = unwrap_module(native)
    for name in paths:
        parent, _, leaf = name.rpartition(".")
        layer: Any = model.get_submodule(name)
        layer.merge()
        # hooks and wirings look for the matrix under the layer's own path
        setattr(model.get_submodule(parent), leaf, layer.base_layer)
    return native, paths
