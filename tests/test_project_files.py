"""The files by which others carry the project on: valid, and naming what exists."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

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


def test_hosted_checks_run_the_same_commands() -> None:
    """Hosted checks and hooks run what everybody runs."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())[
        "jobs"
    ]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for name in ("core", "studies", "site"):
        commands = [step["run"] for step in jobs[name]["steps"] if "run" in step]
        assert f"make test-{name}" in commands
        assert jobs[name]["needs"] == "lint"
        for command in commands:
            assert set(command.removeprefix("make ").split()) <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]
    pinned = re.search(
        r"^ruff==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    assert pinned is not None
    assert hooks["rev"] == f"v{pinned[1]}"


def test_changelog_has_this_and_next_version() -> None:
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
