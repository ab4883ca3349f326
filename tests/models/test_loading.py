"""One door for every model, and clear words at it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from campaigns.spoiling import save
from refusals import expect_error
from tiny_lenses import STORED, archetypes, lens_of
from tsfm_lens import testing
from tsfm_lens.core.errors import CheckpointError, WiringError
from tsfm_lens.models import architectures, extras, load
from tsfm_lens.models.architecture import extras as optional_libraries
from tsfm_lens.models.checkpoint import read_checkpoint
from tsfm_lens.testing import example_case

EXTRAS = optional_libraries()

CHRONOS = ["chronos", "chronos-bolt", "chronos-2"]


@pytest.fixture(scope="module", params=archetypes(STORED))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A saved checkpoint of each architecture."""
    with pytest.MonkeyPatch.context() as patch:
        yield save(name, lens_of(name).native, tmp_path_factory.mktemp(name), patch)


def test_folder_model_and_pipeline_agree(folder: Path, name: str) -> None:
    """A folder, a model and a pipeline give the same lens."""
    lens = load(folder)
    saved, retained = (
        item.adapter.model.state_dict() for item in (lens, lens_of(name))
    )
    assert set(saved) == set(retained)
    assert all(torch.equal(saved[key], retained[key]) for key in retained)
    batch = example_case(lens).batch
    expected = lens.forecast(batch, 5, seed=2).quantiles
    for source in (lens.native, lens.adapter.model):
        np.testing.assert_array_equal(
            load(source, check=False).forecast(batch, 5, seed=2).quantiles, expected
        )


def test_one_architecture_claims_it(folder: Path, name: str) -> None:
    files = read_checkpoint(folder)
    lens = load(folder, check=False)
    config = files.config
    tensors = frozenset(files.tensors)
    statements = [
        architecture.name
        for architecture in architectures().values()
        if architecture.claims(config) or architecture.claims_tensors(tensors)
    ]
    assert statements == [name]
    for thing in (lens.native, lens.adapter.model):
        assert [
            architecture.name
            for architecture in architectures().values()
            if architecture.matches_object(thing)
        ] == [name]


def test_unsupported_samples_and_futures_are_refused(name: str) -> None:
    lens = lens_of(name)
    batch = example_case(lens).batch
    if lens.adapter.readout != "token":
        expect_error("leave `future` out", lens.forward, batch, future=np.zeros((1, 3)))
    if lens.adapter.readout == "quantile":
        expect_error("draws no samples", lens.forecast, batch, 2, num_samples=3)
    else:
        assert lens.forecast(batch, 2, num_samples=3).samples.shape == (
            len(batch),
            3,
            2,
        )


def edited(folder: Path, to: Path, **changes: object) -> Path:
    shutil.copytree(folder, to, dirs_exist_ok=True)
    config = json.loads((to / "config.json").read_text())
    config.update(changes)
    (to / "config.json").write_text(json.dumps(config))
    return to


def test_unknown_configuration_keys_are_refused(
    folder: Path, name: str, tmp_path: Path
) -> None:
    if name == "timesfm-2.5":
        pytest.skip("its checkpoints have no configuration")
    expect_error(
        "does not know: sliding_window",
        load,
        edited(folder, tmp_path / "a", sliding_window=4),
    )
    if name in CHRONOS:
        inner = json.loads((folder / "config.json").read_text())["chronos_config"]
        with pytest.raises(WiringError, match=r"chronos_config\.use_moonphase"):
            load(
                edited(
                    folder,
                    tmp_path / "b",
                    chronos_config={**inner, "use_moonphase": True},
                )
            )


def test_unknown_architectures_are_refused(
    folder: Path, name: str, tmp_path: Path
) -> None:
    if name in CHRONOS:
        expect_error(
            "no wiring claims",
            load,
            edited(folder, tmp_path, chronos_pipeline_class="Chronos9Pipeline"),
        )
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for text in ('{"model_type": "mystery"}', ""):
        (
            (tmp_path / "config.json").write_text(text)
            if text
            else (tmp_path / "config.json").unlink()
        )
        if name == "timesfm-2.5":
            # told by its tensors
            assert load(tmp_path).wiring.architecture == name
            continue
        expect_error(
            "mystery" if text else r"has no config\.json, which says", load, tmp_path
        )


class UnmergedAdapter(torch.nn.Linear):
    """A linear layer that shows an adapter beside it as peft does."""

    def __init__(self, base_layer: torch.nn.Linear) -> None:
        super().__init__(base_layer.in_features, base_layer.out_features, bias=False)
        self.base_layer = base_layer
        self.merged = False


def test_unmerged_adapters_are_refused() -> None:
    native = testing.tiny("chronos-bolt")
    attention = getattr(native, "model", native).encoder.block[0].layer[0].SelfAttention
    attention.q = UnmergedAdapter(attention.q)
    with pytest.raises(
        WiringError,
        match=(
            r"1 layers of .*encoder\.block\.0.*SelfAttention\.q, hold an adapter.*merge"
        ),
    ):
        load(native, check=False)
    attention.q.merged = True
    load(native, check=False)


def test_unknown_sources_get_the_nearest_name() -> None:
    """For a source that is unknown the nearest known one is suggested."""
    expect_error(
        "no wiring knows an object of type Linear", load, torch.nn.Linear(2, 2)
    )
    expect_error("Closest: chronos-nano", load, "chronos-nanno")
    expect_error("choose one of float32", load, "chronos-nano", dtype="int8")


@pytest.mark.parametrize("name", archetypes(sorted(EXTRAS)))
def test_missing_library_and_files_are_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published model names its missing library and its files at once."""

    def unreachable(*_args: object, **_kwargs: object) -> str:
        raise LocalEntryNotFoundError("no network")

    entries = [
        entry
        for entry in architectures().values()
        if entry.extra == name and entry.published
    ]
    sources = [
        source
        for entry in entries
        for source in entry.published.values()
        if entry.inside(source) is None
    ]
    real = extras.installed
    packages = EXTRAS[name].distributions
    monkeypatch.setattr(
        extras,
        "installed",
        lambda package: None if package in packages else real(package),
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    for source in sources[:2]:
        with pytest.raises(CheckpointError) as caught:
            load(source)
        assert f"hf download {source}" in str(caught.value)
        assert all(command in str(caught.value) for command in EXTRAS[name].install)


def test_cached_snapshots_load_with_their_commit(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hub cache on disk, as `hf download` leaves it, with no network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    hub_id = next(iter(architectures()[name].published.values()))
    root = tmp_path / f"models--{hub_id.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    for part in (root / "blobs", root / "refs", snapshot):
        part.mkdir(parents=True)
    for file in folder.iterdir():
        shutil.copy(file, root / "blobs" / f"hash-of-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/hash-of-{file.name}")
    (root / "refs" / "main").write_text(commit)
    real = partial(
        huggingface_hub.snapshot_download, cache_dir=tmp_path, local_files_only=True
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", real)
    # without a revision, the weights that a package ships come first
    lens = load(
        hub_id, revision=commit if architectures()[name].inside(hub_id) else None
    )
    assert (lens.model_id, lens.revision) == (hub_id, commit)
    (root / "blobs" / "hash-of-model.safetensors").unlink()
    expect_error(r"model\.safetensors is not a regular file", load, snapshot)
