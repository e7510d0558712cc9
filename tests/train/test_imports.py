"""Start-up is felt in every process: what is heavy is imported by those who use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROOM = "gruppetto.train"
HEAVY = ("torch", "transformers", "tokenizers", "datasets")


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        (("setting", "corpus", "tokens", "data", "order", "log", "baseline"), ()),
        (("model", "batches", "inner", "step", "evaluate", "export", "rivals", "rank"), ("torch",)),
    ],
)
def test_imports_are_narrow(modules: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    imports = "; ".join(f"import {ROOM}.{module}" for module in modules)
    code = f"import sys; {imports}; print([name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(list(allowed))
