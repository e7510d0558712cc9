from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppetto.errors import AddressError
from gruppetto.runtime.address_book import Directory, address_book


def test_a_directory_is_read_again_and_the_last_word_stays(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="no syncer has said where it listens; start one"):
        address_book(tmp_path)
    (tmp_path / "syncer").mkdir()
    endpoint = tmp_path / "syncer" / "endpoint.json"
    endpoint.write_text(json.dumps({"url": "http://127.0.0.1:1000"}))
    book = address_book(str(tmp_path))
    assert isinstance(book, Directory)
    for said, port in (('{"url": "http://127.0.0.1:2000"}', 2000), ("torn {", 2000), ('{"url": "ftp://x"}', 2000)):
        endpoint.write_text(said)
        assert [address.port for address in book.addresses()] == [port]
    endpoint.unlink()  # it has stopped: whoever comes next may have the same address
    assert [address.port for address in book.addresses()] == [2000]


def test_typed_addresses_stay() -> None:
    assert list(map(str, address_book("a:1, https://b:2").addresses())) == ["http://a:1", "https://b:2"]
