"""Heads and MLPs taken out: what ablating them gives, in fewer numbers, also from files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from chronos import BaseChronosPipeline
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from tsfm_lens import compress
from tsfm_lens.compress.prune import UNIFORM_HEADS
from tsfm_lens.errors import CheckpointError, InputError, UnknownNameError
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import assert_close, example_case, oracles, oracles_weights

ARCHITECTURES = sorted(architectures())
# of which the library opens one size alone, and none so small
ONE_SIZE = ("timesfm-2.5",)


def forward(lens: Lens) -> Tensor:
    with torch.no_grad():
        return lens.forward(example_case(lens).encoded)


def some_of(lens: Lens) -> list[str]:
    """Two heads that stand apart of every kind of attention, an MLP, and the last layer of the last stack."""
    out = []
    for stack in lens.wiring.stacks:
        dot = f"{stack.name}." if stack.name else ""
        last = stack.n_heads - 1
        for layer in range(stack.n_layers - 1):
            for row in stack.rows(layer):
                if isinstance(row, Attention):
                    out += [f"{dot}{layer}.{row.kind}.{head}" for head in (0, last)]
        out.append(f"{dot}0.mlp")
    return [*out, f"{dot}{stack.n_layers - 1}"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_taken_out_is_as_if_ablated(opened: Callable[[str], Lens], name: str, tmp_path: Path) -> None:
    lens = opened(name)
    gone = some_of(lens)
    smaller = compress.prune(lens, gone)
    with lens.ablate(*gone):
        ablated = forward(lens)
    assert_close(forward(smaller), ablated, depth=200, dtype=torch.float32)
    assert float((ablated - forward(lens)).abs().max()) > 0
    sizes = [compress.sizes(each) for each in (lens, smaller)]
    assert sizes[1]["attention"] < sizes[0]["attention"]
    assert sizes[1]["mlp"] < sizes[0]["mlp"]
    assert list(smaller.registry.points) == list(lens.registry.points)
    if name in ONE_SIZE:
        return
    again = load(compress.save_compressed(smaller, tmp_path / "smaller"))
    assert torch.equal(forward(again), forward(smaller))
    assert compress.sizes(again) == sizes[1]
    result = oracles_weights.weights(example_case(again))
    assert result.passed, result


def test_every_head_of_an_attention_and_the_attention_are_one(opened: Callable) -> None:
    lens = opened("chronos-bolt")
    heads = compress.prune(lens, ["decoder.0.cross_attn.*"])
    whole = compress.prune(lens, ["decoder.0.cross_attn"])
    assert torch.equal(forward(heads), forward(whole))
    assert compress.sizes(heads) == compress.sizes(whole)
    lens = opened("chronos")
    before = compress.sizes(lens)
    sizes = compress.sizes(compress.prune(lens, ["decoder.0.cross_attn.1", "encoder.1.mlp"]))
    # a head is 8 of 32 rows of three matrices and columns of one, 36 wide; the MLP has two of 48 x 36
    saved = {name: before[name] - size for name, size in sizes.items()}
    assert saved == {"all": 4 * 8 * 36 + 2 * 48 * 36, "attention": 4 * 8 * 36, "mlp": 2 * 48 * 36}


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_where_the_configuration_can_say_it_the_library_itself_opens_it(
    opened: Callable, name: str, tmp_path: Path
) -> None:
    lens = opened(name)
    gone = ["encoder.*.self_attn.1", "decoder.*.self_attn.3", "decoder.0.cross_attn.0", "decoder.[12].cross_attn.2"]
    smaller, native = compress.pruned(lens, gone)
    assert native
    assert compress.pruned(lens, gone[1:])[1] is False
    compress.save_compressed(smaller, tmp_path / "native", native=True)
    assert not (tmp_path / "native" / "compression.json").exists()
    again = load(tmp_path / "native")
    assert [stack.n_heads for stack in again.wiring.stacks] == [3, 3]
    with lens.ablate(*gone):
        assert_close(forward(again), forward(lens), depth=200, dtype=torch.float32)
    result = oracles.zero_ablation(example_case(again))
    assert result.passed, result


@pytest.mark.parametrize("name", UNIFORM_HEADS)
def test_the_library_itself_forecasts_with_fewer_heads(opened: Callable, name: str, tmp_path: Path) -> None:
    lens, gone = opened(name), ["*.*.*_attn.0"]
    smaller, native = compress.pruned(lens, gone)
    folder = compress.save_compressed(smaller, tmp_path / "native", native=native)
    library = AutoModelForSeq2SeqLM if name == "t5" else BaseChronosPipeline
    theirs = load(library.from_pretrained(folder), check=False)
    with lens.ablate(*gone):
        assert_close(forward(theirs), forward(lens), depth=200, dtype=torch.float32)
    assert torch.equal(forward(theirs), forward(load(folder, check=False)))


def test_what_the_configuration_cannot_say_is_refused(opened: Callable) -> None:
    lens = opened("chronos")
    for gone, words in (
        (["*.*.*_attn.0", "decoder.0.cross_attn.1"], "2, 3 heads"),
        (["*.*.*_attn.*"], "0 heads"),
        (["decoder.*.*_attn.0", "encoder.0.self_attn.0", "encoder.1.self_attn.1"], "the encoder would keep different"),
        (["decoder.0.mlp"], "is no head"),
    ):
        with pytest.raises(InputError, match=words):
            compress.prune_native(lens, gone)
    with pytest.raises(InputError, match="no place"):
        compress.prune_native(opened("chronos-2"), ["0.time_attn.0"])
    for nothing, error in (([], InputError), (["decoder.9.mlp"], UnknownNameError)):
        with pytest.raises(error):
            compress.prune(lens, nothing)
    cut = compress.factorised(lens, {"decoder_blocks.0.cross_attn.q": 2})
    with pytest.raises(InputError, match="compressed already"):
        compress.prune(cut, ["decoder.0.cross_attn.0"])


def test_a_record_of_rows_that_does_not_fit_is_refused(opened: Callable, tmp_path: Path) -> None:
    smaller = compress.prune(opened("chronos-bolt"), ["decoder.0.cross_attn.1"])
    folder = compress.save_compressed(smaller, tmp_path / "smaller")
    record = folder / "compression.json"
    said = json.loads(record.read_text())
    layer = next(iter(said["layers"]))
    for change, words in (
        ({"runs": [[0, 8]]}, "expected 8 rows"),
        ({"runs": [[8, 16], [0, 16]]}, "ascending"),
        ({"runs": [[0, 24], [24, 99]]}, "ascending"),
        ({"of": "sides"}, "columns"),
    ):
        spoilt = copy.deepcopy(said)
        spoilt["layers"][layer] |= change
        record.write_text(json.dumps(spoilt))
        with pytest.raises(CheckpointError, match=words):
            load(folder)
