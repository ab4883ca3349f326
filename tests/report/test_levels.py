"""The confidence of intervals is one constant, which every text takes from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# a process in which the constant has another value before anything reads it
ANOTHER = """
import importlib.util
import sys

spec = importlib.util.find_spec("tsfm_lens.core.stats")
text = open(spec.origin).read()
assert "CONFIDENCE = 0.95" in text
module = importlib.util.module_from_spec(spec)
sys.modules["tsfm_lens.core.stats"] = module
text = text.replace("CONFIDENCE = 0.95", "CONFIDENCE = 0.9")
exec(compile(text, spec.origin, "exec"), module.__dict__)

import planted
from tsfm_lens.core.registry import measurements
from tsfm_lens.core.verdict import RULES
from tsfm_lens.report.build import draw_results

# those that state an interval or a test
tested = {
    name: ds
    for name, ds in planted.in_report().items()
    if any(str(variable).endswith("_significant") for variable in ds)
}
panels = draw_results(tested)
texts = [text for each in panels.values() for panel in each for text in panel.sentences]
texts += [str(panel.figure.to_json()) for each in panels.values() for panel in each]
texts += [entry.description for entry in measurements().values()]
print("\\n".join([*texts, *RULES]))
"""


def test_every_text_follows_the_confidence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER],
        cwd=ROOT / "tests",
        env={
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{os.environ['PYTHONPATH']}",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "95 %" in line]
    assert said == []
    assert done.stdout.count("90 %") >= 3
