"""Figures of the gallery: drawn by the code that the page shows, kept by what they
follow from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from sitepages.scenes import (
    Scene,
    find_function,
    find_home,
    find_scene,
    scene_of_pair,
)
from tsfm_lens.core.registry import Figure, Measurement, measurements
from tsfm_lens.core.results import Results
from tsfm_lens.models import Run
from tsfm_lens.viz.theme import untitled

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "docs" / "_cache"
HEIGHT = 450  # pixels of a figure that has none of its own


@dataclass(frozen=True)
class Drawn:
    """A figure with what is told of it.

    Attributes:
        spec: as plotly's JSON, without the title.
        title, subtitle: of the figure.
        height, min_width: in pixels.
        caption: with all parameters; "" for what is of no run.
        readings: what the report says of the results that it is drawn of.
        result: name, axes and unit of each variable of the result that it is drawn of.
    """

    spec: str
    title: str
    subtitle: str
    height: int
    min_width: int
    caption: str
    readings: list[str]
    result: list[list[str]] = field(default_factory=list)


@cache
def sources() -> str:
    """A hash of the package's code, from which every figure follows."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "tsfm_lens").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def slugs() -> dict[str, tuple[Measurement, Figure]]:
    """Every figure by the name of its files; one of several measurements comes several
    times.
    """
    found: dict[str, tuple[Measurement, Figure]] = {}
    for measurement, figure in (
        (item, figure) for item in measurements().values() for figure in item.figures
    ):
        found[
            f"{figure.name}-{measurement.kind}" if figure.name in found else figure.name
        ] = (measurement, figure)
    return found


class _Measured:
    """A run whose measurements are computed once for all figures."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._results = Results(run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def measure(self, kind: str, item: int | None = None, **options: Any) -> Any:
        assert item in (None, 0), "what is of one item is computed of the first here"
        if options:
            return self._results.compute(kind, **options)
        return self._results[kind]


class Studio:
    """Draws figures; what several stand on is computed once."""

    def __init__(self) -> None:
        self._opened: dict[str, dict[str, Any]] = {}
        self._read: dict[int, tuple[Any, list[str]]] = {}

    def draw(self, measurement: Measurement, figure: Figure) -> Drawn:
        """A figure, from the cache where neither the package nor the code that draws it
        has changed.
        """
        scene = find_scene(measurement, figure)
        return _kept(scene, lambda: self._draw(measurement, figure, scene))

    def draw_pair(self, measurement: Measurement, figure: Figure) -> Drawn:
        """A figure of two models side by side, kept likewise."""
        scene = scene_of_pair(measurement, figure)
        return _kept(scene, lambda: self.drawn_pair(scene))

    def drawn_pair(self, scene: Scene) -> Drawn:
        """What the code of a pair draws; its captions and readings are those of each
        model by itself.
        """
        return told(eval(scene.drawing, dict(self._opening(scene.opening))), "", [])

    def _draw(self, measurement: Measurement, figure: Figure, scene: Scene) -> Drawn:
        names = self._opening(scene.opening)
        position = find_home(figure)
        watched = _Watched(names[position], find_function(figure))
        exec(scene.drawing, {**names, position: watched})
        assert watched.figure is not None, (
            f"{scene.drawing!r} does not draw {figure.name}"
        )
        drawn = told(
            watched.figure,
            _caption(figure.name, watched, names),
            self._readings(measurement, watched.result),
        )
        return replace(drawn, result=describe_result(watched.result))

    def _readings(self, measurement: Measurement, result: Any) -> list[str]:
        """What the report says of a result, whose figures it draws for that: once a
        result.
        """
        if id(result) not in self._read:
            told = [
                text
                for panel in measurement.draw_panels(result)
                for text in panel.sentences
            ]
            # the result is kept, so that no other one gets its id
            self._read[id(result)] = (result, list(dict.fromkeys(told)))
        return self._read[id(result)][1]

    def _opening(self, code: str) -> dict[str, Any]:
        if code not in self._opened:
            names: dict[str, Any] = {}
            with _inside(CACHE / "work"):
                exec(code, names)
            names |= {"run": _Measured(names["run"])} if "run" in names else {}
            names |= (
                {"runs": [*map(_Measured, names["runs"])]} if "runs" in names else {}
            )
            self._opened[code] = names
        return self._opened[code]


def _kept(scene: Scene, make: Callable[[], Drawn]) -> Drawn:
    told_of = [item.name for item in fields(Drawn)]
    key = hashlib.sha256(f"{sources()}{scene}{told_of}".encode()).hexdigest()[:32]
    retained = CACHE / "figures" / f"{key}.json"
    if not retained.exists():
        drawn = make()
        retained.parent.mkdir(parents=True, exist_ok=True)
        retained.write_text(json.dumps(asdict(drawn)))
    return Drawn(**json.loads(retained.read_text()))


class _Watched:
    """A module of figures, which remembers what one of its functions drew, of what."""

    def __init__(self, module: Any, name: str) -> None:
        self._module = module
        self._name = name
        self.figure: go.Figure | None = None
        self.result: Any = None
        self.results: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if name != self._name:
            return function

        def drawing(*things: Any, **options: Any) -> go.Figure:
            # the name of a variable may stand behind the results
            results = tuple(thing for thing in things if not isinstance(thing, str))
            self.figure = function(*things, **options)
            self.result = results[0]
            self.results = results
            return self.figure

        return drawing


def told(figure: go.Figure, caption: str, readings: list[str]) -> Drawn:
    """A figure with what its layout tells of it."""
    meta = figure.layout.meta
    bare = untitled(figure)
    height = int(bare.layout.height or HEIGHT)
    return Drawn(
        bare.to_json(),
        meta["title"],
        meta["subtitle"] or "",
        height,
        int(meta["min_width"]),
        caption,
        readings,
    )


def describe_result(result: Any) -> list[list[str]]:
    """Name, axes and unit of each variable of a dataset, or column of a table."""
    if isinstance(result, xr.Dataset):
        return [
            [
                str(name),
                ", ".join(map(str, item.dims)),
                str(item.attrs.get("units", "")),
            ]
            for name, item in result.data_vars.items()
        ]
    if isinstance(result, pd.DataFrame):
        return [[str(name), "row", ""] for name in result.columns]
    return []


def _caption(name: str, watched: _Watched, names: dict[str, Any]) -> str:
    """What ``tsfm-lens figure`` writes beside the files."""
    from tsfm_lens.core.registry import figures
    from tsfm_lens.report.figures import DrawnFigure

    if "run" not in names or name not in figures():
        return ""
    run = names["run"].run
    drawn = DrawnFigure(figures()[name], watched.figure, watched.results, run)
    return drawn.caption()


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Code that writes files writes them there."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
