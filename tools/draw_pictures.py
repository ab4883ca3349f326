"""Draw the pictures by which the project is known: the first of README and of the site,
the figures of README's code, and the card that is shown where somebody links to it.

``python tools/draw_pictures.py`` needs a Chromium. What a picture shows stands beside
it, in ``linked.json`` and ``lines.json``; with ``--facts`` the first is printed, and
nothing is drawn. Read :func:`measure` first.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import numpy as np  # noqa: E402
import plotly.graph_objects as go  # noqa: E402
import xarray as xr  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from sitepages.pictures import browser_found, open_page  # noqa: E402

import tsfm_lens  # noqa: E402
from tsfm_lens import viz  # noqa: E402
from tsfm_lens.data import bundled_info  # noqa: E402
from tsfm_lens.probes import head_states  # noqa: E402
from tsfm_lens.viz import linked  # noqa: E402
from tsfm_lens.viz.head_states import describe_attention  # noqa: E402

OUT = ROOT / "docs" / "images"
MODEL = "chronos2-nano"
SERIES = "pedestrians"
HORIZON = 24
# the series ends between Christmas and New Year; these hours before its end are left
# out, and the day that is forecast is a working day like others
LEFT_OUT = 264
COPIES = 0.9
"""Share of its attention that a copy head gives to the same step of the last season."""
WIDTH = 1040  # of the page that is drawn, in pixels of the browser
# three columns on a narrow page, so that its type is large; and nothing of what is
# there to be used, which has nothing to say on a picture
_STYLE = """
body { margin: 0; font: 18px/1.35 Arial, "Liberation Sans", sans-serif; }
#picture { padding: 8px 4px; box-sizing: border-box; }
h1, #picture > p { margin: 0 15px; }
h1 { font-size: 40px; }
h1 small { font-size: 22px; font-weight: normal; margin-left: 14px; }
.linked { border: 0; padding-bottom: 0; }
.linked > :not(.panels) { display: none !important; }
.linked .panels { grid-template-columns: 1.35fr 1.2fr 1.2fr; gap: 18px; }
.linked .panels > :first-child { grid-column: auto; }
"""


@dataclass(frozen=True)
class Facts:
    """What the pictures show.

    Attributes:
        model, series, place, unit: names; the place is where the series was measured.
        start: of the forecast.
        component: the head that is chosen.
        back: steps from the one that is forecast back to what it reads.
        read: that, in words of the calendar.
        share: of its attention that is there.
        effect: mean change of the forecast without it, in units.
        span, span_without: from the lowest to the highest step of the forecast.
        error, error_without: mean absolute error of the forecast.
        naive_error: that of the last season repeated.
    """

    model: str
    series: str
    place: str
    unit: str
    start: str
    component: str
    back: int
    read: str
    share: float
    effect: float
    span: float
    span_without: float
    error: float
    error_without: float
    naive_error: float

    @property
    def sentence(self) -> str:
        """Say what is seen in the picture."""
        return (
            f"One head of {self.model} gives {100 * self.share:.0f} % of its attention"
            f" to {self.read}. Without it most of the daily cycle is"
            f" gone: the mean absolute error rises from {self.error:.0f} to"
            f" {self.error_without:.0f} {self.unit}."
        )

    @property
    def written(self) -> dict[str, Any]:
        """The facts to four digits, as they are kept."""
        facts = {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        return facts | {"sentence": self.sentence}


def measure() -> tuple[Facts, dict[str, Any]]:
    """Find the head that copies the last season, and the state that shows it."""
    before, _ = tsfm_lens.bundled(SERIES).split(LEFT_OUT)
    run = tsfm_lens.load(MODEL).run(before, HORIZON, holdout=True)
    ds = head_states(run)
    state = linked.linked_state(ds)
    position = find_copy_head(ds)
    state["series"][0]["start"] = position
    name = str(ds["component"].values[position])
    layer, head = np.argwhere(ds["name"].values == name)[0]
    reading = describe_attention(ds, 0, layer, head)
    truth = ds["truth"].values[0]
    season = bundled_info(SERIES).seasonality
    last = np.resize(ds["context"].values[0][-season:], HORIZON)
    one = ds.isel(series=0)
    forecast = one["baseline_forecast"].values
    without = one["forecast"].values[position]

    facts = Facts(
        model=MODEL,
        series=SERIES,
        place=bundled_info(SERIES).title,
        unit=bundled_info(SERIES).unit,
        start=str(ds["forecast_timestamp"].values[0, 0])[:10],
        component=name,
        back=reading.back,
        read=reading.words,
        share=reading.share,
        effect=float(one["mean_shift"].values[position]),
        span=float(np.ptp(forecast)),
        span_without=float(np.ptp(without)),
        error=float(np.abs(forecast - truth).mean()),
        error_without=float(np.abs(without - truth).mean()),
        naive_error=float(np.abs(last - truth).mean()),
    )
    return facts, state


def find_copy_head(ds: xr.Dataset) -> int:
    """Find the head without which the forecast moves furthest, of those that copy.

    Returns:
        Its position among the components.
    """
    season = bundled_info(SERIES).seasonality
    components = ds["component"].values.astype(str).tolist()
    effects = ds["mean_shift"].isel(series=0)
    found = []
    for layer, head in np.ndindex(*ds["name"].shape):
        reading = describe_attention(ds, 0, layer, head)
        if reading.form == "lag" and reading.back == season and reading.share > COPIES:
            found.append(components.index(str(ds["name"].values[layer, head])))
    if not found:
        sys.exit(f"no head of {MODEL} copies {SERIES}: choose another scene")
    return max(found, key=lambda position: float(effects[position]))


def write_page(state: dict[str, Any], before: str = "", after: str = "") -> str:
    """Write the panels of the linked view on a page, between other elements."""
    folder = Path(linked.__file__).parent
    style = (
        (folder / "linked.css").read_text()
        + _STYLE
        + f"#picture {{ width: {WIDTH}px; }}"
    )
    return (
        "<!doctype html><html data-theme='light'><meta charset='utf-8'>"
        f"<style>{style}</style><div id='picture'>{before}<div id='linked'></div>"
        f"{after}</div><script>{(folder / 'linked.js').read_text()}\n"
        f"const state = {json.dumps(state)};"
        "linkedView(document.getElementById('linked'), state).show("
        "state.series[0].name);</script></html>"
    )


def photograph(page: str, pixels: int) -> bytes:
    """Draw a page in a browser, and cut out what is to be the picture, 2 : 1.

    Args:
        pixels: width of the picture.
    """
    # a window that is larger than the page, as some of it is the browser's own
    flags = (
        f"--window-size={WIDTH + 200},{WIDTH}",
        f"--force-device-scale-factor={pixels / WIDTH:g}",
        "--hide-scrollbars",
    )
    with open_page(page, *flags) as browser:
        png = browser.find_element("id", "picture").screenshot_as_png
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    whole = ImageOps.pad(picture, (pixels, pixels // 2), color="white")
    out = io.BytesIO()
    whole.save(out, "png", optimize=True)
    return out.getvalue()


def plots_of_code(page: str) -> Iterator[go.Figure]:
    """Run the first Python block of a page, and yield what each ``plot()`` draws."""
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    for statement in ast.parse(block[1]).body:
        code = ast.unparse(statement)
        if code.endswith(".plot()"):
            yield eval(code, names)
        elif not code.startswith("run.report"):
            exec(code, names)


def headline(fig: go.Figure) -> str:
    """Return the bold part of the title of a figure."""
    title = fig.layout.title.text.partition("<br>")[0]
    return title.removeprefix("<b>").removesuffix("</b>")


def tile(figures: list[go.Figure]) -> Image.Image:
    """Draw figures side by side, two in a row, each at its own height."""
    pictures = []
    with tempfile.TemporaryDirectory() as folder:
        for fig in figures:
            path = viz.save(fig, Path(folder) / "figure.png", width=780)
            with Image.open(path) as drawn:
                pictures.append(drawn.convert("RGB"))
    rows = [pictures[start : start + 2] for start in range(0, len(pictures), 2)]
    heights = [max(picture.height for picture in row) for row in rows]
    width = pictures[0].width
    whole = Image.new("RGB", (2 * width, sum(heights)), "white")
    for number, row in enumerate(rows):
        for column, picture in enumerate(row):
            whole.paste(picture, (column * width, sum(heights[:number])))
    return whole


def main() -> None:
    """Draw, or print the facts."""
    facts, state = measure()
    text = json.dumps(facts.written, indent=2, ensure_ascii=False) + "\n"
    if "--facts" in sys.argv:
        sys.stdout.write(text)
        return
    if not browser_found():
        sys.exit("pictures need chromium and chromedriver on the path; none was drawn")
    panels = write_page(state)
    (OUT / "linked.png").write_bytes(photograph(panels, 2 * WIDTH))
    title = (
        "<h1>tsfm-lens <small>See inside a time-series foundation model</small></h1>"
    )
    sentence = f"<p>{escape(facts.sentence)}</p>"
    card = write_page(state, title, sentence)
    # the size that pages of links ask for is 1280 x 640
    (OUT / "card.png").write_bytes(photograph(card, 1280))
    (OUT / "linked.json").write_text(text)
    figures = list(plots_of_code((ROOT / "README.md").read_text(encoding="utf-8")))
    # 256 colours are enough for lines and areas
    tile(figures).quantize(256).save(OUT / "lines.png", optimize=True)
    titles = json.dumps([headline(fig) for fig in figures], indent=2) + "\n"
    (OUT / "lines.json").write_text(titles)


if __name__ == "__main__":
    main()
