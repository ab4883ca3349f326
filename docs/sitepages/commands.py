"""The reference of the command line, as typer writes it from the commands."""

from __future__ import annotations

import re
from functools import cache

import typer
from typer.cli import get_docs_for_click
from typer.core import MARKUP_MODE_KEY

from sitepages.api import FOLDER
from sitepages.writing import write
from tsfm_lens.cli import app

PAGE = f"{FOLDER}/commands.md"


def write_commands() -> None:
    """A page for every command, and one that lists them."""
    for name, page in pages().items():
        write(name, page)


def pages() -> dict[str, str]:
    """Each page by its place in docs."""
    opening, *commands = re.split(r"^## ", text(), flags=re.MULTILINE)
    made = {}
    for command in commands:
        name = re.match(r"`\S+ ([\w-]+)`", command)
        assert name is not None, command
        # headings of a command's own commands follow
        made[f"{FOLDER}/command-{name[1]}.md"] = "# " + re.sub(
            r"^###", "##", command, flags=re.MULTILINE
        )
    listed = "\n".join(page.rpartition("/")[2].removesuffix(".md") for page in made)
    linked = re.sub(
        r"^\* `(\w[\w-]*)`", r"* [`\1`](command-\1.md)", opening, flags=re.MULTILINE
    )
    return {PAGE: f"{linked}\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n", **made}


@cache
def text() -> str:
    """All commands in one text."""
    command = typer.main.get_command(app)
    context = typer.Context(command, obj={MARKUP_MODE_KEY: app.rich_markup_mode})
    made = get_docs_for_click(obj=command, ctx=context, name="tsfm-lens")
    _, _, rest = made.partition("\n")
    reported = (
        "Data goes to stdout and messages to stderr. Exit code 0 means done, 1 refused,"
        " 2 misused."
    )
    return f"# Command line\n\n{reported}\n{rest}"
