"""One door for every model, and clear words at it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tsfm_lens.data import bundled
from tsfm_lens.errors import CheckpointError, InputError, UnknownNameError, WiringError
from tsfm_lens.models import Lens, architectures, load

NAMES = sorted(architectures())


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    architectures()[request.param].tiny().save_pretrained(path)
    return path


def test_folder_model_and_pipeline_are_the_same_lens(folder: Path) -> None:
    from chronos import BaseChronosPipeline

    lenses = [load(folder), load(BaseChronosPipeline.from_pretrained(folder))]
    lenses.append(load(lenses[0].adapter.model))
    batch = bundled("elnino").tail(40)
    forecasts = [lens.forecast(batch, 5, seed=2).quantiles for lens in lenses]
    np.testing.assert_array_equal(forecasts[0], forecasts[1])
    np.testing.assert_array_equal(forecasts[0], forecasts[2])


def test_forecast_is_the_librarys_own(folder: Path) -> None:
    from chronos import BaseChronosPipeline

    native = BaseChronosPipeline.from_pretrained(folder)
    batch = bundled("co2", "elnino").tail(50)
    ours = load(folder).forecast(batch, 7, quantiles=[0.1, 0.5, 0.9], seed=11)
    torch.manual_seed(11)
    quantiles, mean = native.predict_quantiles(
        [torch.tensor(series) for series in batch.values], prediction_length=7, quantile_levels=[0.1, 0.5, 0.9]
    )
    np.testing.assert_array_equal(ours.quantiles, quantiles.permute(0, 2, 1).numpy())
    np.testing.assert_array_equal(ours.mean, mean.numpy())


def test_seed_is_local(folder: Path) -> None:
    lens = load(folder)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    lens.forecast(bundled("nile"), 2)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"horizon": 0}, "horizon 0"),
        ({"horizon": 2.5}, "horizon 2.5"),
        ({"quantiles": [0.5, 1.0]}, "levels between 0 and 1"),
        ({"quantiles": []}, "levels between 0 and 1"),
        ({"num_samples": 0}, "num_samples 0"),
    ],
)
def test_bad_forecast_arguments_are_named(folder: Path, arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(folder).forecast(bundled("nile"), **{"horizon": 3, **arguments})


def test_future_of_the_wrong_shape_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match="future"):
        load(folder).forward(bundled("nile"), future=np.zeros((2, 3)))


def edited(folder: Path, to: Path, **changes: object) -> Path:
    shutil.copytree(folder, to, dirs_exist_ok=True)
    config = json.loads((to / "config.json").read_text())
    config.update(changes)
    (to / "config.json").write_text(json.dumps(config))
    return to


def test_unknown_configuration_keys_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WiringError, match="does not know: sliding_window"):
        load(edited(folder, tmp_path / "a", sliding_window=4))
    inner = json.loads((folder / "config.json").read_text())["chronos_config"]
    with pytest.raises(WiringError, match=r"chronos_config\.use_arcsinh"):
        load(edited(folder, tmp_path / "b", chronos_config={**inner, "use_arcsinh": True}))


def test_unknown_architectures_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WiringError, match="no wiring claims"):
        load(edited(folder, tmp_path, chronos_pipeline_class="Chronos9Pipeline"))
    with pytest.raises(WiringError, match="no wiring knows an object of type Linear"):
        load(torch.nn.Linear(2, 2))


def test_pickles_are_never_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(CheckpointError, match=r"only as pickle \(pytorch_model.bin\)"):
        load(tmp_path)


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config.json \(found: nothing\)"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds a list"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        load(tmp_path / "config.json")


def test_names_that_are_nothing_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Closest: chronos-nano"):
        load("chronos-nanno")
    with pytest.raises(InputError, match="choose one of float32"):
        load("chronos-nano", dtype="int8")


def test_without_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*_args: object, **_kwargs: object) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match="hf download amazon/chronos-bolt-base"):
        load("amazon/chronos-bolt-base")


def test_a_cached_hub_snapshot_loads_with_its_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hub cache on disk, as `hf download` leaves it, with no network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "models--amazon--chronos-bolt-base"
    shutil.copytree(folder, root / "snapshots" / commit)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    import huggingface_hub

    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *args, **kwargs: real(*args, cache_dir=tmp_path, local_files_only=True, **kwargs),
    )
    lens = load("amazon/chronos-bolt-base")
    assert (lens.model_id, lens.revision) == ("amazon/chronos-bolt-base", commit)


def test_adapted_lens_lists_its_parts(folder: Path) -> None:
    lens = load(folder)
    assert isinstance(lens, Lens)
    assert "decoder" in repr(lens)
    assert {str(c) for c in lens.components("decoder.0.*")} == {
        "decoder.0.self_attn",
        "decoder.0.cross_attn",
        "decoder.0.mlp",
    }
