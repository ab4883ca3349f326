"""What a shell offers at the tab key: names of models, figures, measurements and bundled series."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _among(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Names that begin as what is typed so far, in a list parted by commas from its last comma on."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return offer


def _models() -> list[str]:
    from tsfm_lens.models.architecture import architectures
    from tsfm_lens.zoo import checkpoint_names

    hub = [hub_id for entry in architectures().values() for hub_id in entry.published.values()]
    return [*checkpoint_names(), *hub]


def _figures() -> list[str]:
    from tsfm_lens.paper.figures import figures

    return list(figures())


def _kinds() -> list[str]:
    from tsfm_lens.catalogue.registry import measurements

    return [kind for kind, each in measurements().items() if each.compute is not None]


def _items() -> list[str]:
    from tsfm_lens.paper.values import ITEMS

    return [item.id for item in ITEMS]


def data(incomplete: str) -> list[str]:
    """Bundled series once ``bundled:`` is begun; files are the shell's own affair."""
    from tsfm_lens.data import bundled_names

    word = "bundled:"
    if not incomplete or word.startswith(incomplete):
        return [word]
    if not incomplete.startswith(word):
        return []
    names = ["all", *bundled_names()]
    return [word + offered for offered in _among(lambda: names)(incomplete.removeprefix(word))]


models = _among(_models)
figures = _among(_figures)
kinds = _among(_kinds)
items = _among(_items)
