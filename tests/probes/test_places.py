"""Groups of token positions on hand-made spans."""

from __future__ import annotations

import numpy as np

from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.probes.places import group_coords, position_groups


def test_positions_are_grouped_from_the_newest() -> None:
    spans = TokenSpans.patches(-20, 5, 4, ("REG",)) + TokenSpans((0, 8), (8, 16), ("", ""))
    assert position_groups(spans, "all") == [list(range(8))]
    assert position_groups(spans, "each") == [[token] for token in range(8)]
    assert position_groups(spans, np.int64(3)) == [[0], [1, 2, 3], [4, 6, 7], [5]]
    found = group_coords(spans, position_groups(spans, 3))
    assert found["position"] == [0, 1, 4, 5]
    assert found["position_start"][1] == [-20, -16, -4, 0]
    assert found["position_stop"][1] == [-16, -4, 16, 0]
    assert found["position_special"][1] == ["", "", "", "REG"]
    two = TokenSpans((-8, -4, -8, -4), (-4, 0, -4, 0), ("",) * 4, (0, 0, 1, 1))
    assert position_groups(two, 3) == [[0, 1], [2, 3]]
    assert group_coords(two, [[0, 1], [2, 3]])["position_variate"][1] == [0, 1]
