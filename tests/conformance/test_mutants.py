"""No wrong table passes: mutants of every wiring are rejected, or shown to give what
the right table gives.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache, partial

import pytest

from tiny_lenses import NAMES, archetypes, tiny
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models import Lens, architectures
from tsfm_lens.testing import (
    ORACLES,
    Case,
    example_case,
    oracles,
    oracles_attention,
    oracles_ends,
)
from tsfm_lens.testing.oracles_weights import activation, weights
from wrong_tables import Shown, behaviour, find_field, mutants, verdict

# those that reject most, and cost least, first
FIRST = (
    oracles.accounting,
    weights,
    activation,
    oracles_attention.patterns,
    oracles_ends.ends,
    oracles.patching,
    oracles_attention.head_order,
)
REST = (
    oracles_ends.gradients,
    oracles_ends.rows_are_series,
    *(
        oracle
        for oracle in ORACLES
        if oracle not in (*FIRST, oracles_ends.gradients, oracles_ends.rows_are_series)
    ),
)


native = cache(tiny)


def build_case(name: str, wiring: Wiring | None = None) -> Case:
    """The tiny model through its own table, or through another."""
    adapter = architectures()[name].adapt(native(name))
    if wiring is not None:
        adapter.wiring = wiring
    return example_case(Lens(adapter, name))


@cache
def right(name: str) -> tuple[Shown, ...]:
    return tuple(behaviour(build_case(name)))


def checked(name: str, count: int | None) -> dict[str, str]:
    """What became of so many mutants, of every field one before of any field two; of
    all of them if None.
    """
    model = architectures()[name].adapt(native(name))
    every = list(mutants(model.model, model.wiring))
    assert len(every) >= 40, len(every)
    counts: Counter[str] = Counter()
    ranked = []
    for position, (what, wiring) in enumerate(every):
        ranked.append((counts[find_field(what)], position, what, wiring))
        counts[find_field(what)] += 1
    ranked.sort(key=lambda entry: entry[:2])
    if count is None:
        step = 1
    else:
        step = max(1, len(counts) // count)
    return {
        what: verdict(
            partial(build_case, name, wiring), right(name), (*FIRST, None, *REST)
        )
        for *_, what, wiring in ranked[::step][:count]
    }


@pytest.mark.parametrize(
    "name", archetypes(["moirai-2", "timesfm-2.5", "timestral", "toto-1"], "moirai-2")
)
def test_some_mutants_are_rejected_or_equivalent(name: str) -> None:
    assert not {
        what: messages
        for what, messages in checked(name, 5).items()
        if messages.startswith("survives")
    }


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_is_rejected_or_equivalent(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = os.environ.get("TSFM_LENS_CASES")
    found = checked(name, int(limit) if limit else None)
    counts = Counter(messages.split(":")[0] for messages in found.values())
    with capsys.disabled():
        print(f"\n{name}: {len(found)} mutants, {dict(counts)}")  # noqa: T201
        for what, messages in found.items():
            if messages.startswith(("survives", "equivalent")):
                print(f"    {what}: {messages}")  # noqa: T201
    assert not {
        what: messages
        for what, messages in found.items()
        if messages.startswith("survives")
    }
