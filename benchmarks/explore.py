"""How long the linked view takes from an event to the state that a browser gets, on the
embedded models.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import combinations

from tsfm_lens.compress.timing import seconds
from tsfm_lens.data import bundled
from tsfm_lens.models import load
from tsfm_lens.report.explore.widget import Explorer

LIMIT = 0.3  # seconds
MODELS = {"chronos-nano": "co2", "bolt-nano": "electricity"}
HORIZON = 24
SAMPLES = {"chronos-nano": 8, "bolt-nano": None}


def make_view(name: str) -> Explorer:
    """The view of an embedded model on a bundled series, the end held out."""
    return (
        load(name, check=False)
        .run(bundled(MODELS[name]), HORIZON, holdout=True, num_samples=SAMPLES[name])
        .explore()
    )


def events(
    view: Explorer, rounds: int
) -> Iterator[tuple[str, list[Callable[[], None]]]]:
    """What a user does, and calls that do it, each of which changes what is shown."""
    names = [str(name) for name in view.states["component"].values.ravel()]
    layers = view.states["layer"].values
    heads = view.states["head"].values
    cells = [(layer, head) for layer in layers for head in heads]
    yield (
        "another head",
        [lambda cell=cell: view.select(*cell) for cell in (cells * rounds)[:rounds]],
    )
    yield (
        "its ablation",
        [lambda name=name: view.ablate(name) for name in (names * rounds)[:rounds]],
    )
    # no set is met twice, so that every one is forecast
    pairs = list(combinations(names, 2))[:rounds]
    yield "two heads ablated", [lambda pair=pair: view.ablate(*pair) for pair in pairs]


def latencies(rounds: int) -> Iterator[tuple[str, float, float, float]]:
    """What was done, and the median, shortest and longest time in seconds; the first of
    each is not counted.
    """
    for name in MODELS:
        view = make_view(name)
        for what, calls in events(view, rounds + 1):
            times = [seconds(call) for call in calls][1:]
            yield f"{name}: {what}", statistics.median(times), min(times), max(times)
