"""Reports of planted results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import xarray as xr

import planted
from tsfm_lens.core.registry import FigurePanel
from tsfm_lens.report import build_report
from tsfm_lens.report.build import draw_results, render_page

EVIL = '<script>window.hacked=1</script>"\'&<img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="session")
def swept() -> dict[str, pd.DataFrame]:
    """Results of a small sweep; to be copied before they are changed."""
    return planted.sweep(layers=(4, 3), heads=(3, 2))


@pytest.fixture(scope="session")
def panels(swept: dict[str, pd.DataFrame]) -> dict[str, list[FigurePanel]]:
    """What is drawn of each planted result."""
    return draw_results(planted.in_report() | swept)


@pytest.fixture(scope="session")
def counts(panels: dict[str, list[FigurePanel]]) -> dict[str, int]:
    """How many figures the chapter of each planted result has.

    The linked view is the chapter of the states of heads.
    """
    return {name: len(drawn) for name, drawn in panels.items()} | {"head_states": 0}


@pytest.fixture
def results(swept: dict[str, pd.DataFrame]) -> dict[str, xr.Dataset | pd.DataFrame]:
    return planted.in_report() | {name: table.copy() for name, table in swept.items()}


@pytest.fixture(scope="session")
def whole(tmp_path_factory, swept, panels) -> Path:
    """The report of everything, of what is drawn already."""
    path = tmp_path_factory.mktemp("whole") / "index.html"
    provenance = {"model": "toy", "hash": "x" * 200}
    results = planted.in_report() | swept
    path.write_bytes(render_page(results, panels, title="T", provenance=provenance))
    return path


@pytest.fixture(scope="session")
def evil_whole(tmp_path_factory, evil_swept) -> Path:
    """The report with markup in every string a user can set."""
    return build_report(
        evil_everything() | evil_swept,
        tmp_path_factory.mktemp("evil"),
        title=EVIL,
        provenance={EVIL: EVIL},
        remarks={"gain": EVIL},
    )


@pytest.fixture(scope="session")
def evil_swept() -> dict[str, pd.DataFrame]:
    """The same of a sweep."""
    found = planted.sweep(
        (EVIL, "b</script>"), layers=(4, 3), heads=(3, 2), name=lambda i: f"{EVIL} {i}"
    )
    for table in found.values():
        table.attrs["sweep"] = EVIL
    return found


def evil_everything() -> dict[str, xr.Dataset]:
    """The same with markup in every string a user can set."""
    found = planted.in_report((EVIL, "b</script>", "c%{x}"))
    for ds in found.values():
        ds.attrs["model"] = EVIL
        ds.attrs["remark"] = EVIL
        if "units" in ds.coords:
            ds.coords["units"] = ("series", [EVIL] * ds.sizes["series"])
    return found


@pytest.fixture
def evil() -> str:
    return EVIL
