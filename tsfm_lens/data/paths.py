"""Paths that people write, as readable files."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from tsfm_lens.errors import InputError

_MOST_FILES = 5  # files that a message names, the nearest first


def local_path(path: str | Path) -> Path:
    """Resolve ``~`` in a path."""
    try:
        place = Path(path).expanduser()
        place.exists()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        text = str(path) if len(str(path)) <= 100 else f"{str(path)[:100]}…"
        # the system's own message repeats the whole path
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{text!r} is no usable path: {why}") from error
    return place


def missing_file(file: Path, readable: tuple[str, ...]) -> InputError:
    """Build the error for a file that does not exist: it names readable files of the folder, the nearest first."""
    names = sorted(item.name for item in file.parent.glob("*") if item.suffix in readable)
    near = get_close_matches(file.name, names, n=_MOST_FILES)
    nearest = [*near, *(name for name in names if name not in near)][:_MOST_FILES]
    hint = f" That folder has: {', '.join(nearest)}{', …' if len(names) > _MOST_FILES else ''}." if names else ""
    return InputError(f"there is no file {str(file)!r}.{hint}")


def regular_file(path: str | Path, readable: tuple[str, ...]) -> Path:
    """Return an existing plain file with one of these endings; pipes and devices may never end."""
    file = local_path(path)
    if not file.exists():
        raise missing_file(file, readable)
    if not file.is_file() and not file.is_dir():
        raise InputError(f"{str(path)!r} is a pipe or a device, expected a plain file; save its content to one first")
    if file.is_dir() or not file.name.lower().endswith(readable):
        raise InputError(f"cannot read {str(path)!r}: expected a file that ends in {', '.join(readable)}")
    return file
