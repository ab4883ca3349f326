"""A wiring of another package: found by its entry point, held to every suite, refused
by the field that it lacks.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from homemade_model import Forecaster, Wired
from refusals import expect_error
from tsfm_lens.models import Adapter, Architecture, architectures, register
from walks import find_blocks, write_modules
from warm import run_code

TESTS = Path(__file__).parents[1]
SOME = ("conformance/test_oracles.py", "hooks/test_weights.py", "models/test_traits.py")
WANTED = "not published and not campaign"
LOOPS = sorted(
    str(file.relative_to(TESTS))
    for file in TESTS.rglob("test_*.py")
    if "tiny_lenses" in file.read_text() or "architectures()" in file.read_text()
)
SUITE = """
import sys
import pytest

_, folder, *chosen = sys.argv
sys.path.insert(0, folder)
sys.exit(pytest.main(chosen))
"""


def read_entry_points() -> str:
    """Write the entry points of CONTRIBUTING's walk as installed metadata has them."""
    (text,) = find_blocks("Add a wiring", "toml")
    groups = tomllib.loads(text)["project"]["entry-points"]
    lines = []
    for group, points in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {module}" for name, module in points.items()]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(SOME, id="some"),
        pytest.param(LOOPS, id="all", marks=pytest.mark.campaign),
    ],
)
def test_it_passes_what_loops_over_architectures(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    metadata = tmp_path / "homemade-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: homemade\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(read_entry_points())
    write_modules("Add a wiring", tmp_path)
    chosen = ["-k", "homemade", "-m", WANTED, *files]
    done = run_code(SUITE, str(tmp_path), *chosen, folder=TESTS)
    assert done.returncode == 0, done.stdout[-5000:]


def test_missing_fields_are_named(tmp_path: Path) -> None:
    class Bare(Adapter):
        architecture = "bare"

    class Taken(Wired):
        architecture = "chronos"

    before = architectures()
    entry = Architecture(title="Bare", adapter=Wired, classes=("Forecaster",))
    claiming = replace(entry, claims=bool)
    for wrong, message in (
        (replace(entry, adapter=Bare), "without encode"),
        (replace(entry, adapter=Taken), "'chronos' is taken"),
        (claiming, "without open"),
        (replace(claiming, open=Forecaster), "without blank"),
    ):
        expect_error(message, register, wrong)
    assert architectures() == before
    expect_error("save=", entry.write, Forecaster(), tmp_path)
