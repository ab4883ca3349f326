"""Pages of the site that follow from the code, written before Sphinx reads them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

# types of other libraries, whose documentation cannot be looked up without a network
_LIBRARIES = """
    np numpy torch nn xr xarray pd pandas go plotly collections pathlib typing types annotated_types fractions
    contextlib rich pyarrow os NoneType Path FieldInfo Tensor pydantic ByteSize
""".split()
FOREIGN = [(r"py:.*", rf"({'|'.join(_LIBRARIES)})(\..*)?")]


def setup(app: Any) -> None:
    """Let Sphinx call what writes pages."""
    app.connect("builder-inited", _write)
    app.connect("missing-reference", _late("resolve"))
    # napoleon has 500
    app.connect("autodoc-process-docstring", _late("before_napoleon"), priority=400)
    app.connect("autodoc-process-docstring", _late("after_napoleon"), priority=600)


def _write(app: Any) -> None:
    from sitepages.agents import write_agents
    from sitepages.api import write_api
    from sitepages.capabilities import write_capabilities
    from sitepages.commands import write_commands
    from sitepages.costs import write_costs
    from sitepages.failures import write_errors
    from sitepages.gallery import write_gallery
    from sitepages.history import write_history
    from sitepages.measurements import write_measurements
    from sitepages.notebooks import write_notebooks
    from sitepages.outputs import write_outputs
    from sitepages.papers import write_verdicts
    from sitepages.printing import write_printed
    from sitepages.questions import write_questions
    from sitepages.wirings import write_wirings
    from sitepages.writing import remove_others

    # its pictures stand in the reference, too
    write_gallery()
    write_agents()
    write_api()
    write_capabilities()
    write_commands()
    write_costs()
    write_errors()
    write_history()
    write_measurements()
    write_notebooks()
    write_outputs()
    write_printed()
    write_questions()
    write_verdicts()
    write_wirings()
    remove_others()


def _late(name: str) -> Callable[..., Any]:
    """A function of ``docstrings``, which reads the whole package and is imported when
    it is first needed.
    """

    def call(*told: Any) -> Any:
        return getattr(import_module("sitepages.docstrings"), name)(*told)

    return call
