"""The ten oracles on every architecture, at tiny size here and at published sizes with
`make conformance`.
"""

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

from tiny_lenses import ATTENDING, NAMES, archetypes, tiny
from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import as_series
from tsfm_lens.hooks import attention_capture, edit, interventions
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Writer
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import (
    ORACLES,
    Case,
    example_case,
    oracles,
    oracles_attention,
    oracles_runs,
    published,
)

tiny_case = cache(lambda name: example_case(load(tiny(name))))


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_oracle_holds(name: str, oracle: Callable) -> None:
    result = oracle(tiny_case(name))
    assert result.passed, result


@cache
def case_with_covariates(name: str) -> Case:
    """Two items of unequal length, each with a past and a known covariate."""
    rng = np.random.default_rng(2)
    items = []
    for position, steps in enumerate((40, 32)):
        known = rng.normal(size=steps + 30)
        past = {"past": rng.normal(size=steps), "known": known[:steps]}
        target = 10 * position + known[:steps] + np.sin(np.arange(steps) / 3)
        items.append(
            {
                "target": target,
                "past_covariates": past,
                "future_covariates": {"known": known[steps:]},
            }
        )
    return Case(load(tiny(name), check=False), as_series(items), horizon=6)


# both Moirai give nothing for covariates, whose rows an oracle would compare
@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
@pytest.mark.parametrize("name", ["chronos-2", "timesfm-3", "timestral"])
def test_oracle_holds_with_covariates(name: str, oracle: Callable) -> None:
    result = oracle(case_with_covariates(name))
    assert result.passed, result


# building, saving and reading back take more than 24 GB
TOO_LARGE = {("toto-2", "2.5B")}
PUBLISHED = [
    (name, size)
    for name in NAMES
    for size in architectures()[name].published
    if (name, size) not in TOO_LARGE
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
    if not architecture.importable:
        pytest.skip(f"the extra {architecture.extra} is not installed")
    native = published(name, size)
    architecture.write(native, tmp_path)
    del native
    gc.collect()
    case = example_case(load(tmp_path), n_series=1)
    few = {
        oracles.zero_ablation: partial(oracles.zero_ablation, most=6),
        oracles_runs.fan_out_equals_alone: partial(
            oracles_runs.fan_out_equals_alone, most=3
        ),
    }
    failed = [
        result
        for oracle in ORACLES
        if not (result := few.get(oracle, oracle)(case)).passed
    ]
    assert not failed, failed


# --- each oracle rejects what it is there to reject
# ---------------------------------------------------------


def rewired(name: str, change: Callable[[Writer], Writer], stack: int = -1) -> Case:
    """A fresh tiny model every row of whose stack was changed, those of exceptional
    layers too.
    """
    adapter = architectures()[name].adapt(tiny(name))
    stacks = list(adapter.wiring.stacks)
    exceptions = {
        layer: tuple(map(change, rows))
        for layer, rows in stacks[stack].exceptions.items()
    }
    writers = tuple(map(change, stacks[stack].writers))
    stacks[stack] = replace(stacks[stack], writers=writers, exceptions=exceptions)
    adapter.wiring = replace(adapter.wiring, stacks=tuple(stacks))
    return example_case(Lens(adapter, f"wrong {name}"))


def with_fields(kind: str, **fields: Any) -> Callable[[Writer], Writer]:
    """Change the rows of one kind, or of "attention"."""
    return lambda row: (
        replace(row, **fields)
        if kind in (row.kind, type(row).__name__.lower())
        else row
    )


def head_major_values(row: Writer) -> Writer:
    if isinstance(row, Attention):
        return replace(row, v=replace(row.v, layout="(part head d_head)"))
    return row


def groups_like_time(row: Writer) -> Writer:
    if not isinstance(row, Attention) or row.kind != "group_attn":
        return row
    plain = Attention("", "", row.write, row.reads, row.q, row.k, row.v, row.o)
    write = replace(row.write, layout=row.reads.layout)
    layouts = {
        name: getattr(plain, name)
        for name in ("z_layout", "qkv_layout", "pattern_layout")
    }
    return replace(row, write=write, **layouts)


# two stacks, cross-attention, plain sums
CHRONOS = ("chronos", "chronos-bolt")
TIMESFM = ("timesfm-2.5", "timesfm-2.5-transformers", "timesfm-3")
ASIDE = ("moirai-1.1", "moirai-2", *TIMESFM, "toto-1", "toto-2")
SWAPPED = "(d_head head)"
MIXED = {"z_layout": "batch pos (d_head head)"}
OUT, V = (Projection(f"layer.1.EncDecAttention.{letter}", SWAPPED) for letter in "ov")
HEADS = oracles_attention.head_order
WRONG: list[tuple[tuple[str, ...], str, Callable, Callable[[Writer], Writer]]] = [
    (
        CHRONOS,
        "write includes the stream",
        oracles.accounting,
        with_fields("cross_attn", write=Site("layer.1")),
    ),
    (CHRONOS, "z layout", oracles.zero_ablation, with_fields("cross_attn", **MIXED)),
    (CHRONOS, "z and o layout", HEADS, with_fields("cross_attn", **MIXED, o=OUT)),
    (CHRONOS, "v layout", HEADS, with_fields("cross_attn", v=V)),
    (
        CHRONOS,
        "replay",
        oracles_runs.fan_out_equals_alone,
        with_fields("self_attn", keys_from="encoder"),
    ),
    (("toto-1",), "head-major values", HEADS, head_major_values),
    (
        TIMESFM,
        "no norm after heads",
        oracles.accounting,
        with_fields("attention", post_norm=""),
    ),
    (("toto-2",), "plain sum", oracles.accounting, lambda row: replace(row, mix=None)),
    (
        ASIDE,
        "MLP reads the stream itself",
        oracles.patching,
        with_fields("mlp", aside=False),
    ),
    (
        ("timesfm-3",),
        "attention reads the stream itself",
        oracles.patching,
        with_fields("attention", aside=False),
    ),
    (("chronos-2",), "groups like time", oracles.accounting, groups_like_time),
]
CASES = [
    (name, what, oracle, change)
    for names, what, oracle, change in WRONG
    for name in names
]


@pytest.mark.parametrize(
    ("name", "what", "oracle", "change"),
    CASES,
    ids=[f"{case[0]}-{case[1]}" for case in CASES],
)
def test_a_wrong_row_is_rejected(
    name: str, what: str, oracle: Callable, change: Callable[[Writer], Writer]
) -> None:
    case = rewired(name, change)
    try:
        result = oracle(case)
    except RuntimeError as error:
        # rows and positions have unequal lengths, so mixing them up may not even add up
        assert "size" in str(error)  # noqa: PT017
    else:
        assert not result.passed, result


@pytest.mark.parametrize("stack", [0, 1], ids=["encoder", "decoder"])
def test_edits_added_twice_are_rejected(
    stack: int,
) -> None:
    """A decoder of Chronos-Bolt starts from a constant, so that no other series gives
    it another stream.
    """
    case = rewired(
        "chronos-bolt", lambda row: replace(row, aside=isinstance(row, Mlp)), stack
    )
    assert not oracles.patching(case).passed


def fresh(name: str) -> Case:
    return example_case(load(tiny(name), check=False))


def wrong_softmax(right: Callable) -> Callable:
    return lambda scores: right(scores) ** 1.01


def wrong_patch(right: Callable) -> Callable:
    return lambda *args: right(*args).flip(0)


def wrong_rows(right: Callable) -> Callable:
    def wrong(rows: Any, count: int, *rest: Any) -> Any:
        found = right(rows, count, *rest)
        if found is None:
            return None
        if isinstance(found, slice):
            found = torch.arange(count)[found]
        return found.flip(0).roll(1)

    return wrong


FAULTS = [
    (
        attention_capture,
        "softmax_rows",
        wrong_softmax,
        (oracles.reading_changes_nothing, oracles_attention.patterns),
    ),
    (interventions, "match_rows", wrong_patch, (oracles.patching,)),
    (edit, "_row_index", wrong_rows, (oracles_runs.fan_out_equals_alone,)),
]


@pytest.mark.parametrize(
    ("module", "function", "wrong", "rejecting"),
    FAULTS,
    ids=[fault[1] for fault in FAULTS],
)
@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_faulty_hooks_are_noticed(
    name: str,
    module: Any,
    function: str,
    wrong: Callable,
    rejecting: tuple,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, function, wrong(getattr(module, function)))
    case = fresh(name)
    assert not any(oracle(case).passed for oracle in rejecting)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_a_forgotten_hook_is_noticed(name: str) -> None:
    case = fresh(name)
    case.lens.add_hook(
        f"{case.lens.wiring.output_stack.prefix}.0.mlp.hook_out",
        lambda value, hook: 0 * value,
    )
    assert not oracles.same_forecast(case).passed
    assert not oracles_runs.leaves_no_trace(case).passed


# by tokens, by feeding forecasts back, from one pass; of a cache, and with gaps
@pytest.mark.parametrize("name", archetypes(NAMES, "toto-1", "tirex"))
def test_a_wrong_rollout_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = fresh(name)
    adapter: Any = case.lens.adapter
    if adapter.rollout == "tokens":
        put = case.lens.hooks
        late = lambda value, hook: value.roll(1, dims=1)  # noqa: E731
        monkeypatch.setattr(
            case.lens,
            "hooks",
            lambda hooks: put([*hooks, *((at, late) for at, _ in hooks)]),
        )
    elif adapter.feeds_gaps:
        monkeypatch.setattr(adapter, "feeds_gaps", False)
    elif adapter.rollout == "refeed":
        forecast = case.lens.forecast
        monkeypatch.setattr(
            case.lens,
            "forecast",
            lambda batch, *args, **how: forecast(batch.tail(20), *args, **how),
        )
    elif adapter.rollout == "cache":
        joined = adapter.joined

        def roll(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.roll(1, dims=0)
            return value

        monkeypatch.setattr(
            adapter, "joined", lambda calls: tree_map(roll, joined(calls))
        )
    else:
        predict = adapter.predict
        monkeypatch.setattr(
            adapter, "predict", lambda batch, *args: predict(batch.tail(20), *args)
        )
    assert not oracles_runs.rollout_equals_forward(case).passed


def test_loading_refuses_wrongly_wired_models() -> None:
    """Loading refuses a model that is not as its wiring says."""
    model = tiny("chronos")
    original = model.decoder.final_layer_norm.forward
    model.decoder.final_layer_norm.forward = lambda x: (
        original(x) + 1e-2 * torch.sin(100 * x.sum(-1, keepdim=True))
    )
    load(
        model
    )  # the norm itself may be anything: the lens reads it out through the same module
    model.lm_head.register_forward_hook(lambda module, args, out: out.cumsum(-1))
    load(model)
    block = model.decoder.block[0].layer[2]
    block.forward = lambda x: x + 0.5 * block.DenseReluDense(block.layer_norm(x))
    with pytest.raises(WiringError, match="3 accounting"):
        load(model)
