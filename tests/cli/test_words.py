"""What the command line says: in its own words, before a model is opened, and in the width of the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tsfm_lens.cli import app, common
from tsfm_lens.core.registry import figures, measurements

RUNNER = CliRunner()
CO2 = ("--data", "bundled:co2")
# names, calls and keyword arguments of Python
PYTHON = re.compile(
    r"\b[a-z]+(?:_[a-z]+)+\b(?!')|\b\w+\(|\b[a-z_]+=|\blens\.|Errno|Traceback"
)

EARLY = [
    (("report", "nosuch", *CO2), "no checkpoint 'nosuch'"),
    (("doctor", "nosuch"), "no checkpoint 'nosuch'"),
    (("report", "bolt-nano", *CO2, "--sections", "foo"), "no measurement 'foo'"),
    (
        ("report", "bolt-nano", *CO2, "--sections", "lines_of_thought"),
        "is defined by logits over a vocabulary",
    ),
    (("forecast", "bolt-nano", *CO2, "-q", "1.5"), "are not levels between 0 and 1"),
    (("forecast", "bolt-nano", *CO2, "--plot", "x.png"), "does not end in .html"),
    (("forecast", "bolt-nano", *CO2, "--horizon", "90000"), "shorten the horizon"),
    (("ablate", "bolt-nano", *CO2, "--how", "man"), "--how man is not known"),
    (
        ("ablate", "bolt-nano", *CO2, "--how", "mean"),
        "--how mean takes activations of other series",
    ),
    *(
        (
            (command, "bolt-nano", *CO2, "--horizon", "5000", "--holdout"),
            "cannot hold out 5000",
        )
        for command in ("report", "forecast", "ablate", "attribute")
    ),
    *(
        ((command, "bolt-nano", *CO2, "--samples", "5"), "leave --samples out")
        for command in ("report", "forecast")
    ),
    (("figure", "nofig", "bolt-nano", *CO2), "no figure 'nofig'"),
    (
        ("figure", "lens_logit_map", "bolt-nano", *CO2),
        "figure 'lens_forecast' shows what its layers hold",
    ),
    (
        ("figure", "lens_logit_map", "amazon/chronos-bolt-base", *CO2),
        "is defined by logits over a vocabulary",
    ),
    (("figure", "logit_map", "bolt-nano", "--data", "nofile.csv"), "is defined by"),
    (("explain", "bolt-nano", *CO2, "--method", "foo"), "no method 'foo'"),
    (("explain", "bolt-nano", *CO2, "--known", "foo"), "applies to files"),
    (
        ("compress", "bolt-nano", *CO2, "--keep", "3", "--out", "x"),
        "should be less than or equal to 1",
    ),
    *(
        ((command, "nofile.yaml"), "there is no file 'nofile.yaml'")
        for command in ("train", "sweep")
    ),
    (("reproduce", "S9-T1"), "`tsfm-lens reproduce --list` shows all"),
]


LATE = [
    (("forecast", "bolt-nano", "--data", "bundled:c02"), "co2"),
    (("forecast", "bolt-nano", "--data", "nowhere.csv"), "nowhere.csv"),
    (("forecast", "bolt-nano", "--data", "bundled:"), "names no series"),
    (("forecast", "./[no-such]folder", *CO2), "[no-such]folder"),
    (("ablate", "bolt-nano", *CO2, "-c", "decoder.77.mlp"), "decoder.77.mlp"),
    (("hooks", "bolt-nano", "--filter", "hook_nothing"), "hook_nothing"),
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
    (
        ("figure", "layer_gain", *["bolt-nano"] * 3, *CO2),
        "can show two models side by side, but 3 are named",
    ),
    (("figure", "model_rank_dots", *["bolt-nano"] * 2, *CO2), "two models are called"),
    (("sweep", "report", "none.yaml"), "there is no file"),
    (("sweep", "report", "."), "not a store of a sweep"),
]


@pytest.mark.parametrize(
    ("command", "said"), LATE, ids=[" ".join(command[:3]) for command, _ in LATE]
)
def test_an_error_is_a_message_and_writes_nothing(
    command: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
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
    ("command", "said"), EARLY, ids=[" ".join(command[:3]) for command, _ in EARLY]
)
def test_refused_in_its_own_words_before_a_model_is_opened(
    command: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tsfm_lens.load", lambda *_, **__: pytest.fail("a model was opened")
    )
    result = RUNNER.invoke(app, command)
    words = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code in (1, 2)
    assert said in words
    # figures and measurements are named as the command line takes them
    assert not PYTHON.search(
        re.sub(
            "|".join(sorted({*figures(), *measurements()}, key=len, reverse=True)),
            "",
            words,
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
        words = {
            "_TSFM_LENS_COMPLETE": "complete_bash",
            "COMP_WORDS": f"tsfm-lens {typed}",
        }
        words["COMP_CWORD"] = str(len(typed.split()))
        result = RUNNER.invoke(app, [], env=words, prog_name="tsfm-lens")
        assert expected in result.output.split(), (typed, result.output)


def test_every_command_that_reads_series_has_seed_samples_and_json() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        options = {flag for parameter in command.params for flag in parameter.opts}
        if "--data" in options:
            assert {"--seed", "--samples", "--json"} <= options, name
        elif name != "sweep":
            assert "--json" in options, name


@pytest.mark.parametrize(
    "command", [("figure", "--list"), ("measurements",), ("models",)], ids=" ".join
)
def test_lists_fit_a_narrow_terminal(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    def narrow(**_: Any) -> Console:
        return Console(
            width=80,
            force_terminal=True,
            color_system=None,
            markup=False,
            highlight=False,
        )

    monkeypatch.setattr(common, "console", narrow)
    # the line that ends a list is the terminal's to wrap
    lines = [
        line
        for line in RUNNER.invoke(app, command).stdout.splitlines()
        if "tsfm-lens" not in line
    ]
    assert max(map(len, lines)) <= 80
    # no word is torn
    names = set(re.findall(r"[\w-]+", " ".join(lines)))
    assert {
        "figure": "attribution_heatmap",
        "measurements": "attribution_patching",
        "models": "chronos-bolt-base",
    }[command[0]] in names
