"""What a model has of what measurements ask for is the same before and after it is open."""

from __future__ import annotations

import pytest

from tiny_lenses import NAMES, lens_of
from tsfm_lens import load
from tsfm_lens.core.needs import NEEDS, Needs
from tsfm_lens.core.registry import measurements
from tsfm_lens.hooks.wiring import TABLE_TRAITS
from tsfm_lens.models import architectures
from tsfm_lens.models.architecture import models_meeting

# a checkpoint has it or not, whatever its architecture
RECORD = {"training_record"}


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_has_the_traits_of_its_opened_models(name: str) -> None:
    entry, opened = architectures()[name], lens_of(name).traits
    assert opened <= entry.traits
    # one that does not say what its tables give is refused nothing before it is open
    if entry.table_traits != TABLE_TRAITS:
        assert opened == entry.traits - RECORD


def test_every_trait_that_is_needed_is_one_of_some_model_and_not_of_all() -> None:
    used = {entry.needs for entry in measurements().values() if entry.needs}
    for each in [NEEDS[name] for name in used]:
        if each.traits != RECORD:
            meeting = [entry for entry in architectures().values() if each.met(entry)]
            assert 0 < len(meeting) < len(NAMES), each.words


def test_a_reference_checkpoint_has_a_record_of_its_training() -> None:
    assert load("bolt-nano", check=False).traits >= RECORD
    assert not RECORD & lens_of("chronos-bolt").traits


def test_models_are_named_by_those_that_have_a_trait_or_by_the_fewer_that_have_not() -> (
    None
):
    assert models_meeting(NEEDS["sequences"]) == architectures()["chronos"].title
    assert models_meeting(NEEDS["series"]) == f"all but {architectures()['t5'].title}"
    assert models_meeting(Needs("nothing", frozenset())) == "every model"
    assert models_meeting(NEEDS["training_record"]) == "reference checkpoints"
