"""Write docs/errors.md: every error by its class, every refusal and every rejection, with cause and fix.

python tools/errors_page.py            writes the page
python tools/errors_page.py --check    exits with 1 if the page is not what would be written

The site has one page more, of all single messages (:func:`messages`); it is made with the site and kept nowhere.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import written

import gruppetto
from gruppetto import errors
from gruppetto.protocol.admission import ADVICE, CLIP_ADVICE
from gruppetto.protocol.messages import ClipCause, RefusalReason

INTRO = """\
# Errors

Whatever goes wrong is said in one line: where, what, and the fix. The command line prints it without a traceback
(`--debug` shows one) and ends with the exit code below. In Python it is an exception of `gruppetto.errors`, all of them
`gruppetto.GruppettoError`.

Exit codes of every verb: 0 done, 1 failed, 2 something for you to mend (not to be started again unchanged), 3 replaced
by another syncer, 130 and 143 stopped in good order by SIGINT and SIGTERM.

This page is written by `python tools/errors_page.py` from the source; a test keeps it true.

## By class
"""
REFUSALS = """
## A learner is refused

The syncer tells a learner that it does not take it in: `gruppetto.errors.Refused`, whose `reason` is one of these. The
text beside it says what to do.

| reason | |
|---|---|
"""
REJECTIONS = """
## A contribution is not merged

Nothing is raised: the learner trains on, and its log says once a cause, and then ever more rarely, what became of its
work. `gruppetto status`, the dashboard and the report count by reason.

| reason | what is behind it, and what to do |
|---|---|
"""
CLIPS = """
## A contribution is merged for less than it holds

| cause | what happens | what to do |
|---|---|---|
"""
MESSAGES = """\
# Every message

All that a user can be told to mend, as it stands in the source. `…` stands for what is filled in.

| error | where: what | fix |
|---|---|---|
"""


def page() -> str:
    parts = [INTRO]
    for kind, (cause, action) in errors.MEANINGS.items():
        parent, (first, *_) = kind.__mro__[1].__name__, (inspect.getdoc(kind) or "").splitlines()
        code = "128 + the signal" if kind is errors.Stopped else kind.exit_code
        parts.append(
            f"\n### {kind.__name__}\n\n{first} A `{parent}`; exit code {code}.\n\n"
            f"* **Behind it**: {cause}\n* **What to do**: {action}\n"
        )
    refusals = "".join(f"| `{reason}` | {text} |\n" for reason, text in notes_of(RefusalReason).items())
    rejections = "".join(f"| `{reason.value}` | {text} |\n" for reason, text in ADVICE.items())
    clips = "".join(f"| `{c}` | {text} | {CLIP_ADVICE[ClipCause(c)]} |\n" for c, text in notes_of(ClipCause).items())
    return "".join(parts) + REFUSALS + refusals + REJECTIONS + rejections + CLIPS + clips


def notes_of(kinds: type[StrEnum]) -> dict[str, str]:
    """The text under each member, by its value."""
    (kind,) = ast.parse(textwrap.dedent(inspect.getsource(kinds))).body
    assert isinstance(kind, ast.ClassDef)
    return {
        ast.literal_eval(member.value): " ".join(ast.literal_eval(text.value).split())
        for member, text in pairwise(kind.body)
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr)
    }


def messages() -> str:
    """A page of everything that is raised as some :class:`gruppetto.errors.UserError`."""
    kinds = {kind.__name__ for kind in errors.MEANINGS if issubclass(kind, errors.UserError)}
    files = Path(gruppetto.__file__).parent.rglob("*.py")
    rows = sorted({row for path in files for row in raised(path, kinds)})
    return MESSAGES + "".join(f"| {kind} | {what} | {fix} |\n" for kind, what, fix in rows)


def raised(path: Path, kinds: set[str]) -> Iterator[tuple[str, str, str]]:
    """(class, where and what, fix) of every error that a file makes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args):
            continue
        said = {keyword.arg: shown(keyword.value) for keyword in node.keywords}
        what, where = shown(node.args[0]), said.get("where", "…")
        if re.sub(r"[\W_]", "", what):
            yield node.func.id, f"**{where}**: {what}" if where != "…" else what, said.get("fix", "")


def shown(text: ast.expr) -> str:
    """A text of the source as a cell of a table."""
    match text:
        case ast.Constant(value=str(said)):
            return re.sub(r"([|<*_`])", r"\\\1", said)
        case ast.JoinedStr(values=parts):
            return "".join(shown(part) for part in parts)
        case ast.BinOp(left=left, right=right):
            return shown(left) + shown(right)
        case _:
            return "…"


if __name__ == "__main__":
    sys.exit(written.main({"errors.md": page}))
