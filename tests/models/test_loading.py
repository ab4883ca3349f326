"""One door for every model, and clear words at it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tsfm_lens.data import bundled
from tsfm_lens.errors import CheckpointError, InputError, UnknownNameError, WiringError
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.checkpoint import read_checkpoint
from tsfm_lens.testing import example_case

NAMES = sorted(architectures())
CHRONOS = ["chronos", "chronos-bolt", "chronos-2"]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, opened: Callable[[str], Lens], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A saved checkpoint of each architecture."""
    architecture, native = architectures()[name], opened(name).native
    path = tmp_path_factory.mktemp(name)
    if architecture.save is not None:
        architecture.save(native, path)
    else:
        # the pipelines of Chronos save through their models
        getattr(native, "inner_model", native).save_pretrained(path)
    with pytest.MonkeyPatch.context() as patch:
        if name == "timesfm-2.5":
            from timesfm.timesfm_2p5.timesfm_2p5_torch import TimesFM_2p5_200M_torch_module

            # the library has its size in the class
            patch.setattr(TimesFM_2p5_200M_torch_module, "config", type(native.model).config)
        yield path


def test_folder_model_and_pipeline_are_the_same_lens(folder: Path) -> None:
    lens = load(folder)
    batch = example_case(lens).batch
    expected = lens.forecast(batch, 5, seed=2).quantiles
    for source in (lens.native, lens.adapter.model):
        np.testing.assert_array_equal(load(source, check=False).forecast(batch, 5, seed=2).quantiles, expected)


def test_what_was_saved_is_what_is_loaded(folder: Path, name: str, opened: Callable[[str], Lens]) -> None:
    ours, kept = load(folder, check=False).adapter.model.state_dict(), opened(name).adapter.model.state_dict()
    assert set(ours) == set(kept)
    assert all(torch.equal(ours[key], kept[key]) for key in kept)


def test_one_architecture_claims_it(folder: Path, name: str) -> None:
    files, lens = read_checkpoint(folder), load(folder, check=False)
    config, tensors = files.config, frozenset(files.tensors)
    claims = [each.name for each in architectures().values() if each.claims(config) or each.claims_tensors(tensors)]
    assert claims == [name]
    for thing in (lens.native, lens.adapter.model):
        assert [each.name for each in architectures().values() if each.claims_object(thing)] == [name]


@pytest.mark.published
def test_timesfm_loads_at_its_only_size(tmp_path: Path) -> None:
    """The library's class has one size, and its checkpoints no configuration."""
    native = architectures()["timesfm-2.5"].build("200m")
    native.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink(missing_ok=True)
    assert load(tmp_path).wiring.output_stack.n_layers == 20


def test_seed_is_local(name: str, opened: Callable[[str], Lens]) -> None:
    lens = opened(name)
    batch = example_case(lens).batch
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    lens.forecast(batch, 2)
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
def test_bad_forecast_arguments_are_named(
    name: str, opened: Callable[[str], Lens], arguments: dict, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        opened(name).forecast(bundled("nile"), **{"horizon": 3, **arguments})


def test_futures_that_do_not_fit_are_named(name: str, opened: Callable[[str], Lens]) -> None:
    lens = opened(name)
    with pytest.raises(InputError, match="future"):
        lens.forward(bundled("nile"), future=np.zeros((2, 3)))
    if lens.adapter.readout != "token":
        with pytest.raises(InputError, match="leave `future` out"):
            lens.forward(bundled("nile"), future=np.zeros((1, 3)))


def test_samples_are_refused_by_who_draws_none(name: str, opened: Callable[[str], Lens]) -> None:
    lens = opened(name)
    batch = example_case(lens).batch
    if lens.adapter.readout == "quantile":
        with pytest.raises(InputError, match="draws no samples"):
            lens.forecast(batch, 2, num_samples=3)
    else:
        assert lens.forecast(batch, 2, num_samples=3).samples.shape == (len(batch), 3, 2)


def test_a_longer_pass_than_the_model_has_is_refused(name: str, opened: Callable[[str], Lens]) -> None:
    lens = opened(name)
    batch, limit = example_case(lens).batch, lens.adapter.longest_pass
    with pytest.raises(InputError, match=f"horizon {limit + 1} of a single forward.* 1 to {limit} steps"):
        lens.encode(batch, horizon=limit + 1)
    if lens.adapter.rollout == "single":
        with pytest.raises(InputError, match=f"horizon {limit + 1} is longer than the {limit} steps"):
            lens.forecast(batch, limit + 1)


def edited(folder: Path, to: Path, **changes: object) -> Path:
    shutil.copytree(folder, to, dirs_exist_ok=True)
    config = json.loads((to / "config.json").read_text())
    config.update(changes)
    (to / "config.json").write_text(json.dumps(config))
    return to


def test_unknown_configuration_keys_are_refused(folder: Path, name: str, tmp_path: Path) -> None:
    if name == "timesfm-2.5":
        pytest.skip("its checkpoints have no configuration")
    with pytest.raises(WiringError, match="does not know: sliding_window"):
        load(edited(folder, tmp_path / "a", sliding_window=4))
    if name in CHRONOS:
        inner = json.loads((folder / "config.json").read_text())["chronos_config"]
        with pytest.raises(WiringError, match=r"chronos_config\.use_moonphase"):
            load(edited(folder, tmp_path / "b", chronos_config={**inner, "use_moonphase": True}))


def test_unknown_architectures_are_refused(folder: Path, name: str, tmp_path: Path) -> None:
    if name in CHRONOS:
        with pytest.raises(WiringError, match="no wiring claims"):
            load(edited(folder, tmp_path, chronos_pipeline_class="Chronos9Pipeline"))
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text('{"model_type": "mystery"}')
    if name == "timesfm-2.5":
        # told by its tensors
        assert load(tmp_path).wiring.architecture == name
        return
    with pytest.raises(WiringError, match=r"no wiring claims this configuration \(model_type 'mystery'"):
        load(tmp_path)


def test_a_folder_without_a_configuration_is_told_so(folder: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").unlink(missing_ok=True)
    if name == "timesfm-2.5":
        # told by its tensors
        assert load(tmp_path).wiring.architecture == name
        return
    with pytest.raises(
        CheckpointError, match=r"has no config\.json, which says of which architecture model\.safetensors"
    ):
        load(tmp_path)


def test_unknown_objects_are_refused() -> None:
    with pytest.raises(WiringError, match="no wiring knows an object of type Linear"):
        load(torch.nn.Linear(2, 2))


class Beside(torch.nn.Module):
    """A linear layer with a low-rank adapter beside it, shown as peft shows it."""

    def __init__(self, base_layer: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.merged = base_layer, False
        self.down, self.up = (torch.nn.Linear(base_layer.in_features, 2), torch.nn.Linear(2, base_layer.out_features))

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        beside = 0.0 if self.merged else self.up(self.down(values))
        return self.base_layer(values) + beside


def test_an_adapter_that_is_not_merged_is_refused() -> None:
    native = architectures()["chronos-bolt"].tiny()
    attention = getattr(native, "model", native).encoder.block[0].layer[0].SelfAttention
    attention.q = Beside(attention.q)
    with pytest.raises(WiringError, match=r"1 layers of .*encoder\.block\.0.*SelfAttention\.q, hold an adapter.*merge"):
        load(native, check=False)
    attention.q.merged = True
    load(native, check=False)


def test_pickles_are_never_read(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(CheckpointError, match=r"only as pickle \(pytorch_model.bin\)"):
        load(tmp_path)


def test_broken_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file \(found: nothing\)"):
        load(tmp_path)
    (tmp_path / "model.safetensors").touch()
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
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hub cache on disk, as `hf download` leaves it, with no network."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    hub_id = next(iter(architectures()[name].published.values()))
    root = tmp_path / f"models--{hub_id.replace('/', '--')}"
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
    lens = load(hub_id)
    assert (lens.model_id, lens.revision) == (hub_id, commit)


BRANCHES = {
    "chronos-2": {"time_attn", "group_attn", "mlp"},
    "timesfm-3": {"time_attn", "variate_attn", "mlp"},
    **{name: {"self_attn", "cross_attn", "mlp"} for name in ("chronos", "chronos-bolt", "t5")},
}


def test_adapted_lens_lists_its_parts(name: str, opened: Callable[[str], Lens]) -> None:
    lens = opened(name)
    assert isinstance(lens, Lens)
    stack = lens.wiring.output_stack
    at = f"{stack.name}.0" if stack.name else "0"
    assert f"{stack.name or 'blocks'}: {stack.n_layers} layers × {stack.n_heads} heads" in repr(lens)
    branches = BRANCHES.get(name, {"attn", "mlp"})
    assert {str(c) for c in lens.components(f"{at}.*")} == {f"{at}.{kind}" for kind in branches}
    heads = lens.components(f"{at}.*.*")
    assert len(heads) == stack.n_heads * (len(branches) - 1)
