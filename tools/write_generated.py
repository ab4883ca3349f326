"""Write what follows from the code: the exports of explain, probes and viz, the tables of docs/measurements.md, and the
names that a shell completes.

Run it after adding a probe or a figure: ``python tools/write_generated.py``. With ``--check`` nothing is written, and
the exit code says whether all of it is up to date.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "measurements.md"
# rooms whose functions say what they take where they are handed something else
TAKING_RUNS = ("explain", "probes")
GUARD = "from tsfm_lens.probes.given import refuse_others as _refuse_others"
START, STOP = "<!-- from the catalogue -->\n", "<!-- end of the catalogue -->"


def exports(room: Path) -> str:
    """``__init__.py`` of a room: its docstring, and every name that a module of it has in ``__all__``."""
    tree = ast.parse((room / "__init__.py").read_text())
    docstring = ast.get_docstring(tree, clean=False)
    imports, names = [], []
    for file in sorted(room.glob("*.py")):
        public = sorted(_public(file))
        if file.name != "__init__.py" and public:
            imports.append(f"from tsfm_lens.{room.name}.{file.stem} import {', '.join(public)}")
            names += public
    listed = "".join(f'    "{name}",\n' for name in sorted(names))
    text = f'"""{docstring}"""\n\n' + "\n".join(imports) + f"\n\n__all__ = [\n{listed}]\n"
    if room.name in TAKING_RUNS:
        text = text.replace('"""\n\n', f'"""\n\n{GUARD}\n', 1) + "\n_refuse_others(__name__)\n"
    for command in (["check", "--fix", "--select", "I"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(room / "__init__.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def _public(file: Path) -> list[str]:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def tables(docs: Path) -> str:
    """The documentation with the catalogue's tables in it."""
    # an entry may need an export that was written just now
    from tsfm_lens.catalogue.listing import as_markdown

    before, rest = docs.read_text().split(START)
    _, after = rest.split(STOP)
    return f"{before}{START}\n{as_markdown()}\n{STOP}{after}"


def offered() -> str:
    """The names that a shell completes, since making them takes seconds."""
    from tsfm_lens.catalogue import measurements
    from tsfm_lens.figures.named import figures
    from tsfm_lens.models.architecture import architectures
    from tsfm_lens.zoo import checkpoint_names

    names = {
        "figures": list(figures()),
        "kinds": [kind for kind, each in measurements().items() if each.compute is not None],
        "models": [
            *checkpoint_names(),
            *(hub for entry in architectures().values() for hub in entry.published.values()),
        ],
    }
    return json.dumps(names, indent=1) + "\n"


def main() -> None:
    """Write or check."""
    check, stale = "--check" in sys.argv, []
    made: dict[Path, Callable[[], str]] = {
        ROOT / "tsfm_lens" / room / "__init__.py": partial(exports, ROOT / "tsfm_lens" / room)
        for room in ("explain", "probes", "viz")
    }
    made[DOCS] = partial(tables, DOCS)
    made[ROOT / "tsfm_lens" / "cli" / "names.json"] = offered
    for file, make in made.items():
        text = make()
        if not file.exists() or file.read_text() != text:
            stale.append(file)
            print(file.relative_to(ROOT), "is not up to date" if check else "written")
            if not check:
                file.write_text(text)
    sys.exit(check and bool(stale))


if __name__ == "__main__":
    main()
