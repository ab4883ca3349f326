"""What a model has of what measurements ask for is the same before and after it is
open.
"""

from __future__ import annotations

import pytest

from tiny_lenses import NAMES, lens_of
from tsfm_lens import load
from tsfm_lens.core.needs import TABLE_TRAITS
from tsfm_lens.models import architectures

# a checkpoint has it or not, whatever its architecture
RECORD = {"training_record"}


@pytest.mark.parametrize("name", NAMES)
def test_architectures_share_their_models_traits(name: str) -> None:
    """An architecture has the traits of its opened models."""
    entry = architectures()[name]
    opened = lens_of(name).traits
    assert opened <= entry.traits
    # one that does not say what its tables give is refused nothing before it is open
    if entry.table_traits != TABLE_TRAITS:
        assert opened == entry.traits - RECORD


def test_reference_checkpoints_record_their_training() -> None:
    assert load("bolt-nano", check=False).traits >= RECORD
    assert not RECORD & lens_of("chronos-bolt").traits
