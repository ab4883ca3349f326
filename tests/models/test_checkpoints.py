"""A checkpoint is complete, inside its folder and what was loaded, or it is refused
with the names that are wrong.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from campaigns.spoiling import MARK, poison
from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.core.errors import CheckpointError, WiringError
from tsfm_lens.models import architectures, load, opening

Edit = Callable[[dict[str, torch.Tensor]], None]


def rewritten(folder: Path, edit: Edit) -> Path:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def sharded(folder: Path) -> dict[str, str]:
    """Two files and an index instead of one file; the index's map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    position = {name: f"part-{len(name) % 2}.safetensors" for name in tensors}
    for file in set(position.values()):
        save_file(
            {name: tensors[name] for name in tensors if position[name] == file},
            folder / file,
            {"format": "pt"},
        )
    indexed(folder, position)
    return position


def indexed(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def open_checkpoints(
    monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]
) -> None:
    """Open every checkpoint by a function of the folder and Chronos's own opening."""
    real = architectures()["chronos"]
    changed = dataclasses.replace(
        real,
        open=lambda folder, *args: change(folder, lambda: real.open(folder, *args)),
    )
    monkeypatch.setattr(opening, "find_architecture", lambda *_args: changed)


# --- complete


WI = "decoder.block.1.layer.2.DenseReluDense.wi.weight"


def without_a_layer(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("decoder.block.2.")]:
        del tensors[name]


def replaced(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], *, at: str = ""
) -> Edit:
    """Put a changed copy of a tensor into its place, or under another name."""

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[at or name] = change(tensors[name].clone())

    return edit


NORM = "decoder.final_layer_norm.weight"
NAN = torch.tensor([float("nan")] * 2)
HUGE = torch.tensor(1e6)
SPOILED: dict[str, tuple[Edit, str, str]] = {
    "no layer": (
        without_a_layer,
        r"13 missing \(decoder.block.2.layer.0.SelfAttention.k.weight, .*…\)",
        "float32",
    ),
    "transposed": (
        replaced(WI, lambda x: x.T.contiguous()),
        rf"1 of another form \({WI} is \[96, 384\] and not",
        "float32",
    ),
    "no numbers": (
        replaced(NORM, lambda x: x.index_copy(0, torch.tensor([5, 6]), NAN)),
        rf"{NORM} has 2 of 96 weights .* not finite",
        "float32",
    ),
    "beyond the type": (
        replaced(
            "shared.weight",
            lambda x: x.index_put((torch.tensor(0), torch.tensor(0)), HUGE),
        ),
        r"1 of 196608 weights that are not finite in torch\.float16",
        "float16",
    ),
}


@pytest.mark.parametrize(("edit", "message", "dtype"), SPOILED.values(), ids=SPOILED)
def test_what_does_not_fit_is_named(
    nano: Path, edit: Edit, message: str, dtype: str
) -> None:
    expect_error(message, load, rewritten(nano, edit), dtype=dtype, check=False)


def test_files_may_hold_correct_computed_buffers(tmp_path: Path) -> None:
    """What a library computes may be in the file if its values are the same."""
    native = lens_of("toto-1").native
    name = "model.transformer.rotary_emb.freqs"
    computed = dict(native.named_buffers())[name]
    for change, messages in (
        (0.0, ""),
        (0.01, "did not load model.transformer.rotary_emb.freqs as the file has it"),
    ):
        architectures()["toto-1"].save(native, tmp_path)

        def add(tensors: dict[str, torch.Tensor], change: float = change) -> None:
            tensors[name] = computed.clone() + change

        with (
            pytest.raises(CheckpointError, match=messages)
            if messages
            else nullcontext()
        ):
            load(rewritten(tmp_path, add), check=False)


BEYOND: list[tuple[dict[str, int], str]] = [
    (
        {"num_decoder_layers": 4},
        r"13 missing \(decoder.block.3.* describes .* parameters, the files hold",
    ),
    *(
        ({key: 2**31}, r"of another form .* parameters, the files hold")
        for key in ("d_ff", "vocab_size")
    ),
    ({"d_model": 2**30}, r"of another form .* parameters, the files hold"),
    ({"num_layers": 100_000}, r"num_layers=100000, but the files hold 68 tensors"),
]


@pytest.mark.parametrize(
    ("sizes", "message"),
    BEYOND,
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_oversized_settings_take_no_memory(
    configured: Callable[..., Path],
    sizes: dict[str, int],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sizes beyond those of the files take neither time nor memory."""
    monkeypatch.setattr(
        torch.nn.Module,
        "load_state_dict",
        lambda *_args, **_kw: pytest.fail("weights were loaded"),
    )
    expect_error(message, load, configured(**sizes))


def test_tables_beyond_memory_are_refused(tmp_path: Path) -> None:
    lens_of("moirai-2").native.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_seq_len": 2**24}))
    expect_error(r"a length in config\.json is far too large", load, tmp_path)


def test_wrong_loaders_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loader that loads something else than the file holds is noticed."""

    def careless(_folder: Path, real: Callable[[], Any]) -> Any:
        native = real()
        with torch.no_grad():
            native.inner_model.shared.weight[3, 2] += 1e-6
        return native

    open_checkpoints(monkeypatch, careless)
    expect_error(
        r"did not load shared\.weight as the file has it", load, "chronos-nano"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_loaded_weights_match_the_file(nano: Path, dtype: str) -> None:
    """Loaded weights are those of the file, rounded to the type asked for."""
    kind = getattr(torch, dtype)
    load(
        rewritten(nano, replaced("shared.weight", lambda x: x, at="lm_head.weight")),
        dtype=dtype,
        check=False,
    )
    # transformers unties what differs, so that both are as the file has them
    rewritten(
        nano,
        replaced("shared.weight", lambda x: x + 1.0, at="encoder.embed_tokens.weight"),
    )
    retained = load(nano, dtype=dtype, check=False).adapter.model.state_dict()
    for name, tensor in load_file(nano / "model.safetensors").items():
        # transformers keeps some matrices of T5 in single precision
        assert torch.equal(retained[name].to(kind), tensor.to(kind))


# --- inside the folder, and safetensors only


@pytest.mark.parametrize(
    "target",
    [
        "pytorch_model.bin",
        "../outside.safetensors",
        "/etc/outside.safetensors",
        "a/b.safetensors",
        "..",
        7,
        None,
        {},
    ],
    ids=str,
)
def test_index_names_must_be_local_safetensors(nano: Path, target: Any) -> None:
    """An index may name safetensors files of its own folder alone."""
    position = sharded(nano)
    shutil.copy(nano / "part-0.safetensors", nano.parent / "outside.safetensors")
    poison(nano / "pytorch_model.bin", nano.parent)
    indexed(nano, {**position, "shared.weight": target})
    expect_error(
        r"puts 'shared.weight' into .*; expected the name of a .safetensors", load, nano
    )
    assert not (nano.parent / MARK).exists()


def test_the_index_must_match_the_files(nano: Path) -> None:
    position = sharded(nano)
    name = next(iter(position))
    other = {
        "part-0.safetensors": "part-1.safetensors",
        "part-1.safetensors": "part-0.safetensors",
    }[position[name]]
    wrong = [
        (
            {**position, name: other},
            "does not say what the files hold: 2 places differ",
        ),
        (
            {key: value for key, value in position.items() if key != name},
            "1 places differ",
        ),
        ({**position, "more": other}, "1 places differ, the first is 'more'"),
        (
            {**position, "more": "part-2.safetensors"},
            r"part-2.safetensors is not a regular file",
        ),
        ([], "has no weight_map"),
    ]
    for claimed, messages in wrong:
        indexed(nano, claimed)
        expect_error(messages, load, nano)
    indexed(nano, position)
    full, retained = (
        load(source, check=False).adapter.model.state_dict()
        for source in ("chronos-nano", nano)
    )
    assert all(torch.equal(retained[key], full[key]) for key in full)
    shutil.copy(nano / "part-0.safetensors", nano / "model.safetensors")
    expect_error(
        r"holds both model\.safetensors and model\.safetensors\.index\.json", load, nano
    )


def test_decoys_never_make_pickles_readable(
    nano: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A misnamed safetensors file does not make a pickle readable."""
    poison(nano / "pytorch_model.bin", nano.parent)
    (nano / "model.safetensors").rename(nano / "decoy.safetensors")
    expect_error(r"only as pickle \(pytorch_model.bin\)", load, nano)
    (nano / "pytorch_model.bin").unlink()
    expect_error(
        r"no \*\.safetensors file \(found: nothing\)",
        load,
        tmp_path_factory.mktemp("empty"),
    )
    expect_error("but decoy.safetensors; rename", load, nano)
    assert not (nano.parent / MARK).exists()


def test_libraries_see_only_checked_files(
    nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library is shown nothing but the files that were checked."""
    seen: list[str] = []
    for stray in (
        "pytorch_model.bin",
        "notes.json",
        "decoy.safetensors",
        "modeling.py",
        "tokenizer.json",
    ):
        (nano / stray).write_text("{}")
    open_checkpoints(
        monkeypatch,
        lambda folder, real: (
            seen.extend(path.name for path in folder.iterdir()) or real()
        ),
    )
    lens = load(nano, check=False)
    assert sorted(seen) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    assert lens.adapter.model.config._name_or_path == str(nano)


# --- settings


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"tokenizer_class": "ChronosPipeline"},
            WiringError,
            "the wiring describes models with",
        ),
        ({"model_type": "causal"}, WiringError, "the wiring describes models with"),
        ({"layer_norm_epsilon": float("nan")}, WiringError, "fails by nan"),
    ],
)
def test_settings_that_no_wiring_describes(
    configured: Callable[..., Path],
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        load(configured(**settings))


def test_only_the_library_s_distributions_load(tmp_path: Path) -> None:
    """Only distributions of the library are made from a configuration."""
    lens_of("moirai-1.1").native.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    trace = tmp_path / "called"
    touch_call: dict[str, Any] = {
        "_target_": "pathlib.Path.touch",
        "_args_": [str(trace)],
    }
    wrong: list[tuple[Any, str]] = [
        ({"_target_": "os.system"}, "'os.system'} as output distribution"),
        (touch_call, "pathlib.Path.touch"),
        ({**config["distr_output"], "components": [touch_call]}, "pathlib.Path.touch"),
        (
            {"_target_": "uni2ts.distribution._base.torch.hub.load"},
            "expected a class of uni2ts.distribution",
        ),
        (
            {"_target_": "uni2ts.distribution.StudentTOutput", "_args_": ["x"]},
            "distr_output._args_=",
        ),
        (
            {
                "_target_": "uni2ts.distribution.NormalFixedScaleOutput",
                "scale": "${oc.env:HOME}",
            },
            "distr_output.scale=",
        ),
        ([], "expected a class of uni2ts.distribution"),
    ]
    for node, messages in wrong:
        (tmp_path / "config.json").write_text(
            json.dumps({**config, "distr_output": node})
        )
        with pytest.raises((CheckpointError, WiringError)) as caught:
            load(tmp_path)
        assert messages in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"d_model": ' + "9" * 5000 + "}", "\ufeff{}", "", "[]"]
)
def test_settings_that_are_no_json(nano: Path, text: str) -> None:
    (nano / "config.json").write_text(text)
    expect_error(
        "holds a list" if text == "[]" else r"config\.json is not valid JSON",
        load,
        nano,
    )
    expect_error("is a file", load, nano / "config.json")


def test_generation_configs_cannot_change_sampling(nano: Path) -> None:
    (nano / "generation_config.json").write_text(json.dumps({"num_beams": 10**9}))
    expect_error(r"does not know: generation_config.json.num_beams", load, nano)


def test_models_of_two_origins_are_compared(nano: Path, tmp_path: Path) -> None:
    """Two folders hold one model if weights and settings are equal, origin aside."""
    settings = json.loads((nano / "config.json").read_text())
    for name, changes, same in (
        ("origin", {"_name_or_path": "elsewhere", "transformers_version": "1"}, True),
        ("setting", {"dropout_rate": 0.5}, False),
    ):
        other = tmp_path / name
        shutil.copytree(nano, other)
        (other / "config.json").write_text(json.dumps({**settings, **changes}))
        assert opening._same_weights(nano, other) == same
    other = Path(shutil.copytree(nano, tmp_path / "weights"))
    rewritten(other, lambda tensors: tensors[WI].view(-1)[:1].add_(1))
    assert not opening._same_weights(nano, other)
