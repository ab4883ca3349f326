"""Writing a figure to a file, html, json, png, svg, pdf or csv by its suffix.

:func:`save` is the usual entry. :func:`rendered` returns the content of a file,
:func:`printed` a page as PDF. Static images need kaleido and a Chromium; sizes for
journals are chosen in :mod:`tsfm_lens.viz.printing`.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tsfm_lens.core.choices import FORMATS
from tsfm_lens.core.errors import InputError, RenderError, install_command
from tsfm_lens.core.io import check_writable, name_write_errors, replacing
from tsfm_lens.core.spreadsheets import to_csv
from tsfm_lens.viz.data import figure_data
from tsfm_lens.viz.printing import for_print
from tsfm_lens.viz.theme import FONT

__all__ = ["save"]
# Without plotly's own "Share chart" button, which would upload the figure.
BROWSER_CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
}
_GENERIC = ("serif", "sans-serif", "monospace", "cursive", "fantasy", "system-ui")
# Milliseconds of a page's own clock for its scripts, and seconds of ours for all of it.
_PATIENCE = 60_000
_LONGEST = 600
# Width in pixels of a static image whose figure sets none: two columns of a journal
# with type of 12 pixels.
_LEAST_WIDTH = 200  # pixels; nobody reads a narrower image
_WIDTH = 800


def save(
    fig: go.Figure,
    path: str | Path,
    *,
    column: str | float | None = None,
    width: int | None = None,
    height: int | None = None,
    scale: float = 2.0,
    self_contained: bool = True,
) -> Path:
    """Write ``fig`` to ``path``, whole or not at all.

    It is written into a file beside ``path``, which then takes its place.

    Args:
        fig: any figure of :mod:`tsfm_lens.viz`, or of plotly.
        path: its suffix is the format: .html, .json, .png, .svg or .pdf; .csv is the
            table of the data behind the figure. Missing folders are made.
        column: of print: "single" (89 mm), "double" (183 mm), or a width in mm.
        width: of a static image in pixels; the figure's own, else 800.
        height: of a static image in pixels; the figure's own, else 500.
        scale: dots of a png in a pixel; 2 suits screens, 6 print.
        self_contained: whether an html file carries plotly.js (4.6 MB) and opens
            offline, or fetches it.

    Returns:
        The file that was written.

    Raises:
        InputError: the suffix is none of these, or the file cannot be written.
        RenderError: a static image is asked for and kaleido or a browser is missing or
            fails.

    Example:
        >>> viz.save(viz.forecast_fan(run), folder / "co2.html").name
        'co2.html'
    """
    path = Path(path)
    if width is not None and width < _LEAST_WIDTH:
        raise InputError(
            f"width={width} is in pixels, in which nothing can be read; for print,"
            f" column={width} is a width in mm"
        )
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        suffixes = ", ".join(f".{name}" for name in FORMATS)
        raise InputError(
            f"{path.name!r} has no known suffix: a figure can be saved as {suffixes}."
        )
    # before the drawing, which takes seconds
    check_writable(path.parent)
    # the numbers are the same in every column
    if column is not None and kind != "csv":
        fig = for_print(fig, column)
    content = rendered(
        fig,
        kind,
        width=width,
        height=height,
        scale=scale,
        self_contained=self_contained,
    )
    return write_together({path: content})[0]


def rendered(
    fig: go.Figure,
    kind: str,
    *,
    width: int | None = None,
    height: int | None = None,
    scale: float = 2.0,
    self_contained: bool = True,
) -> bytes:
    """Return the content of a file of format ``kind``, one of ``FORMATS``.

    Arguments and errors are those of :func:`save`.
    """
    if kind == "html":
        page: str = fig.to_html(
            include_plotlyjs=self_contained or "cdn",
            config=BROWSER_CONFIG,
            # plotly's default is random, and the same figure should give the same file
            div_id="figure",
        )
        return page.encode()
    if kind == "json":
        text: str = fig.to_json()
        return text.encode()
    if kind == "csv":
        return to_csv(figure_data(fig)).encode()
    warn_of_fonts(fig)
    size = {
        "width": width or fig.layout.width or _WIDTH,
        "height": height or fig.layout.height or 500,
    }
    # a figure for print is laid out as on a screen, and drawn on a smaller scale
    shrink = (fig.layout.meta or {}).get("print_scale", 1)
    if kind != "png":
        return _static(fig, {"format": kind, **size, "scale": shrink})
    drawing = _static(fig, {"format": kind, **size, "scale": shrink * scale})
    # a pixel of CSS is 1/96 inch, of which scale makes so many dots
    return _with_dots(drawing, 96 * scale)


def warn_of_fonts(fig: go.Figure) -> None:
    """Warn of a font that was chosen for a figure and is not installed here.

    The browser would take another without a word.
    """
    family = fig.layout.font.family
    # the figures' own font names what to take in its place
    if not family or family == FONT:
        return
    missing = missing_fonts(family)
    if missing:
        warnings.warn(
            f"font {' and '.join(map(repr, missing))} is not installed on this machine,"
            f" and the picture gets {drawn_font(family)!r} in its place; install the"
            " font, or choose one that the command fc-list names",
            stacklevel=4,
        )


def missing_fonts(family: str) -> list[str]:
    """Return the fonts of a list, as CSS has it, if none of them is installed.

    Empty where one is, or where fontconfig, which knows, is not there.
    """
    names = [name.strip(" '\"") for name in family.split(",")]
    named = [name for name in names if name not in _GENERIC]
    if shutil.which("fc-match") is None:
        return []
    if any(_matched(name).lower() == name.lower() for name in named):
        return []
    return named


def drawn_font(family: str) -> str:
    """Return the font that is drawn where none of a list is installed."""
    return _matched(family.split(",")[-1].strip(" '\""))


@cache
def _matched(name: str) -> str:
    """Return the font that fontconfig has for a name; "" if unknown."""
    command = ["fc-match", "--format", "%{family[0]}", name]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode(errors="replace")


def write_together(contents: Mapping[Path, bytes]) -> list[Path]:
    """Write several files, all of them or none.

    Each is written beside its place, and all are moved, in the order given, once the
    last is whole.

    Returns:
        The files, in the order given.
    """
    with ExitStack() as parts:
        # the part that was entered first is moved last
        for path, content in reversed(list(contents.items())):
            parts.enter_context(name_write_errors(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            parts.enter_context(replacing(path)).write_bytes(content)
    return list(contents)


def _with_dots(png: bytes, dots: float) -> bytes:
    """Return a PNG with its resolution in dots an inch.

    Programs know the size of the picture by it.
    """
    # the chunk counts dots a metre: 1 is its unit, and 0.0254 m are an inch
    metre = round(dots / 0.0254)
    chunk = b"pHYs" + struct.pack(">IIB", metre, metre, 1)
    # After the signature and the header, which have 33 bytes; a reader expects the size
    # before the picture. 9 is the length of the data, and the checksum covers the name.
    return (
        png[:33]
        + struct.pack(">I", 9)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + png[33:]
    )


@contextmanager
def _browser(kind: str) -> Iterator[None]:
    """Turn a missing or failing browser into an error that says what to install."""
    if find_spec("kaleido") is None:
        raise RenderError(
            f"a .{kind} file needs kaleido, which is not installed: "
            f"{install_command('static')}. Saving as .html or .json needs nothing more."
        )
    # imported here: kaleido and choreographer are extras
    from choreographer.errors import (
        BrowserClosedError,
        BrowserDepsError,
        ChromeNotFoundError,
    )
    from kaleido.errors import BrowserFailedError, JavascriptError, KaleidoError

    failures = (
        BrowserClosedError,
        BrowserDepsError,
        BrowserFailedError,
        JavascriptError,
        KaleidoError,
        TimeoutError,
    )
    try:
        yield
    except ChromeNotFoundError as error:
        raise RenderError(
            f"a .{kind} file needs a Chrome or Chromium, and none was found. Install"
            " one (Debian and Ubuntu: apt install chromium; elsewhere:"
            " kaleido_get_chrome), or name it in the environment variable"
            " BROWSER_PATH. Saving as .html or .json needs none."
        ) from error
    except (*failures, subprocess.SubprocessError) as error:
        raise RenderError(
            f"the browser could not draw the .{kind} file ({type(error).__name__}:"
            f" {error}). Try .html, or another Chromium through the environment"
            " variable BROWSER_PATH."
        ) from error


def _static(fig: go.Figure, options: dict[str, Any]) -> bytes:
    """Draw in a headless browser through kaleido.

    It goes without MathJax, which kaleido would fetch from the net.

    Returns:
        The image as a file's content.
    """
    with _browser(options["format"]), warnings.catch_warnings():
        import kaleido

        page = kaleido.PageGenerator(mathjax=False)
        # kaleido prints a .pdf with margins of its own, which push the figure aside and
        # cut its ends off
        page.footer = page.footer.replace(
            "</head>",
            "<style>@page { margin: 0 } img { width: 100vw }</style></head>",
            1,
        )
        # a kaleido server that the caller runs has options of its own
        warnings.filterwarnings("ignore", message="The kopts argument is ignored")
        drawing: bytes = kaleido.calc_fig_sync(
            fig.to_dict(), opts=options, kopts={"page_generator": page}
        )
    return drawing


def locate_browser(kind: str = "pdf") -> str:
    """Return the path of the browser that draws files of a kind.

    Errors are those of :func:`printed`.
    """
    with _browser(kind):
        from choreographer.browsers.chromium import Chromium
        from choreographer.errors import ChromeNotFoundError

        path = Chromium.find_browser(skip_local=False)
        if path is None or not Path(path).is_file():
            # _browser() turns it into an error that says what to install
            raise ChromeNotFoundError
        return str(path)


def printed(page: bytes) -> bytes:
    """Print an HTML page to PDF in a headless browser.

    The scripts of the page have drawn by then.

    Returns:
        The PDF.

    Raises:
        RenderError: kaleido, which finds the browser, or a browser is missing, or it
            fails.
    """
    # Chromium itself prints, as kaleido draws figures alone. A process of it may still
    # hold its profile afterwards, and the removal of that must not fail the print.
    browser = locate_browser()
    with (
        _browser("pdf"),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        source = Path(folder, "page.html")
        target = Path(folder, "page.pdf")
        source.write_bytes(page)
        arguments = [
            "--headless",
            "--disable-gpu",
            "--no-pdf-header-footer",
            f"--virtual-time-budget={_PATIENCE}",
        ]
        # as root Chromium starts in no other way; Windows has no geteuid
        if getattr(os, "geteuid", lambda: 1)() == 0:
            arguments.append("--no-sandbox")
        command = [
            browser,
            *arguments,
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST)
        if not target.exists():
            raise TimeoutError("it wrote nothing")
        return target.read_bytes()
