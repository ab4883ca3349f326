"""What the studies register with the core: measurements, figures, commands."""

from __future__ import annotations

import pytest

from tsfm_lens.errors import InputError
from tsfm_lens.registry import measurements
from tsfm_lens.report.pipeline import checked_chapters
from tsfm_lens.studies.papers.items import ITEMS


def test_every_reported_value_is_one_of_a_measurement() -> None:
    named = {name for each in measurements().values() for name in each.paper}
    # sizes of models follow from counts alone, as do statements on printed tables
    formulas = {item.id for item in ITEMS if item.theory and item.id.startswith(("S1", "S2"))}
    assert named == {item.id for item in ITEMS} - {"S3-SYS", *formulas}


def test_a_result_of_no_model_is_no_chapter() -> None:
    with pytest.raises(InputError, match="made of no model"):
        checked_chapters(["theory_sketching"])
