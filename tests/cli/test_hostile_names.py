"""Names that look like markup come out as they went in, from every command."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tsfm_lens.cli import app, common

NAMES = ("[/b]", "[/tmp/x]", "[cuda]", "[bold]x", "\\[red]", ":smile:", "[link=x]y")
RUNNER = CliRunner()


def run(*args: str) -> Result:
    return RUNNER.invoke(app, list(args))


def joined(text: str) -> str:
    """Without the frames and line ends of usage errors."""
    return "".join(text.replace("│", "").split())


@pytest.mark.parametrize("name", ["[/tmp/x]", ":smile:"])
@pytest.mark.parametrize(
    "words",
    [
        *(
            f"{command} NAME --data bundled:co2"
            for command in ("forecast", "report", "ablate", "attribute")
        ),
        *(
            "forecast bolt-nano --data NAME",
            "hooks NAME",
            "doctor NAME",
            "reproduce NAME",
            "NAME",
        ),
        "figure NAME bolt-nano --data bundled:co2",
        "figure lens_forecast bolt-nano --data bundled:co2 --column NAME",
        *("sweep NAME.yaml", "sweep status NAME.yaml", "sweep report NAME"),
    ],
)
def test_errors_keep_names(words: str, name: str) -> None:
    result = run(*(word.replace("NAME", name) for word in words.split()))
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        result.exception
    )
    # ids of tables are read in capitals
    assert joined(name).lower() in joined(result.stderr).lower()


def test_hostile_files_are_read_or_refused(tmp_path: Path) -> None:
    """Files that people write are read or refused."""
    file = tmp_path / "sweep.yaml"
    good = {
        "models": [{"source": "bolt-nano"}],
        "data": [{"source": "bundled", "horizon": 4, "windows": 1}],
    }
    texts = {
        "data: [{start: 2020-02-30}]": "day is out of range for month",
        "a: " + "{a: " * 2000: "nested too deeply",
        "n: " + "1" * 5000: "holds a value that is none",
        "\0": "no YAML",
        "!!python/object:os.system {}": "no YAML",
    }
    for orders, label in (
        ("random:9..3", "expected 1 to 1000"),
        ("random:²", "has a seed"),
    ):
        texts[json.dumps({**good, "variants": {"heads_at": {"orders": [orders]}}})] = (
            label
        )
    texts[json.dumps({**good, "variants": {"heads": {}, "random_seeds": 10**9}})] = (
        "random_seeds"
    )
    for text, label in texts.items():
        file.write_text(text)
        result = run("sweep", str(file), "--store", str(tmp_path / "store"))
        assert result.exit_code == 1, (text[:60], result.exception)
        assert joined(label) in joined(result.stderr), (text[:60], result.stderr)
    assert not (tmp_path / "store").exists()


# ESC colours and moves, C1 does in one sign, CR writes over the line, BEL rings, U+202E
# turns the direction of writing
CONTROLS = ("\x1b[31mred", "a\x9b2Jb", "a\rb", "a\x07b", "\u202eabc", "a\nb")
SHOWN = (r"\x1b[31mred", r"a\x9b2Jb", r"a\rb", r"a\x07b", r"\u202eabc", r"a\nb")


@pytest.fixture
def controls(tmp_path: Path) -> str:
    file = tmp_path / "a\x1b[2Jb.csv"
    rows = [
        [name, day, f"{np.sin(day / 3):.4f}"]
        for name in (*NAMES, *CONTROLS)
        for day in range(40)
    ]
    with file.open("w", newline="") as out:
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows(
            [["id", "timestamp", "va\x1b[1mlue"], *rows]
        )
    return str(file)


def orders(text: str) -> set[str]:
    """Signs that a terminal takes for orders."""
    return set(re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text))


def test_control_characters_in_names_are_escaped(
    controls: str,
) -> None:
    """Names are kept; their control characters are shown escaped."""
    table = run("forecast", "bolt-nano", "--data", controls, "--horizon", "1")
    output = table.output
    assert [line.split()[0] for line in table.stdout.splitlines()[1:]] == [
        *NAMES,
        *SHOWN,
    ]
    json_text = run(
        "forecast", "bolt-nano", "--data", controls, "--horizon", "1", "--json"
    ).stdout
    assert json.loads(json_text)["coords"]["series"]["data"] == [*NAMES, *CONTROLS]
    for args, text in (
        (
            ("forecast", "bolt-nano", "--data", controls, "--targets", "nope"),
            r"a\x1b[2Jb.csv: no column 'nope'",
        ),
        (
            (
                "report",
                "bolt-nano",
                "--data",
                controls,
                "--sections",
                "forecast\x1b[1m",
            ),
            r"forecast\x1b[1m",
        ),
        (("forecast\x1b[1m",), r"forecast\x1b[1m"),
        (("data", "--js\x1b[1m"), r"--js\x1b[1m"),
        (("sweep", "status", "no\x1b[1m.yaml"), r"no\x1b[1m.yaml"),
    ):
        result = run(*args)
        assert result.exit_code in (1, 2), args
        assert joined(text).lower() in joined(result.stderr).lower(), args
        output += result.output
    assert orders(output + json_text) == set()


def test_terminals_never_receive_control_characters(
    controls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control characters stay in files and do not reach terminals."""
    written = run(
        "forecast", "bolt-nano", "--data", controls, "--horizon", "1", "--csv"
    )
    assert all(name in written.stdout for name in CONTROLS)
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", screen)
    common.write_data(written.stdout)
    assert orders(screen.getvalue()) == set()
    assert all(name in screen.getvalue() for name in SHOWN[:-1])
