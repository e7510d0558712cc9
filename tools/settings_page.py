"""Write docs/settings.md from the settings' own source: every key of a RUN.toml, its default and its meaning.

python tools/settings_page.py            writes the page
python tools/settings_page.py --check    exits with 1 if the page is not what would be written
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from typing import Any

import written

from gruppetto.config import groups, run, virtual
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.train import setting as train
from gruppetto.train.virtual_setting import Guest

INTRO = """\
# Settings

Every key of a `RUN.toml`. One order decides: defaults, then a preset (`run.preset`), then the file, then the
command line (`--set run.sync_period=8`). An unknown key or an impossible value is refused with its path and the fix.
`run.toml` in a run directory holds the whole resolved run.

A path begins where the command is given, wherever the file lies; `~` is home.
`syncer.state` of a local run lies in its run directory.

This page is written by `python tools/settings_page.py` from the source; a test keeps it true.
"""
TABLES: tuple[tuple[str, type, str], ...] = (
    (
        "run",
        ProtocolSetting,
        "The protocol. `mode` is `decoupled`, `single`, `data-parallel` or `diloco`; `preset` is `closest` or `demo`.",
    ),
    ("outer", run.OuterChoice, "The syncer's optimizer. Presets: `auto`, `paper`, `short`, `rising`, `finetune`."),
    (
        "merge",
        run.MergeChoice,
        "Merge rules by tensor name: `mean`, `rda`, or a robust one: `trimmed`, `median`, `clipped-rda`.",
    ),
    ("fragments", run.FragmentsChoice, "How the model is cut."),
    ("codec", run.CodecChoice, "What travels in how many bits; see [performance](performance.md)."),
    ("syncer", run.SyncerPlace, "The service."),
    ("launch", run.LaunchChoice, "What a run does with a learner or a syncer that dies, and where an engine puts it."),
    ("train", train.TrainSetting, "The reference trainer."),
    ("model", train.ModelSetting, "The model. `preset` is `tiny`, `small` or `base`; single keys change it."),
    ("data", train.DataSetting, "The text. `slots` follows `run.num_slots`."),
    ("inner", train.InnerSetting, "The learners' own optimizer."),
    ("learner", run.LearnerEntry, "A list, one `[[learner]]` a learner of a local run."),
    ("group", groups.GroupEntry, "A list, one `[[group]]` for learners of one kind; see [engines](engines.md)."),
    ("virtual", virtual.VirtualTable, "The world of `gruppetto train --virtual`; nothing else reads it."),
    ("guest", Guest, "A list, one `[[guest]]` a learner that joins such a world for a while."),
)
COMPOSED = {"model", "data", "inner"}
"""Fields that are tables of their own."""


def notes_of(cls: type) -> dict[str, str]:
    """The text under each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    notes: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                notes[field.target.id] = " ".join(value.value.split())
    return notes


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    value = field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None:
        return "`none`"
    return "`[]`" if value == () else f"`{value}`"


def page() -> str:
    parts = [INTRO]
    for name, cls, about in TABLES:
        notes = notes_of(cls)
        about = about.replace("``", "`")
        rows = [f"\n## [{name}]\n\n{about}\n", "| key | default | |", "|---|---|---|"]
        for field in dataclasses.fields(cls):
            if name == "train" and field.name in COMPOSED:
                continue
            note = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", notes.get(field.name, ""))
            note = note.replace("``", "`").replace("|", "\\|")
            rows.append(f"| `{field.name}` | {default_of(field)} | {note} |")
        described = inspect.getdoc(cls) or ""
        if name in ("model", "data", "inner", "train"):
            rows.append("\n" + described.split(">>>")[0].partition("\n")[2].strip().replace("``", "`"))
        parts.append("\n".join(rows))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(written.main({"settings.md": page}))
