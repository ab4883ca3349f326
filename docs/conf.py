"""How Sphinx builds the site; what follows from the code is written by ``sitepages``
before sources are read.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import sitepages  # noqa: E402

# Sphinx looks for them before they are filled
for folder in ("static", "extra"):
    (HERE / "_cache" / folder).mkdir(parents=True, exist_ok=True)

project = "tsfm-lens"
author = copyright = "The tsfm-lens-toolbox developers"
release = version = version_of("tsfm-lens-toolbox")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = [
    "_build",
    "_cache",
    "sitepages",
    "concepts/generated",
    "reference/generated/measurements.md",
    "**/.ipynb_checkpoints",
]
# every page must be reachable, every reference must lead somewhere
nitpicky = True
nitpick_ignore_regex = sitepages.FOREIGN

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
# notebooks come executed, see sitepages/notebooks.py
nb_execution_mode = "off"
# no page asks for anything from the net
nb_ipywidgets_js = {}

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Source", "Why", "Cure"]
# entries of their own would double those of properties
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"tsfm-lens {release}"
html_static_path = ["_static", "_cache/static"]
html_extra_path = ["_cache/extra"]
# a page per letter
html_split_index = True
html_js_files = [("site.js", {"defer": "defer"})]
html_css_files = ["site.css"]
html_show_sourcelink = False
# figures and examples may be long; a prompt is not part of what is copied
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app: object) -> None:
    """Called by Sphinx."""
    sitepages.setup(app)
