"""What the command line says: in its own words, before a model is opened, and in the
width of the terminal.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tsfm_lens.cli import app
from tsfm_lens.core.registry import figures, measurements

RUNNER = CliRunner()
CO2 = ("--data", "bundled:co2")
# names, calls and keyword arguments of Python
PYTHON = re.compile(
    r"\b[a-z]+(?:_[a-z]+)+\b(?!')|\b\w+\(|\b[a-z_]+=|\blens\.|Errno|Traceback"
)

EARLY = [
    (("doctor", "nosuch"), "no checkpoint 'nosuch'"),
    (("report", "bolt-nano", *CO2, "--sections", "foo"), "no measurement 'foo'"),
    (
        ("report", "bolt-nano", *CO2, "--sections", "lines_of_thought"),
        "is defined by logits over a vocabulary",
    ),
    (("forecast", "bolt-nano", *CO2, "-q", "1.5"), "are not levels between 0 and 1"),
    (("forecast", "bolt-nano", *CO2, "--plot", "x.png"), "does not end in .html"),
    (("forecast", "bolt-nano", *CO2, "--horizon", "90000"), "shorten the horizon"),
    *(
        (
            (command, "bolt-nano", *CO2, "--horizon", "5000", "--holdout"),
            "cannot hold out 5000",
        )
        for command in ("report", "forecast", "ablate", "attribute")
    ),
    *(
        ((command, "bolt-nano", *CO2, "--num-samples", "5"), "leave --num-samples out")
        for command in ("report", "forecast")
    ),
    (("figure", "nofig", "bolt-nano", *CO2), "no figure 'nofig'"),
    (
        ("figure", "lens_logit_map", "amazon/chronos-bolt-base", *CO2),
        "is defined by logits over a vocabulary",
    ),
    (("figure", "logit_map", "bolt-nano", *CO2), "is defined by"),
    (("explain", "bolt-nano", *CO2, "--method", "foo"), "no method 'foo'"),
    (("explain", "bolt-nano", *CO2, "--known", "foo"), "applies to files"),
    (("explain", "bolt-nano", *CO2, "--set", "co2=+2,5"), "decimals have a point"),
    (("explain", "bolt-nano", *CO2, "--sections", "what_if"), "explain --set"),
    (
        ("explain", "bolt-nano", *CO2, "--sections", "forecast_change"),
        "explain --since",
    ),
    (
        ("compress", "bolt-nano", *CO2, "--keep", "3", "--out", "x"),
        "should be less than or equal to 1",
    ),
]


LATE = [
    (("forecast", "bolt-nano", "--data", "nowhere.csv"), "nowhere.csv"),
    (("forecast", "bolt-nano", "--data", "bundled:"), "names no series"),
    (("ablate", "bolt-nano", *CO2, "-c", "decoder.77.mlp"), "decoder.77.mlp"),
    (("figure", "stable_rank", "bolt-nano", *CO2), "head_spectra_stable_rank"),
    (("figure", "layer_gain", "bolt-nano", *CO2, "--format", "jpg"), "no format 'jpg'"),
    (
        (
            "figure",
            "layer_gain",
            "bolt-nano",
            "--data",
            "bundled:nile",
            "--horizon",
            "200",
        ),
        "hold out",
    ),
    (("figure", "model_rank_dots", *["bolt-nano"] * 2, *CO2), "two models are called"),
    (("sweep", "report", "."), "not a store of a sweep"),
]


@pytest.mark.parametrize(
    ("command", "message"), LATE, ids=[" ".join(command[:3]) for command, _ in LATE]
)
def test_errors_write_nothing(
    command: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """An error is a message and writes nothing."""
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert "error:" in result.stderr
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        *(
            ("forecast",),
            ("forecast", "x"),
            ("nothing",),
            ("forecast", "x", *CO2, "--horizon", "0"),
        ),
        *(
            ("forecast", "x", *CO2, "--csv", "--json"),
            ("figure",),
            ("figure", "layer_gain"),
            ("figure", "layer_gain", "x"),
        ),
        *(
            ("figure", "layer_gain", "x", *CO2, flag, word)
            for flag, word in (("--column", "triple"), ("--format", ","))
        ),
    ],
)
def test_wrong_usage_is_exit_code_2(command: tuple[str, ...]) -> None:
    assert RUNNER.invoke(app, command).exit_code == 2


@pytest.mark.parametrize(
    ("command", "message"), EARLY, ids=[" ".join(command[:3]) for command, _ in EARLY]
)
def test_refusals_come_before_loading(
    command: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each refusal has its own words and comes before a model is opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tsfm_lens.load", lambda *_, **__: pytest.fail("a model was opened")
    )
    result = RUNNER.invoke(app, command)
    text = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code in (1, 2)
    assert message in text
    # figures and measurements are named as the command line takes them
    assert not PYTHON.search(
        re.sub(
            "|".join(sorted({*figures(), *measurements()}, key=len, reverse=True)),
            "",
            text,
        )
    )
    assert not list(tmp_path.iterdir())


def test_short_help_and_completion() -> None:
    for command in ((), ("report",), ("sweep", "run")):
        assert (
            RUNNER.invoke(app, (*command, "-h")).output
            == RUNNER.invoke(app, (*command, "--help")).output
        )
    offered = {
        "report bolt": "bolt-nano",
        "figure logit_m": "logit_map",
        "reproduce S2-IC": "S2-ICL",
        "report bolt-nano --data bundled:co": "bundled:co2",
        "report bolt-nano --sections forecast,abl": "forecast,ablation_effects",
    }
    for typed, expected in offered.items():
        variables = {
            "_TSFM_LENS_COMPLETE": "complete_bash",
            "COMP_WORDS": f"tsfm-lens {typed}",
        }
        variables["COMP_CWORD"] = str(len(typed.split()))
        result = RUNNER.invoke(app, [], env=variables, prog_name="tsfm-lens")
        assert expected in result.output.split(), (typed, result.output)
