"""Lines of thought: modes of the logit map through the depth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.needs import TOKENS
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import layers, listed
from tsfm_lens.viz import thought_counts, thought_lines
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import percent


def _thought(ds: xr.Dataset) -> Iterator[Plate]:
    facts = ("start", "stop", "mean_value", "mass", "continuous", "survives", "spurious", "birth", "death")
    yield Plate(thought_lines(ds), frame(ds, *facts), read_thought(ds))
    yield Plate(thought_counts(ds), frame(ds, "count", "spurious_count"), [])


def read_thought(ds: xr.Dataset) -> list[str]:
    """State how many lines there are at each depth, and how many die out."""
    count, spurious = (array(ds, name, "layer", "series").sum(-1) for name in ("count", "spurious_count"))
    words = layers(ds)
    out = [
        f"There {'is' if count[0] == 1 else 'are'} "
        f"{listed([f'{int(n)} at {word}' for word, n in zip(words, count, strict=True)])}."
    ]
    if spurious.any():
        most = [words[place] for place in np.flatnonzero(spurious == spurious.max())]
        share = percent(float(array(ds, "spurious_mass", "layer", "series").max()))
        out.append(
            f"Lines that neither continue the context nor reach the forecast are most at {listed(most)}; at most "
            f"{share} of the probability is theirs."
        )
    else:
        out.append("All of them continue the context or reach the forecast.")
    return out


MEASUREMENTS = (
    Measurement(
        kind="lines_of_thought",
        theme="Behaviour",
        about="lines of thought: modes of the logit map that do not continue the context and die out",
        heading="Lines of thought",
        guide="The modes of the distribution over values after each layer, joined along the forecast: what else the "
        "model holds possible on the way.",
        compute=on_first("lines_of_thought"),
        plates=_thought,
        figures=(
            Figure("thought_lines", "Modes of the lens distribution through depth."),
            Figure("thought_counts", "How many lines of thought there are, and which die out."),
        ),
        helpers=("trace_lines",),
        source="tsfm-lens, section 2",
        needs=TOKENS,
    ),
)
