"""The docs are true, without building them: lists are those of the code, links lead
somewhere, examples run.
"""

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
import plotly.graph_objects as go
import pytest
import render_notebooks
import torch
import xarray as xr
import yaml
from sitepages import (
    agents,
    api,
    capabilities,
    commands,
    costs,
    drawing,
    failures,
    gallery,
    history,
    measurements,
    notebooks,
    printing,
    questions,
    scenes,
)
from typer.testing import CliRunner

import tsfm_lens
from tiny_lenses import OURS, archetypes
from tsfm_lens import data, sweep, testing
from tsfm_lens.cli import app
from tsfm_lens.core import errors
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import THEMES
from tsfm_lens.core.registry import measurements as measurements_by_kind
from tsfm_lens.models import architectures, load
from tsfm_lens.models.run import Run
from tsfm_lens.zoo import checkpoint_names

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


def test_configurations_in_docs_are_valid() -> None:
    """The configurations in the docs and in the examples are valid."""
    from tsfm_lens.sweep.planner.config import parse_config, read_config

    text = (ROOT / "docs" / "sweeps.md").read_text()
    configs = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    short, config = (parse_config(yaml.safe_load(each)) for each in configs[:2])
    assert [*short.model_dump(exclude_defaults=True)] == ["models", "data", "variants"]
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


def test_reference_and_gallery_are_one_tree() -> None:
    """A function of viz has one entry, beside its figure; its probe links there."""
    pictured = api.pictured_names()
    assert set(pictured) <= set(gallery.slugs())
    pages = "".join(page for page in api.pages("viz").values())
    for name in pictured:
        assert f":: tsfm_lens.viz.{name}\n" not in pages
        assert f"<tsfm_lens.viz.{name}>" in pages
    probes = "".join(api.pages("probes").values())
    for slug, (measurement, _) in gallery.slugs().items():
        if measurement.function_name in api.find_module("probes").__all__:
            assert f":link: figure-{slug}\n" in probes


def test_results_are_described() -> None:
    result = xr.Dataset({"size": (("series", "head"), [[1.0]], {"units": "°C"})})
    assert drawing.describe_result(result) == [["size", "series, head", "°C"]]


def test_gallery_says_what_marks_are() -> None:
    """A reader learns what axes, colours and lines are, in words of no docstring."""
    figure = go.Figure(go.Heatmap(z=[[1, 2]], coloraxis="coloraxis"))
    figure.add_scatter(y=[1, 2], name="median forecast", showlegend=True)
    figure.add_scatter(y=[1, 2], name="lower bound", showlegend=False)
    figure.update_layout(xaxis_title="head", yaxis_title="value<br>(°C)")
    figure.update_layout(coloraxis_colorbar_title="share of attention")
    assert gallery.describe_marks(figure.to_json()) == [
        "Horizontal axis: head.",
        "Vertical axis: value (°C).",
        "Colour: share of attention.",
        "Lines and marks: median forecast.",
    ]


def test_gallery_starts_with_what_is_there() -> None:
    """The strongest figures come first, and last those that found nothing."""
    entries = gallery.slugs()
    assert set(gallery.STRONGEST) <= set(entries)
    chosen = {
        slug: entries[slug]
        for slug in ("induction_corner", "forecast_fan", "patching_map")
    }
    readings = {
        "induction_corner": ["Heads above both thresholds: none of 12."],
        "forecast_fan": ["The forecast rises. None of this is certain."],
        "patching_map": ["Patches that recover half: none of 132."],
    }
    drawn = {
        slug: drawing.Drawn("{}", "", "", 0, 0, "", told)
        for slug, told in readings.items()
    }
    assert [*gallery.order_entries(chosen, drawn)] == [
        "patching_map",
        "forecast_fan",
        "induction_corner",
    ]


def test_gallery_compares_models_side_by_side() -> None:
    """The gallery draws figures of two models side by side."""
    entries = gallery.slugs()
    studio = drawing.Studio()
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


@pytest.mark.parametrize("name", archetypes(OURS))
def test_capabilities_are_those_of_the_cards(name: str) -> None:
    """What a tiny model of a family can do is what is known before it is open."""
    found = capabilities.describe_lens(load(testing.tiny(name)))
    entry = architectures()[name]
    assert found["meets"] == [
        need for need in capabilities.COLUMNS if NEEDS[need].met(entry)
    ]
    assert found["covariates"] == [*entry.covariates]
    assert ("heads" in found["branches"]) == ("attention" in entry.traits)


@pytest.mark.parametrize("name", checkpoint_names())
def test_lengths_are_those_of_embedded_models(name: str) -> None:
    row = next(
        line for line in capabilities.length_table().splitlines() if f"`{name}`" in line
    )
    lens = load(name)
    assert f"| {lens.context_length} | {lens.prediction_length} |" in row


def test_costs_open_with_ten_models() -> None:
    text = costs.answer(pd.read_csv(costs.SOURCE, dtype=str))
    assert len(re.findall(r"^- ", text, re.MULTILINE)) == 4
    assert len(re.findall(r"^\| ", text, re.MULTILINE)) == 1 + 10
    assert "| 13 | 17 |" in text


def test_measurements_stand_under_questions() -> None:
    """Every theme answers one, and what is asked most comes first."""
    assert set(measurements.QUESTIONS) == set(THEMES)
    measurements.write_measurements()
    text = (DOCS / measurements.PAGE).read_text()
    places = [
        text.index(f"(`{kind}`)")
        for kind in ("ablation_effects", "minimal_circuit", "compression", "what_if")
    ]
    assert places == sorted(places)


def test_every_probe_of_a_run_stands_beside_its_models() -> None:
    text = capabilities.probe_table()
    for measurement in measurements_by_kind().values():
        if measurement.of_run and "compression" not in measurement.kind:
            known = measurement.needs in (*capabilities.COLUMNS, *capabilities.OTHERS)
            listed = f".{measurement.function_name}`" in text
            assert known == listed, measurement.kind


# these are run as a whole in tests/compress and tests/explain
SHORTER = {
    "compress": ["--method", "weighted", "--keep", "0.25"],
    "explain": ["--sections", "input_attribution"],
}


@pytest.mark.usefixtures("models_timed_once")
@pytest.mark.parametrize("command", agents.COMMANDS.splitlines())
def test_the_commands_for_language_models_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(agents.SWEEP)
    program, *arguments = shlex.split(command)
    assert program == "tsfm-lens"
    result = CliRunner().invoke(app, arguments + SHORTER.get(arguments[0], []))
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def run() -> Run:
    return tsfm_lens.load("chronos-nano").run(data.bundled("co2"), 4)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_explain_with_true_examples(
    error: type, run: Run, tmp_path: Path
) -> None:
    """Every error says why and what to do, and its example is true."""
    text = inspect.getdoc(error) or ""
    assert "\nWhy:\n" in text
    assert "\nCure:\n" in text
    names = {"lens": run.lens, "run": run, "folder": tmp_path, "torch": torch}
    names |= {"tsfm_lens": tsfm_lens, "sweep": sweep}
    (example,) = doctest.DocTestFinder(recurse=False).find(
        error, error.__name__, globs=names
    )
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def test_error_rates_are_those_of_the_calibration() -> None:
    """Error rates beside the words of results are the measured ones."""
    untrained = pd.read_csv(DOCS / "calibration.learned.csv").iloc[:, 2:]
    moved = pd.read_csv(DOCS / "calibration.stability.csv").iloc[:, 1:]
    untrained_range, moved_range = (
        f"{rates.min(axis=None):g} to {rates.max(axis=None):g} %"
        for rates in (untrained, moved)
    )
    findings = (DOCS / "concepts" / "findings.md").read_text()
    assert moved_range in findings
    for page in (findings, (DOCS / "decisions" / "noise.md").read_text()):
        assert untrained_range in page


@pytest.mark.parametrize("command", printing.PAGES.values())
def test_commands_shown_with_their_output_print(command: str) -> None:
    """A command that is shown with what it prints is the first one of its page."""
    (page,) = (page for page in printing.PAGES if printing.PAGES[page] == command)
    text = (DOCS / f"{page}.md").read_text()
    assert f"```{{include}} {printing.FOLDER}/{page}.md\n" in text
    assert command in text


@pytest.mark.parametrize("name", notebooks.names())
def test_notebooks_ship_with_their_figures(name: str) -> None:
    """Notebooks ship with pictures of what their code draws."""
    assert not render_notebooks.faults(notebooks.EXAMPLES / f"{name}.ipynb")


# rooms of the command line and of studies, wirings, and parts of rooms that offer their
# names themselves
_PRIVATE = (
    "cli",
    "models.wirings",
    "studies",
    "studies.bench",
    "studies.commands",
    "studies.method_scores",
    "studies.papers",
    "training.watch",
)


def test_reference_lists_every_public_name() -> None:
    packages = {
        module.name.removeprefix("tsfm_lens.")
        for module in walk_packages(tsfm_lens.__path__, "tsfm_lens.")
        if module.ispkg
    }
    offering = {
        package
        for package in packages.difference(_PRIVATE)
        if hasattr(api.find_module(package), "__all__")
    }
    assert offering <= set(api.PACKAGES)
    listed = [api.pages(package).values() for package in ("", *api.PACKAGES)]
    listed.append([*map(api.entry_of_figure, api.pictured_names())])
    text = "".join(page for pages in listed for page in pages)
    documented = set(re.findall(r":: (\S+)$", text, flags=re.MULTILINE))
    assert set(api.homes().values()) <= documented


SEARCHES = (
    *("anomaly", "backtest", "Colab", "activation cache", "embedding", "SHAP"),
    *("logit lens", "multivariate", "sparse autoencoder", "GPU", "attention map"),
    *("API reference", "FAQ", "troubleshoot", "batch size", "reproducibility"),
    *("feature importance", "induction head", "covariate", "zero ablation"),
    *("mean ablation", "LoRA", "equivalence", "BibTeX", "false discovery"),
    *("bootstrap", "redundancy", "error bar", "attention sink", "circuit", "CPR"),
    *("dose", "DAS", "difference of means"),
)
"""What people type into the search of a site like this one."""


@pytest.mark.parametrize("word", SEARCHES)
def test_searches_land(word: str) -> None:
    """What people type is in a heading, or a term of the glossary."""
    text = "\n".join(page.read_text() for page in PAGES)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    glossary = (DOCS / "reference" / "glossary.md").read_text()
    terms = re.findall(r"^(\w.*)$", glossary.split("{glossary}")[1], re.MULTILINE)
    assert any(word.lower() in found.lower() for found in (*headings, *terms))


def test_citation_is_that_of_the_repository() -> None:
    """The entry to copy has the title, the authors, the version and the licence."""
    text = (DOCS / "howto" / "paper-figures.md").read_text()
    (entry,) = re.findall(r"```bibtex\n(.*?)```", text, re.DOTALL)
    cited = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,$", entry, re.MULTILINE))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (author,) = citation["authors"]
    assert cited.pop("author") == author["name"]
    assert cited == {name: citation[name] for name in cited}
    assert {"title", "version"} <= set(cited)


def test_pages_for_language_models_exist() -> None:
    for page in agents.PAGES:
        assert (DOCS / f"{page}.md").exists() or f"{page}.md" in WRITTEN, page


def test_questions_lead_to_pages() -> None:
    asked = {one.kind for group in questions.GROUPS.values() for one in group}
    assert set(questions.HOWTOS) <= asked
    for page in questions.HOWTOS.values():
        assert (DOCS / "howto" / f"{page}.md").exists(), page


def test_scores_beside_questions_are_measured() -> None:
    """A question names a method of the benchmark, on a level that it has, or none."""
    scores = questions.read_scores()
    asked = [question for group in questions.GROUPS.values() for question in group]
    scored = [question for question in asked if question.method]
    assert 0 < len(scored) < len(asked)
    for question in scored:
        found, _ = questions.score(question, scores)
        assert found
