"""Words of other libraries are answered by ours, and what a message suggests works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.utilities import Slice

import tsfm_lens
from refusals import expect_error
from tsfm_lens import ablation, explain, probes
from tsfm_lens.core.errors import UnknownNameError, unknown_name
from tsfm_lens.core.foreign_words import ARGUMENTS, CLASSES, MEMBERS
from tsfm_lens.hooks import Zero

SERIES = [10 + np.sin(np.arange(60) / 2.0), 12 + np.cos(np.arange(60) / 3.0)]


CALLS: dict[str, Callable[..., Any]] = {
    "forecast": lambda lens, **words: lens.forecast(SERIES, 3, **words),
    "run": lambda lens, **words: lens.run(SERIES, 3, **words),
    "forward": lambda lens, **words: lens(SERIES, **words),
    "encode": lambda lens, **words: lens.encode(SERIES, **words),
    "record": lambda lens, **words: lens.run_with_cache(SERIES, **words),
    "series": lambda lens, **words: tsfm_lens.as_series(SERIES, **words),
    "load": lambda lens, **words: tsfm_lens.load("bolt-nano", **words),
    "embed": lambda lens, **words: lens.embed(SERIES, **words),
    "probe": lambda lens, **words: probes.ablation_effects(None, **words),
    "explanation": lambda lens, **words: explain.covariate_use(None, **words),
    "helper": lambda lens, **words: probes.stable_rank(None, **words),
    "measure": lambda lens, **words: lens.run(SERIES, 3).measure(
        "ablation_effects", **words
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_arguments_of_others_name_ours(call: str) -> None:
    lens = tsfm_lens.load("bolt-nano")
    for word, hint in ARGUMENTS.items():
        message = f"takes no '{word}'; {re.escape(hint)}"
        expect_error(message, CALLS[call], lens, **{word: 3})


def test_what_is_no_word_of_ours_suggests_no_other() -> None:
    lens = tsfm_lens.load("bolt-nano")
    expect_error("did you mean horizon", lens.forecast, SERIES, horizn=3)
    expect_error("it takes", lens.forecast, SERIES, 3, zzzz=3)
    expect_error("did you mean targets", tsfm_lens.as_series, SERIES, targts=["y"])


def test_members_of_others_name_ours() -> None:
    run = tsfm_lens.load("bolt-nano").run(SERIES, 3)
    activations = run.record(["**.mlp.hook_out"])
    for thing in (run, run.lens, run.forecast, activations):
        for word in MEMBERS:
            if word in dir(type(thing)):
                continue
            with pytest.raises(AttributeError, match=f"no {word!r}: .+"):
                getattr(thing, word)
        assert not hasattr(thing, "something_else")


@pytest.mark.parametrize("package", [tsfm_lens, probes, explain], ids=str)
def test_names_of_others_name_ours(package: Any) -> None:
    for word in (*CLASSES, "direct_logit_attribution"):
        with pytest.raises(AttributeError, match=f"no attribute {word!r}: .+"):
            getattr(package, word)
    assert not hasattr(package, "something_else")


KEYS = [
    ("pattern", 0, "self_attn"),
    ("pattern", 0),
    ("z", -1),
    ("resid_post", 1),
    ("out", 0, "mlp"),
    "pattern1",
    "v0",
]


@pytest.mark.parametrize("name", ["bolt-nano", "chronos2-nano"])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_suggested_keys_lead_somewhere(name: str, key: Any) -> None:
    """What a message calls an activation by is one."""
    run = tsfm_lens.load(name).run(SERIES, 3)
    activations = run.lens.run_with_cache(run.encoded)[1]
    try:
        assert activations[key].ndim
    except UnknownNameError as error:
        message = str(error)
        shorter = re.search(r"as acts\[([^\]]+)\]", message)
        if shorter is not None:
            assert activations[eval(f"({shorter[1]},)")].ndim
        named = re.findall(r"(?:\w+_)?blocks\.[\w.]*\w", message)
        assert named
        assert len(named) == len(set(named))
        assert all(activations[suggestion].ndim for suggestion in named)


def test_suggestions_are_unique() -> None:
    message = str(unknown_name("head", "ab", ["abc", "abc", "abd"]))
    assert message.count("abc") == 1


@pytest.mark.parametrize("rows", [Slice(0), Slice((0, 1)), Slice([0, 1])], ids=str)
def test_slices_choose_rows_of_a_variant(rows: Slice) -> None:
    run = tsfm_lens.load("bolt-nano").run(SERIES, 3)

    def output(which: Any) -> torch.Tensor:
        variant = ablation.Variant("x", (Zero("decoder.1.mlp", rows=which),))
        return ablation.run_variants(run.lens, run.encoded, [variant])

    plain = rows.slice
    assert torch.equal(output(rows), output(plain))


def test_rows_of_a_stack_are_refused_in_words() -> None:
    run = tsfm_lens.load("bolt-nano").run(SERIES, 3)
    activations = run.lens.run_with_cache(run.encoded)[1]
    stack = activations.accumulated_resid()
    expect_error(
        r"takes no 'batch_slice'.*run.select\(ids\)",
        activations.apply_ln_to_stack,
        stack,
        batch_slice=Slice(0),
    )
