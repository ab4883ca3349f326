"""Menus for the roles of a file's columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from tsfm_lens.data.files import columns_of
from tsfm_lens.errors import LensError

_BY_RULE = "found by rule"
_ONE = {"id_column": "ids", "time_column": "time stamps"}
_MANY = {"targets": "forecast", "known": "known covariates", "past": "past covariates"}


class Columns(widgets.Accordion):
    """Menus for ids, times, targets and covariates; empty menus leave the choice to the rules of reading.

    Args:
        on_change: called when a menu has changed.

    Attributes:
        menus: by the name of the argument of :func:`tsfm_lens.data.read_series`.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change, self._quiet = on_change, False
        wide: dict[str, Any] = {"style": {"description_width": "initial"}}
        self.menus: dict[str, widgets.Widget] = {
            name: widgets.Dropdown(options=[(_BY_RULE, "")], description=words, **wide) for name, words in _ONE.items()
        }
        self.menus |= {
            name: widgets.SelectMultiple(options=[], description=words, rows=4, **wide) for name, words in _MANY.items()
        }
        for menu in self.menus.values():
            menu.observe(self._notify, "value")
        layout = widgets.Layout(flex_flow="row wrap", grid_gap="6px")
        super().__init__([widgets.HBox(list(self.menus.values()), layout=layout)], titles=("Columns of the file",))
        self.offer(None)

    def offer(self, path: Path | None) -> None:
        """Offer the columns of a file; none if there is no file, or if it cannot be read, which reading it will say."""
        try:
            names = [] if path is None else columns_of(path)
        except LensError:
            names = []
        self._quiet = True
        for key, menu in self.menus.items():
            menu.options = [(_BY_RULE, ""), *((name, name) for name in names)] if key in _ONE else names
            menu.value = "" if key in _ONE else ()
        self._quiet = False
        self.layout.display = "" if names else "none"
        self.selected_index = None

    @property
    def chosen(self) -> dict[str, Any]:
        """Arguments of :func:`tsfm_lens.data.read_series`."""
        return {key: menu.value if key in _ONE else list(menu.value) for key, menu in self.menus.items() if menu.value}

    def _notify(self, _change: Any) -> None:
        if not self._quiet:
            self._on_change()
