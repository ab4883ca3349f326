"""What a model has of what measurements ask for is the same before and after it is
open.
"""

from __future__ import annotations

import pytest

from tiny_lenses import NAMES, lens_of
from tsfm_lens import load
from tsfm_lens.hooks.wiring import TABLE_TRAITS
from tsfm_lens.models import architectures

# a checkpoint has it or not, whatever its architecture
RECORD = {"training_record"}


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_has_the_traits_of_its_opened_models(name: str) -> None:
    entry = architectures()[name]
    opened = lens_of(name).traits
    assert opened <= entry.traits
    # one that does not say what its tables give is refused nothing before it is open
    if entry.table_traits != TABLE_TRAITS:
        assert opened == entry.traits - RECORD


def test_a_reference_checkpoint_has_a_record_of_its_training() -> None:
    assert load("bolt-nano", check=False).traits >= RECORD
    assert not RECORD & lens_of("chronos-bolt").traits
