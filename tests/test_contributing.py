"""The walks of CONTRIBUTING.md, performed as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WANTED_MARKS = "not published and not campaign and not exhaustive"


def read_section(title: str) -> str:
    """Return the text of a section of the page."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def find_blocks(section: str, language: str) -> list[str]:
    """Return the blocks of code of one language."""
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def write_modules(section: str, folder: Path) -> None:
    """Write each block of Python to the file that its first line names."""
    for block in find_blocks(section, "python"):
        path = folder / block.splitlines()[0].removeprefix("# ")
        assert not path.exists()
        path.write_text(block)


def run_python(*arguments: str, path: Path, folder: Path) -> str:
    """Run Python with another path first, in a folder; return what it prints."""
    search_path = os.pathsep.join([str(path), str(ROOT / "tests"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_a_probe_and_its_figure(tmp_path: Path) -> None:
    # with what is compiled, which counts as fresh by the times of the files
    shutil.copytree(ROOT / "tsfm_lens", tmp_path / "tsfm_lens")
    write_modules(read_section("Add a probe"), tmp_path)
    walk = read_section("Add a figure")
    # a probe without a figure is drawn by its dimensions
    command = "first_jump bolt-nano --data bundled:nile --horizon 6 --format html"
    figure = ["-m", "tsfm_lens", "figure", *command.split(), "--out", "plain"]
    run_python(*figure, path=tmp_path, folder=tmp_path)
    write_modules(walk, tmp_path)
    (commands,) = find_blocks(walk, "sh")
    for line in commands.splitlines():
        arguments = line.removeprefix("tsfm-lens ").split()
        run_python("-m", "tsfm_lens", *arguments, path=tmp_path, folder=tmp_path)
    assert list((tmp_path / "plain").glob("first_jump*.html"))
    assert list((tmp_path / "drawn").glob("jump_bars*.html"))
    assert "The largest jump is" in (tmp_path / "told" / "index.html").read_text()


@pytest.mark.parametrize("suite", ["conformance/test_oracles.py"])
def test_a_wiring(suite: str, tmp_path: Path) -> None:
    walk = read_section("Add a wiring")
    write_modules(walk, tmp_path)
    (declared,) = find_blocks(walk, "toml")
    groups = tomllib.loads(declared)["project"]["entry-points"]
    lines = [
        f"[{group}]\n{name} = {module}\n"
        for group, points in groups.items()
        for name, module in points.items()
    ]
    metadata = tmp_path / "homemade-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: homemade\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("".join(lines))
    arguments = ["-m", "pytest", "-k", "homemade", "-m", WANTED_MARKS, suite]
    said = run_python(*arguments, path=tmp_path, folder=ROOT / "tests")
    assert "passed" in said
