"""Report builder: one HTML file, with all results, that opens offline.

Read :func:`build_report` first; :func:`render_page` makes the content of the file.
Figures, tables and sentences come from the registry of measurements, and the layout is
in ``template.html.j2``. Nothing is computed from a model.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from tsfm_lens.core.errors import InputError, UnknownNameError, unknown_name
from tsfm_lens.core.io import find_page
from tsfm_lens.core.registry import FigurePanel, Measurement, find
from tsfm_lens.core.spreadsheets import to_csv
from tsfm_lens.report.cards import make_cards
from tsfm_lens.viz.findings import ONCE
from tsfm_lens.viz.linked import linked_state
from tsfm_lens.viz.saving import BROWSER_CONFIG, write_together
from tsfm_lens.viz.select import kind_word, name_model, names, shown
from tsfm_lens.viz.theme import true_minus, untitled

LIMIT = 10_000_000  # bytes of the whole file
_HEIGHT = 450  # pixels of a figure that has none of its own
_MAX_NAMES = 6  # series that a heading names
_MAX_PLAIN = 4000  # bytes up to which a table is not compressed
# cards beside an answer, by its kind: of which forecast they are
_CARDS_NOTES = {
    "what_if": "The forecast without the change, and what it rests on:",
    "forecast_change": "This forecast, the later of both, and what it rests on:",
}
_REST = 100_000  # bytes of template, provenance and headings


Section = dict[str, Any]
"""One result in the form of the template, with its figures."""


def build_report(
    results: Mapping[str, xr.Dataset],
    path: str | Path,
    *,
    title: str,
    provenance: Mapping[str, str],
    remarks: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    lead: Sequence[str] = (),
) -> Path:
    """Write one self-contained HTML file with all results.

    Each result has a section with its figures, sentences, tables and parameters.

    Args:
        results: labelled results by name, in the order of the report.
        path: a folder, for ``index.html`` in it, or a file that ends in .html.
        title: heading of the report.
        provenance: what the numbers come from, in the order shown.
        remarks: sentences of your own by name of a result, shown before those computed
            from the numbers.
        notes: sentences on the data and on what is missing, below the first screen.
        lead: names of the results that answer the page's question; their sections stand
            first, above the cards.

    Returns:
        The file written, at most 10 MB; figures beyond that are left out, which the
        report says.

    Raises:
        InputError: no results, one that is of no known kind, or the file cannot be
            written.
        UnknownNameError: a remark on a result that is not there.

    Example:
        >>> results = {"forecast": run.forecast.to_dataset(run.truth)}
        >>> head = {"title": "co2", "provenance": {"model": lens.model_id}}
        >>> report.build_report(results, folder, **head).name
        'index.html'
    """
    for name in remarks or {}:
        if name not in results:
            raise unknown_name("result", name, results)
    # a place that cannot be written is an error before anything is drawn
    target = find_page(path)
    page = render_page(
        results,
        draw_results(results),
        title=title,
        provenance=provenance,
        remarks=remarks,
        notes=notes,
        lead=lead,
    )
    return write_together({target: page})[0]


def draw_results(results: Mapping[str, Any]) -> dict[str, list[FigurePanel]]:
    """Draw each result, which is a Dataset or, from a sweep, a table."""
    if not results:
        raise InputError(
            "there are no results to report: give at least one labelled result."
        )
    entries = {name: find_measurement(ds, name) for name, ds in results.items()}
    return {name: list(entries[name].draw_panels(ds)) for name, ds in results.items()}


def find_measurement(ds: Any, name: str) -> Measurement:
    """Return the measurement of a result."""
    if isinstance(ds, xr.Dataset | pd.DataFrame):
        kind = ds.attrs.get("kind")
    else:
        kind = type(ds).__name__
    try:
        return find(str(kind))
    except UnknownNameError as error:
        raise InputError(f"result {name!r} cannot be drawn: {error}") from None


def render_page(
    results: Mapping[str, Any],
    panels: Mapping[str, list[FigurePanel]],
    *,
    title: str,
    provenance: Mapping[str, str],
    remarks: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    lead: Sequence[str] = (),
) -> bytes:
    """Return the page as a file's content.

    ``panels`` come from :func:`draw_results`.
    """
    script = packed(get_plotlyjs())
    sections: list[Section] = []
    for number, (name, ds) in enumerate(results.items(), start=1):
        remark = (remarks or {}).get(name, "")
        section = _section(f"s{number}", name, ds, panels[name], remark)
        # two results of one kind, such as those of two models, have the same title
        if section["heading"] in [earlier["heading"] for earlier in sections]:
            section["heading"] += f" ({name})"
        section["lead"] = name in lead
        sections.append(section)
    anchors = {
        name: section["anchor"] for name, section in zip(results, sections, strict=True)
    }
    linked = _find_linked(results)
    behind = None
    if linked:
        # the linked view is its chapter
        behind = next(each for each in sections if each["anchor"] == anchors[linked])
        sections.remove(behind)
        anchors[linked] = "linked"
    screen = _first_screen(results, anchors, linked, provenance)
    _name_subjects_once(sections, title)
    _drop_excess(sections, LIMIT - len(script) - len(screen["state"]) - _REST)
    for section in sections:
        _sort_figures(section, screen["series"])
    environment = Environment(
        loader=PackageLoader("tsfm_lens", "."),
        # names of series and columns are those of a user, and may hold any characters
        autoescape=True,
        # a misspelt name in the template is an error, not an empty place
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report/template.html.j2").render(
        title=title,
        sections=sections,
        screen=screen,
        behind=behind,
        significance=_extract_common(sections),
        notes=[_typeset(note) for note in notes],
        provenance=dict(provenance),
        plotlyjs=script,
        config=BROWSER_CONFIG,
    )
    return page.encode()


def _find_linked(results: Mapping[str, Any]) -> str:
    """Return the name of the result that the linked view shows; "" if there is none."""
    for name, ds in results.items():
        # the results of a sweep are tables
        is_labelled = isinstance(ds, xr.Dataset)
        if is_labelled and ds.attrs.get("kind") == "head_states" and "attention" in ds:
            return name
    return ""


def _name_subjects_once(sections: list[Section], title: str) -> None:
    """Remove the subject of a chapter where it is that of what stands above."""
    subject = title
    for section in sections:
        if section["subject"] == subject:
            section["subject"] = ""
        else:
            subject = section["subject"]


def _first_screen(
    results: Mapping[str, Any],
    anchors: Mapping[str, str],
    linked_name: str,
    provenance: Mapping[str, str],
) -> dict[str, Any]:
    """Collect the page's top: facts, series, the linked view's state, and cards."""
    # the results of a sweep are tables
    datasets = [ds for ds in results.values() if isinstance(ds, xr.Dataset)]
    linked = results.get(linked_name)
    kinds = [str(ds.attrs.get("kind")) for ds in datasets]
    # cards are made only if no result is a table; a row of them has a card per series
    card_rows = make_cards(results, anchors) if len(datasets) == len(results) else []
    series = list(dict.fromkeys(name for row in card_rows for name in row["cards"]))
    facts: list[str] = []
    if linked is not None:
        sizes = linked.sizes
        facts.append(name_model(datasets[0]))
        facts.append(f"{sizes['layer']} layers × {sizes['head']} heads")
    if datasets and series:
        facts.append(f"{len(series)} series")
    steps = next((ds.sizes["step"] for ds in datasets if "step" in ds.sizes), 0)
    if steps:
        facts.append(f"{steps} steps")
    ids: list[str] = []
    packed_state = ""
    if linked is not None:
        command = _find_command(provenance)
        state = linked_state(linked, command=command)
        state["notes"].append(
            "The figures below mark the chosen component, step and stretch where they"
            f" draw them. To forecast without several components: {command}"
        )
        # the linked view may be of fewer series than there are cards
        ids = [line["name"] for line in state["series"]]
        if omitted := [name for name in series if name not in ids]:
            state["notes"].append(
                f"The linked view is not precomputed for {shown(omitted)}; their cards"
                " are below."
            )
        packed_state = packed(json.dumps(state, separators=(",", ":")))
    return {
        "facts": facts,
        "series": series or ids,
        "state": packed_state,
        "cards": card_rows,
        "cards_note": next(
            (text for kind, text in _CARDS_NOTES.items() if kind in kinds), ""
        ),
    }


def _find_command(provenance: Mapping[str, str]) -> str:
    """Return the command that opens the linked view with the model behind it."""
    model = provenance.get("model", "")
    data = provenance.get("data", "")
    if not model or not data or " " in data:
        # data of several files, or given in Python
        return "run.explore() in a notebook"
    return f"tsfm-lens serve {model} --data {data}"


def _extract_common(sections: list[Section]) -> list[str]:
    """Remove from all figures the sentences that many results share.

    Each is returned once, after the headings of the sections that had it.

    Returns:
        The sentences.
    """
    repeated: dict[str, list[str]] = {}
    for section in sections:
        for figure in section["figures"]:
            # a copy, as the sentences are taken out of the list below
            common = [text for text in figure["sentences"] if ONCE.match(text)]
            for sentence in common:
                figure["sentences"].remove(sentence)
                headings = repeated.setdefault(sentence, [])
                if section["heading"] not in headings:
                    headings.append(section["heading"])
    return [
        f"{', '.join(headings)}: {sentence}" for sentence, headings in repeated.items()
    ]


def packed(text: str) -> str:
    """Compress a text to base64 of gzip; equal texts give equal results."""
    # a fixed time in gzip's header, so that equal results make equal files
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _section(
    anchor: str, name: str, ds: Any, panels: list[FigurePanel], remark: str
) -> Section:
    """Build the section of one result."""
    entry = find_measurement(ds, name)
    file = f"{entry.title.lower().replace(' ', '-')}-{anchor}"
    title = str(ds.attrs.get("title", "") or entry.title)
    # titles name kinds of attention as models spell them
    text = re.sub(r"\w+_attn\b", lambda kind: kind_word(kind[0]), title)
    return {
        "anchor": anchor,
        "heading": text[:1].upper() + text[1:],
        "description": entry.description,
        "subject": entry.describe_subject(ds) or _describe_series(ds),
        "remark": remark,
        "series": str(ds.attrs.get("series", "")),
        "figures": [
            _figure(f"{anchor}-{at}", f"{file}-{at}", panel)
            for at, panel in enumerate(panels, start=1)
        ],
        "left_out": [],
        "parameters": {
            str(key): str(value) for key, value in ds.attrs.items() if str(value)
        },
    }


def _describe_series(ds: xr.Dataset) -> str:
    """Name the model and the series of a result."""
    series = names(ds, "series") or [
        str(name) for name in [ds.attrs.get("series")] if name
    ]
    if series:
        return f"{name_model(ds)} on {shown(series, limit=_MAX_NAMES)}"
    return name_model(ds)


def _drop_excess(sections: list[Section], budget: int) -> None:
    """Leave out the figures that do not fit into ``budget`` bytes.

    The last figures of each section are left out first, the first ones last.
    """
    entries = [
        (rank, section, figure)
        for section in sections
        for rank, figure in enumerate(section["figures"])
    ]
    # stable: figures of one rank stay in the order of the sections
    for _, section, figure in sorted(entries, key=lambda entry: entry[0]):
        # 2000 bytes for its sentences, headings and markup
        size = len(figure["spec"]) + len(figure["table"]["href"]) + 2000
        # a smaller figure may still fit after one that does not
        if size <= budget:
            budget -= size
        else:
            section["figures"].remove(figure)
            section["left_out"].append(figure["title"])


def _sort_figures(section: Section, series: Sequence[str]) -> None:
    """Sort the figures of a section by the tab, one per series, that shows them.

    The first figure is open. If it is of one series, the first figure of every other
    series is open, too. The remaining figures are folded, by series. The series that
    the section does not draw are noted.
    """
    figures = section["figures"]
    with_tabs = len(series) > 1
    for figure in figures:
        if not with_tabs or figure["series"] not in series:
            figure["series"] = ""
    first_series = ""
    if figures:
        first_series = figures[0]["series"]
    leading: dict[str, Any] = {}
    for figure in figures:
        # the first figure of each series; if the first of all is of none, that alone
        if bool(figure["series"]) == bool(first_series):
            leading.setdefault(figure["series"], figure)
    section["leading"] = list(leading.values())
    # titles of figures that say more than the heading stand in its place
    section["titled"] = bool(leading) and all(
        _repeats(section["heading"], figure["title"]) for figure in leading.values()
    )
    anchors = {figure["anchor"] for figure in leading.values()}
    folded: dict[str, list[Any]] = {}
    for figure in figures:
        if figure["anchor"] not in anchors:
            folded.setdefault(figure["series"], []).append(figure)
    section["folded"] = folded
    drawn = {figure["series"] for figure in figures} - {""}
    # the result may be of one series even if none of its figures says so
    drawn = drawn or {section["series"]} & set(series)
    section["undrawn"] = [
        name for name in series if with_tabs and drawn and name not in drawn
    ]
    section["drawn"] = shown([name for name in series if name in drawn])


def _repeats(heading: str, title: str) -> bool:
    """Test if a title has at least half of the words of a heading."""
    words, in_title = (
        # the words of four letters or more, without the ending of a plural
        {word.removesuffix("s") for word in re.findall(r"\w{4,}", text.lower())}
        for text in (heading, title)
    )
    return title.startswith(heading) or 2 * len(words & in_title) >= len(words) > 0


def _figure(anchor: str, file: str, panel: FigurePanel) -> dict[str, Any]:
    """Return one figure in the form of the template.

    ``spec`` is compressed JSON, which is safe inside a script element.
    """
    meta = panel.figure.layout.meta or {}
    # figures of this package keep their titles in ``meta``
    if "title_height" in meta:
        bare = untitled(panel.figure)
    else:
        # drawn with plotly alone, as a figure of a user's measurement may be
        bare = go.Figure(panel.figure)
        meta = {"title": bare.layout.title.text or "", "subtitle": "", "min_width": 0}
        bare.layout.title.text = None
    table = pd.DataFrame() if panel.table is None else panel.table
    return {
        "anchor": anchor,
        "series": panel.series,
        "title": meta["title"],
        "subtitle": meta["subtitle"],
        "spec": packed(_shorten(bare.to_json())),
        "height": int(bare.layout.height or _HEIGHT),
        "min_width": int(meta["min_width"]),
        "sentences": [_typeset(text) for text in panel.sentences],
        "table": download(table, f"{file}.csv"),
    }


def _shorten(spec: str) -> str:
    """Return a figure as JSON, with arrays rounded to five significant digits.

    That is more than any figure writes, and half as long once it is compressed.
    """

    def shorter(value: Any) -> Any:
        if isinstance(value, list):
            return [shorter(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get("dtype") not in ("f4", "f8"):
            return {key: shorter(each) for key, each in value.items()}
        array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
        rounded = _round(array)
        content = base64.b64encode(rounded.tobytes()).decode()
        return value | {"dtype": rounded.dtype.str[1:], "bdata": content}

    return json.dumps(shorter(json.loads(spec)), separators=(",", ":"))


def _round(values: np.ndarray) -> np.ndarray:
    """Round to 16 binary digits in single precision, if the shape of a curve stays."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return values
    mantissas, exponents = np.frexp(values)
    with np.errstate(over="ignore"):
        rounded = np.ldexp(np.rint(mantissas * 2**16) / 2**16, exponents).astype("f4")
    errors = np.abs(rounded.astype(float) - values)[np.isfinite(values)]
    # a curve that varies little around a high level needs all its digits
    if errors.max() > 1e-4 * np.ptp(finite):
        return values
    return rounded


def download(table: pd.DataFrame, name: str) -> dict[str, str]:
    """Return a table as CSV with six significant digits, gzipped where long.

    Returns its name, href (a data URI), and a note.
    """
    content = to_csv(table, float_format="%.6g").encode()
    kind = "text/csv;charset=utf-8"
    if len(content) > _MAX_PLAIN:
        content = gzip.compress(content, mtime=0)
        kind = "application/gzip"
        name = f"{name}.gz"
    href = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if len(content) >= 1000:
        size = f"{len(content) / 1000:.0f} kB"
    else:
        size = f"{len(content)} bytes"
    return {
        "name": name,
        "href": href,
        "note": f"{len(table)} rows, {len(table.columns)} columns, {size}",
    }


def _typeset(text: str) -> str:
    """Keep a number and its percent sign on one line, and unify minus signs."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", true_minus(text))
