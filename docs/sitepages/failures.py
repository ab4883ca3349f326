"""The page of errors: what each says, why it comes, what to do, and which functions
raise it.
"""

from __future__ import annotations

import inspect
import re

from sitepages.api import FOLDER, PACKAGES, find_module, homes, public_names
from sitepages.writing import write

PAGE = f"{FOLDER}/errors.md"
_SHOWN = 12  # functions named for an error; most raise an InputError


def write_errors() -> None:
    """A section per class, in the order of the module."""
    raised = _raised()
    parts = ["# Errors", _tree()]
    for name in public_names("core.errors"):
        parts += [
            f"## {name}",
            f"```{{eval-rst}}\n.. autoexception:: tsfm_lens.core.errors.{name}\n```",
        ]
        by = raised.get(name, [])
        if by:
            named = ", ".join(f"{{py:obj}}`~{home}`" for home in by[:_SHOWN])
            more = ""
            if len(by) > _SHOWN:
                more = f" and {len(by) - _SHOWN} more"
            parts.append(f"Raised by {named}{more}.")
    write(PAGE, "\n\n".join(parts) + "\n")


def _tree() -> str:
    text = inspect.getdoc(find_module("core.errors")) or ""
    _, tree, *after = text.split("\n\n")
    return f"```text\n{inspect.cleandoc(tree)}\n```\n\n" + "\n\n".join(
        part.replace("``", "`") for part in after
    )


def _raised() -> dict[str, list[str]]:
    """Public functions and classes by the errors that their docstrings name."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for name in public_names(package):
            thing = getattr(find_module(package), name)
            home = homes().get(id(thing), "")
            if package == "core.errors" or home != f"tsfm_lens.{package}.{name}":
                continue
            section = (
                (inspect.getdoc(thing) or "")
                .partition("\nRaises:\n")[2]
                .split("\n\n")[0]
            )
            for error in re.findall(r"^ {4}(\w+Error):", section, flags=re.MULTILINE):
                found.setdefault(error, []).append(home)
    return found
