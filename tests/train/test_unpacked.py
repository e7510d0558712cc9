"""A corpus out of an archive: the same whatever the order, made once, and cut as every other."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.train.archives import tar_of, zip_of

from gruppetto.errors import DataError
from gruppetto.train import unpacked
from gruppetto.train.archive import Member, members
from gruppetto.train.corpus import Corpus, open_corpus
from gruppetto.train.data import open_data
from gruppetto.train.setting import DataSetting, TrainSetting
from gruppetto.train.unpacked import hash_of

TEXTS = {f"texts/{i % 7}/{i}.txt": f"this is document {i}, é\n".encode() * 20 for i in range(300)}
LINES = b"".join(json.dumps({"verse": i, "text": f"line {i}\0 é 山"}).encode() + b"\n\n" for i in range(500))


def all_of(corpus: Corpus) -> dict[str, bytes]:
    return {document.name: document.read() for document in (*corpus.train, *corpus.held_out)}


def test_it_is_that_of_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(TEXTS)))
    for name, content in TEXTS.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    packed = open_corpus(f"archive:{tmp_path}/a.tar.gz", tmp_path / "cache")
    assert all_of(packed) == TEXTS
    assert packed.manifest.sha256 == open_corpus(f"text:{tmp_path}/folder").manifest.sha256
    assert packed.manifest.file_sha256 == hash_of(tmp_path / "a.tar.gz") and packed.manifest.file == "a.tar.gz"


def test_neither_order_nor_kind_of_the_archive_matters(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(TEXTS))
    (tmp_path / "b.zip").write_bytes(zip_of(dict(reversed(TEXTS.items()))))
    one, other = (open_corpus(f"archive:{tmp_path}/{name}", tmp_path) for name in ("a.tar", "b.zip"))
    assert [d.name for d in one.train] == [d.name for d in other.train] and one.manifest.sha256 == other.manifest.sha256


def test_what_is_no_text_is_left_out_and_counted_and_of_two_the_last_counts(tmp_path: Path) -> None:
    text, odd = b"new " * 999, {"b.png": b"P\0" * 9, "c.txt": b"caf\xe9", "d.txt": "é".encode()[:1], "e.txt": b""}
    first = tar_of({"a.txt": b"old", "f.txt": b"\0", **odd}).rstrip(b"\0")
    first += b"\0" * (-len(first) % 512)
    (tmp_path / "a.tar").write_bytes(first + tar_of({"a.txt": text, "f.txt": text}))
    corpus = open_corpus(f"archive:{tmp_path}/a.tar", tmp_path / "cache")
    found = all_of(corpus)
    assert {name.partition("#")[0] for name in found} == {"a.txt", "f.txt"} and corpus.manifest.skipped == 3
    assert sum(map(len, found.values())) == 2 * len(text) and not any(b"old" in content for content in found.values())


def test_a_pattern_chooses(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of({**TEXTS, "texts/3/x.py": b"print\n" * 99}))
    corpus = open_corpus(f"archive:{tmp_path}/a.tar#**/3/*.txt", tmp_path / "cache")
    assert {name.partition("#")[0] for name in all_of(corpus)} == {name for name in TEXTS if "/3/" in name}
    with pytest.raises(DataError, match="no text that was asked for"):
        open_corpus(f"archive:{tmp_path}/a.tar#*.txt", tmp_path / "cache")
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir() if path.is_file()) == [".json", ".text"]


def test_a_field_of_lines_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of({"x/a.jsonl": LINES, "x/README": b"read me"}))
    found = all_of(open_corpus(f"archive:{tmp_path}/a.tar#**/*.jsonl#text", tmp_path / "cache"))
    assert found["x/a.jsonl:00000003"] == "line 1 é 山".encode() and len(found) == 500
    for pattern, field in (("**/*.jsonl", "verse"), ("**/*.jsonl", "txet"), ("**", "text")):
        with pytest.raises(DataError, match=rf"line 1 of x/\w+(\.jsonl)? has no text called '{field}'") as caught:
            open_corpus(f"archive:{tmp_path}/a.tar#{pattern}#{field}", tmp_path / "cache")
        assert "\n" not in str(caught.value)


def test_it_is_unpacked_once(tmp_path: Path) -> None:
    archive, cache = tmp_path / "a.tar", tmp_path / "cache"
    archive.write_bytes(tar_of(TEXTS))
    first = open_corpus(f"archive:{archive}", cache)
    made = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    archive.rename(tmp_path / "b.tar")
    again = open_corpus(f"archive:{tmp_path}/b.tar", cache)
    assert all_of(again) == all_of(first) and again.manifest.file == "b.tar"
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == made
    (flat,), (index,) = cache.glob("*.text"), cache.glob("*.json")
    with flat.open("ab") as file:
        file.write(b"more")
    for _ in range(2):
        with pytest.raises(DataError, match="not whole"):
            open_corpus(f"archive:{tmp_path}/b.tar", cache)
        index.unlink(missing_ok=True)  # no index is made of what is damaged
    for path in (flat, index):
        path.unlink(missing_ok=True)
        assert all_of(open_corpus(f"archive:{tmp_path}/b.tar", cache)) == all_of(first)
        assert path.exists()


def test_a_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(TEXTS))[:-100])
    with pytest.raises(DataError, match="cannot be unpacked"):
        open_corpus(f"archive:{tmp_path}/a.tar.gz", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    for path in ("nowhere.tar", "."):
        with pytest.raises(DataError, match=r"does not exist|cannot be read"):
            open_corpus(f"archive:{tmp_path}/{path}", tmp_path / "cache")


def test_it_is_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(TEXTS))
    data = open_data(TrainSetting(data=DataSetting(corpus=f"archive:{tmp_path}/a.tar")), tmp_path / "cache")
    total_bytes = sum(len(text) + 1 for text in TEXTS.values())
    assert len(data.train) + len(data.held_out) == total_bytes and data.manifest.train_documents > 200


def test_a_path_may_hold_what_stands_before_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "books#2: new"
    folder.mkdir()
    (folder / "a#1.tar").write_bytes(tar_of({**TEXTS, "b.md": b"read me\n" * 99}))
    for inside, count in (("", 301), ("#", 301), ("#*.md", 1), ("#**/*.txt#", 300)):
        found = all_of(open_corpus(f"archive:{folder}/a#1.tar{inside}", tmp_path / "cache"))
        assert len({name.partition("#")[0] for name in found}) == count


def test_names_that_are_no_text_are_names(tmp_path: Path) -> None:
    name = "caf\udce9\n\x1b[31m.txt"
    (tmp_path / "a.tar").write_bytes(tar_of({name: b"text\n" * 999, "x.txt": b"text\n" * 999}))
    for _ in range(2):  # unpacked, and found
        found = all_of(open_corpus(f"archive:{tmp_path}/a.tar#caf\udce9*", tmp_path / "cache"))
        assert {document.partition("#")[0] for document in found} == {name}
    with pytest.raises(DataError, match=r"line 1 of caf\\udce9\\n\\x1b\[31m\.txt has no text") as caught:
        open_corpus(f"archive:{tmp_path}/a.tar#**#text", tmp_path / "cache")
    assert str(caught.value).isprintable()


def test_a_file_with_holes_is_no_text(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("sparse.txt")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 0
    (tmp_path / "a.tar").write_bytes(tar_of(TEXTS, sparse))
    corpus = open_corpus(f"archive:{tmp_path}/a.tar", tmp_path / "cache")
    assert all_of(corpus) == TEXTS and corpus.manifest.skipped == 1


def test_what_has_no_end_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    (tmp_path / "b.tar").symlink_to("/dev/zero")
    for name in ("a.tar", "b.tar"):
        with pytest.raises(DataError, match="is no plain file"):
            open_corpus(f"archive:{tmp_path}/{name}", tmp_path / "cache")
    with pytest.raises(DataError, match="null byte"):
        open_corpus("archive:a\0.tar", tmp_path / "cache")


def test_an_archive_that_changes_meanwhile_is_not_found_under_its_old_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(TEXTS))

    def growing(archive: Path, enters: Callable[[str], bool]) -> Iterator[Member]:
        yield from members(archive, enters)
        path.write_bytes(tar_of({**TEXTS, "more.txt": b"more"}))

    monkeypatch.setattr(unpacked, "members", growing)
    with pytest.raises(DataError, match="has changed while it was read"):
        open_corpus(f"archive:{path}", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    monkeypatch.undo()
    assert "more.txt" in all_of(open_corpus(f"archive:{path}", tmp_path / "cache"))


def test_a_line_that_is_too_long_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "a.tar").write_bytes(tar_of({"a": json.dumps({"text": "x" * (2 << 20)}).encode()}))
    with pytest.raises(DataError, match="line 1 of a is longer than 1 MiB"):
        open_corpus(f"archive:{tmp_path}/a.tar#**#text", tmp_path / "cache")


@pytest.mark.parametrize("damage", ["[]", "[" * 100_000, '{"flat_bytes": 1}', '"train": Infinity', "\x00"])
def test_an_index_that_is_none_is_told(tmp_path: Path, damage: str) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(TEXTS))
    open_corpus(f"archive:{tmp_path}/a.tar", tmp_path / "cache")
    (index,) = (tmp_path / "cache").glob("*.json")
    whole = json.loads(index.read_bytes())
    whole["train"][0][1] = float("inf")
    index.write_text(json.dumps(whole) if "Infinity" in damage else damage, encoding="utf-8")
    with pytest.raises(DataError, match="is no index of an archive"):
        open_corpus(f"archive:{tmp_path}/a.tar", tmp_path / "cache")


CUT = gzip.compress(tar_of(TEXTS))[:-50]
FIXTURES = {
    "t/a.tar": b"",
    "t/b.tgz": b"none",
    "t/c.deb": b"!<",
    "t/d.tar": b"plain words\n",
    "t/e.tar.zst": b"(",
    "f.txz": b"",
}


def test_what_has_the_name_of_an_archive_and_is_none_is_a_member_like_others(tmp_path: Path) -> None:
    """Sources come with such files, for their tests."""
    (tmp_path / "a.tar").write_bytes(tar_of({**TEXTS, **FIXTURES, "t/zeros.tar": b"\0" * 1024}))
    for pattern in ("", "#**"):
        found = all_of(open_corpus(f"archive:{tmp_path}/a.tar{pattern}", tmp_path / "cache"))
        assert found == TEXTS | {name: content for name, content in FIXTURES.items() if content}


def test_an_archive_within_is_entered_only_where_something_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of({**TEXTS, "tests/cut.tar.gz": CUT, "in/b.tar": tar_of(TEXTS)}))
    for pattern, count in (("texts/**", 300), ("texts/*/*.txt", 300), ("in/b.tar/texts/[0-9]/*", 300), ("**", None)):
        if count is None:
            with pytest.raises(DataError, match=r"cannot be unpacked at tests/cut\.tar\.gz"):
                open_corpus(f"archive:{tmp_path}/a.tar#{pattern}", tmp_path / "cache")
        else:
            assert len(all_of(open_corpus(f"archive:{tmp_path}/a.tar#{pattern}", tmp_path / "cache"))) == count
