"""Reports of planted results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import xarray as xr

import planted
from tsfm_lens.report import build_report
from tsfm_lens.report.build import draw_results

EVIL = '<script>window.hacked=1</script>"\'&<img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="session")
def swept() -> dict[str, pd.DataFrame]:
    """Results of a small sweep; to be copied before they are changed."""
    return planted.sweep(layers=(4, 3), heads=(3, 2))


@pytest.fixture(scope="session")
def counts(swept: dict[str, pd.DataFrame]) -> dict[str, int]:
    """How many figures the chapter of each planted result has.

    The linked view is the chapter of the states of heads.
    """
    drawn = draw_results(planted.in_report() | swept)
    return {name: len(panels) for name, panels in drawn.items()} | {"head_states": 0}


@pytest.fixture
def results(swept: dict[str, pd.DataFrame]) -> dict[str, xr.Dataset | pd.DataFrame]:
    return planted.in_report() | {name: table.copy() for name, table in swept.items()}


@pytest.fixture(scope="session")
def whole(tmp_path_factory, swept) -> Path:
    """The report of everything, built once."""
    folder = tmp_path_factory.mktemp("whole")
    return build_report(
        planted.in_report() | swept,
        folder,
        title="T",
        provenance={"model": "toy", "hash": "x" * 200},
    )


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
