"""The notebook that explains a forecast: what it says can be held against what must be
so.
"""

from __future__ import annotations

import re

from executing import EXAMPLES, executed, figures, printed


def test_explained_moves_sum_and_routes_hold() -> None:
    """Exact Shapley values sum to the whole, and a covariate has no way to its target
    but attention over series.
    """
    notebook = executed(EXAMPLES / "10-what-moved-my-forecast.ipynb")
    text = printed(notebook)
    (missed,) = re.findall(r"the parts miss the whole by (\S+) at most", text)
    assert float(missed) < 1e-6
    assert "of the weekend's effect 0 % needs no attention" in text
    assert "group_attn" in re.findall(r"4\. (\S+) carries", text)[0]
    (bounds,) = re.findall(
        r"without the weekend is (\S+) MASE larger \((\S+) to (\S+)\)", text
    )
    larger, low, high = map(float, bounds)
    assert low < larger < high
    assert larger > 0
    assert "all tests pass" in text
    assert figures(notebook) == 6
