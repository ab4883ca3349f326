"""The files by which others carry the project on: valid, and naming what exists."""

from __future__ import annotations

import re
from pathlib import Path

import tsfm_lens

ROOT = Path(__file__).parent.parent


def test_what_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text()
    named = re.findall(
        r"`((?:docs|examples|tests|benchmarks|tsfm_lens)/[\w./-]*\w)`", text
    )
    assert named
    assert [
        path
        for path in named
        if not (ROOT / path).exists() and not path.startswith("docs/_build")
    ] == []


def test_the_changelog_has_this_version_and_the_next() -> None:
    versions = re.findall(
        r"^## (\d+\.\d+\.\d+) \((.+)\)$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert [when == "unreleased" for _, when in versions] == [True] + [False] * (
        len(versions) - 1
    )
    order = [tuple(map(int, version.split("."))) for version, _ in versions]
    assert order == sorted(order, reverse=True)
    assert tsfm_lens.__version__ in {version for version, _ in versions}
