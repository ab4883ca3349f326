"""A small part of the study of calibration: what was promised of pages holds on drawn
effects and untrained models.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import calibration
from tiny_lenses import lens_of
from tsfm_lens import zoo
from tsfm_lens.data import bundled
from tsfm_lens.probes import ablation_effects
from tsfm_lens.studies.method_scores.methods import worth_naming
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.zoo.planted import plant

FEW = 150
MOST = 0.05 + 4 * np.sqrt(0.05 * 0.95 / FEW)


@pytest.mark.parametrize("drawn", calibration.DRAWS)
def test_drawn_effects_keep_the_error_rate(drawn: str) -> None:
    """Pages of drawn effects claim no more than promised."""
    draw = calibration.DRAWS[drawn]
    assert calibration.significant_pages(draw, 16, trials=FEW) <= MOST
    assert calibration.significant_pages(draw, 64, trials=20, shift=1.0) > 0.7
    assert (
        max(calibration.false_leaders(draw, k, 9, trials=FEW) for k in (2, 5)) <= MOST
    )


def test_untrained_models_show_hardly_anything_learned() -> None:
    """Of four models each, at 5 % a page, three claims or more would come once in 2,000
    times.
    """
    batch = bundled("co2", "nile", "elnino").tail(60)
    shares = calibration.learned_pages(
        lens_of("chronos-bolt"), partial(calibration._run, batch, 4), models=4
    )
    assert set(shares) == {"weights in random order", "new weights"}
    assert max(shares.values()) <= 0.5


@pytest.mark.parametrize(
    "architecture", ["chronos", "chronos-bolt", "chronos-2", "moirai-2"]
)
def test_only_planted_parts_are_named(
    architecture: str,
) -> None:
    """Of a planted model the true parts are named, and no others."""
    planted = plant("seasonal-copy", architecture)
    case = evaluation_case(planted.lens(), planted.card, series=6)
    found = ablation_effects(case.clean, components=case.components)
    named = set(found["component"].values[worth_naming(found, "mean_shift").values])
    true = {
        str(part.component) for part in planted.card.parts if part.role == "mechanism"
    }
    large = {
        name
        for name in true
        if float(found["mean_shift_size"].sel(component=name)) >= 0.01
    }
    assert large
    assert named == large


def test_the_page_shows_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page holds what the command measures."""
    page = tmp_path / "page.md"
    page.write_text(f"before {calibration.START}{calibration.STOP} after")
    shipped = Path(zoo.__file__).parents[2] / "docs" / "calibration.md"
    known = calibration.read_tables(shipped)
    of_models = {name: known[name] for name in ("learned", "parts", "stability")}
    monkeypatch.setattr(calibration, "_of_models", lambda models, seeds: of_models)
    calibration.main(page, trials=5, models=3)
    text = page.read_text()
    assert "20 models each" in text
    calibration.main(page, read=True)
    assert page.read_text() == text
    assert calibration.answer(known) in shipped.read_text()
