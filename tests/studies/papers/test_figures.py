"""Figures by name: the released arithmetic, what each computes, captions, files; and what studies register."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import viz
from tsfm_lens.core.errors import InputError, RenderError
from tsfm_lens.core.registry import figures, find_figure, measurements
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.report import figures as room
from tsfm_lens.report.figures import make_figure, write_figure
from tsfm_lens.studies.papers.figures import windows
from tsfm_lens.studies.papers.items import ITEMS

PAPER = (
    "1B",
    "1C",
    "1D",
    "1E",
    "5",
    "20",
    "21",
    "22",
    "23",
)
NO_FIGURES = {"compare", "compose", "dark", "for_print", "plot", "save"}


def short() -> SeriesBatch:
    return bundled("co2", "sunspots").tail(40)


def test_every_renderer_and_every_figure_of_the_paper_has_a_name() -> None:
    known = figures()
    assert [name for name, entry in known.items() if entry.paper] == sorted(
        PAPER, key=lambda name: (int(name.rstrip("BCDE")), name)
    )
    # what is drawn from a sweep, of no model, or of models trained for it cannot be asked for by model and series
    others = {
        figure.name
        for each in measurements().values()
        if each.function is None
        for figure in each.figures
    }
    every = {figure.name for each in measurements().values() for figure in each.figures}
    assert (set(viz.__all__) - NO_FIGURES) | every == (set(known) - set(PAPER)) | others


def test_a_name_that_is_not_known_gets_the_nearest() -> None:
    expect_error("head_spectra_stable_rank", find_figure, "stable_rank")
    expect_error("figure '99'.*figure --list", find_figure, "99")


@pytest.mark.parametrize("name", ["1C", "1D", "23"])
def test_what_is_defined_by_logits_is_refused_to_models_without(name: str) -> None:
    with pytest.raises(
        InputError, match=f"figure {name} is defined by logits over a vocabulary"
    ):
        make_figure(name, lens_of("chronos-bolt").run(short(), 6, holdout=True))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("chronos", name) for name in ("1B", "1C", "1D", "5")),
        *(("chronos-bolt", name) for name in ("1E", "20", "21", "22")),
        *(("timesfm-2.5", name) for name in ("1B", "21")),
    ],
)
def test_figures_of_the_paper_on_three_kinds_of_model(model: str, name: str) -> None:
    lens = lens_of(model)
    made = make_figure(name, lens.run(short(), 6, holdout=True, seed=3))
    assert made.panels
    assert len({file.name for file in made.panels}) == len(made.panels)
    text = made.caption(["bundled:co2,sunspots"])
    for file in made.panels:
        assert file.figure.data
        assert file.figure.layout.meta["title"]
        assert viz.for_print(file.figure).layout.meta["width_mm"] in (89, 183)
        for result in file.results:
            assert result.attrs["kind"] in text
    flat = " ".join(text.split())
    assert lens.model_id in flat
    assert "seed: 3" in flat
    assert "torch" in flat
    assert "Mauna Loa" in flat
    assert find_figure(name).paper in flat


def test_windows_tile_the_series_without_overlap() -> None:
    series = bundled("co2", "nile")
    contexts, truths = windows(lens_of("chronos-bolt"), series, 16)
    # 100 steps of nile have room for 5 windows with at least 16 steps of context, 526 for the most that are taken
    counts = {
        name: sum(each.startswith(name) for each in contexts.ids) for name in series.ids
    }
    assert counts == {"co2": 12, "nile": 5}
    whole = dict(zip(series.ids, series.values, strict=True))
    for name, context, truth in zip(contexts.ids, contexts.values, truths, strict=True):
        source, left = name.split(" −")
        stop = len(whole[source]) - int(left)
        np.testing.assert_array_equal(truth, whole[source][stop - 16 : stop])
        np.testing.assert_array_equal(
            context, whole[source][stop - 16 - len(context) : stop - 16]
        )
    expect_error(
        "100 steps has no context beside 64",
        windows,
        lens_of("chronos-bolt"),
        series,
        64,
    )


def test_a_figure_that_cannot_be_drawn_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_figure("21", lens_of("chronos-bolt").run(short(), 6, holdout=True))
    expect_error(
        r"format 'jpg'.*png",
        write_figure,
        made,
        tmp_path / "new",
        formats=["json", "jpg"],
    )
    # the matrices have as many panels as heads; one column is too narrow for them
    wide = replace(
        made,
        panels=tuple(
            replace(p, figure=p.figure.update_layout(meta={"min_width": 900}))
            for p in made.panels
        ),
    )
    expect_error(
        "not 89",
        write_figure,
        wide,
        tmp_path / "new",
        formats=["html", "svg"],
        column="single",
    )

    def fail_late(figure: object, kind: str, **options: object) -> bytes:
        if kind == "svg":
            raise RenderError("no browser")
        return b"html"

    monkeypatch.setattr(room, "rendered", fail_late)
    with pytest.raises(RenderError):
        write_figure(made, tmp_path / "new", formats=["html", "svg"])
    assert not (tmp_path / "new").exists()


def test_every_reported_value_is_one_of_a_measurement() -> None:
    named = {name for each in measurements().values() for name in each.paper}
    # sizes of models follow from counts alone, as do checks of definitions, theorems and printed tables
    checks = {"S3-SYS", *(item.id for item in ITEMS if item.theory or item.why)}
    assert {item.id for item in ITEMS} - checks <= named <= {item.id for item in ITEMS}
