"""Every command that a document, docstring or message names is one that the command
line takes.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from sitepages import drawing, scenes

import documented_commands
from documented_commands import ROOT, Mention


@cache
def named() -> tuple[Mention, ...]:
    return tuple(
        mention
        for path in documented_commands.documents()
        # commands of its walks are run, on names that the walks make
        if path.name != "CONTRIBUTING.md"
        for mention in documented_commands.mentions(path)
    )


def programs(mentions: tuple[Mention, ...]) -> list[str]:
    """Modules and scripts that are named with ``python``."""
    texts = [documented_commands.split_command(mention) for mention in mentions]
    modules = {
        documented_commands.find_program(text)[0]
        for text in texts
        if text and text[0] == "python"
    }
    return sorted(
        module
        for module in modules
        if not documented_commands.is_placeholder(module.rpartition(".")[2])
    )


def faults(
    mentions: tuple[Mention, ...], others: list[str]
) -> tuple[list[str], int, int]:
    """What is wrong with the commands of documents, how many were parsed, and how many
    name no one program.
    """
    wrong = []
    parsed = 0
    skipped = 0
    for mention in mentions:
        texts = documented_commands.split_command(mention)
        if not texts:
            continue
        if (
            texts[0] == "python"
            and documented_commands.find_program(texts)[0] not in others
        ):
            skipped += 1
            continue
        parsed += 1
        if fault := documented_commands.fault(mention, texts, others):
            wrong.append(f"{mention.place}: {' '.join(texts)}: {fault}")
    return wrong, parsed, skipped


def test_named_commands_exist() -> None:
    """Every command that is named is one."""
    wrong, parsed, skipped = faults(named(), programs(named()))
    assert wrong == []
    assert parsed > 300
    # python -m benchmarks.NAME
    assert skipped <= 1


def test_commands_of_the_gallery_are_commands() -> None:
    visible = {scenes.find_scene(*entry).command for entry in drawing.slugs().values()}
    visible |= {
        scenes.scene_of_pair(*drawing.slugs()[name]).command for name in scenes.PAIRED
    }
    mentions = tuple(
        Mention(command, "gallery", True) for command in sorted(visible) if command
    )
    wrong, parsed, _ = faults(mentions, [])
    assert wrong == []
    assert parsed > 50


PLANTED = {
    "```console\n$ tsfm-lens forecast bolt-nano --data my.csv --holdouts\n```": (
        "No such option: --holdouts"
    ),
    "```bash\ntsfm-lens forecast bolt-nano  # no data\n```": "Missing option '--data'",
    "`tsfm-lens report bolt-nano --sections forecas`": (
        "sections 'forecas' is not known"
    ),
    "`--holdouts`": "no command takes --holdouts",
    "`python -m tsfm_lens.studies.recipes.train bolt-nano --out DIR --stepz 3`": (
        "No such option: --stepz"
    ),
    "`python tools/house.py --chek`": "takes no --chek",
}


@pytest.mark.parametrize("text", PLANTED, ids=range(len(PLANTED)))
def test_unknown_commands_named_with_file_line(text: str, tmp_path: Path) -> None:
    """What is no command is named, with its file and line."""
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{text}\n")
    (wrong,) = faults(
        tuple(documented_commands.mentions(page)),
        ["tsfm_lens.studies.recipes.train", "benchmarks", "tools/house.py"],
    )[0]
    assert PLANTED[text] in wrong
    assert wrong.startswith(f"page.md:{4 if text.startswith('```') else 3}: ")


def find_unknown_targets(mentions: tuple[Mention, ...]) -> list[str]:
    """Name the targets of make that the Makefile does not have, with their places."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w-]+):", makefile, re.MULTILINE)
    unknown = []
    for mention in mentions:
        command = re.match(r"\s*(?:[A-Z_]+=\S+ )*make ([^#;&|]+)", mention.text)
        if command:
            texts = command[1].split()
        else:
            texts = []
        for word in texts:
            if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets:
                unknown.append(f"{mention.place}: make {word}")
    return unknown


def find_unknown_extras(mentions: tuple[Mention, ...]) -> list[str]:
    """Name the extras that pyproject.toml does not have, with their places."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pattern = r"""(?:-e ["']?\.|tsfm-lens(?:-toolbox)?)\[([^\]]+)\]"""
    unknown = []
    for mention in mentions:
        for names in re.findall(pattern, mention.text):
            for extra in names.split(","):
                is_known = extra in project["optional-dependencies"]
                if not is_known and not documented_commands.is_placeholder(extra):
                    unknown.append(f"{mention.place}: [{extra}]")
    return unknown


def test_targets_and_extras_of_documents_exist() -> None:
    documents = tuple(
        mention
        for path in documented_commands.documents()
        for mention in documented_commands.mentions(path)
    )
    assert find_unknown_targets(documents) == []
    assert find_unknown_extras(documents) == []
    planted = (
        Mention("HARD=avx2 make test-harder", "a:1", True),
        Mention('pip install -e ".[ray,rey]"', "a:2", True),
    )
    assert find_unknown_targets(planted) == ["a:1: make test-harder"]
    assert find_unknown_extras(planted) == ["a:2: [rey]"]
