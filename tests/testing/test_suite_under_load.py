"""The command that runs the suite under load says which condition failed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite_under_load", ROOT / "tools" / "suite_under_load.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "suite_under_load", found)
    spec.loader.exec_module(found)
    return found


def test_a_condition_that_fails_is_told(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pytest itself, on a file that passes with AVX2 kernels alone."""
    # this test, too, may run under one of the conditions
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    # of all plugins it needs the one that shares tests out
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import os\n\n\ndef test_it():\n    assert os.environ.get('ATEN_CPU_CAPABILITY') == 'avx2'\n"
    )
    alone = ["--busy", "0", "--workers", "0"]
    assert tool.main([*alone, "avx2", "--", "test_it.py"]) == 0
    assert tool.main([*alone, "--", "test_it.py"]) == 1
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[:2] for line in lines] == [["default", "FAILED"], ["avx2", "passed"], ["threads", "FAILED"]]
    with pytest.raises(SystemExit):
        tool.main(["sse"])
    assert "expected default, avx2, threads" in capsys.readouterr().err
