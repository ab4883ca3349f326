"""No wrong table of the channel-wise transformer passes: mutants are rejected, or give what the right table gives."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models import Lens
from tsfm_lens.models.wirings._random import spread_weights
from tsfm_lens.studies.samformer import ChannelTransformer
from tsfm_lens.testing import ORACLES, Case, example_case
from wrong_tables import behaviour, mutants, verdict

KINDS: dict[str, dict[str, Any]] = {"channels": {"channels": 3}, "time": {"channels": 5, "attention": "time"}}
EACH = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def drawn(**options: Any) -> ChannelTransformer:
    model = spread_weights(ChannelTransformer(24, 7, width=4, normalise=True, bias=True, **options), {})
    with torch.no_grad():
        for weight in model.embed.parameters():
            weight += 0.3
    return model


def verdicts(options: dict[str, Any], every: int) -> dict[str, str]:
    """What became of every so-manieth mutant: "refused", "rejected by …", "equivalent", or "survives: …"."""
    model = drawn(**options)
    right = tuple(behaviour(example_case(Lens(model.lens_adapter(), "right"))))

    def case_of(wiring: Wiring) -> Case:
        adapter = model.lens_adapter()
        adapter.wiring = wiring
        return example_case(Lens(adapter, "wrong"))

    wrong = list(mutants(model, model.lens_adapter().wiring))
    assert len(wrong) >= 30, len(wrong)
    return {what: verdict(partial(case_of, wiring), right, (*ORACLES, None)) for what, wiring in wrong[::every]}


@EACH
def test_some_mutants_are_rejected_or_equivalent(options: dict[str, Any]) -> None:
    found = verdicts(options, every=24)
    assert not {what: said for what, said in found.items() if said.startswith("survives")}


@pytest.mark.campaign
@EACH
def test_every_mutant_is_rejected_or_equivalent(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    limit = os.environ.get("TSFM_LENS_CASES")
    found = verdicts(options, every=max(1, 60 // int(limit)) if limit else 1)
    counts = Counter(said.split(":")[0] for said in found.values())
    with capsys.disabled():
        print(f"\n{len(found)} mutants, {dict(counts)}")  # noqa: T201
    assert not {what: said for what, said in found.items() if said.startswith("survives")}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_heads": 0}, "n_heads=0, expected at least 1"),
        ({"d_mlp": 8}, "d_mlp=8, but no branch is an MLP"),
        ({"writers": ()}, "blocks.0 has no branch that writes"),
    ],
)
def test_sizes_that_no_model_has_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    adapter = drawn(channels=3).lens_adapter()
    adapter.wiring = replace(adapter.wiring, stacks=(replace(adapter.wiring.stacks[0], **changes),))
    with pytest.raises(WiringError, match=says):
        Lens(adapter, "wrong")
