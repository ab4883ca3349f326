"""Report builder: figures, tables, sentences and provenance in one HTML file that opens offline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.places import refuse_unwritable
from tsfm_lens.registry import Measurement, ReportPanel, find, measurements
from tsfm_lens.report.downloads import Download, download
from tsfm_lens.viz.saving import BROWSER_CONFIG, write_together
from tsfm_lens.viz.select import kind_word, model_of, names, shown
from tsfm_lens.viz.theme import true_minus, untitled

LIMIT = 10_000_000  # bytes of the whole file
_HEIGHT = 450  # pixels of a figure that has none of its own
_MAX_NAMES = 6  # series that a heading names
_PARAGRAPH = 320  # letters of sentences that stand in one paragraph


@dataclass(frozen=True)
class _Figure:
    """One figure in the form of the template; ``spec`` is JSON that is safe inside a script element."""

    anchor: str
    title: str
    subtitle: str
    spec: Markup
    height: int
    min_width: int
    sentences: list[str]
    table: Download

    @property
    def paragraphs(self) -> list[str]:
        """Reading in one paragraph, or where it is long in one for each of its sentences."""
        whole = " ".join(self.sentences)
        return [whole] if len(whole) <= _PARAGRAPH else self.sentences

    @property
    def size(self) -> int:
        return len(self.spec) + len(self.table.href) + 2000


@dataclass
class _Section:
    """One result in the form of the template."""

    anchor: str
    heading: str
    description: str
    subject: str
    remark: str
    figures: list[_Figure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)


def build_report(
    results: Mapping[str, xr.Dataset],
    path: str | Path,
    *,
    title: str,
    provenance: Mapping[str, str],
    remarks: Mapping[str, str] | None = None,
) -> Path:
    """Write one self-contained HTML file with all results: figures, readings, tables, provenance.

    Args:
        results: labelled results by name, in the order of the report.
        path: a folder, for ``index.html`` in it, or a file that ends in .html.
        title: heading of the report.
        provenance: what the numbers come from, in the order shown: model, revision, versions, seed, data, date.
        remarks: sentences of your own by name of a result, shown before those computed from the numbers.

    Returns:
        The file written. It opens without network and is at most 10 MB; figures beyond that are left out,
        which the report then says.

    Raises:
        InputError: no results, one that is of no known kind, or the file cannot be written.
        UnknownNameError: a remark on a result that is not there.

    Example:
        >>> results = {"forecast": run.forecast.to_dataset(run.truth)}
        >>> report.build_report(results, folder, title="co2", provenance={"model": lens.model_id}).name
        'index.html'
    """
    for name in remarks or {}:
        if name not in results:
            raise unknown_name("result", name, results)
    target = page_at(path)
    page = page_of(results, panels_of(results), title=title, provenance=provenance, remarks=remarks)
    return write_together({target: page})[0]


def page_at(path: str | Path) -> Path:
    """Return the file of a report in a folder, or under a name that ends in .html.

    Raises:
        InputError: no file can be written there.
    """
    target = Path(path)
    target = target if target.suffix.lower() == ".html" else target / "index.html"
    refuse_unwritable(target.parent)
    if target.is_dir():
        raise InputError(f"{str(target)!r} is a folder, expected the name of a file to write; give another place")
    return target


def panels_of(results: Mapping[str, Any]) -> dict[str, list[ReportPanel]]:
    """Draw each result: a Dataset, or of a sweep a table.

    Raises:
        InputError: no results, or one that is of no known kind.
    """
    if not results:
        raise InputError("there are no results to report: give at least one labelled result.")
    entries = {name: measurement_of(ds, name) for name, ds in results.items()}
    return {name: list(entries[name].draw_panels(ds)) for name, ds in results.items()}


def measurement_of(ds: Any, name: str) -> Measurement:
    """Return the measurement of a result.

    Raises:
        InputError: ``ds`` is no labelled result of a known kind.
    """
    kind = ds.attrs.get("kind") if isinstance(ds, xr.Dataset | pd.DataFrame) else type(ds).__name__
    if kind not in measurements():
        raise InputError(f"result {name!r} is of kind {kind!r}; a report can draw {', '.join(measurements())}.")
    return find(str(kind))


def page_of(
    results: Mapping[str, Any],
    panels: Mapping[str, list[ReportPanel]],
    *,
    title: str,
    provenance: Mapping[str, str],
    remarks: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> bytes:
    """Render the page as a file's content; ``panels`` come from :func:`panels_of`, ``notes`` stand above results."""
    script = get_plotlyjs()
    sections: list[_Section] = []
    for place, (name, ds) in enumerate(results.items(), start=1):
        section = _section(f"s{place}", name, ds, panels[name], (remarks or {}).get(name, ""))
        if section.heading in [other.heading for other in sections]:
            section.heading += f" ({name})"
        sections.append(section)
    # the rest of the page: template, provenance, headings
    _fit(sections, LIMIT - len(script.encode()) - 100_000)
    environment = Environment(
        loader=PackageLoader("tsfm_lens", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("template.html.j2").render(
        title=title,
        sections=sections,
        notes=[_typeset(note) for note in notes],
        provenance=dict(provenance),
        plotlyjs=Markup(script),
        config=BROWSER_CONFIG,
    )
    return page.encode()


def _section(anchor: str, name: str, ds: Any, panels: list[ReportPanel], remark: str) -> _Section:
    """Build the section of one result."""
    entry = measurement_of(ds, name)
    file = f"{entry.title.lower().replace(' ', '-')}-{anchor}"
    return _Section(
        anchor=anchor,
        heading=_in_words(str(ds.attrs.get("title", "") or entry.title)),
        description=entry.description,
        subject=entry.subject(ds) if entry.subject else _on_series(ds),
        remark=remark,
        figures=[
            _figure(f"{anchor}-{number}", f"{file}-{number}", panel) for number, panel in enumerate(panels, start=1)
        ],
        parameters={str(k): str(v) for k, v in ds.attrs.items() if str(v)},
    )


def _in_words(title: str) -> str:
    """Spell out the kind of attention in a title."""
    text = re.sub(r"\w+_attn\b", lambda kind: kind_word(kind[0]), title)
    return text[:1].upper() + text[1:]


def _on_series(ds: xr.Dataset) -> str:
    series = names(ds, "series") or [str(name) for name in [ds.attrs.get("series")] if name]
    if len(series) > _MAX_NAMES and "role" in ds.coords:
        # of a number of series a reader takes each for one that is forecast
        series = names(ds.isel(series=ds["role"].values == "target"), "series")
    return f"{model_of(ds)} on {shown(series, limit=_MAX_NAMES)}" if series else model_of(ds)


def _fit(sections: list[_Section], budget: int) -> None:
    """Leave out what does not fit into ``budget`` bytes: last figures of a section first, overviews last."""
    entries = [(rank, section, figure) for section in sections for rank, figure in enumerate(section.figures)]
    for _, section, figure in sorted(entries, key=lambda entry: entry[0]):
        if figure.size <= budget:
            budget -= figure.size
        else:
            section.figures.remove(figure)
            section.left_out.append(figure.title)


def _figure(anchor: str, file: str, panel: ReportPanel) -> _Figure:
    meta = panel.figure.layout.meta or {}
    if "title_height" in meta:
        bare = untitled(panel.figure)
    else:
        # a figure that somebody drew with plotly alone
        bare = go.Figure(panel.figure)
        meta = {"title": bare.layout.title.text or "", "subtitle": "", "min_width": 0}
        bare.layout.title.text = None
    return _Figure(
        anchor=anchor,
        title=meta["title"],
        subtitle=meta["subtitle"],
        spec=script_json(bare),
        height=int(bare.layout.height or _HEIGHT),
        min_width=int(meta["min_width"]),
        sentences=[_typeset(text) for text in panel.sentences],
        table=download(panel.table, f"{file}.csv"),
    )


def _typeset(text: str) -> str:
    """Keep a number and its percent sign on one line, and write one kind of minus sign."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", true_minus(text))


def script_json(fig: go.Figure) -> Markup:
    """Write a figure as JSON in which nothing can end or open an HTML element."""
    text: str = fig.to_json()
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)
