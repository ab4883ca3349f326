"""Compressed models of every architecture: smaller, written, opened again, and right by
every oracle.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from chronos import BaseChronosPipeline
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForSeq2SeqLM

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, STORED, archetypes, lens_of
from tsfm_lens import compress
from tsfm_lens.compress import LowRankLinear
from tsfm_lens.compress.checkpoint import folded
from tsfm_lens.compress.prune import UNIFORM_HEADS, prune_native
from tsfm_lens.compress.schedule import ranks_by_share
from tsfm_lens.compress.timing import LiveBytes
from tsfm_lens.core.errors import (
    InputError,
    UnknownNameError,
)
from tsfm_lens.hooks.replay import recorded_calls
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.checkpoint import read_checkpoint
from tsfm_lens.testing import (
    ORACLES,
    example_case,
    oracles,
    oracles_attention,
    oracles_weights,
)

# beside the archetypes one whose layers have gains, and one without small checkpoints
WRITTEN = archetypes(
    [name for name in ATTENDING if name in STORED], "toto-2", "timesfm-2.5"
)
# all oracles where there are two stacks and a cross-attention; those that change
# weights where a fused layer has a gain
CHECKED = {
    "chronos-bolt": ORACLES,
    "toto-2": (
        oracles.zero_ablation,
        oracles_attention.head_order,
        oracles_weights.weights,
    ),
}
# of which the library opens one size alone, and none so small
ONE_SIZE = ("timesfm-2.5",)


def forward(lens: Lens) -> Tensor:
    with torch.no_grad():
        return lens.forward(example_case(lens).encoded)


class Made(LiveBytes):
    """Also notes the shapes of all that takes memory."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = super().__torch_dispatch__(func, types, args, kwargs)
        self.shapes |= {
            tuple(x.shape)
            for x in tree_leaves(output)
            if isinstance(x, Tensor) and not x.is_meta
        }
        return output


def small(lens: Lens) -> Lens:
    return compress.factorised(lens, {"encoder_blocks.0.self_attn.q": 2})


def is_held(lens: Lens, matrix: compress.WeightMatrix) -> bool:
    return isinstance(lens.adapter.model.get_submodule(matrix.path), LowRankLinear)


@pytest.mark.parametrize("name", WRITTEN)
def test_compressed_model_reopens_with_all_hooks(
    name: str, tmp_path: Path, umask: int
) -> None:
    """A compressed model is written and opens with every hook point."""
    lens = lens_of(name)
    before = forward(lens)
    ranks = ranks_by_share(
        {
            key: matrix.form()
            for key, matrix in compress.matrices(lens, mlps=True).items()
        },
        0.3,
    )
    smaller = compress.factorised(lens, ranks)
    assert torch.equal(forward(lens), before)
    again = smaller
    if name not in ONE_SIZE:
        folder = compress.save_compressed(smaller, tmp_path / "smaller", ranks=ranks)
        record = json.loads((folder / "compression.json").read_text())
        assert record["ranks"] == ranks
        assert record["ratio"]["ranks"] == pytest.approx(0.3, abs=1 / 8)
        with Made() as made:
            again = load(folder, check=False)
        # neither products nor what a library first puts into a matrix takes memory
        full = {
            matrix.shape
            for key, matrix in compress.matrices(lens, mlps=True).items()
            if is_held(again, matrix)
        }
        assert not made.shapes & (
            full
            - {tuple(held.shape) for held in again.adapter.model.state_dict().values()}
        )
        assert torch.equal(forward(again), forward(smaller))
        permissions = {
            file.name: oct(file.stat().st_mode & 0o777)
            for file in (folder, *folder.iterdir())
        }
        assert permissions == {
            file: oct((0o777 if file == folder.name else 0o666) & ~umask)
            for file in permissions
        }
    assert not torch.equal(forward(again), before)
    assert list(again.registry.points) == list(lens.registry.points)
    for key, matrix in compress.matrices(again, mlps=True).items():
        layer = again.adapter.model.get_submodule(matrix.path)
        assert is_held(again, matrix) == (
            matrix.form().factors(ranks[key]) < matrix.form().numbers
        ), key
        assert torch.linalg.matrix_rank(layer.weight.detach()) == ranks[key]
    for oracle in CHECKED.get(name, (oracles_weights.weights,)):
        result = oracle(example_case(again))
        assert result.passed, result


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_moments_are_those_of_what_enters(calibration: Callable, name: str) -> None:
    lens = lens_of(name)
    run = calibration(lens)
    names = [f"decoder_blocks.1.cross_attn.{letter}" for letter in "qkvo"] + [
        "encoder_blocks.0.mlp.out"
    ]
    moments, _ = compress.moments.calibrate(run, names)
    expected = {key: [] for key in names}
    known = compress.matrices(lens, mlps=True)
    # series by series, by the recording of calls, which keeps all that enters
    for index in range(len(run.batch)):
        forced_path = None
        if run.tokens_read:
            forced_path = run.path[[index]]
        alone = lens.run(
            run.batch.select([index]), run.horizon, forced_path=forced_path
        )
        with (
            torch.no_grad(),
            recorded_calls(
                lens.adapter.model, [known[key].path for key in names]
            ) as calls,
        ):
            lens.adapter.run(alone.encoded.inputs)
        for key in names:
            x = torch.cat(
                [call.given().flatten(0, -2) for call in calls[known[key].path]]
            ).double()
            expected[key].append(x.T @ x / len(x))
    for key in names:
        mean = torch.stack(expected[key]).mean(0)
        n = len(expected[key])
        close_in_float32(moments[key].total / n, mean, depth=1000, what=key)
        # towards the identity by the squared error of the mean, over the squared
        # distance from it
        even = mean.trace() / len(mean) * torch.eye(len(mean))
        error = (
            float(sum((item - mean).square().sum() for item in expected[key]))
            / n
            / (n - 1)
        )
        share = min(1.0, error / float((mean - even).square().sum()))
        close_in_float32(
            moments[key].shrunk, (1 - share) * mean + share * even, depth=10000
        )


def test_weighted_inputs_move_forecast_less(
    calibration: Callable,
) -> None:
    """Weighting by what enters a layer moves the forecast less."""
    lens = lens_of("chronos-bolt")
    run = calibration(lens)
    moved = {}
    for method in ("svd", "weighted", "sensitive", "measured"):
        smaller, ranks = compress.compressed(run, 0.25, method=method)
        with torch.no_grad():
            moved[method] = float(
                compress.deviation(run, smaller.adapter.run(run.encoded.inputs)).mean()
            )
        forms = {key: matrix.form() for key, matrix in compress.matrices(lens).items()}
        dense = sum(form.numbers for form in forms.values())
        assert compress.sizes(smaller)["attention"] == sum(
            form.stored(ranks[key]) for key, form in forms.items()
        )
        assert compress.sizes(smaller)["attention"] <= dense / 2
    assert max(moved["sensitive"], moved["weighted"], moved["measured"]) < moved["svd"]


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_felt_moments_foretell_the_deviation(calibration: Callable, name: str) -> None:
    """Noise added to what leaves a matrix moves the forecast by the trace of the
    moment, to second order.
    """
    lens = lens_of(name)
    run = calibration(lens).select([1])
    key = "encoder_blocks.1.self_attn.o"
    felt = compress.moments.calibrate(run, [key], gradients=True, draws=24)[1][
        key
    ].total
    control = copy.deepcopy(lens)
    layer = control.adapter.model.get_submodule(compress.matrices(lens)[key].path)
    forward_of = layer.forward
    size = 1e-3
    moved = []

    def noisy(x: Tensor) -> Tensor:
        out = forward_of(x)
        return out + size * torch.randn_like(out)

    layer.__dict__["forward"] = noisy
    with torch.no_grad():
        for _ in range(24):
            moved.append(
                float(
                    compress.deviation(
                        run, control.adapter.run(run.encoded.inputs)
                    ).mean()
                )
            )
    outputs = run.cache["plain output"][..., : run.horizon].shape[1:]
    # a mean over steps of half a squared length, or over quantiles and steps of a
    # squared one
    if run.tokens_read:
        share = 0.5 / outputs[0]
    else:
        share = 1.0 / outputs.numel()
    expected = float(felt.trace()) * size**2 * share
    error = float(np.std(moved)) / len(moved) ** 0.5
    assert np.mean(moved) == pytest.approx(expected, abs=5 * error + 0.3 * expected)


def test_heads_of_their_own(tmp_path: Path) -> None:
    lens = lens_of("chronos")
    forms = {
        key: matrix.form(by_head=True)
        for key, matrix in compress.matrices(lens).items()
    }
    ranks = dict.fromkeys(forms, 2)
    smaller = compress.factorised(lens, ranks, by_head=True)
    assert compress.sizes(smaller)["attention"] == sum(
        form.factors(2) for form in forms.values()
    )
    # each head of every projection has the rank, and the whole has four times that
    weights = smaller.weights.heads(0, "cross_attn", "decoder")
    for part in (weights.W_Q, weights.W_K, weights.W_V, weights.W_O):
        assert torch.linalg.matrix_rank(part.detach()).tolist() == [2, 2, 2, 2]
    again = load(
        compress.save_compressed(smaller, tmp_path / "heads", ranks=ranks, by_head=True)
    )
    assert torch.equal(forward(again), forward(smaller))


def test_what_cannot_be_compressed_is_refused(
    calibration: Callable, tmp_path: Path
) -> None:
    lens = lens_of("chronos-bolt")
    first = next(iter(compress.matrices(lens)))
    spoilt = copy.deepcopy(lens)
    layer = spoilt.adapter.model.get_submodule(compress.matrices(lens)[first].path)
    layer.weight.data[0, :3] = torch.nan
    for call, text in (
        (
            lambda: compress.factorised(lens, {"encoder_blocks.0.self_attn.w": 2}),
            "encoder_blocks.0.self_attn",
        ),
        (lambda: compress.factorised(lens, {first: 0}), "rank 0"),
        (lambda: compress.factorised(lens, {first: 99}), "1 to 32"),
        (lambda: compress.factorised(lens, {first: 2.5}), "2.5"),
        (lambda: compress.factorised(lens, {first: 2}, moments={}), "no second moment"),
        (
            lambda: compress.factorised(
                compress.factorised(lens, {first: 2}), {first: 2}
            ),
            "truncated already",
        ),
        (
            lambda: compress.save_compressed(lens, tmp_path / "whole"),
            r"no layer .* is smaller",
        ),
        (
            lambda: compress.compressed(calibration(lens), 0.5, method="weigthed"),
            "weighted",
        ),
        (
            lambda: compress.factorised(spoilt, {first: 2}),
            "3 entries that are not finite",
        ),
    ):
        expect_error(text, call)
    layer.weight.data.nan_to_num_()
    layer.forward = lambda x: 2 * torch.nn.functional.linear(x, layer.weight)
    expect_error("something else", compress.matrices, spoilt)
    turning = lens_of("toto-1")
    expect_error(
        "alternate in its rows",
        compress.factorised,
        turning,
        {next(iter(compress.matrices(turning))): 2},
        by_head=True,
    )


def native_loaders(name: str) -> Iterator[Callable[[Path], object]]:
    """Ways in which users of a library open a folder of its models."""
    yield lambda folder: architectures()[name].open(folder, torch.float32, "cpu")
    if name.startswith("chronos"):
        yield BaseChronosPipeline.from_pretrained
        yield AutoModelForSeq2SeqLM.from_pretrained
    elif name in ("t5", "timesfm-2.5-transformers"):
        yield transformers.AutoModel.from_pretrained
    elif name == "timesfm-3":
        yield import_module(
            "timesfm3.torch.timesfm3_forecaster"
        ).TimesFM3Forecaster.from_pretrained
    elif name == "toto-2":
        # fills what it finds, whatever is missing
        yield lambda folder: import_module("toto2").Toto2Model.from_pretrained(
            folder, strict=False
        )


@pytest.mark.parametrize("name", WRITTEN)
def test_no_other_library_opens_factors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = lens_of(name)
    if name in ONE_SIZE:
        monkeypatch.setattr(
            "tsfm_lens.compress.checkpoint._refuse_other", lambda *_: None
        )
    smaller = compress.factorised(lens, {next(iter(compress.matrices(lens))): 1})
    folder = compress.save_compressed(smaller, tmp_path / "smaller")
    for open_native in native_loaders(name):
        with pytest.raises(
            (OSError, ValueError), match=r"model\.safetensors|valid checkpoint"
        ):
            open_native(folder)
    assert "the model's own library refuses it" in (folder / "README.md").read_text()


def test_writing_is_whole_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written over, and nothing is written in part."""
    smaller = small(lens_of("chronos-bolt"))
    (tmp_path / "there").mkdir()
    expect_error("exists", compress.save_compressed, smaller, tmp_path / "there")

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tsfm_lens.compress.checkpoint._write_native", fail)
    expect_error("no space left", compress.save_compressed, smaller, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_other_threads_build_whole_models(tmp_path: Path) -> None:
    """What another thread builds meanwhile is a whole model."""
    lens = lens_of("chronos-bolt")
    files = read_checkpoint(compress.save_compressed(small(lens), tmp_path / "small"))
    kind = type(lens.adapter.model)
    config = lens.adapter.model.config
    built = {}
    # the library builds another class than its own: that is seen, and not taken for the
    # model of the files
    with folded(files).building(kind, {}):
        worker = threading.Thread(target=lambda: built.update(other=kind(config)))
        worker.start()
        worker.join()
        built["own"] = kind(config)
        built["sub"] = type("Sub", (kind,), {})(config)
    built["after"] = kind(config)
    path = compress.matrices(lens)["encoder_blocks.0.self_attn.q"].path
    assert [
        name
        for name, model in built.items()
        if isinstance(model.get_submodule(path), LowRankLinear)
    ] == ["own"]
    folded(files).finish(built["own"], {})
    expect_error("as a Linear", folded(files).finish, built["sub"], {})


def test_record_must_fit_the_files(tmp_path: Path) -> None:
    """A record that does not fit the files is refused."""
    folder = compress.save_compressed(
        small(lens_of("chronos-bolt")), tmp_path / "small"
    )
    record = folder / "compression.json"
    weights = folder / "model.compressed"
    messages = json.loads(record.read_text())
    tensors = load_file(weights)
    (layer,) = messages["layers"]
    for change, text in (
        ({"version": 1}, "version"),
        ({"layers": {layer: {"form": "factors", "rank": 3}}}, "'rank': 3"),
        ({"layers": {}}, r"2 unknown to the model|1 missing"),
        (
            {"layers": {"encoder.block.9.q": {"form": "factors", "rank": 2}}},
            "expected its .down",
        ),
        ({"layers": {layer: {**messages["layers"][layer], "gain": None}}}, "gain"),
        ({"layers": {layer: {"form": "other"}}}, "form"),
        ({"more": 1}, "more"),
    ):
        record.write_text(json.dumps({**messages, **change}))
        expect_error(text, load, folder)
    # layers that the model does not have
    for name, down, text in (
        ("encoder.block.9.q", tensors[f"{layer}.down"], r"block\.9.*it has none"),
        (layer, torch.ones(2, 99), r"\[32, 99\].*it has Linear"),
        ("encoder.final_layer_norm", tensors[f"{layer}.down"], "it has T5LayerNorm"),
    ):
        rest = {
            key: value
            for key, value in tensors.items()
            if not key.startswith((f"{layer}.", f"{name}."))
        }
        factors = {f"{name}.down": down, f"{name}.up": tensors[f"{layer}.up"]}
        save_file({**rest, **factors}, weights, metadata={"format": "pt"})
        record.write_text(
            json.dumps({**messages, "layers": {name: messages["layers"][layer]}})
        )
        expect_error(text, load, folder)
    record.write_text("[]")
    expect_error("expected an object", load, folder)
    weights.rename(folder / "model.safetensors")
    expect_error(
        r"holds model\.safetensors beside .*, expected model\.compressed: ",
        load,
        folder,
    )
    (folder / "model.safetensors").rename(weights)
    record.unlink()
    expect_error(r"compression\.json is missing", load, folder)
    pruned = compress.save_compressed(
        compress.prune(lens_of("chronos-bolt"), ["decoder.0.cross_attn.1"]),
        tmp_path / "b",
    )
    messages = json.loads((pruned / "compression.json").read_text())
    layer, part = next(iter(messages["layers"].items()))
    for change, text in (
        ({"runs": [[0, 8]]}, r"'runs': \(\(0, 8\),\)"),
        ({"runs": [[8, 16], [0, 16]]}, "ascending"),
        ({"runs": [[0, 24], [24, 99]]}, "ascending"),
        ({"of": "sides"}, "columns"),
    ):
        (pruned / "compression.json").write_text(
            json.dumps(
                {**messages, "layers": {**messages["layers"], layer: part | change}}
            )
        )
        expect_error(text, load, pruned)


def choose_some(lens: Lens) -> list[str]:
    """Two heads that stand apart of every kind of attention, an MLP, and the last layer
    of the last stack.
    """
    out = []
    for stack in lens.wiring.stacks:
        dot = ""
        if stack.name:
            dot = f"{stack.name}."
        last = stack.n_heads - 1
        for layer in range(stack.n_layers - 1):
            for row in stack.rows(layer):
                if isinstance(row, Attention):
                    out += [f"{dot}{layer}.{row.kind}.{head}" for head in (0, last)]
        out.append(f"{dot}0.mlp")
    return [*out, f"{dot}{stack.n_layers - 1}"]


@pytest.mark.parametrize("name", WRITTEN)
def test_removal_equals_ablation(name: str, tmp_path: Path) -> None:
    """What is taken out is as if it were ablated."""
    lens = lens_of(name)
    gone = choose_some(lens)
    smaller = compress.prune(lens, gone)
    with lens.ablate(*gone):
        ablated = forward(lens)
    close_in_float32(forward(smaller), ablated, depth=200)
    assert float((ablated - forward(lens)).abs().max()) > 0
    sizes = [compress.sizes(item) for item in (lens, smaller)]
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


@pytest.mark.parametrize("name", UNIFORM_HEADS)
def test_library_opens_models_its_configuration_describes(
    name: str, tmp_path: Path
) -> None:
    """Where the configuration can say what is left out, the library itself opens it."""
    lens = lens_of(name)
    gone = [
        "encoder.*.self_attn.1",
        "decoder.*.self_attn.3",
        "decoder.0.cross_attn.0",
        "decoder.[12].cross_attn.2",
    ]
    smaller, native = compress.pruned(lens, gone)
    assert native
    assert compress.pruned(lens, gone[1:])[1] is False
    folder = compress.save_compressed(smaller, tmp_path / "native", native=True)
    assert not (folder / "compression.json").exists()
    library = BaseChronosPipeline
    if name == "t5":
        library = AutoModelForSeq2SeqLM
    theirs = load(library.from_pretrained(folder), check=False)
    again = load(folder)
    assert [stack.n_heads for stack in again.wiring.stacks] == [3, 3]
    with lens.ablate(*gone):
        close_in_float32(forward(theirs), forward(lens), depth=200)
    assert torch.equal(forward(theirs), forward(again))
    result = oracles.zero_ablation(example_case(again))
    assert result.passed, result


def test_indescribable_models_are_refused() -> None:
    """What the configuration cannot say is refused."""
    lens = lens_of("chronos")
    for gone, text in (
        (["*.*.*_attn.0", "decoder.0.cross_attn.1"], "2, 3 heads"),
        (["*.*.*_attn.*"], "0 heads"),
        (
            ["decoder.*.*_attn.0", "encoder.0.self_attn.0", "encoder.1.self_attn.1"],
            "the encoder would keep different",
        ),
        (["decoder.0.mlp"], "is not a head"),
    ):
        expect_error(text, prune_native, lens, gone)
    expect_error("no place", prune_native, lens_of("chronos-2"), ["0.time_attn.0"])
    for nothing, error in (([], InputError), (["decoder.9.mlp"], UnknownNameError)):
        with pytest.raises(error):
            compress.prune(lens, nothing)
    trimmed = compress.factorised(lens, {"decoder_blocks.0.cross_attn.q": 2})
    expect_error(
        "compressed already", compress.prune, trimmed, ["decoder.0.cross_attn.0"]
    )
