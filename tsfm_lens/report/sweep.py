"""Report of a sweep: one page, and beside it every figure and table as files of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.data.text import to_csv
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.places import refuse_unwritable
from tsfm_lens.registry import ReportPanel, measurements
from tsfm_lens.report.build import page_of, panels_of
from tsfm_lens.report.sweep_tables import latex
from tsfm_lens.viz.printing import for_print
from tsfm_lens.viz.saving import FORMATS, rendered, write_together
from tsfm_lens.viz.sweep_entries import methods_of
from tsfm_lens.viz.words import listed

_VECTOR_FORMATS = ("svg", "pdf")


def build_sweep_report(
    results: Mapping[str, pd.DataFrame],
    out: str | Path,
    *,
    title: str,
    provenance: Mapping[str, Any],
    notes: Sequence[str] = (),
    formats: Sequence[str] = (),
) -> Path:
    """Write the report of a sweep: a page that opens offline, and its figures and tables as files.

    All files are written, or none: each beside its place first. Files of an earlier report that have other names stay.

    Args:
        results: tables of kinds "sweep_…" by name, as far as the sweep has come.
        out: folder; made where there is none.
        title: heading of the page.
        provenance: what the numbers come from; nested values are written out.
        notes: what a reader must know before any number: missing cells, results left unused.
        formats: further formats of each figure beside plotly JSON: "svg", "pdf" (in print style), "png", "html".

    Returns:
        ``out/index.html``. Beside it ``figures/<figure>.json``, ``tables/<result>.csv`` and ``tables/<result>.tex``.

    Raises:
        InputError: no results, one that is of no kind of sweeps, or the folder cannot be written.
        UnknownNameError: no such format.
        RenderError: a static image is asked for, and there is no browser to draw it.
    """
    kinds = [kind for kind, entry in measurements().items() if entry.theme == "Sweeps"]
    for name, ds in results.items():
        kind = ds.attrs.get("kind") if isinstance(ds, pd.DataFrame) else type(ds).__name__
        if kind not in kinds:
            raise InputError(f"result {name!r} is of kind {kind!r}; a sweep has {', '.join(kinds)}.")
    for each in formats:
        if each not in FORMATS:
            raise unknown_name("format", each, FORMATS)
    folder = Path(out)
    refuse_unwritable(folder)
    panels = panels_of(results)
    page = page_of(
        {name: ds for name, ds in results.items() if panels[name]},
        panels,
        title=title,
        provenance={str(key): written(value) for key, value in provenance.items()},
        notes=[*notes, *_missing(results, panels), *_methods(results)],
    )
    contents = _figures(folder / "figures", panels, formats) | _tables(folder / "tables", results)
    # the page last: where it is, its files are
    contents[folder / "index.html"] = page
    write_together(contents)
    return folder / "index.html"


def _missing(results: Mapping[str, pd.DataFrame], panels: Mapping[str, list[ReportPanel]]) -> list[str]:
    """List the results that are missing, by name."""
    notes = []
    for name, table in results.items():
        n_missing = int(table["change"].isna().sum())
        if not panels[name] and n_missing == len(table):
            notes.append(f"Nothing of {name} can be drawn yet: none of its entries is finished.")
            continue
        if not panels[name]:
            kinds = listed([f"{each!r}" for each in dict.fromkeys(table.get("family", [name]))])
            notes.append(f"There is no figure of {kinds}; the numbers are in tables/{name}.csv.")
        if n_missing:
            verb, what = ("is", "it") if n_missing == 1 else ("are", "them")
            notes.append(
                f"{n_missing} of {len(table)} numbers of {name} {verb} missing; what is drawn leaves {what} out."
            )
    return notes


def _methods(results: Mapping[str, pd.DataFrame]) -> list[str]:
    """Describe the computation of intervals and tests, each way once."""
    tables = [table for table in results.values() if "replicates" in table and len(table)]
    return list(dict.fromkeys(sentence for table in tables for sentence in methods_of(table)))


def _figures(folder: Path, panels: Mapping[str, list[ReportPanel]], formats: Sequence[str]) -> dict[Path, bytes]:
    all_panels = [panel for each in panels.values() for panel in each]
    contents = {}
    for stem, panel in zip(_stems(panel.name for panel in all_panels), all_panels, strict=True):
        for kind in dict.fromkeys(("json", *formats)):
            figure = for_print(panel.figure) if kind in _VECTOR_FORMATS else panel.figure
            contents[folder / f"{stem}.{kind}"] = rendered(figure, kind)
    return contents


def _tables(folder: Path, results: Mapping[str, pd.DataFrame]) -> dict[Path, bytes]:
    contents = {}
    for stem, ds in zip(_stems(results), results.values(), strict=True):
        contents[folder / f"{stem}.csv"] = to_csv(ds).encode()
        contents[folder / f"{stem}.tex"] = latex(ds).encode()
    return contents


def _stems(names: Iterable[str]) -> list[str]:
    """Return names of files, distinct and without characters that a file system or a shell could misread."""
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:80].strip("-.") or "result"
        count, unique = 1, stem
        while unique.lower() in {each.lower() for each in stems}:
            count += 1
            unique = f"{stem}-{count}"
        stems.append(unique)
    return stems


def written(value: Any) -> str:
    """Write a value of the provenance as lines of text: one for each member of a list or mapping.

    Deeper values stand in their line as JSON.
    """
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_inline(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(_inline(each) for each in value)
    return str(value)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        flat = {key: each for key, each in value.items() if each not in (None, "", [], {})}
        return "; ".join(
            f"{key} {each if isinstance(each, str) else json.dumps(each, default=str)}" for key, each in flat.items()
        )
    return value if isinstance(value, str) else json.dumps(value, default=str)
