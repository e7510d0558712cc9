"""How the site is made of these pages: ``make docs`` writes it to ``site/``. It needs no network, then or when read."""

from __future__ import annotations

from typing import Any

import gruppetto

project = "Gruppetto"
author = "the Gruppetto authors"
project_copyright = author
release = version = gruppetto.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["conf.py"]
html_theme = "furo"
html_title = "Gruppetto"
html_copy_source = False
html_show_sphinx = False
html_static_path: list[str] = []
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

# ── Markdown ────────────────────────────────────────────────────────────────────────────────────────────────────────

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # a page may be read at GitHub too, where levels may be skipped

# ── the reference ───────────────────────────────────────────────────────────────────────────────────────────────────

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_mock_imports = ["accelerate", "lightning", "transformers"]  # seconds to import, and none of ours
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

# Every reference has to lead somewhere, but for two kinds: types of others (the site is read offline), and rooms of
# the house that are no public interface, for which the docstrings name the file to read.
ROOMS = "attach|chaos|cli|config|dashboard|data|launch|numerics|protocol|report|runtime|sim|trace|train"
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|np|nn|pathlib|collections|typing|concurrent|asyncio|ssl|types|logging|pl)(\..*)?"),
    (r"py:.*", rf"gruppetto\.({ROOMS})(\..*)?"),
    (r"py:.*", r"[A-Za-z]\w*"),  # a name without its module: of the standard library, or of a room
    (r"py:.*", r"[a-z]\w*\.[A-Z]\w*"),
]


def setup(app: Any) -> None:
    """Nothing of ours is added to Sphinx."""
