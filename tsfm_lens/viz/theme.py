"""Template, colours, titles and number formats of all figures.

:func:`finalize` gives a figure its title and height, :func:`plain` and :func:`number`
write what stands in it. Importing the module registers the template ``tsfm_lens``;
plotly's default template stays what it is.
"""

from __future__ import annotations

import os
import re
from math import ceil
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

TEMPLATE = "tsfm_lens"
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
YELLOW = "#F0E442"
BLACK = "#000000"
TEAL = "#00807A"
WINE = "#882255"
INDIGO = "#5B4FC4"
OLIVE = "#8A8A00"
BROWN = "#7A4B1E"
# The first seven and yellow are the palette of Okabe and Ito, told apart with any
# deficiency of colour vision. Yellow is last, as white nearly hides it.
CATEGORICAL = (
    BLUE,
    VERMILION,
    GREEN,
    PURPLE,
    ORANGE,
    SKY,
    BLACK,
    WINE,
    INDIGO,
    OLIVE,
    BROWN,
    YELLOW,
)
INK = "#1A1A1A"
GREY = "#5F5F5F"
PALE = "#D4D4D4"
FONT = "Arial, Liberation Sans, Helvetica, sans-serif"

# Stops lie closer near white, where a small amount has to differ from none.
# The hue is that of the linked view, which ends at TEAL.
_AMOUNTS = ("#FFFFFF", "#E3F3F1", "#B5DFDA", "#6FBFBB", "#26979A", TEAL, "#003B38")
SEQUENTIAL = tuple(zip((0.0, 0.06, 0.2, 0.4, 0.6, 0.8, 1.0), _AMOUNTS, strict=True))
_SIDES = ("#144E72", "#5A9DC8", "#D5E6F2", "#FFFFFF", "#F7DDC9", "#CA7D44", "#743100")
DIVERGING = tuple(zip((0.0, 0.25, 0.45, 0.5, 0.55, 0.75, 1.0), _SIDES, strict=True))

# Type in pixels of titles of axes, and of all else.
TITLE_TYPE = 13
LABEL_TYPE = 12
LEGEND_ROW = 24  # pixels
LETTER = 7.2  # pixels, about the width of one in labels
# Width in pixels for which titles are broken and rows of the legend are counted.
USUAL = 640
_DATE = 100  # pixels of the widest date
_SIGN = 45  # pixels of an entry of the legend beside its name
_TITLE_CHARACTERS = 84
_SUBTITLE_CHARACTERS = 116
_TOOLS = 32  # pixels, for the buttons that show when a figure is hovered
# Pixels of a line of the title and of the subtitle, above both, and of a capital.
_TITLE_LINE = 21
_SUBTITLE_LINE = 17
_TOP_PAD = 12
_CAPITAL = 11


def _template() -> go.layout.Template:
    """Return the plotly template of every figure."""
    title = {"size": TITLE_TYPE}
    label = {"size": LABEL_TYPE}
    axis: dict[str, Any] = {
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "linecolor": GREY,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 4,
        "tickwidth": 1,
        "tickcolor": GREY,
        "automargin": True,
        "title": {"standoff": 6, "font": title},
        "tickfont": label,
    }
    bar = {
        "outlinewidth": 0,
        "thickness": 14,
        "xpad": 10,
        "ypad": 10,
        "ticks": "outside",
        "ticklen": 3,
        "tickfont": label,
        "title": {"side": "right", "font": label},
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": TITLE_TYPE, "color": INK},
            "paper_bgcolor": "#FFFFFF",
            "plot_bgcolor": "#FFFFFF",
            "colorway": list(CATEGORICAL),
            "colorscale": {
                "sequential": SEQUENTIAL,
                "sequentialminus": SEQUENTIAL,
                "diverging": DIVERGING,
            },
            "coloraxis": {"colorbar": bar},
            "xaxis": axis,
            "yaxis": axis,
            "hovermode": "closest",
            "hoverlabel": {
                "align": "left",
                "bgcolor": "#FFFFFF",
                "font": {"family": FONT, **label},
            },
            "legend": {
                "orientation": "h",
                "x": 0.5,
                "xanchor": "center",
                "y": 0,
                "yref": "container",
                "yanchor": "bottom",
                "maxheight": 1,
                "font": label,
                "tracegroupgap": 4,
            },
            "annotationdefaults": {"font": title, "showarrow": False},
        }
    )


# with a no-break space in this place, a line does not begin with a percent sign
_PERCENT = re.compile(r"(?<=\d) (?=%)")
# A hyphen that begins a number, or its exponent. After a letter, a digit or a bracket
# it is part of a name, a date or a range.
_NEGATIVE = re.compile(r"(?<![\w.)\]-])-(?=\.?\d)|(?<=\de)-(?=\d)")


def plain(text: object) -> str:
    """Return a string escaped, so that plotly shows it letter by letter.

    Markup, entities and ``%{…}`` lose their meaning.
    """
    # plotly takes "%{…}" for a field of a hover box, and text between "$" for LaTeX
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("%{", "%&#123;").replace("$", "&#36;")


def significant(value: float, digits: int) -> str:
    """Return a number with so many significant digits.

    Numbers below a million are written out, with all digits before the point.
    """
    # "g" writes 12345 with four digits as 1.234e+04
    text = f"{value:.{digits}g}"
    return true_minus(f"{value:.0f}" if "e+" in text and abs(value) < 1e6 else text)


def true_minus(text: str) -> str:
    """Return a text with a minus sign before each negative number.

    Hyphens in names, dates and ranges stay.
    """
    return _NEGATIVE.sub("−", text)


def number(value: float) -> str:
    """Write four significant digits, as hover boxes and labels show numbers."""
    return significant(value, 4)


def nats(entropy: float, digits: int = 4) -> str:
    """Write an entropy, with what rounding leaves of zero as zero."""
    return f"{significant(entropy, digits) if entropy >= 5e-4 else '0'} nats"


def percent(share: float) -> str:
    """Write a share of 1 in percent, three digits."""
    value = 100 * share
    if 0 < abs(value) < 0.01:
        return "less than 0.01 %"
    return f"{significant(value, 3)} %"


def mixed(colour: str, strength: float) -> str:
    """Thin ``colour`` with white, opaque: strength 1 keeps it, 0 gives white."""
    # opaque, since translucent bands that overlap would make colours of their own
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + (c - 255) * strength):02X}" for c in channels)


def _lines(text: str, width: int) -> list[str]:
    """Return ``text`` in lines that are safe for plotly.

    A number keeps its percent sign.
    """
    return [plain(line) for line in wrap(_PERCENT.sub("\u00a0", text), width)]


def wrapped(text: str, length: float) -> str:
    """Return a title that is safe for plotly in lines of a length in pixels.

    Where it does not fit in one line, its unit starts a new one.
    """
    # a title may be broken already, for another length
    letters = max(int(length / LETTER), 8)
    text = text.replace("<br>", " ")
    if len(text) > letters:
        text = text.replace(" (", "\n(", 1)
    lines = [wrap(line, letters, break_long_words=False) for line in text.split("\n")]
    return "<br>".join(part for parts in lines for part in parts)


def fit_axes(fig: go.Figure, width: float, height: float) -> None:
    """Break long titles of axes, and thin out the labels of dates.

    ``width`` and ``height`` are those of all panels together, in pixels.
    """
    # plotly leaves the first pair of axes unnamed in the traces that are on it
    dated = [
        t.xaxis or "x" for t in fig.data if "datetime" in str(getattr(t.x, "dtype", ""))
    ]
    for axes, length in ((fig.select_xaxes(), width), (fig.select_yaxes(), height)):
        for axis in axes:
            low, high = axis.domain or (0, 1)
            room = (high - low) * length
            if axis.title.text:
                axis.title.text = wrapped(axis.title.text, room)
            if axis.plotly_name.replace("axis", "") in dated:
                # labels that are turned would need room under the axis
                axis.update(nticks=max(1, int(room / _DATE)), tickangle=0)


def legend_height(fig: go.Figure, width: float) -> int:
    """Return about the pixels that the legend under a figure of a width takes.

    Plotly lays the legend out and takes from the panels what this falls short.
    """
    if fig.layout.showlegend is False:
        return 0
    entries = [trace.name for trace in fig.data if trace.showlegend]
    wide = sum(LETTER * len(name) + _SIGN for name in entries)
    return LEGEND_ROW * ceil(wide / (width - 60))


def finalize(
    fig: go.Figure,
    title: str,
    subtitle: str,
    *,
    plot_height: float,
    above: float,
    below: float,
    min_width: float,
) -> go.Figure:
    """Give ``fig`` the template, its title and its height.

    The height leaves ``plot_height`` pixels to the panels.

    Returns:
        ``fig`` itself.
    """
    heads = _lines(title, _TITLE_CHARACTERS)
    subs = _lines(subtitle, _SUBTITLE_CHARACTERS)
    text = "<b>" + "<br>".join(heads) + "</b>"
    if subs:
        text += f'<br><span style="font-size:12px;color:{GREY}">'
        text += "<br>".join(subs) + "</span>"
    block = _TOP_PAD + _TITLE_LINE * len(heads) + _SUBTITLE_LINE * len(subs)
    # plotly takes the legend's room from the panels, so the height grows by it
    legend = legend_height(fig, max(min_width, USUAL))
    height = round(block + above + plot_height + below + legend)
    fig.update_layout(
        template=TEMPLATE,
        height=height,
        margin={
            "t": block + above,
            "b": below + legend,
            "l": 64,
            # Sheet.colours() has made room for a colour bar, if there is one
            "r": fig.layout.margin.r or 20,
        },
        title={
            "text": text,
            "font": {"size": 15},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            # plotly sets the first of several lines on this height, not under it
            "y": 1 - (_TOP_PAD + _CAPITAL) / height,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": 12},
        },
        meta={
            "title": title,
            "subtitle": subtitle,
            "min_width": round(min_width),
            "title_height": block,
            "legend_height": legend,
            "plot_height": plot_height,
            "above": above,
            "below": below,
        },
    )
    return fig


def untitled(fig: go.Figure) -> go.Figure:
    """Copy a figure without its title, for a page that writes the title itself."""
    # a figure of plotly alone has no metadata, perhaps no margins and no height
    bare = go.Figure(fig)
    margin = fig.layout.margin
    meta = fig.layout.meta or {}
    if margin.t is None:
        full = 80
    else:
        full = margin.t
    top = max(full - meta.get("title_height", 0), _TOOLS)
    height = (fig.layout.height or 450) - full + top
    margins = {"t": top, "b": 80 if margin.b is None else margin.b}
    return bare.update_layout(title=None, height=height, margin=margins)


pio.templates[TEMPLATE] = _template()  # plotly's default stays what it is
# A kernel without a session, as of "nbconvert --execute", makes a page, which cannot
# draw plotly's own form of figures.
if pio.renderers.default == "plotly_mimetype" and not {
    "JPY_SESSION_NAME",
    "PLOTLY_RENDERER",
} & set(os.environ):
    pio.renderers.default = "plotly_mimetype+notebook"
