"""The walks of CONTRIBUTING.md to a probe and its figure; models/test_own_wiring.py
performs that to a wiring.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from walks import ROOT, find_blocks, write_modules
from warm import run_code

COMMANDS = """
import sys
from typer.testing import CliRunner
from tsfm_lens.cli import app

for words in sys.argv[1:]:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    print(done.stdout, end="\\0")
"""


def run_commands(folder: Path, *commands: str) -> list[str]:
    """Run commands of the package that lies in a folder, in one process; return what
    each prints.
    """
    done = run_code(COMMANDS, *commands, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\0")


def test_a_probe_and_its_figure(tmp_path: Path) -> None:
    # with what is compiled, which counts as fresh by the times of the files
    shutil.copytree(ROOT / "tsfm_lens", tmp_path / "tsfm_lens")
    write_modules("Add a probe", tmp_path)
    write_modules("Add a figure", tmp_path)
    (walk,) = find_blocks("Add a figure", "sh")
    commands = [line.removeprefix("tsfm-lens ") for line in walk.splitlines()]
    listed, kinds, *_ = run_commands(
        tmp_path, "figure --list", "measurements", *commands
    )
    assert list((tmp_path / "drawn").glob("jump_bars*.html"))
    assert "The largest jump is" in (tmp_path / "told" / "index.html").read_text()
    assert "jump_bars" in listed
    assert "first_jump" in kinds
