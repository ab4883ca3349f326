"""The docs are true, without building them: lists are those of the code, links lead somewhere, examples run."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from pkgutil import walk_packages

import pandas as pd
import pytest
import render_notebooks
import torch
import yaml
from sitepages import (
    agents,
    api,
    commands,
    drawing,
    failures,
    gallery,
    history,
    measurements,
    notebooks,
    outputs,
    questions,
    scenes,
)
from typer.testing import CliRunner

import tsfm_lens
from benchmarks.history import append
from test_examples_in_docstrings import PACKAGES
from tsfm_lens import data, probes, sweep, viz
from tsfm_lens.cli import app
from tsfm_lens.core import errors, registry
from tsfm_lens.models.run import Run
from tsfm_lens.testing.suite import ORACLES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

# written when the site is built
WRITTEN = {
    *(f"gallery/{name}.md" for name in gallery.pages()),
    f"{api.FOLDER}/api.md",
    *(
        f"{api.FOLDER}/{name}.md"
        for package in ("", *api.PACKAGES)
        for name in api.pages(package)
    ),
    *commands.pages(),
    failures.PAGE,
    measurements.PAGE,
    questions.PAGE,
    history.PAGE,
    "notebooks/index.md",
    *(f"notebooks/{name}.ipynb" for name in notebooks.names()),
    "concepts/generated/hook-points.md",
}
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.relative_to(DOCS).as_posix() not in WRITTEN
]
PAGES = [
    page for page in PAGES if not {"_build", "_cache", "generated"} & set(page.parts)
]
ERRORS = [
    thing
    for thing in vars(errors).values()
    if inspect.isclass(thing) and issubclass(thing, errors.LensError)
]


def test_names_beside_the_tables_exist() -> None:
    text = (
        (ROOT / "docs" / "measurements.md").read_text().split("measurements.md\n```")[1]
    )
    named = set(re.findall(r"`(\w+)`", text))
    assert {
        name for name in named if name.endswith(("_motif", "_phase", "_season"))
    } <= set(dir(data)) | set(dir(probes))
    assert {
        name for name in named if name.endswith(("_curves", "_table", "_errors"))
    } <= set(viz.__all__)


def test_the_configurations_in_the_docs_and_examples_are_valid() -> None:
    from tsfm_lens.sweep.planner.config import parse_config, read_config

    text = (ROOT / "docs" / "sweeps.md").read_text()
    config = parse_config(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0]))
    assert len(config.data) >= 7
    assert config.variants.heads_at is not None
    assert (
        read_config(ROOT / "examples" / "sweep-demo.yaml")
        .variants.recipes[0]
        .endswith("middle-third.yaml")
    )


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix()
)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```\w*\n.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
        if "://" in target:
            continue
        file = (page.parent / target).resolve()
        assert file.exists() or file.relative_to(DOCS).as_posix() in WRITTEN, (
            f"{page.name} links to {target}"
        )


def test_every_page_is_in_a_list_of_contents() -> None:
    listed: set[str] = set()
    for page in PAGES:
        for entries in re.findall(
            r"```\{toctree\}\n(.*?)```", page.read_text(), flags=re.DOTALL
        ):
            folder = page.parent.relative_to(DOCS)
            names = [
                line
                for line in entries.splitlines()
                if line and not line.startswith(":")
            ]
            listed |= {each for name in names for each in _matching(folder, name)}
    assert {
        page.relative_to(DOCS).as_posix().removesuffix(".md") for page in PAGES
    } == (listed - {name.rpartition(".")[0] for name in WRITTEN}) | {"index"}


def _matching(folder: Path, name: str) -> list[str]:
    if "*" not in name:
        return [(folder / name).as_posix()]
    return [
        file.relative_to(DOCS).as_posix().removesuffix(".md")
        for file in (DOCS / folder).glob(f"{name}.md")
        if file.name != "index.md"
    ]


def test_every_figure_has_code_in_the_gallery() -> None:
    for slug, (measurement, figure) in gallery.slugs().items():
        code = scenes.scene_of(measurement, figure).drawing
        assert f"{scenes.place_of(figure)}.{scenes.function_of(figure)}(" in code, slug
        assert figure.variable in code, slug
    assert set(registry.measurements()) <= gallery.pages()


def test_the_gallery_draws_figures_of_two_models_side_by_side() -> None:
    entries, studio = gallery.slugs(), drawing.Studio()
    for name in scenes.PAIRED:
        scene = scenes.scene_of_pair(*entries[name])
        drawn = studio.drawn_pair(
            replace(scene, opening=scene.opening.replace('"co2", "elnino"', '"nile"'))
        )
        halves = [
            note["text"] for note in json.loads(drawn.spec)["layout"]["annotations"]
        ]
        assert {"<b>chronos-nano</b>", "<b>bolt-nano</b>"} <= set(halves)
        assert drawn.title == entries[name][1].title.rstrip(".")


def test_every_package_and_public_name_is_in_the_reference() -> None:
    assert set(PACKAGES) <= {"", *api.PACKAGES}
    found = {
        module.name.removeprefix("tsfm_lens.")
        for module in walk_packages(tsfm_lens.__path__, "tsfm_lens.")
        if module.ispkg and module.name not in _PRIVATE and _offers(module.name)
    }
    assert found <= set(api.PACKAGES)
    shown = "".join(
        "".join(api.pages(package).values()) for package in ("", *api.PACKAGES)
    )
    for name in api.homes().values():
        assert re.search(rf":: {re.escape(name)}$", shown, flags=re.MULTILINE), name


# rooms of the command line, the papers' items, wirings, and parts of rooms that offer their names themselves
_STUDIES = ("studies", "studies.commands", "studies.papers", "studies.method_scores")
_PRIVATE = {
    f"tsfm_lens.{name}"
    for name in ("cli", "figures", "models.wirings", "training.watch", *_STUDIES)
}


def _offers(name: str) -> bool:
    return (
        "__all__"
        in Path(tsfm_lens.__path__[0], *name.split(".")[1:], "__init__.py").read_text()
    )


def test_every_command_is_in_the_reference() -> None:
    from typer.main import get_command

    pages = commands.pages()
    named = getattr(get_command(app), "commands")  # noqa: B009
    assert len(named) > 10
    for name in named:
        assert f"](command-{name}.md)" in pages[commands.PAGE]
        assert f"# `tsfm-lens {name}`" in pages[f"{commands.FOLDER}/command-{name}.md"]


@pytest.mark.parametrize("command", agents.COMMANDS.splitlines())
def test_the_commands_for_language_models_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(agents.SWEEP)
    program, *words = shlex.split(command)
    assert program == "tsfm-lens"
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def run() -> Run:
    return tsfm_lens.load("chronos-nano").run(data.bundled("co2"), 4)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_says_why_and_what_to_do_and_its_example_is_true(
    error: type, run: Run, tmp_path: Path
) -> None:
    text = inspect.getdoc(error) or ""
    assert "\nWhy:\n" in text
    assert "\nCure:\n" in text
    names = {"lens": run.lens, "run": run, "folder": tmp_path, "torch": torch}
    names |= {"tsfm_lens": tsfm_lens, "sweep": sweep}
    (example,) = doctest.DocTestFinder(recurse=False).find(
        error, error.__name__, globs=names
    )
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def test_every_question_has_an_answer() -> None:
    scores, explained = (
        pd.read_csv(DOCS / "planted.csv"),
        pd.read_csv(DOCS / "planted.explanations.csv"),
    )
    for question in (each for group in questions.GROUPS.values() for each in group):
        assert registry.find(question.kind).figures
        found, _ = questions.score(question, scores, explained)
        assert bool(found) == bool(question.method)


def test_benchmarks_are_kept_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    ends = list(history.KINDS)
    rows = [
        (f"(a) chronos: {ends[0]}", "1.013", "0.98–1.05", "≤ 1.02", True),
        ("(g) words", "none", "", "", None),
    ]
    assert append(rows, "here", file) == 1
    assert append(rows, "here", file) == 1
    kept = pd.read_csv(file)
    assert list(kept.columns) == list(pd.read_csv(history.HISTORY).columns)
    assert kept[["median", "low", "high"]].values.tolist() == [[1.013, 0.98, 1.05]] * 2
    (line,) = history.drawn(kept.assign(when=["first", "second"]), ends[0]).data
    assert (line.name, list(line.x), list(line.y)) == (
        "chronos",
        ["first", "second"],
        [1.013, 1.013],
    )
    shipped = pd.read_csv(history.HISTORY)
    assert all(shipped["measurement"].str.endswith(kind).any() for kind in ends)


def test_the_oracles_are_all_explained() -> None:
    rows = re.findall(
        r"^\| (\d+) ",
        (DOCS / "decisions" / "oracles.md").read_text(),
        flags=re.MULTILINE,
    )
    assert [int(row) for row in rows] == list(range(1, len(ORACLES) + 1))


@pytest.mark.parametrize("page", outputs.ROOTS)
def test_the_first_pages_show_what_their_code_draws(page: str) -> None:
    names: dict[str, object] = {}
    drawn = [outputs.run_block(block, names) for block in outputs.blocks_of(page)]
    named = page.replace("/", "-")
    shown = re.findall(
        rf"_cache/outputs/{named}-(\d+)\.md", (DOCS / f"{page}.md").read_text()
    )
    assert [int(number) for number in shown] == [
        number for number, each in enumerate(drawn, 1) if each is not None
    ]
    assert shown


@pytest.mark.parametrize("name", notebooks.names())
def test_notebooks_ship_with_pictures_of_what_their_code_draws(name: str) -> None:
    assert not render_notebooks.faults(notebooks.EXAMPLES / f"{name}.ipynb")
