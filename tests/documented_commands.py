"""Commands that documents, docstrings and messages name, and the parsers that they are
held against.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import typer
from typer.main import get_command

from tsfm_lens.cli import app

ROOT = Path(__file__).parent.parent
UsageError: Any = typer.BadParameter.__mro__[1]

_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)(`{1,2})(?!`)([^`]+?)\1(?!`)")
_PROGRAM = re.compile(
    r"(?:^|\s)(?:BIN/)?(tsfm-lens|python -m (?:tsfm_lens|benchmarks)[\w.]*|python"
    r" tools/\w+\.py)(?=\s|$)"
)
# a capital stands for what the reader puts in: MODEL, ETTh1=FILE, RUN.nc, [MODEL]; X is
# what an f-string fills in
_STANDS_FOR = re.compile(r"\[?(?:\w+[=:])?[A-Z]+(?:[-_.][A-Za-z]+)?\]?")
# programs of others, of which a sentence names an option
FOREIGN = {"--no-deps": "pip", "--requeue": "sbatch"}


class Mention(NamedTuple):
    """A piece of code of a document and where it stands: a whole line of a block, or a
    span within a sentence.
    """

    text: str
    place: str
    whole: bool


# --- where code stands
# --------------------------------------------------------------------------------------


def documents() -> list[Path]:
    """Files whose code people copy or read; the changelog is history, and what is built
    may be of another commit.
    """
    folders = ("docs", "examples", "benchmarks", ".github", "tools", "tsfm_lens")
    bounds = ("md", "ipynb", "yaml", "yml", "py")
    patterns = [
        "*.md",
        "Makefile",
        ".ci/run",
        *(f"{folder}/**/*.{end}" for folder in folders for end in bounds),
    ]
    built = {"_build", "_cache", "gallery", "notebooks", "generated", "__pycache__"}
    files = {
        path
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if not built & set(path.parts)
    }
    return sorted(
        files - {ROOT / "CHANGELOG.md", *(ROOT / "docs" / "reference").glob("*/*.md")}
    )


def mentions(path: Path) -> Iterator[Mention]:
    """Lines of code blocks, and spans of code."""
    if path.is_relative_to(ROOT):
        name = path.relative_to(ROOT).as_posix()
    else:
        name = path.name
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        # to read all modules as trees takes seconds
        if not re.search(
            r"tsfm-lens(?! paper)|python |make"
            rf" |`--|`(?:{'|'.join(find_parser('tsfm-lens').commands)}) ",
            text,
        ):
            return
        for label, line in _strings(ast.parse(text)):
            yield from _of_markdown(label, name, line)
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(text)["cells"]):
            if cell["cell_type"] == "markdown":
                yield from _of_markdown(
                    "".join(cell["source"]), f"{name}, cell {number}", 1
                )
    elif path.suffix == ".md":
        yield from _of_markdown(text, name, 1)
    else:
        # the paper goes by the name of the command
        text = re.sub(r"tsfm-lens paper\b", "paper", text)
        yield from _lines(text, name, 1)
        yield from _spans(text, name, 1)


def _strings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Texts of a module with their first lines."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value, tree.lineno
    elif isinstance(tree, ast.JoinedStr):
        yield (
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X"
                for part in tree.values
            ),
            tree.lineno,
        )
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _strings(child)


def _of_markdown(text: str, name: str, first: int) -> Iterator[Mention]:
    for block in _FENCE.finditer(text):
        # the code of these runs, and is compared
        if block[3].strip() not in ("python", "text"):
            yield from _lines(
                block[4], name, first + text[: block.start(4)].count("\n")
            )
    yield from _spans(
        _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text), name, first
    )


def _spans(text: str, name: str, first: int) -> Iterator[Mention]:
    for span in _SPAN.finditer(text):
        yield Mention(
            " ".join(span[2].replace("\\|", "|").split()),
            f"{name}:{first + text[: span.start()].count(chr(10))}",
            False,
        )


def _lines(text: str, name: str, first: int) -> Iterator[Mention]:
    """Lines, those that end in a backslash with the next ones."""
    for line in re.finditer(r"(?:[^\n]*\\\n)*[^\n]+", text):
        yield Mention(
            re.sub(r"\\\n\s*", "", line[0]),
            f"{name}:{first + text[: line.start()].count(chr(10))}",
            True,
        )


# --- the words of a command
# --------------------------------------------------------------------------------------


def split_command(mention: Mention) -> list[str]:
    """Program and arguments; empty if it names no program of ours.

    Within a sentence the program may be left out: ``figure --list``, ``--seed 1``.
    """
    text = re.sub(r"\$\((\w+)\)", r"\1", mention.text)
    # functions of make, which give an option for each value, or if one is set
    text = re.sub(r"\$\((?:addprefix|foreach|if)[^)]*?(--\w+ )[^)]*\)", r"\1X", text)
    program = _PROGRAM.search(text)
    if program is not None:
        return _shell_words(text[program.start(1) :])
    if mention.whole:
        return []
    label = _shell_words(text)
    named = label and label[0] in find_parser("tsfm-lens").commands and len(label) > 1
    if named or re.match(r"--[a-z]", text):
        return ["tsfm-lens", *label]
    return []


def _shell_words(text: str) -> list[str]:
    """The words up to the shell's own signs, such as ``>``."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    out: list[str] = []
    with contextlib.suppress(ValueError):
        for word in lexer:
            if set(word) <= set(";|&<>"):
                break
            out.append(word)
    return out


def is_placeholder(word: str) -> bool:
    """The reader puts something else in its place."""
    return "…" in word or "..." in word or _STANDS_FOR.fullmatch(word) is not None


# --- parsers
# --------------------------------------------------------------------------------------


class _Halt(BaseException):
    """A program has come to its parser."""

    def __init__(self, parser: Any) -> None:
        super().__init__()
        self.parser = parser


@cache
def find_parser(program: str, loose: bool = False) -> Any:
    """What parses for ``tsfm-lens``, a module or a script: a command of typer or of
    argparse, or its own source.

    Args:
        program: its name.
        loose: parameters may be missing.
    """
    if program in ("tsfm-lens", "tsfm_lens"):
        return _parsing_only(get_command(app), loose)
    if program.endswith(".py"):
        file = ROOT / program
    else:
        file = Path(str(getattr(importlib.util.find_spec(program), "origin", "")))
    if file.name == "__init__.py":
        file = file.with_name("__main__.py")
    source = file.read_text(encoding="utf-8")
    if not re.search(r"argparse|run_command|typer", source):
        return source

    def halt(parser: Any, *_: Any, **__: Any) -> None:
        raise _Halt(parser)

    run: Callable[..., Any] = (
        runpy.run_path if program.endswith(".py") else runpy.run_module
    )
    with (
        mock.patch.object(typer.Typer, "__call__", halt),
        mock.patch.object(argparse.ArgumentParser, "parse_args", halt),
        warnings.catch_warnings(action="ignore"),
    ):
        try:
            run(str(file) if program.endswith(".py") else program, run_name="__main__")
        except _Halt as halted:
            parser = halted.parser
    if isinstance(parser, typer.Typer):
        return _parsing_only(get_command(parser), loose)
    return parser


def _parsing_only(command: Any, loose: bool) -> Any:
    """The command, changed so that it and its parts return what they were given."""
    if hasattr(command, "commands"):
        for item in command.commands.values():
            _parsing_only(item, loose)
    else:
        for parameter in command.params if loose else ():
            parameter.required = False
        command.callback = lambda **values: (command, values)
    return command


def parse(program: str, arguments: list[str], *, loose: bool = False) -> str:
    """Let a program's parser take arguments; what it has against them, empty if
    nothing.

    Args:
        program: "tsfm-lens", a module or a script.
        arguments: its words.
        loose: parameters may be missing, and a word may stand for a value.
    """
    parser = find_parser(program, loose)
    if isinstance(parser, str):
        unknown = [
            word
            for word in arguments
            if word.startswith("--") or "sys.argv" not in parser
        ]
        return next(
            (
                f"{program} takes no {word}"
                for word in unknown
                if f'"{word}"' not in parser
            ),
            "",
        )
    out = io.StringIO()
    with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
        try:
            if isinstance(parser, argparse.ArgumentParser):
                parser.parse_args(arguments)
                return ""
            result = parser.main(arguments, prog_name=program, standalone_mode=False)
        except UsageError as error:
            message = " ".join(error.format_message().split())
            # a command or a value is left out, or one stands for it
            gaps = ("requires an argument", *filter(is_placeholder, arguments))
            forgiven = type(error).__name__ == "NoArgsIsHelpError" or any(
                gap in message for gap in gaps
            )
            # files of the reader's are not here
            if (loose and forgiven) or "does not exist" in message:
                return ""
            return message or "no command is given"
        except SystemExit as end:
            message = out.getvalue().strip().splitlines()[-1]
            if not end.code or (loose and "are required" in message):
                return ""
            return message
    if isinstance(result, tuple) and program == "tsfm-lens":
        return unknown_name(*result)
    return ""


def unknown_name(command: Any, values: dict[str, Any]) -> str:
    """The first value that is none of the names which the tab key offers: a figure,
    measurement, paper's item.
    """
    context = typer.Context(command)
    for parameter in command.params:
        value = values.get(parameter.name)
        if isinstance(value, str):
            names = [value]
        elif isinstance(value, list):
            names = value
        else:
            names = []
        if parameter._custom_shell_complete is None:
            continue
        for name in names:
            # files, folders and models of the hub are the reader's
            if is_placeholder(name) or re.search(r"/|\.\w+$", name):
                continue
            if name not in [
                item.value for item in parameter.shell_complete(context, name)
            ]:
                return f"{parameter.name} {name!r} is not known"
    return ""


def fault(mention: Mention, words: list[str], programs: Iterable[str] = ()) -> str:
    """What the command line has against the words of a mention; empty if nothing.

    Args:
        mention: where they stand.
        words: as :func:`split_command` gives them.
        programs: those of which a sentence may name an option without its program.
    """
    program, arguments = find_program(words)
    loose = not mention.whole or any(map(is_placeholder, arguments))
    arguments = [word for word in arguments if word.strip("…. ")]
    if not mention.text.startswith("--"):
        return parse(program, arguments, loose=loose)
    if arguments[0] in FOREIGN:
        return ""
    commands = [[*position] for position in _places(find_parser("tsfm-lens"))]
    tries = [("tsfm-lens", [*position, *arguments]) for position in commands] + [
        (item, arguments) for item in programs
    ]
    if any(not parse(*item, loose=True) for item in tries):
        return ""
    return f"no command takes {' '.join(arguments)}"


def find_program(words: list[str]) -> tuple[str, list[str]]:
    """The program, by the name that :func:`find_parser` takes, and its arguments."""
    program, *arguments = words
    if program == "python":
        program, *arguments = arguments[1:] if arguments[0] == "-m" else arguments
    return program, arguments


def _places(command: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name, item in getattr(command, "commands", {}).items():
        yield from _places(item, (*before, name))
