"""``gruppetto export RUNDIR|STATE|URL``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from gruppetto.cli.flags import exactly_one, positional, print_json, read_flags, refuse_missing
from gruppetto.cli.virtual_resume import is_virtual
from gruppetto.errors import SettingError, StateError
from gruppetto.home import at_home
from gruppetto.launch.weights import FoundWeights, find_weights
from gruppetto.report.rundir import PLAN

__all__ = ["main"]

FORMATS = ("hf", "safetensors")
MODEL = "model"
"""In a run directory: what its last round left."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Take the global model of a run along: while it goes on, after it was stopped, or when it is over."""

    source: Annotated[tuple[str, ...], tyro.conf.Positional, positional("RUNDIR|STATE|URL")] = ()
    """A run directory, the state directory of a syncer, or the address of one."""
    format: Annotated[str, tyro.conf.arg(metavar="FORMAT")] = "hf"
    """hf: a directory that transformers loads, for the models of the reference trainer. safetensors: one file of all
    trained tensors by their names, of any model."""
    out: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """What to write, which must not be there; RUNDIR/model or RUNDIR/model.safetensors by default."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the syncer's token. For a run directory of yours none is needed."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: the authority that made the syncer's, and an operator's own (no viewer's)."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenizers are kept that were learned from text."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "export")
    source = exactly_one(flags.source, "RUNDIR, STATE or URL", "export")
    if flags.format not in FORMATS:
        raise SettingError(f"is {flags.format!r}", where="--format", fix=f"use one of {', '.join(FORMATS)}")
    if not Path(source).is_dir():
        refuse_missing(source)
    out = _place(source, flags)
    an_empty_folder = flags.format == "hf" and out.is_dir() and not any(out.iterdir())
    if (out.exists() or out.is_symlink()) and not an_empty_folder:
        raise StateError("is there already", where=str(out), fix="give --out PATH, or take that")
    if (Path(source) / PLAN).is_file():
        fix = f"its last weights are in {Path(source) / MODEL}, once it is over"
        raise StateError("is a rival's run, which has no syncer", where=source, fix=fix)
    if Path(source).is_dir() and is_virtual(Path(source)):
        fix = "train it in processes: gruppetto train RUN.toml"
        raise StateError("ran in virtual time, of which no weights are left", where=source, fix=fix)
    found = find_weights(source, certs=flags.certs, token_file=flags.token_file)
    if flags.format == "safetensors":
        _write_file(found, out)
    else:
        _write_for_transformers(found, source, out, at_home(flags.cache))
    said: dict[str, Any] = {
        "out": str(out),
        "format": flags.format,
        "round": found.round,
        "parameters": sum(values.size for values in found.tensors.values()),
    }
    if flags.json:
        print_json(said)
    else:
        print(f"{out}: {said['parameters']:,} parameters as of round {found.round}")
    return 0


def _place(source: str, flags: Flags) -> Path:
    if flags.out is not None:
        return Path(flags.out)
    if not Path(source).is_dir():
        raise SettingError("is missing", where="--out", fix="say where to write it")
    return Path(source) / (MODEL if flags.format == "hf" else f"{MODEL}.safetensors")


def _write_file(found: FoundWeights, out: Path) -> None:
    import safetensors.numpy

    from gruppetto.train.cache import publish

    content = found.file
    if content is None:
        content = safetensors.numpy.save(dict(found.tensors), metadata={"round": str(found.round), "format": "pt"})
    publish(out, lambda file: file.write(content))


def _write_for_transformers(found: FoundWeights, source: str, out: Path, cache: Path) -> None:
    fix = "use --format safetensors"
    if found.config is None:
        raise SettingError("says nothing of the model's shape", where=source, fix=f"{fix}, or name the run directory")
    from gruppetto.train.data import open_tokenizer
    from gruppetto.train.export import export, fill
    from gruppetto.train.model import build

    setting = found.config.train
    tokenizer = open_tokenizer(setting, cache)
    model = build(setting.model, tokenizer.vocab_size)
    try:
        fill(model, found.tensors)
    except StateError as other:
        raise StateError(f"{other.what}: these are weights of another model", where=source, fix=fix) from other
    export(model, setting.model, tokenizer, out)
