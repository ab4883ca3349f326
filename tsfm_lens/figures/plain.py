"""One figure for every way to draw a measurement, under the renderer's own name."""

from __future__ import annotations

from collections.abc import Sequence

from tsfm_lens.catalogue import Figure, Measurement, figures, find, work_on
from tsfm_lens.catalogue.computing import found_probe
from tsfm_lens.figures.registry import Entry, Plate
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run


def entries() -> list[Entry]:
    """Return one entry per renderer that draws the result of a run, or of several models.

    What several measurements have is drawn of the first.
    """
    by_name: dict[str, Entry] = {}
    for measurement, figure in figures():
        if figure.name not in by_name and (measurement.compute is not None or measurement.across):
            by_name[figure.name] = (_entry if measurement.compute is not None else _comparison)(measurement, figure)
    return list(by_name.values())


def _entry(measurement: Measurement, figure: Figure) -> Entry:
    def draw(run: Run) -> list[Plate]:
        work = work_on(run)
        results = tuple(work.result(kind) for kind in (measurement.kind, *figure.beside))
        return [Plate("", figure.draw(*results), results)]

    computed = [measurement.compute, *(find(kind).compute for kind in figure.beside)]
    return Entry(
        figure.name,
        figure.title,
        "; ".join(computing.words for computing in computed if computing),
        (figure.name,),
        draw,
        needs=tuple(needs for needs in (measurement.needs, figure.needs) if needs is not None),
        instead=f"figure {figure.instead!r} shows what its layers hold" if figure.instead else "",
    )


def _comparison(measurement: Measurement, figure: Figure) -> Entry:
    def compare(lenses: Sequence[Lens]) -> list[Plate]:
        result = found_probe(measurement.across)(lenses)
        return [Plate("", figure.draw(result), (result,))]

    words = f"{measurement.across} of the models that are named"
    return Entry(figure.name, figure.title, words, (figure.name,), lambda run: compare([run.lens]), compare=compare)
