"""Put outputs into the notebooks of ``examples/``: texts, tables, and a picture of each
figure, which GitHub shows.

``python tools/render_notebooks.py [NAME…]`` runs those whose code, or the package's, is
not what was last run, and needs a Chromium. With ``--check`` nothing is run or written,
and the exit code says whether each has outputs of its own code.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import nbformat  # noqa: E402
from sitepages.notebooks import EXAMPLES, hash_code, names, with_pictures  # noqa: E402


def faults(path: Path) -> list[str]:
    """What is wrong with the outputs of a notebook, in words."""
    notebook = nbformat.read(path, as_version=4)
    found = []
    if notebook.metadata.get("tsfm_lens", {}).get("rendered") != hash_code(notebook):
        found.append("its outputs are not those of its code")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if not any("image/png" in output.get("data", {}) for output in outputs):
        found.append("no figure has a picture")
    if any(output["output_type"] == "error" for output in outputs):
        found.append("a cell ends in an error")
    return found


def main() -> None:
    """Write or check."""
    asked = [
        name.removesuffix(".ipynb")
        for name in sys.argv[1:]
        if not name.startswith("--")
    ] or names()
    stale = []
    for name in asked:
        path = EXAMPLES / f"{name}.ipynb"
        if "--check" in sys.argv:
            stale += [
                f"{name}: {fault}; run tools/render_notebooks.py"
                for fault in faults(path)
            ]
        else:
            path.write_text(with_pictures(path))
            print(path.relative_to(ROOT), f"{path.stat().st_size // 1000} kB")
    print("\n".join(stale), end="\n" if stale else "")
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()
