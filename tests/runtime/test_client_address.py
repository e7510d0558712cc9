from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.errors import AddressError, SettingError
from gruppetto.runtime.address import SyncerAddress, tls_context


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:7171", "http://127.0.0.1:7171"),
        ("https://syncer.example/", "https://syncer.example:7171"),
        ("syncer.example:80", "http://syncer.example:80"),
        ("localhost", "http://localhost:7171"),
        ("http://[::1]:7", "http://[::1]:7"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert str(SyncerAddress.parse(text)) == url


@pytest.mark.parametrize(
    "text",
    ["", "http://", "ftp://a:1", "http://a:notaport", "http://a:70000", "http://a/v1", "http://a?x=1", "http://[::"],
)
def test_nonsense_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(AddressError, match="use http://HOST:PORT"):
        SyncerAddress.parse(text)


def test_a_secret_in_the_address_is_not_repeated() -> None:
    with pytest.raises(AddressError) as caught:
        SyncerAddress.parse("http://me:sesame@syncer.example:1")
    assert "sesame" not in str(caught.value)


def test_loopback() -> None:
    assert SyncerAddress.parse("http://127.0.0.2:1").is_loopback
    assert SyncerAddress.parse("localhost:1").is_loopback
    assert not SyncerAddress.parse("http://10.0.0.1:1").is_loopback


def test_papers_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"missing\.pem.*PEM"):
        tls_context(ca_file=tmp_path / "missing.pem")
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(SettingError, match=r"ca\.pem.*PEM"):
        tls_context(ca_file=tmp_path / "ca.pem")
