"""A run goes on with the bytes that it was begun on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gruppetto.errors import DataError
from gruppetto.train.manifest import CORPUS, Manifest, check_same, write_manifest

BEGUN_ON = Manifest(
    source="archive:a.tar", train_documents=9, train_bytes=9, held_out_documents=1, held_out_bytes=1, sha256="abc"
)


def test_other_bytes_under_the_same_name_are_refused(tmp_path: Path) -> None:
    check_same(BEGUN_ON, tmp_path)  # it says nothing
    write_manifest(BEGUN_ON, tmp_path)
    check_same(replace(BEGUN_ON, file="b.tar", skipped=1), tmp_path)  # the same texts
    check_same(replace(BEGUN_ON, source="text:of-my-own", sha256="def"), tmp_path)  # meant
    with pytest.raises(
        DataError, match=r"^archive:a\.tar: is not what the run was begun on: .* def, and was abc"
    ) as caught:
        check_same(replace(BEGUN_ON, sha256="def"), tmp_path)
    assert f"delete {tmp_path / CORPUS}" in caught.value.fix


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"source": "x"}', "[" * 100_000])
def test_a_manifest_that_is_none_is_told(tmp_path: Path, damage: str) -> None:
    (tmp_path / CORPUS).write_text(damage, encoding="utf-8")
    with pytest.raises(DataError, match="is no manifest of a corpus"):
        check_same(BEGUN_ON, tmp_path)
