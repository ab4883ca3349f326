"""Transition."""

from importlib import import_module

from tsfm_lens.registry import ReportPanel as Plate
from tsfm_lens.registry import _checked, measurement, probe
from tsfm_lens.viz.tables import frame


def draws(*kinds, needs=()):
    def declare(f):
        g = _checked(f, kinds[0], tuple(needs))
        g.kinds.extend(kinds[1:])
        return g

    return declare


class Figure:
    def __init__(self, renderer, title, **facts):
        self.renderer, self.title, self.facts = renderer, title, facts


class Measurement:
    def __init__(self, **facts):
        self.facts = facts


def of_weights(name):
    return name, "lens"


def on_all(name):
    return name, "run"


def shown_alone(
    kind, renderer, reading, variables, about, heading, guide, where, shows, paper, *, theme, source, subject, maker
):
    def plates(ds):
        yield Plate(renderer(ds), frame(ds, *variables), reading(ds))

    return Measurement(
        kind=kind,
        theme=theme,
        about=about,
        heading=heading,
        guide=guide,
        compute=None,
        plates=plates,
        figures=(Figure(renderer, shows),),
        source=f"{source}, {where}",
        paper=paper,
        subject=subject,
        maker=maker,
    )


def add(m):
    f = dict(m.facts)
    entry = measurement(
        f["kind"],
        theme=f["theme"],
        title=f["heading"],
        summary=f["about"],
        description=f["guide"],
        source=f.get("source", ""),
        paper=f.get("paper", ()),
        needs=f.get("needs"),
        maker=f.get("maker", ""),
        subject=f.get("subject"),
    )
    for fig in f["figures"]:
        entry.figure(fig.title, variables=None, **fig.facts)(fig.renderer)
    entry.panels(f["plates"])
    name, takes = f.get("compute") or (None, None)
    if f.get("helpers") and name is None:
        name, takes = f["helpers"][0], "lenses"
    if name:
        package, _, function = name.rpartition(".")
        probe(f["kind"], takes)(getattr(import_module("tsfm_lens." + package), function))
