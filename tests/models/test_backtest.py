"""The recipe of a backtest, with covariates."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tsfm_lens

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "backtest.md"


@pytest.mark.parametrize("role", ["known", "past"])
def test_backtest_scores_targets_alone(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With covariates, the page's errors are of targets, and of what was held out."""
    page = PAGE.read_text()
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "errors" in block
    )
    rng = np.random.default_rng(3)
    tables = [
        pd.DataFrame(
            {
                "id": name,
                "ds": pd.date_range("2024-01-01", periods=200, freq="h"),
                "y": level + rng.normal(size=200),
                "heat": rng.normal(size=200),
            }
        )
        for name, level in (("a", 10.0), ("b", 1000.0))
    ]
    columns = {"targets": ["y"], role: ["heat"]}
    series = tsfm_lens.as_series(pd.concat(tables), **columns)
    run = tsfm_lens.load("chronos2-nano").run(series, 24, windows=3, holdout=True)
    names = {"run": run, "np": np, "pd": pd}
    exec(code, names)
    errors = names["errors"]
    assert len(errors) == 6
    assert all("/y" in name for name in errors.index)
    assert f"of {len(errors)} days" in capsys.readouterr().out
    truth = tables[1]["y"].to_numpy()
    expected = abs(truth[-48:-24] - truth[-24:]).mean()
    assert errors["last day"]["b/y"] == pytest.approx(expected)
