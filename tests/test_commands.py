"""Every command that a document, docstring or message names is one that the command line takes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from sitepages import drawing, scenes

import documented_commands
from documented_commands import Mention


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
    words = [documented_commands.words_of(mention) for mention in mentions]
    modules = {
        documented_commands.program_of(each)[0]
        for each in words
        if each and each[0] == "python"
    }
    return sorted(
        module
        for module in modules
        if not documented_commands.stands_for(module.rpartition(".")[2])
    )


def faults(
    mentions: tuple[Mention, ...], others: list[str]
) -> tuple[list[str], int, int]:
    """What is wrong with the commands of documents, how many were parsed, and how many name no one program."""
    wrong, parsed, skipped = [], 0, 0
    for mention in mentions:
        words = documented_commands.words_of(mention)
        if not words:
            continue
        if (
            words[0] == "python"
            and documented_commands.program_of(words)[0] not in others
        ):
            skipped += 1
            continue
        parsed += 1
        if fault := documented_commands.fault(mention, words, others):
            wrong.append(f"{mention.place}: {' '.join(words)}: {fault}")
    return wrong, parsed, skipped


def test_every_command_that_is_named_is_one() -> None:
    wrong, parsed, skipped = faults(named(), programs(named()))
    assert wrong == []
    assert parsed > 300
    # python -m benchmarks.NAME
    assert skipped <= 1


def test_commands_of_the_gallery_are_commands() -> None:
    shown = {scenes.scene_of(*entry).command for entry in drawing.slugs().values()}
    shown |= {
        scenes.scene_of_pair(*drawing.slugs()[name]).command for name in scenes.PAIRED
    }
    mentions = tuple(
        Mention(command, "gallery", True) for command in sorted(shown) if command
    )
    wrong, parsed, _ = faults(mentions, [])
    assert wrong == []
    assert parsed > 50


PLANTED = {
    "```console\n$ tsfm-lens forecast bolt-nano --data my.csv --holdouts\n```": "No such option: --holdouts",
    "```bash\ntsfm-lens forecast bolt-nano  # no data\n```": "Missing option '--data'",
    "`tsfm-lens report bolt-nano --sections forecas`": "sections 'forecas' is not known",
    "`--holdouts`": "no command takes --holdouts",
    "`python -m tsfm_lens.studies.recipes.train bolt-nano --out DIR --stepz 3`": "No such option: --stepz",
    "`python tools/house.py --chek`": "takes no --chek",
}


@pytest.mark.parametrize("text", PLANTED, ids=range(len(PLANTED)))
def test_what_is_no_command_is_named_with_file_and_line(
    text: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{text}\n")
    (wrong,) = faults(
        tuple(documented_commands.mentions(page)),
        ["tsfm_lens.studies.recipes.train", "benchmarks", "tools/house.py"],
    )[0]
    assert PLANTED[text] in wrong
    assert wrong.startswith(f"page.md:{4 if text.startswith('```') else 3}: ")
