"""The ten oracles on every architecture, at tiny size here and at published sizes with `make conformance`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tsfm_lens.hooks import edit, reference, tap
from tsfm_lens.hooks.wiring import Attention, Projection, Site, Stack
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import ORACLES, Case, example_case, oracles, oracles_attention, oracles_runs

ARCHITECTURES = sorted(architectures())


@cache
def tiny_case(name: str) -> Case:
    return example_case(load(architectures()[name].tiny()))


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_oracle_holds(name: str, oracle: Callable) -> None:
    result = oracle(tiny_case(name))
    assert result.passed, result


PUBLISHED = [(name, size) for name in ARCHITECTURES for size in architectures()[name].published]


@pytest.mark.published
@pytest.mark.parametrize(("name", "size"), PUBLISHED, ids=lambda value: str(value))
def test_oracles_hold_at_published_size(name: str, size: str, tmp_path: Path) -> None:
    """Random weights, saved and read back by the model's real loader."""
    architecture = architectures()[name]
    native = architecture.build(size)
    native.save_pretrained(tmp_path) if architecture.save is None else architecture.save(native, tmp_path)
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
    adapter = architectures()[name].adapt(architectures()[name].tiny())
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


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    ("oracle", "change"),
    [
        (oracles.accounting, with_attention(write=Site("layer.1"))),
        (oracles.accounting, lambda stack: replace(stack, writers=stack.writers[:-1])),
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


def fresh(name: str) -> Case:
    return example_case(load(architectures()[name].tiny(), check=False))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_forgotten_hook_is_noticed(name: str) -> None:
    case = fresh(name)
    case.lens.add_hook("decoder_blocks.0.mlp.hook_out", lambda value, hook: 0 * value)
    assert not oracles.same_forecast(case).passed
    assert not oracles_runs.leaves_no_trace(case).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_softmax_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tap.softmax_rows
    monkeypatch.setattr(tap, "softmax_rows", lambda scores: 0.999 * right(scores))
    case = fresh(name)
    assert not oracles.reading_changes_nothing(case).passed
    assert not oracles_attention.patterns(case).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_patch_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.source_rows
    wrong = lambda *args: right(*args).flip(0)  # noqa: E731
    monkeypatch.setattr("tsfm_lens.hooks.interventions.source_rows", wrong)
    assert not oracles.patching(fresh(name)).passed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_rollout_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = fresh(name)
    if case.lens.adapter.readout == "token":
        right = oracles_runs._replace_embeds
        monkeypatch.setattr(oracles_runs, "_replace_embeds", lambda at, x: right(at, x.roll(1, dims=1)))
    else:
        right_batch = oracles_runs.as_series
        monkeypatch.setattr(oracles_runs, "as_series", lambda series: right_batch(series[::-1]))
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
