"""Report of a sweep: one page, and beside it every figure and table as files of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.data.text import to_csv
from tsfm_lens.errors import InputError
from tsfm_lens.places import refuse_unwritable
from tsfm_lens.registry import ReportPanel, measurements
from tsfm_lens.report.build import page_of, panels_of
from tsfm_lens.report.sweep_tables import latex
from tsfm_lens.viz.saving import rendered, write_together
from tsfm_lens.viz.sweep_entries import methods_of
from tsfm_lens.viz.words import listed


def build_sweep_report(
    results: Mapping[str, pd.DataFrame],
    out: str | Path,
    *,
    title: str,
    provenance: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> Path:
    """Write the report of a sweep: a page that opens offline, and its figures and tables as files."""
    kinds = [kind for kind, entry in measurements().items() if entry.theme == "Sweeps"]
    for name, ds in results.items():
        kind = ds.attrs.get("kind") if isinstance(ds, pd.DataFrame) else type(ds).__name__
        if kind not in kinds:
            raise InputError(f"result {name!r} is of kind {kind!r}; a sweep has {', '.join(kinds)}.")
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
    contents: dict[Path, bytes] = {}
    drawings = [panel for each in panels.values() for panel in each]
    for stem, panel in zip(_stems(panel.name for panel in drawings), drawings, strict=True):
        contents[folder / "figures" / f"{stem}.json"] = rendered(panel.figure, "json")
    for stem, table in zip(_stems(results), results.values(), strict=True):
        contents[folder / "tables" / f"{stem}.csv"] = to_csv(table).encode()
        contents[folder / "tables" / f"{stem}.tex"] = latex(table).encode()
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
    """Write a value of the provenance as lines of text: one for each member of a list or mapping."""
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
