"""The ten oracles on every architecture, at tiny size here and at published sizes with `make conformance`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from tiny_lenses import tiny
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks import attention_capture, edit, interventions
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack, Writer
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.extras import status
from tsfm_lens.testing import ORACLES, Case, example_case, oracles, oracles_attention, oracles_runs

ARCHITECTURES = sorted(architectures())
# two stacks, cross-attention, plain sums: the wirings that most of what follows spoils
CHRONOS = ["chronos", "chronos-bolt"]


@cache
def tiny_case(name: str) -> Case:
    return example_case(load(tiny(name)))


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_oracle_holds(name: str, oracle: Callable) -> None:
    result = oracle(tiny_case(name))
    assert result.passed, result


@cache
def case_with_covariates(name: str) -> Case:
    """Two items of unequal length, each with a past and a known covariate."""
    rng, items = np.random.default_rng(2), []
    for place, steps in enumerate((40, 32)):
        known = rng.normal(size=steps + 30)
        past = {"past": rng.normal(size=steps), "known": known[:steps]}
        target = 10 * place + known[:steps] + np.sin(np.arange(steps) / 3)
        items.append({"target": target, "past_covariates": past, "future_covariates": {"known": known[steps:]}})
    return Case(load(tiny(name), check=False), as_series(items), horizon=6)


# both Moirai give nothing for covariates, whose rows an oracle would compare
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@pytest.mark.parametrize("name", ["chronos-2", "timesfm-3"])
def test_oracle_holds_with_covariates(name: str, oracle: Callable) -> None:
    result = oracle(case_with_covariates(name))
    assert result.passed, result


# building, saving and reading back take more than 24 GB
TOO_LARGE = {("toto-2", "2.5B")}
PUBLISHED = [
    (name, size) for name in ARCHITECTURES for size in architectures()[name].published if (name, size) not in TOO_LARGE
]


@pytest.fixture
def free_memory() -> Iterator[None]:
    """The largest models hold gigabytes; models and their hooks point at each other."""
    gc.collect()
    yield
    gc.collect()


@pytest.mark.published
@pytest.mark.usefixtures("free_memory")
@pytest.mark.parametrize(("name", "size"), PUBLISHED, ids=lambda value: str(value))
def test_oracles_hold_at_published_size(name: str, size: str, tmp_path: Path) -> None:
    """Random weights, saved and read back by the model's real loader."""
    architecture = architectures()[name]
    if architecture.extra and not status()[architecture.extra].importable:
        pytest.skip(f"the extra {architecture.extra} is not installed")
    native = architecture.build(size)
    native.save_pretrained(tmp_path) if architecture.save is None else architecture.save(native, tmp_path)
    del native
    gc.collect()
    case = example_case(load(tmp_path), n_series=1)
    few = {
        oracles.zero_ablation: partial(oracles.zero_ablation, most=6),
        oracles_runs.fan_out_equals_alone: partial(oracles_runs.fan_out_equals_alone, most=3),
    }
    failed = [result for oracle in ORACLES if not (result := few.get(oracle, oracle)(case)).passed]
    assert not failed, failed


# --- each oracle rejects what it is there to reject ---------------------------------------------------------


def rewired(name: str, change: Callable[[Stack], Stack]) -> Case:
    """A fresh tiny model whose output stack's rows were changed."""
    adapter = architectures()[name].adapt(tiny(name))
    *others, last = adapter.wiring.stacks
    adapter.wiring = replace(adapter.wiring, stacks=(*others, change(last)))
    return example_case(Lens(adapter, f"wrong {name}"))


def with_attention(**changes: Any) -> Callable[[Stack], Stack]:
    """Change the last attention row of a stack."""

    def change(stack: Stack) -> Stack:
        last = [writer for writer in stack.writers if isinstance(writer, Attention)][-1]
        rows = tuple(replace(w, **changes) if w is last else w for w in stack.writers)
        return replace(stack, writers=rows)

    return change


SWAPPED = "(d_head head)"


@pytest.mark.parametrize("name", CHRONOS)
@pytest.mark.parametrize(
    ("oracle", "change"),
    [
        (oracles.accounting, with_attention(write=Site("layer.1"))),
        (oracles.accounting, lambda stack: replace(stack, writers=stack.writers[:-1], d_mlp=0)),
        (oracles.zero_ablation, with_attention(z_layout="batch pos (d_head head)")),
        (
            oracles_attention.head_order,
            with_attention(z_layout="batch pos (d_head head)", o=Projection("layer.1.EncDecAttention.o", SWAPPED)),
        ),
        (oracles_attention.head_order, with_attention(v=Projection("layer.1.EncDecAttention.v", SWAPPED))),
        (
            oracles_runs.fan_out_equals_alone,
            lambda stack: replace(stack, writers=(replace(stack.writers[0], keys_from="encoder"), *stack.writers[1:])),
        ),
    ],
    ids=["write-includes-stream", "writer-forgotten", "z-layout", "z-and-o-layout", "v-layout", "wrong-replay"],
)
def test_wrong_wiring_is_rejected(name: str, oracle: Callable, change: Callable[[Stack], Stack]) -> None:
    result = oracle(rewired(name, change))
    assert not result.passed, result


def each(change: Callable[[Writer], Writer]) -> Callable[[Stack], Stack]:
    """Change every row of a stack, those of exceptional layers too."""

    def changed(stack: Stack) -> Stack:
        exceptions = {layer: tuple(map(change, rows)) for layer, rows in stack.exceptions.items()}
        return replace(stack, writers=tuple(map(change, stack.writers)), exceptions=exceptions)

    return changed


def head_major_values(row: Writer) -> Writer:
    return replace(row, v=replace(row.v, layout="(part head d_head)")) if isinstance(row, Attention) else row


def heads_straight_to_the_stream(row: Writer) -> Writer:
    return replace(row, post_norm="") if isinstance(row, Attention) else row


def plain_sum(row: Writer) -> Writer:
    return replace(row, mix=None)


def mlp_reads_the_stream_itself(row: Writer) -> Writer:
    return replace(row, aside=False) if isinstance(row, Mlp) else row


def attention_reads_the_stream_itself(row: Writer) -> Writer:
    return replace(row, aside=False) if isinstance(row, Attention) else row


def groups_like_time(row: Writer) -> Writer:
    if not isinstance(row, Attention) or row.kind != "group_attn":
        return row
    own = Attention("", "", row.write, row.reads, row.q, row.k, row.v, row.o)
    write = replace(row.write, layout=row.reads.layout)
    layouts = {name: getattr(own, name) for name in ("z_layout", "qkv_layout", "pattern_layout")}
    return replace(row, write=write, **layouts)


TIMESFM = ["timesfm-2.5", "timesfm-2.5-transformers", "timesfm-3"]
ASIDE = ["moirai-1.1", "moirai-2", "timesfm-2.5", "timesfm-2.5-transformers", "timesfm-3", "toto-1", "toto-2"]


@pytest.mark.parametrize(
    ("name", "oracle", "change"),
    [
        ("toto-1", oracles_attention.head_order, head_major_values),
        *((name, oracles.accounting, heads_straight_to_the_stream) for name in TIMESFM),
        ("toto-2", oracles.accounting, plain_sum),
        *((name, oracles.patching, mlp_reads_the_stream_itself) for name in ASIDE),
        ("timesfm-3", oracles.patching, attention_reads_the_stream_itself),
        ("chronos-2", oracles.accounting, groups_like_time),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_wrong_row_is_rejected(name: str, oracle: Callable, change: Callable[[Writer], Writer]) -> None:
    case = rewired(name, each(change))
    try:
        result = oracle(case)
    except RuntimeError as error:
        # rows and positions have unequal lengths, so mixing them up may not even add up
        assert "size" in str(error)  # noqa: PT017
    else:
        assert not result.passed, result


@pytest.mark.parametrize("place", [0, 1], ids=["encoder", "decoder"])
def test_an_edit_that_reaches_the_stream_twice_is_rejected_in_every_stack(place: int) -> None:
    """A decoder of Chronos-Bolt starts from a constant, so that no other series gives it another stream."""
    adapter = architectures()["chronos-bolt"].adapt(tiny("chronos-bolt"))
    stacks = list(adapter.wiring.stacks)
    stacks[place] = each(lambda row: replace(row, aside=isinstance(row, Mlp)))(stacks[place])
    adapter.wiring = replace(adapter.wiring, stacks=tuple(stacks))
    result = oracles.patching(example_case(Lens(adapter, "edits twice")))
    assert not result.passed, result


def fresh(name: str) -> Case:
    return example_case(load(tiny(name), check=False))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_forgotten_hook_is_noticed(name: str) -> None:
    case = fresh(name)
    prefix = case.lens.wiring.output_stack.prefix
    case.lens.add_hook(f"{prefix}.0.mlp.hook_out", lambda value, hook: 0 * value)
    assert not oracles.same_forecast(case).passed
    assert not oracles_runs.leaves_no_trace(case).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_softmax_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention_capture.softmax_rows
    monkeypatch.setattr(attention_capture, "softmax_rows", lambda scores: right(scores) ** 1.01)
    case = fresh(name)
    assert not oracles.reading_changes_nothing(case).passed
    assert not oracles_attention.patterns(case).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_patch_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = interventions.rows_in_place
    wrong = lambda *args: right(*args).flip(0)  # noqa: E731
    monkeypatch.setattr("tsfm_lens.hooks.interventions.rows_in_place", wrong)
    assert not oracles.patching(fresh(name)).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_rollout_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = fresh(name)
    adapter: Any = case.lens.adapter
    if adapter.rollout == "tokens":
        right = oracles_runs._replace_embeds
        monkeypatch.setattr(oracles_runs, "_replace_embeds", lambda at, x: right(at, x.roll(1, dims=1)))
    elif adapter.rollout == "refeed":
        reverse = lambda values, **names: SeriesBatch(tuple(each[::-1] for each in values), **names)  # noqa: E731
        monkeypatch.setattr(oracles_runs, "SeriesBatch", reverse)
    elif adapter.rollout == "cache":
        joined = adapter.joined
        roll = lambda value: value.roll(1, dims=0) if isinstance(value, torch.Tensor) else value  # noqa: E731
        monkeypatch.setattr(adapter, "joined", lambda calls: tree_map(roll, joined(calls)))
    else:
        predict = adapter.predict
        monkeypatch.setattr(adapter, "predict", lambda batch, *args: predict(batch.tail(20), *args))
    assert not oracles_runs.rollout_equals_forward(case).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_variants_on_the_wrong_rows_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = edit._row_index
    monkeypatch.setattr(
        edit, "_row_index", lambda *args: None if (rows := right(*args)) is None else rows.flip(0).roll(1)
    )
    assert not oracles_runs.fan_out_equals_alone(fresh(name)).passed


def test_loading_refuses_a_model_that_is_not_as_wired() -> None:
    from tsfm_lens.errors import WiringError

    entry = architectures()["chronos"]
    model = entry.tiny()
    original = model.decoder.final_layer_norm.forward
    model.decoder.final_layer_norm.forward = lambda x: original(x) + 1e-2 * torch.sin(100 * x.sum(-1, keepdim=True))
    load(model)  # the norm itself may be anything: the lens reads it out through the same module
    model.lm_head.register_forward_hook(lambda module, args, out: out.cumsum(-1))
    load(model)
    block = model.decoder.block[0].layer[2]
    block.forward = lambda x: x + 0.5 * block.DenseReluDense(block.layer_norm(x))
    with pytest.raises(WiringError, match="3 accounting"):
        load(model)
