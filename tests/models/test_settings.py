"""Settings that no model can have are refused with their key and value, before a library sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tsfm_lens.errors import CheckpointError, WiringError
from tsfm_lens.models import Lens, checkpoint, load


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("d_model", "64", "a whole number from 1"),
        ("d_model", -64, "a whole number from 1"),
        ("d_model", True, "a whole number from 1"),
        ("num_layers", 2.5, "a whole number from 1"),
        ("num_heads", None, "a whole number from 1"),
        ("layer_norm_epsilon", float("nan"), "a number from 0 to 1"),
        ("dropout_rate", float("inf"), "a number from 0 to 1"),
        ("use_cache", "yes", "true or false"),
        ("eos_token_id", -1, "a token id, 0 or more"),
        ("eos_token_id", 4096, "less than n_tokens=2048"),
        ("chronos_config", [1], "an object of settings"),
        ("tokenizer_kwargs", "x", "an object of settings"),
        ("context_length", 10**30, "a whole number of steps from 1 to"),
        ("decoder_start_token_id", 2048, "less than vocab_size=2048"),
        ("n_tokens", 4096, "at most vocab_size=2048"),
        ("architectures", [], "a list of texts"),
    ],
)
def test_impossible_settings_are_named_with_their_value(
    configured: Callable[..., Path], key: str, value: Any, expected: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(configured(**{key: value}))
    assert key in str(caught.value)
    assert f"expected {expected}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tokenizer_class", "ChronosPipeline"), ("model_type", "causal")],
)
def test_settings_that_the_wiring_does_not_describe(configured: Callable[..., Path], key: str, value: Any) -> None:
    with pytest.raises(WiringError, match=f"{key}=.*; the wiring describes models with"):
        load(configured(**{key: value}))


def test_only_distributions_of_the_library_are_made(opened: Callable[[str], Lens], tmp_path: Path) -> None:
    opened("moirai-1.1").native.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    wrong = [
        ({"_target_": "os.system"}, "names 'os.system' as output distribution"),
        ({"_target_": "uni2ts.distribution._base.torch.hub.load"}, "expected a class of uni2ts.distribution"),
        ({"_target_": "uni2ts.distribution.StudentTOutput", "_args_": ["x"]}, "distr_output._args_="),
        ({"_target_": "uni2ts.distribution.NormalFixedScaleOutput", "scale": "${oc.env:HOME}"}, "distr_output.scale="),
        ([], "expected an object of settings"),
    ]
    for node, said in wrong:
        (tmp_path / "config.json").write_text(json.dumps({**config, "distr_output": node}))
        with pytest.raises((CheckpointError, WiringError)) as caught:
            load(tmp_path)
        assert said in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"d_model": ' + "9" * 5000 + "}", "\ufeff{}", ""])
def test_settings_that_are_no_json(nano: Path, text: str) -> None:
    (nano / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        load(nano)


def test_settings_are_read_up_to_a_length(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LONGEST_JSON", 100)
    with pytest.raises(CheckpointError, match=r"config\.json has .* bytes, expected settings of at most 100"):
        load(nano)


def test_a_generation_config_cannot_change_how_is_sampled(nano: Path) -> None:
    (nano / "generation_config.json").write_text(json.dumps({"num_beams": 10**9}))
    with pytest.raises(WiringError, match=r"does not know: generation_config.json.num_beams"):
        load(nano)
