"""What an explanation says: one reference everywhere, shares that read sensibly, one
kind of minus sign.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tsfm_lens import explain
from tsfm_lens.models import Lens, Run

ASKED = {
    "input_attribution": lambda run: explain.input_attribution(run, parts=3),
    "deletion_curves": lambda run: explain.deletion_curves(
        run=run, explanations={"mine": [1, 2]}, parts=2, orders=4
    ),
    "input_routes": lambda run: explain.input_routes(
        run, parts=2, components=["decoder.0.mlp"]
    ),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_repeated_warnings_appear_once(
    bolt: Lens, asked: Callable[[Run], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a library says of each masked batch is said once; nothing else is hidden."""
    run = bolt.run(10 + np.sin(np.arange(96) / 4), bolt.longest_pass + 1)
    monkeypatch.setattr("tsfm_lens.explain.values._NUMBERS", 2**10)
    native = type(bolt).forecast
    calls = list[int]()

    def forecast(*args: Any, **options: Any) -> Any:
        calls.append(1)
        warnings.warn(f"word {len(calls)}", UserWarning, stacklevel=1)
        return native(*args, **options)

    monkeypatch.setattr(type(bolt), "forecast", forecast)
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        asked(run)
    messages = [str(entry.message) for entry in log]
    assert sum("prediction length" in text for text in messages) == 1
    assert [text for text in messages if text.startswith("word")] == [
        f"word {n + 1}" for n in range(len(calls))
    ]
