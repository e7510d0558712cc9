"""Archives of every kind give their plain members and nothing else, and damage is a line of text."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.archives import deb_of, tar_of, zip_of, zst

from gruppetto.errors import DataError
from gruppetto.train import archive
from gruppetto.train.archive import members

FILES = {"b/two.txt": b"second " * 500, "a/one.txt": "é".encode() * 3000, "image.png": b"\x89PNG\0" * 99, "none": b""}
Pack = Callable[[bytes], bytes]


def read(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in members(path):
        found[member.name] = io.BufferedReader(member.body).read()
    return found


PACKS: dict[str, Pack] = {
    "a.tar": bytes,
    "a.tar.gz": gzip.compress,
    "a.tgz": gzip.compress,
    "a.tar.xz": lzma.compress,
    "a.tar.bz2": bz2.compress,
}
WHOLE = {name: pack(tar_of(FILES)) for name, pack in PACKS.items()} | {
    "a.zip": zip_of(FILES),
    "a.whl": zip_of(FILES),
    "a.deb": deb_of(debian_binary=b"2\n", control_tar=tar_of({"md5": b"!"}), data_tar_xz=lzma.compress(tar_of(FILES))),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_kind_gives_its_members(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(WHOLE[name])
    assert read(path) == FILES


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_zstd_by_a_library_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.zst"
    path.write_bytes(zst(tar_of(FILES)))
    assert read(path) == FILES


@pytest.mark.parametrize("name", PACKS)
def test_several_tars_in_one_file_are_all_read(tmp_path: Path, name: str) -> None:
    one, two = tar_of({"a": b"one", "both": b"old"}), tar_of({"both": b"new", "c": b"three"})
    path, pack = tmp_path / name, PACKS[name]
    path.write_bytes(pack(one) + pack(tar_of({})) + pack(two))
    assert read(path) == {"a": b"one", "both": b"new", "c": b"three"}
    path.write_bytes(pack(one + two))
    assert read(path) == {"a": b"one", "both": b"new", "c": b"three"}


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_zstd_in_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.zst"
    path.write_bytes(zst(tar_of({"a": b"one"})) + zst(tar_of({"b": b"two"})))
    assert read(path) == {"a": b"one", "b": b"two"}


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("behind", [b"no tar" * 200, b"\x80" * 512, tar_of(FILES)[:300]], ids=["text", "block", "cut"])
def test_what_else_lies_behind_the_end_is_not_passed_over(tmp_path: Path, name: str, behind: bytes) -> None:
    path, pack = tmp_path / name, PACKS[name]
    path.write_bytes(pack(tar_of({"a": b"one"}) + behind))
    with pytest.raises(DataError, match="cannot be unpacked"):
        read(path)


@pytest.mark.parametrize("name", [name for name in PACKS if name != "a.tar"])
def test_what_lies_behind_a_packed_part_is_not_passed_over(tmp_path: Path, name: str) -> None:
    path, one, two = tmp_path / name, PACKS[name](tar_of({"a": b"one"})), PACKS[name](tar_of({"b": b"two"}))
    damaged = [bytes([*two[:at], two[at] ^ 1, *two[at + 1 :]]) for at in (0, len(two) // 2)]  # its header, and within
    for behind in (*damaged, two[:-1], two[:5], b"no tar"):
        path.write_bytes(one + behind)
        with pytest.raises(DataError, match="cannot be unpacked"):
            read(path)
    for num_zeros in (4, 512, 1 << 17):
        path.write_bytes(one + bytes(num_zeros) + two + bytes(num_zeros))
        assert read(path) == {"a": b"one", "b": b"two"}, "zeros between parts say nothing"


def test_a_header_of_zeros_is_no_end(tmp_path: Path) -> None:
    whole = bytearray(tar_of({"a": b"one", "b": b"", "c": b"three"}))
    at = whole.index(b"b\0")
    whole[at : at + tarfile.BLOCKSIZE] = bytes(tarfile.BLOCKSIZE)
    path = tmp_path / "a.tar"
    path.write_bytes(whole)
    with pytest.raises(DataError, match="a block of zeros where a header should be"):
        read(path)


def test_an_archive_within_is_read_in_place(tmp_path: Path) -> None:
    source = lzma.compress(tar_of({"linux/kernel/fork.c": b"fork"}))
    inner = deb_of(data_tar=tar_of({"./usr/src/linux.tar.xz": source, "./usr/share/zip.zip": zip_of(FILES)}))
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of({"l.deb": inner, "README": b"read"}))
    found = read(path)
    assert found.pop("l.deb/usr/share/zip.zip")[:2] == b"PK", "a zip within cannot be read as a stream"
    assert found == {"README": b"read", "l.deb/usr/src/linux.tar.xz/linux/kernel/fork.c": b"fork"}


def test_no_end_of_archives_in_archives(tmp_path: Path) -> None:
    content = b"deep"
    for _ in range(9):
        content = tar_of({"a.tar": content})
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    assert list(read(path)) == ["/".join(["a.tar"] * archive.MAX_DEPTH)]


def test_links_devices_and_places_outside_are_nothing_special(tmp_path: Path) -> None:
    link, hard, device = (tarfile.TarInfo(name) for name in ("link", "hard", "device"))
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard.type, hard.linkname = tarfile.LNKTYPE, "../../etc/passwd"
    device.type = tarfile.CHRTYPE
    (tmp_path / "a.tar").write_bytes(tar_of({"../../evil": b"e", "/root": b"r"}, link, hard, device))
    assert read(tmp_path / "a.tar") == {"../../evil": b"e", "root": b"r"}
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as made:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        made.writestr(info, "/etc/passwd")
        made.writestr("../evil", "e")
    assert read(tmp_path / "b.zip") == {"../evil": b"e"}
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "b.zip"} and not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("name", WHOLE)
@settings(deadline=None, max_examples=40)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_bit_is_one_line_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: float, flip: int
) -> None:
    content = bytearray(WHOLE[name])
    content[int(place * len(content))] ^= flip
    path = tmp_path_factory.mktemp("flip") / name
    path.write_bytes(content)
    try:
        found = read(path)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error) and error.fix
    else:  # nothing has a checksum of names and dates in a zip, nor of contents in a plain tar
        assert len(found) <= len(FILES)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_what_was_cut_short_is_not_taken_for_whole(tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    content = WHOLE[name].rstrip(b"\0") if name.endswith(".tar") else WHOLE[name]
    path.write_bytes(content[: int(share * len(content)) // 512 * 512])
    with pytest.raises(DataError, match=r"cannot be unpacked|holds more") as caught:
        read(path)
    assert caught.value.fix and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PACKS)
def test_of_a_cut_it_is_said_at_which_member(tmp_path: Path, name: str) -> None:
    noise = random.Random(0)
    files = {each: noise.randbytes(3 * archive.CHUNK_BYTES) for each in ("a/one", "b/two", "c/three")}
    content = PACKS[name](tar_of(files))
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    begun: list[str] = []
    with pytest.raises(DataError, match=r"at b/two(?: or behind it)? \("):
        begun.extend(member.name for member in members(tmp_path / name))  # nobody reads them: they are passed over
    assert begun == ["a/one", "b/two"]
    with pytest.raises(DataError, match=r"at b/two(?: or behind it)? \("):
        read(tmp_path / name)


def test_a_damaged_header_in_the_middle_is_no_end(tmp_path: Path) -> None:
    content = bytearray(tar_of(FILES))
    content[content.index(b"a/one.txt")] ^= 1
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(DataError, match="bad checksum"):
        read(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.xz", "a.zip"])
def test_a_bomb_is_refused_before_it_is_large(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LEAST_BOUND_BYTES", 1 << 20)
    zeros = {"zeros": b"\0" * (8 << 20)}
    (tmp_path / name).write_bytes(zip_of(zeros) if name == "a.zip" else PACKS[name](tar_of(zeros)))
    taken = 0
    with pytest.raises(DataError, match="100 times its own size") as caught:
        for member in members(tmp_path / name):
            while chunk := member.body.read(1 << 16):
                taken += len(chunk)
    assert taken <= 2 << 20 and "text:PATH" in caught.value.fix


def test_a_file_of_another_kind_and_one_with_a_password(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no archive by its name"):
        read(tmp_path / "a.rar")
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "a.tar")
    content = bytearray(zip_of({"a": b"secret"}))
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DataError, match="password"):
        read(tmp_path / "a.zip")
