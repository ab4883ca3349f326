"""Static pictures of interactive figures, drawn in one page of a headless Chromium."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from plotly.offline import get_plotlyjs

# pixels of figures that have none of their own
WIDTH = 760
HEIGHT = 450
_COLOURS = 128  # fewer bytes, no difference to be seen
_DRAW = """
const [spec, width, height, done] = arguments;
Plotly.toImage(spec, {format: "png", width: width, height: height}).then(done, error => done("error: " + error));
"""


def static_pictures(specs: Mapping[str, str], cache: Path) -> dict[str, bytes]:
    """A PNG of each figure; of those that are in the cache alone where there is no
    Chromium.

    Args:
        specs: figures as plotly's JSON, by name.
        cache: folder of pictures by what they show.
    """
    cache.mkdir(parents=True, exist_ok=True)
    files = {
        name: cache / f"{hashlib.sha256(spec.encode()).hexdigest()[:32]}.png"
        for name, spec in specs.items()
    }
    missing = {name: specs[name] for name, file in files.items() if not file.exists()}
    if missing and browser_found():
        page = f"<!doctype html><meta charset='utf-8'><script>{get_plotlyjs()}</script>"
        with open_page(page) as browser:
            for name, spec in missing.items():
                files[name].write_bytes(_picture(browser, spec))
    return {name: file.read_bytes() for name, file in files.items() if file.exists()}


def browser_found() -> bool:
    """Whether there is a Chromium that can be driven."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def open_page(text: str, *flags: str) -> Iterator[Any]:
    """A browser that shows a page and nothing else."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        *flags,
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    browser.set_script_timeout(120)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(text)
        try:
            browser.get(page.as_uri())
            yield browser
        finally:
            browser.quit()


def _picture(browser: Any, spec: str) -> bytes:
    parsed = json.loads(spec)
    layout = parsed["layout"]
    wide = max(
        layout.get("width") or WIDTH, (layout.get("meta") or {}).get("min_width", 0)
    )
    answer = browser.execute_async_script(
        _DRAW, parsed, wide, layout.get("height") or HEIGHT
    )
    if answer.startswith("error"):
        raise RuntimeError(answer)
    drawn = Image.open(io.BytesIO(base64.b64decode(answer.split(",", 1)[1]))).convert(
        "RGB"
    )
    out = io.BytesIO()
    drawn.quantize(_COLOURS).save(out, "png", optimize=True)
    return out.getvalue()
