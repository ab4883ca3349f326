"""Places of models that are given by name, and their architectures; no torch is loaded.

Read :func:`locate` first: it finds the folder of an embedded checkpoint, a local folder
or a hub id, or refuses the name. :func:`architecture_named` says what is known of the
architecture without any weights.
"""

from __future__ import annotations

import filecmp
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tsfm_lens.core.embedded import checkpoint_names, checkpoint_path
from tsfm_lens.core.errors import CheckpointError, UnknownNameError, unknown_name
from tsfm_lens.core.extensions import WIRINGS, extension_modules
from tsfm_lens.models import checkpoint
from tsfm_lens.models.cards import CARDS, ModelCard
from tsfm_lens.models.merging import (
    ADAPTER_CONFIG,
    StoredAdapter,
    has_model_weights,
    read_adapter,
)

if TYPE_CHECKING:
    from tsfm_lens.models.architecture import Architecture

    Known = ModelCard | Architecture
    """Either of what describes an architecture before its models are opened."""


def known_architectures() -> dict[str, Known]:
    """Return what is known of every architecture, by name.

    Those of this package are known by their cards. The wirings of other packages have
    to be imported, and torch with them.
    """
    # a process that has the registry may have registered architectures of its own
    is_loaded = "tsfm_lens.models.architecture" in sys.modules
    if not is_loaded and not extension_modules(WIRINGS):
        return dict(CARDS)
    from tsfm_lens.models.architecture import architectures

    return dict(architectures())


def architecture_named(source: str) -> Known | None:
    """Return the architecture of a named source, without its weights.

    The source is an embedded checkpoint, a local folder or a published hub id. None
    where the architecture cannot be told.
    """
    for entry in known_architectures().values():
        if source in entry.published.values():
            return entry
    if (
        not os.path.lexists(source)
        and source.count("/") == 1
        and not source.startswith((".", "~"))
    ):
        return None
    # anything else is embedded or on this machine, so that nothing is downloaded
    folder, _, _ = locate(source, None)
    try:
        adapter = read_adapter(folder)
        if adapter is not None:
            folder = base_folder(adapter)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        entries = known_architectures().values()
        return next((entry for entry in entries if entry.claims(config)), None)
    except (OSError, ValueError, TypeError, AttributeError):
        # opening it raises an error that names the fault
        return None


def base_folder(adapter: StoredAdapter) -> Path:
    """Locate the model into which an adapter of a folder is merged.

    Transformers takes the model beside the adapter, Chronos-2's pipeline the one that
    the adapter names. Where both are at hand and differ, the caller has to say which is
    meant.

    Returns:
        The folder of the model.

    Raises:
        CheckpointError: the model is not at hand, or it is not clear which one is
            meant.
    """
    same_folder = None
    if has_model_weights(adapter.folder):
        same_folder = adapter.folder
    if adapter.base is None:
        if same_folder is None:
            raise CheckpointError(
                f"{adapter.folder} holds an adapter alone, and its {ADAPTER_CONFIG}"
                " names no model that it was trained on (base_model_name_or_path is"
                " empty); write the folder or the hub id of that model there"
            )
        return same_folder
    try:
        named, _, _ = locate(adapter.base, None)
    except (CheckpointError, UnknownNameError) as error:
        if same_folder is not None:
            return same_folder
        raise CheckpointError(
            f"{adapter.folder} holds an adapter for {adapter.base}, which is not at"
            f" hand ({error}) Put that model there, or write the folder where it is"
            f" into base_model_name_or_path of {ADAPTER_CONFIG}"
        ) from error
    if same_folder is None or _same_weights(same_folder, named):
        return named
    raise CheckpointError(
        f"{adapter.folder} holds a model and an adapter that was trained on another"
        f" one, {adapter.base}. To merge it into the model in the folder, write that"
        f" folder into base_model_name_or_path of {ADAPTER_CONFIG}; to merge it into"
        f" {adapter.base}, take {checkpoint.CONFIG} and the model's weights out of the"
        " folder; to open the model alone, take the two files of the adapter out"
    )


def _same_weights(folder: Path, other: Path) -> bool:
    """Return whether two folders hold the same model.

    Their files of weights have to be the same, byte for byte, and their settings but
    for those of the model's origin.
    """
    if folder.resolve() == other.resolve():
        return True
    first, second = map(checkpoint.read_checkpoint, (folder, other))
    if first.files.keys() != second.files.keys():
        return False
    for mine, theirs in (
        (first.config, second.config),
        (first.generation, second.generation),
    ):
        if checkpoint.without_origin(mine) != checkpoint.without_origin(theirs):
            return False
    return all(
        filecmp.cmp(path, second.files[name], shallow=False)
        for name, path in first.files.items()
        if name not in (checkpoint.CONFIG, checkpoint.GENERATION)
    )


def locate(source: str, revision: str | None = None) -> tuple[Path, str, str | None]:
    """Return folder, name for provenance, and commit of a source given by name."""
    if source in checkpoint_names():
        return checkpoint_path(source), source, None
    with checkpoint.as_checkpoint_errors(
        f"{checkpoint.shortened(source, 80)!r} cannot be a folder"
    ):
        # the system refuses some names, and a home that does not exist cannot be
        # expanded
        path = Path(source).expanduser()
        if path.is_dir():
            return path, source, None
        if path.exists():
            raise CheckpointError(
                f"{source} is a file; give the folder that holds config.json and"
                " *.safetensors"
            )
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise unknown_name(
            "checkpoint",
            source,
            (*checkpoint_names(), *published_ids()),
            hint=(
                "It is neither an embedded checkpoint, nor an existing folder, nor a"
                " hub id (owner/name)."
            ),
        )
    if not revision:
        # some libraries ship the weights of a published checkpoint
        for entry in known_architectures().values():
            shipped = entry.inside(source)
            if shipped is not None:
                return shipped, source, None
    return _from_hub(source, revision)


def _from_hub(model_id: str, revision: str | None) -> tuple[Path, str, str | None]:
    # imported here, since a model on this machine needs no hub
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    # no pickles among them, which nothing here would read
    patterns = ["*.json", f"*{checkpoint.SUFFIX}", f"*{checkpoint.COMPRESSED}"]
    try:
        folder = Path(
            snapshot_download(model_id, revision=revision, allow_patterns=patterns)
        )
    except RepositoryNotFoundError as error:
        near = unknown_name("hub model", model_id, published_ids())
        raise CheckpointError(
            f"{near} (the hub answered: not found or private)"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{_missing_library(model_id)}{model_id} is not in the local hub cache and"
            " the hub cannot be reached. On a machine with network: `hf download"
            f" {model_id}`, then copy that folder here and load(folder); or set HF_HOME"
            " to a cache that holds it. Without network, load('chronos-nano'),"
            " load('bolt-nano') and load('chronos2-nano') always work."
        ) from error
    # the hub's cache names the folder of a snapshot by its commit
    return folder, model_id, folder.name


def _missing_library(model_id: str) -> str:
    """Return a sentence with the commands that install a model's library.

    It is "" where the library is there, or the model needs none.
    """
    for entry in known_architectures().values():
        library = entry.library
        if library is None or library.importable:
            continue
        if model_id in entry.published.values():
            commands = " && ".join(library.install)
            return (
                f"{model_id} needs a library that is not installed ({library.title}):"
                f" {commands}. "
            )
    return ""


def published_ids() -> list[str]:
    """Return the hub ids of all published models."""
    return [
        hub_id
        for entry in known_architectures().values()
        for hub_id in entry.published.values()
    ]
