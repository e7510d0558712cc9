"""What a syncer with a mailbox may not be told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gruppetto.errors import AddressError, SettingError
from gruppetto.numerics.deal import Shard
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import address_book
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting

FAR = "s3://lab/tour?endpoint=http://store.example"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"mailbox": "lab/tour"}, "is not a mailbox"),
        ({"shard": Shard(number=1, of=2)}, "this is shard 1/2; serve the run with one syncer"),
        ({"identities": Path("certs")}, "nobody can show a certificate in a mailbox; leave out certs"),
    ],
)
def test_impossible_settings(tmp_path: Path, how: dict[str, Any], says: str) -> None:
    with pytest.raises((SettingError, AddressError), match=says):
        SyncerSetting(**{"state": tmp_path, "mailbox": "s3://lab/tour", **how})


def test_weights_go_to_a_store_encrypted_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="in plain text; use endpoint=https"):
        SyncerSetting(state=tmp_path, mailbox=FAR).check_exposure()
    for fine in ({"mailbox": FAR, "allow_plaintext": True}, {"mailbox": "s3://lab/tour"}):
        SyncerSetting(state=tmp_path, **fine).check_exposure()  # type: ignore[arg-type]


def test_looking_too_rarely_is_refused(tmp_path: Path) -> None:
    setting = SyncerSetting(
        state=tmp_path, listen="127.0.0.1:0", mailbox="s3://lab/tour?poll=2&endpoint=http://[::1]:1"
    )
    with pytest.raises(SettingError, match=r"poll is 2 s, .* dead after 6 s .*; use poll=1 or less, or raise"):
        asyncio.run(serve(ProtocolSetting(liveness_s=6.0), setting))


def test_a_learner_finds_it_in_its_book() -> None:
    (found,) = address_book(" s3://lab/tour?poll=1").addresses()
    assert isinstance(found, MailboxAddress) and found.poll_s == 1.0
    with pytest.raises(AddressError, match="a mailbox answers no requests"):
        found.url("/v1/status")
    with pytest.raises(AddressError, match="a mailbox answers no requests; ask the syncer on its own machine"):
        SyncerAddress.parse("s3://lab/tour")
