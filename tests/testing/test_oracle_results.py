"""What an oracle makes of its deviations: the largest of all, whatever their names."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tiny_lenses import lens_of
from tsfm_lens import load
from tsfm_lens.testing import example_case, oracles, oracles_runs
from tsfm_lens.testing.oracles import Oracle


@pytest.mark.parametrize("values", [[1.0, 0.0], [0.0, 1.0], [0.0, math.nan, 0.5]])
def test_repeated_names_hide_no_deviation(values: list[float]) -> None:
    case: Any = SimpleNamespace(lens=lens_of("chronos-bolt"))
    found = Oracle(
        lambda _case: (("the same name", value) for value in values), "0", 0.1, "", ""
    )
    assert not found(case).passed


def test_fanned_out_variants_are_told_apart() -> None:
    """The variants of each stack have names of their own."""
    case = example_case(lens_of("chronos-bolt"))
    found = oracles_runs.fan_out_equals_alone.measure(case, most=4)
    names = [name for name, _ in found]
    assert len(names) == len(set(names))
    for stack in ("encoder", "decoder"):
        for variant in ("half the pattern of", "rows of", "noise at"):
            assert any(f"{variant} {stack}" in name for name in names)


def test_head_that_does_nothing_is_no_failure() -> None:
    """A head without effect passes, and a kind whose heads all have none fails."""
    lens = load(copy.deepcopy(lens_of("chronos-bolt").adapter.model))
    case = example_case(lens)
    stack = lens.wiring.output_stack
    matrices = [
        lens.adapter.model.get_submodule(
            f"{stack.block(layer)}.{stack.writer('self_attn', layer).o.module}"
        )
        for layer in range(stack.n_layers)
    ]
    with torch.no_grad():
        matrices[0].weight[:, : stack.d_head] = 0.0
    assert oracles.zero_ablation(case).passed
    for matrix in matrices:
        torch.nn.init.zeros_(matrix.weight)
    result = oracles.zero_ablation(case)
    assert not result.passed
    assert "self_attn" in result.detail
