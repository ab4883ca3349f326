"""No wrong table passes: mutants of every wiring are rejected, or shown to give what the right table gives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models import Lens, architectures
from tsfm_lens.models.extras import status
from tsfm_lens.testing import ORACLES, check_lens, example_case, oracles, oracles_attention, oracles_ends
from tsfm_lens.testing.equivalence import Shown, behaviour, difference
from tsfm_lens.testing.mutants import field_of, mutants
from tsfm_lens.testing.oracles_weights import activation, weights

ARCHITECTURES = sorted(architectures())
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
    *(oracle for oracle in ORACLES if oracle not in (*FIRST, oracles_ends.gradients, oracles_ends.rows_are_series)),
)


@cache
def native(name: str) -> Any:
    entry = architectures()[name]
    if entry.extra and not status()[entry.extra].importable:
        pytest.skip(f"the extra {entry.extra} is not installed")
    return entry.tiny()


def lens_of(name: str, wiring: Wiring | None = None) -> Lens:
    """The tiny model through its own table, or through another."""
    adapter = architectures()[name].adapt(native(name))
    if wiring is not None:
        adapter.wiring = wiring
    return Lens(adapter, name)


@cache
def right(name: str) -> tuple[Shown, ...]:
    return tuple(behaviour(example_case(lens_of(name))))


def verdict(name: str, wiring: Wiring) -> str:
    """ "refused", "rejected by …", "equivalent", or "survives: …"."""
    try:
        case = example_case(lens_of(name, wiring))
    except WiringError:
        return "refused"
    apart = ""
    for oracle in (*FIRST, None, *REST):
        if oracle is not None:
            (result,) = check_lens(case.lens, case, (oracle,))
            if not result.passed:
                return f"rejected by {result.oracle}"
        else:
            apart = difference(case, right(name))
            if not apart:
                return "equivalent"
    return f"survives: {apart}"


def chosen(name: str, count: int | None) -> Iterator[tuple[str, Wiring]]:
    """So many mutants, of every field one before of any field two; all of them if None."""
    model = architectures()[name].adapt(native(name))
    every = list(mutants(model.model, model.wiring))
    assert len(every) >= 40, len(every)
    seen: Counter[str] = Counter()
    ranked = []
    for place, (what, wiring) in enumerate(every):
        ranked.append((seen[field_of(what)], place, what, wiring))
        seen[field_of(what)] += 1
    ranked.sort(key=lambda entry: entry[:2])
    step = 1 if count is None else max(1, len(seen) // count)
    yield from ((what, wiring) for *_, what, wiring in ranked[::step][:count])


@pytest.mark.parametrize("name", ["moirai-2", "timesfm-2.5", "toto-1"])
def test_some_mutants_are_rejected_or_equivalent(name: str) -> None:
    found = {what: verdict(name, wiring) for what, wiring in chosen(name, 5)}
    assert not {what: said for what, said in found.items() if said.startswith("survives")}


@pytest.mark.campaign
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_mutant_is_rejected_or_equivalent(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    limit = os.environ.get("TSFM_LENS_CASES")
    found = {what: verdict(name, wiring) for what, wiring in chosen(name, int(limit) if limit else None)}
    counts = Counter(said.split(":")[0] for said in found.values())
    with capsys.disabled():
        print(f"\n{name}: {len(found)} mutants, {dict(counts)}")  # noqa: T201
        for what, said in found.items():
            if said.startswith(("survives", "equivalent")):
                print(f"    {what}: {said}")  # noqa: T201
    assert not {what: said for what, said in found.items() if said.startswith("survives")}
