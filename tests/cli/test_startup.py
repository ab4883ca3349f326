"""Help, lists and refusals import no model library, and names stand in tables that tell
the truth.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tsfm_lens.cli import app, reading
from tsfm_lens.core import choices, declared
from tsfm_lens.core.registry import figures, measurements
from tsfm_lens.explain import METHODS
from tsfm_lens.models import architectures
from tsfm_lens.models.cards import CARDS
from tsfm_lens.sweep.engine.sweeping import plan_sweep, run_sweep
from tsfm_lens.sweep.planner.config import read_config

SERIES = "--data bundled:nile --horizon 6"
# commands up to their series; what comes after them is the same for all
ON_SERIES = {
    "forecast": "forecast bolt-nano",
    "report": "report bolt-nano --out page",
    "explain": "explain bolt-nano --out page",
    "ablate": "ablate bolt-nano",
    "attribute": "attribute bolt-nano",
    "figure": "figure logit_map bolt-nano --format html",
    "compress": "compress bolt-nano --keep 0.5 --out smaller",
    "compare": "compare bolt-nano bolt-nano",
    "serve": "serve bolt-nano --no-browser",
}
REFUSALS = {
    f"{name} of {what}": f"{command} {words}"
    for name, command in ON_SERIES.items()
    for what, words in {
        "a wrong file": "--data lood.csv",
        "a messy file": "--data messy.csv",
        "a wrong column": "--data plain.csv --targets laod",
        "a wrong frequency": "--data plain.csv --freq often",
    }.items()
} | {
    f"{name} of a wrong model": f"{command.replace('bolt-nano', 'bolt-nan')} {SERIES}"
    for name, command in ON_SERIES.items()
}
REFUSALS |= {
    "hub id": f"forecast amazon/chronos-bolt-bas {SERIES}",
    "file to embed": "embed bolt-nano lood.csv --out vectors",
    "pool": "embed bolt-nano bundled:nile --out vectors --pool median",
    "model to embed with": "embed bolt-nan bundled:nile --out vectors",
    "samples": f"forecast bolt-nano {SERIES} --num-samples 5",
    "quantile": f"forecast bolt-nano {SERIES} --quantiles 1.5",
    "seed": f"forecast bolt-nano {SERIES} --seed -1",
    "long holdout": "ablate bolt-nano --data bundled:nile --horizon 900",
    "measurement": f"report bolt-nano {SERIES} --sections forcast",
    "measurement of another model": f"report bolt-nano {SERIES} --sections logit_map",
    "item": f"report bolt-nano {SERIES} --item nil",
    "item to explain": f"explain bolt-nano {SERIES} --item nil",
    "item to draw": f"figure logit_map bolt-nano {SERIES} --item nil --format html",
    "method": f"explain bolt-nano {SERIES} --method shaply",
    "reference": f"explain bolt-nano {SERIES} --reference meen",
    "parts": f"explain bolt-nano {SERIES} --parts componnts",
    "way of ablation": f"ablate bolt-nano {SERIES} --how zeero",
    "component": f"ablate bolt-nano {SERIES} --components decoder..mlp",
    "component to remove": (
        f"compress bolt-nano {SERIES} --out smaller --without decoder..mlp"
    ),
    "figure": f"figure logit_mop bolt-nano {SERIES}",
    "format": f"figure logit_map bolt-nano {SERIES} --format docx",
    "covariates": "forecast bolt-nano --data plain.csv --targets load --past heat",
    "model to look into": "hooks bolt-nan",
    "sweep": "sweep lood.yaml",
    "model of a sweep": "sweep model.yaml",
    "data of a sweep": "sweep data.yaml",
    "training": "train lood.yaml",
    "model to train": "train train.yaml",
    "id of the paper": "reproduce S3-T99",
    "former option": f"forecast bolt-nano {SERIES} --samples 3",
}
LISTS = {
    "help": "-h",
    "help of a sweep": "sweep -h",
    "models": "models",
    "models as JSON": "models --json",
    "series": "data",
    "status of a sweep": "sweep status done.yaml",
    "plan of a sweep": "sweep done.yaml --plan",
}
SWEEP = {
    "models": [{"source": "bolt-nano", "context_length": 100}],
    "data": [{"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}],
    "variants": {"layers": {"sizes": [1]}},
}
# all in one process, since each start costs a second: the first command that loads a
# model library is the one to mend
SCRIPT = """
import json, sys
from typer.testing import CliRunner
from tsfm_lens.cli import app

models = ("torch", "transformers", "transformer_lens", "chronos", "timesfm")
tables = ("numpy", "pandas", "xarray", "plotly")
results = {}
for name, words in json.load(open("commands.json")).items():
    done = CliRunner().invoke(app, words.split())
    # the help, which comes first, does without tables, too
    libraries = models + tables if name == "help" else models
    loaded = [library for library in libraries if library in sys.modules]
    results[name] = [done.exit_code, done.output, loaded]
json.dump(results, open("results.json", "w"))
"""


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("startup")
    rows = [f"2021-01-{day:02d},{day}.5,{-day}" for day in range(1, 29)]
    (folder / "plain.csv").write_text("\n".join(["date,load,heat", *rows]))
    rows = [f"{day:02d}.01.2021;{day},5" for day in range(1, 29)]
    (folder / "messy.csv").write_text("\n".join(["Tag;Last", *rows]))
    write(folder / "done.yaml", SWEEP)
    write(folder / "model.yaml", {**SWEEP, "models": [{"source": "bolt-nan"}]})
    data = [{**SWEEP["data"][0], "names": ["nil"]}]
    write(folder / "data.yaml", {**SWEEP, "data": data})
    write(
        folder / "train.yaml", {"model": {"name": "samfomer"}, "data": {"kind": "toy"}}
    )
    run_sweep(read_config(folder / "done.yaml"), folder / "done.store")
    write(folder / "commands.json", LISTS | REFUSALS)
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, check=True)
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


@pytest.mark.parametrize("name", LISTS)
def test_lists_load_no_model_library(name: str, results: dict[str, Any]) -> None:
    code, output, loaded = results[name]
    assert (code, loaded) == (0, []), output


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_load_no_model_library(name: str, results: dict[str, Any]) -> None:
    code, output, loaded = results[name]
    assert loaded == [], output
    # 2 is wrong usage, of which typer tells
    assert code in (1, 2), output
    assert "Traceback" not in output


def test_former_names_are_answered_with_new_ones(results: dict[str, Any]) -> None:
    assert "--samples is called --num-samples" in results["former option"][1]


@pytest.mark.parametrize("name", reading.FOREIGN)
def test_words_of_others_are_answered(name: str) -> None:
    """An option of another library is answered by one of ours."""
    done = CliRunner().invoke(app, ["forecast", "bolt-nano", name, "1"])
    assert done.exit_code == 2
    assert f"{name} is called" in " ".join(done.output.split())
    helped = CliRunner().invoke(app, ["forecast", "--help"]).output
    for option in re.findall(r"--[a-z-]+", reading.FOREIGN[name]):
        assert option in helped


@pytest.mark.parametrize("name", reading.RENAMED)
def test_new_names_are_those_of_arguments(name: str) -> None:
    """An option is spelt as the argument in Python, apart from its hyphens."""
    argument = reading.RENAMED[name].removeprefix("--").replace("-", "_")
    keyword = f"{argument}=…"
    assert reading.translate_options(keyword) == f"{reading.RENAMED[name]} …"


def test_the_help_has_two_groups(results: dict[str, Any]) -> None:
    text = results["help"][1]
    daily, papers = text.index("Daily work"), text.index("Papers and training")
    assert daily < text.index("forecast ") < papers < text.index("sweep ")


def test_the_help_of_sweeps_has_options_of_runs(results: dict[str, Any]) -> None:
    assert {"--engine", "--workers", "--plan"} <= set(
        results["help of a sweep"][1].split()
    )


def test_stored_plans_count_as_sweeps_do(
    tmp_path: Path, results: dict[str, Any]
) -> None:
    write(tmp_path / "done.yaml", SWEEP)
    config = read_config(tmp_path / "done.yaml")
    planned = plan_sweep(config, tmp_path / "store")
    for name in ("status of a sweep", "plan of a sweep"):
        assert f"{planned.cells} of {planned.cells} cells" in results[name][1]
        for part in planned.parts:
            counts = [part["family"], part["variants"], part["cells"], part["cells"]]
            rows = [line.split()[-4:] for line in results[name][1].splitlines()]
            assert list(map(str, counts)) in rows


FIELDS = (
    "name",
    "title",
    "published",
    "readout",
    "extra",
    "covariates",
    "notes",
    "traits",
)


@pytest.mark.parametrize("name", sorted(CARDS))
def test_cards_say_what_wirings_do(name: str) -> None:
    card = CARDS[name]
    entry = architectures()[name]
    assert {field: getattr(card, field) for field in FIELDS} == {
        field: getattr(entry, field) for field in FIELDS
    }


def test_every_wiring_of_the_package_has_a_card() -> None:
    homes = {name: entry.adapter.__module__ for name, entry in architectures().items()}
    own = {name for name, home in homes.items() if "models.wirings" in home}
    assert own == set(CARDS)


def test_declared_names_are_the_registered_ones() -> None:
    """Reading declarations gives the same kinds, requirements and figures as importing
    them.
    """
    registered = measurements()
    kinds = declared.declared_kinds()
    assert set(kinds) == set(registered)
    for kind, entry in kinds.items():
        if entry.of_run is not None:
            measurement = registered[kind]
            assert (entry.needs, entry.of_run) == (
                measurement.needs,
                measurement.of_run,
            ), kind
    assert set(figures()) <= declared.declared_figures()


def test_words_of_options_are_those_of_explanations() -> None:
    assert tuple(METHODS) == choices.METHODS


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("decoder.3.cross_attn.5", True),
        ("decoder.*.mlp", True),
        ("**.hook_z", True),
        ("L2.cross_attn.H0", True),
        ("(1, 2)", True),
        ("decoder..mlp", False),
        ("head 5", False),
        ("", False),
        (".0", False),
    ],
)
def test_patterns_are_judged_by_their_form(pattern: str, allowed: bool) -> None:
    if allowed:
        choices.check_patterns([pattern])
    else:
        with pytest.raises(KeyError, match="no component"):
            choices.check_patterns([pattern])
