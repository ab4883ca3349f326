"""Files of a figure are written together or not at all, and every reported value is one
of a measurement.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.core.errors import RenderError
from tsfm_lens.core.registry import measurements
from tsfm_lens.data import bundled
from tsfm_lens.report import figures as room
from tsfm_lens.report.figures import make_figure, write_figure
from tsfm_lens.studies.papers.items import ITEMS


def test_failed_figures_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = bundled("co2", "sunspots").tail(40)
    run = lens_of("chronos-bolt").run(series, 6, holdout=True)
    made = make_figure("entropic_rank_rank", run)
    new = tmp_path / "new"
    expect_error(r"format 'jpg'.*png", write_figure, made, new, formats=["json", "jpg"])
    wide = go.Figure(made.figure).update_layout(meta={"min_width": 900})
    too_wide = replace(made, figure=wide)
    options = {"formats": ["html", "svg"], "column": "single"}
    expect_error("not 89", write_figure, too_wide, new, **options)

    def fail_late(figure: object, kind: str, **options: object) -> bytes:
        if kind == "svg":
            raise RenderError("no browser")
        return b"html"

    monkeypatch.setattr(room, "rendered", fail_late)
    with pytest.raises(RenderError):
        write_figure(made, new, formats=["html", "svg"])
    assert not new.exists()


def test_every_reported_value_was_measured() -> None:
    named = {
        name for measurement in measurements().values() for name in measurement.paper
    }
    # sizes of models follow from counts alone, as do checks of definitions, theorems
    # and printed tables
    checks = {"S3-SYS", *(item.id for item in ITEMS if item.theory or item.why)}
    assert {item.id for item in ITEMS} - checks <= named <= {item.id for item in ITEMS}
