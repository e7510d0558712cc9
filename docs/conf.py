"""How the site is made of these pages: ``make docs`` writes it to ``site/``. It needs no network, then or when read."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path
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

# Every reference has to name something that exists: what is documented here becomes a link; rooms of the house that are
# no public interface and types of others, which are read offline, stay words (:func:`_lead`).
nitpicky = True


def setup(app: Any) -> None:
    app.connect("builder-inited", _write_messages)
    app.connect("missing-reference", _lead)


def _write_messages(app: Any) -> None:
    """The page of all single messages; it is made of the source each time."""
    sys.path.insert(0, str(Path(app.srcdir).parent / "tools"))
    import errors_page

    place = Path(app.srcdir) / "_made" / "messages.md"
    place.parent.mkdir(exist_ok=True)
    wanted = errors_page.messages()
    if not place.exists() or place.read_text(encoding="utf-8") != wanted:
        place.write_text(wanted, encoding="utf-8")


def _lead(app: Any, env: Any, node: Any, words: Any) -> Any:
    """Where a reference leads that Sphinx has not found; None, which is an error, if there is no such thing."""
    if node.get("refdomain") != "py":
        return None
    target, module, owner = node["reftarget"].rpartition("~")[2], node.get("py:module"), node.get("py:class")
    if target.partition(".")[0] in autodoc_mock_imports:
        return words
    homes = [module, owner and f"{module}.{owner}", owner and _home_of(f"{module}.{owner}"), "gruppetto.errors"]
    python = env.get_domain("py")
    for name in (target, *(f"{home}.{target}" for home in homes if home)):
        if name in python.objects:
            return python.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, words)
        if _found(name) is not None:
            return words
    return None


def _found(name: str) -> Any:
    """What has that full name, in any module that can be imported."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


def _home_of(name: str) -> str | None:
    return getattr(_found(name), "__module__", None)
