"""A folder is opened by everything in it: an adapter of peft is merged into its base,
or refused.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from chronos import BaseChronosPipeline, Chronos2Pipeline
from safetensors.torch import load_file, save_file
from torch import nn

import tsfm_lens
from campaigns.spoiling import MARK, poison, save
from tiny_lenses import STORED, archetypes, lens_of
from tsfm_lens.core.embedded import checkpoint_path
from tsfm_lens.core.errors import (
    CheckpointError,
    MissingExtraError,
    install_command,
)
from tsfm_lens.models import Lens, load
from tsfm_lens.models.checkpoint import unwrap_module
from tsfm_lens.testing import assert_close, example_case

# the linear layers of Toto 2 scale their outputs and are none that peft adds to
NAMES = [name for name in STORED if name != "toto-2"]
SERIES = tsfm_lens.bundled("elnino").tail(128)


def write_adapter(
    lens: Lens, base: Path, folder: Path, **settings: object
) -> nn.Module:
    """Write an adapter with random weights for the first linear layers; a copy of the
    model with it merged.
    """
    tuned = unwrap_module(copy.deepcopy(lens).native)
    # peft asks for embeddings, which not every model of transformers names
    tuned.get_input_embeddings = nn.Module  # type: ignore[assignment]
    linear = [name for name, part in tuned.named_modules() if type(part) is nn.Linear]
    config = peft.LoraConfig(
        r=2, target_modules=linear[:4], init_lora_weights=False, **settings
    )
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(tuned, config)
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(folder)
    return wrapped.merge_and_unload()


def files_of_adapter(folder: Path) -> tuple[Path, Path]:
    return folder / "adapter_config.json", folder / "adapter_model.safetensors"


def rebase(folder: Path, base: object) -> None:
    path, _ = files_of_adapter(folder)
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base})
    )


@pytest.fixture
def combined(tmp_path: Path) -> Path:
    """A whole model and an adapter that was trained on it, in one folder."""
    folder = tmp_path / "both"
    shutil.copytree(checkpoint_path("chronos2-nano"), folder)
    write_adapter(load("chronos2-nano"), folder, folder)
    return folder


@pytest.fixture(scope="module", params=archetypes(NAMES))
def tuned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path]]:
    """Folder of the base and folder of an adapter, of every architecture."""
    name: str = request.param
    base, adapter = (
        tmp_path_factory.mktemp(f"{name}-{part}") for part in ("base", "adapter")
    )
    with pytest.MonkeyPatch.context() as patch:
        save(name, lens_of(name).native, base, patch)
        yield base, adapter


def test_every_architecture_merges_adapters(
    tuned: tuple[Path, Path],
) -> None:
    """Every architecture merges an adapter beside the weights or in its own folder."""
    base, adapter = tuned
    plain = load(base)
    merged = write_adapter(plain, base, adapter)
    alone = load(adapter)
    shutil.copytree(adapter, base, dirs_exist_ok=True)
    combined = load(base)
    expected = merged.state_dict()
    changed = 0
    for lens in (alone, combined):
        state = unwrap_module(lens.native).state_dict()
        assert state.keys() == expected.keys()
        for key, tensor in state.items():
            # merged once by peft in each case: the same sum, in the same order
            torch.testing.assert_close(
                tensor, expected[key], rtol=0, atol=0, equal_nan=True
            )
            changed += not torch.equal(
                tensor, unwrap_module(plain.native).state_dict()[key]
            )
    assert changed >= 2
    batch = example_case(plain).batch
    first, second, before = (
        lens.forecast(batch, 3, seed=1).quantiles for lens in (alone, combined, plain)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, before)


@pytest.mark.parametrize("alone", [False, True])
def test_chronos_2_adapters_match_its_pipeline(
    combined: Path, tmp_path: Path, alone: bool
) -> None:
    """Chronos-2 forecasts as its own pipeline does with the adapter."""
    folder = combined
    if alone:
        folder = tmp_path / "alone"
        folder.mkdir()
        for file in files_of_adapter(combined):
            shutil.copyfile(file, folder / file.name)
    # the library's own door for a folder without a configuration is the pipeline's
    # class
    pipeline = Chronos2Pipeline.from_pretrained(str(folder))
    quantiles, _ = pipeline.predict_quantiles(
        [torch.tensor(SERIES.values[0])], prediction_length=5
    )
    np.testing.assert_array_equal(
        load(folder).forecast(SERIES, 5).quantiles[0].T, quantiles[0][0].numpy()
    )


def test_chronos_adapters_match_its_pipeline(tmp_path: Path) -> None:
    """Transformers leaves the adapter beside the matrices; the two sums differ by
    rounding.
    """
    folder = tmp_path / "both"
    shutil.copytree(checkpoint_path("chronos-nano"), folder)
    write_adapter(load("chronos-nano"), folder, folder)
    native = (
        BaseChronosPipeline.from_pretrained(str(folder)).inner_model.double().eval()
    )
    ours = load(folder).adapter.model.double()
    tokens = torch.tensor([[5, 9, 100, 120, 1]])
    start = torch.zeros((1, 1), dtype=torch.long)
    with torch.no_grad():
        first, second = (
            model(input_ids=tokens, decoder_input_ids=start).logits
            for model in (native, ours)
        )
    # merged in float32, so that each weight is off by half a unit of float32
    assert_close(first, second, depth=1000, dtype=np.float32)


def test_other_parts_of_adapters_are_read(tmp_path: Path) -> None:
    """Other parts that an adapter saves are read, too."""
    base = checkpoint_path("bolt-nano")
    lens = load("bolt-nano")
    write_adapter(lens, base, tmp_path, modules_to_save=["output_patch_embedding"])
    weights = load_file(tmp_path / "adapter_model.safetensors")
    name = next(
        key for key in weights if "output_patch_embedding.output_layer.bias" in key
    )
    weights[name] += 1
    save_file(weights, tmp_path / "adapter_model.safetensors", {"format": "pt"})
    bias = load(tmp_path).adapter.model.output_patch_embedding.output_layer.bias
    torch.testing.assert_close(
        bias,
        lens.adapter.model.output_patch_embedding.output_layer.bias + 1,
        rtol=0,
        atol=0,
    )


def test_files_that_were_read_are_named(combined: Path) -> None:
    lens = load(combined)
    assert [file.name for file in lens.files] == [
        "model.safetensors",
        "adapter_model.safetensors",
    ]
    assert copy.deepcopy(lens).files == lens.files
    assert [file.name for file in load("bolt-nano").files] == ["model.safetensors"]


# --- refusals


def refused(
    folder: Path, *fragments: str, kind: type[Exception] = CheckpointError
) -> str:
    with pytest.raises(kind) as caught:
        load(folder)
    for fragment in fragments:
        assert fragment in str(caught.value)
    return str(caught.value)


def test_incomplete_adapters_name_the_missing_file(combined: Path) -> None:
    """Half an adapter is refused, and the message names the missing file."""
    config, weights = files_of_adapter(combined)
    retained = config.read_bytes()
    config.unlink()
    refused(combined, weights.name, f"without {config.name}")
    config.write_bytes(retained)
    weights.unlink()
    refused(combined, config.name, f"without {weights.name}")
    config.unlink()
    assert load(combined).files


def test_a_pickled_adapter_is_never_read(combined: Path) -> None:
    files_of_adapter(combined)[1].unlink()
    poison(combined / "adapter_model.bin", combined.parent)
    refused(combined, "adapter_model.bin", "pickle")
    assert not (combined.parent / MARK).exists()


def test_unclear_base_models_are_refused(combined: Path, tmp_path: Path) -> None:
    """An ambiguous or missing base model is refused, and the advice given works."""
    other = tmp_path / "other"
    alone = tmp_path / "alone"
    shutil.copytree(checkpoint_path("chronos2-nano"), other)
    path = other / "model.safetensors"
    tensors = {name: tensor + 0.01 for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    rebase(combined, str(other))
    refused(combined, str(other), "base_model_name_or_path", "config.json", "alone")
    # first advice: the model in the folder, also where the named base is not at hand
    for base in (str(combined), "someone/far-away"):
        rebase(combined, base)
        load(combined)
    expected = load(combined).forecast(SERIES, 4).quantiles
    # second advice: the other one
    alone.mkdir()
    for file in files_of_adapter(combined):
        shutil.copy(file, alone)
    rebase(alone, str(other))
    assert not np.array_equal(load(alone).forecast(SERIES, 4).quantiles, expected)
    # an adapter alone, whose base is nowhere, or is not named
    rebase(alone, str(tmp_path / "gone"))
    refused(alone, str(tmp_path / "gone"), "base_model_name_or_path")
    rebase(alone, None)
    refused(alone, "base_model_name_or_path")


def test_without_peft_its_installation_is_named(
    combined: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    refused(combined, install_command("adapters"), kind=MissingExtraError)
