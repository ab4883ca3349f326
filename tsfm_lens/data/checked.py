"""Validation of files that people write: the common part of configurations and recipes.

:func:`read_fields` reads a YAML file, a :class:`Strict` model checks its fields, and
:func:`complaints` says what is wrong with each in the words of the file, not in those
of pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.files import missing_file


class Strict(BaseModel):
    """Model that refuses unknown keys.

    A misspelt key would otherwise have no effect, unnoticed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
"""Texts; a single one may stand without brackets."""


def read_fields(file: Path, what: str, fields: str) -> dict[str, Any]:
    """Read the content of a YAML (or JSON) file."""
    try:
        # ``exists`` raises for a name that the system cannot hold, so that it stands
        # inside of ``try``
        missing = not file.exists()
        if missing:
            text = ""
        else:
            text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{what} {str(file)!r} cannot be read: {error}") from error
    if missing:
        raise missing_file(file, (".yaml", ".yml", ".json"))
    try:
        # JSON is read by the same call, since YAML contains it
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{what} {str(file)!r} is no YAML: {error}") from error
    # the traceback would be thousands of lines, hence ``from None`` below
    except RecursionError:
        raise InputError(
            f"{what} {str(file)!r} is nested too deeply to be read; expected {fields}"
        ) from None
    except (ValueError, OverflowError) as error:
        # a date that is none, a number of thousands of digits
        raise InputError(
            f"{what} {str(file)!r} holds a value that is none: {error}; quote a text"
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            f"{what} {str(file)!r} holds {type(content).__name__}, expected {fields}"
        )
    return content


def complaints(
    error: ValidationError,
    what: str,
    fields_at: Callable[[tuple[Any, ...]], Sequence[str]],
) -> str:
    """Describe pydantic's errors in a file, field by field.

    Args:
        error: what pydantic raised.
        what: kind of file, such as "a sweep".
        fields_at: names of the fields that exist at a path in the file.

    Returns:
        One line with all errors.
    """
    details = error.errors()
    # a field may be wrong only because a part of it is
    parents = {
        detail["loc"][:stop] for detail in details for stop in range(len(detail["loc"]))
    }
    return "; ".join(
        _complaint(detail, what, fields_at)
        for detail in details
        if detail["loc"] not in parents
    )


def _complaint(
    error: Any, what: str, fields_at: Callable[[tuple[Any, ...]], Sequence[str]]
) -> str:
    """Describe one of pydantic's errors, by the path of its field."""
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        fields = list(fields_at(error["loc"][:-1]))
        name = str(error["loc"][-1])
        # ``get_close_matches`` finds no long name by its initials
        initials = [
            field
            for field in fields
            if name == "".join(word[:1] for word in field.split("_"))
        ]
        near = [*initials, *get_close_matches(name, fields, n=1)]
        hint = ""
        if near:
            hint = f"; the nearest is {near[0]!r}"
        return f"{path} is not a field of {what}{hint} (there are {', '.join(fields)})"
    if error["type"] == "union_tag_invalid":
        name, tag, tags = (
            error["ctx"][key] for key in ("discriminator", "tag", "expected_tags")
        )
        # pydantic hands over its tags as one text, each in quotes, and the
        # discriminator in quotes, too
        near = get_close_matches(str(tag), tags.replace("'", "").split(", "), n=1)
        hint = ""
        if near:
            hint = f"; the nearest is {near[0]!r}"
        return (
            f"{path}.{name.strip(chr(39))}: there is no {tag!r}{hint} (there are"
            f" {tags})"
        )
    if error["type"] == "union_tag_not_found":
        return f"{path}.{error['ctx']['discriminator'].strip(chr(39))}: it is required"
    message = error["msg"].removeprefix("Value error, ")
    for phrase, replacement in _PHRASES.items():
        message = message.replace(phrase, replacement)
    value = error.get("input")
    suffix = ""
    if isinstance(value, str | int | float):
        suffix = f" (got {value!r})"
    if path:
        return f"{path}: {message}{suffix}"
    return message


# pydantic speaks of Python, and the file is YAML; phrases are replaced in this
# order, so that none comes before a longer one that begins with it
_PHRASES = {
    "Input should be a valid tuple": "expected a list",
    "Input should be a valid dictionary or instance of": "expected the fields of",
    "Input should be a valid dictionary": "expected fields and values",
    "Tuple should have at least 1 item after validation, not 0": (
        "expected at least one"
    ),
    "Input should be": "it must be",
    "Field required": "it is required",
}
