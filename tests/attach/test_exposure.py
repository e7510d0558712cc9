"""What leaves a machine is encrypted, unless somebody has said otherwise by name."""

from __future__ import annotations

import pytest

from gruppetto.attach.setting import check_exposure, donation_place
from gruppetto.errors import SettingError
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.mailbox.address import MailboxAddress

FAR, SAFE, HERE = (SyncerAddress.parse(url) for url in ("http://s.example", "https://s.example", "http://127.0.0.1"))


def test_plain_text_to_another_machine_is_asked_for_by_name() -> None:
    check_exposure([SAFE, HERE], allow_plaintext=False)
    check_exposure([FAR], allow_plaintext=True)
    with pytest.raises(SettingError, match=r"^http://s.example:7171: weights and token .* or say allow_plaintext$"):
        check_exposure([SAFE, FAR], allow_plaintext=False)
    bucket = MailboxAddress.parse("s3://lab/run?endpoint=http://store.example")
    with pytest.raises(
        SettingError, match=r"^s3://lab/run: weights .* to the store .*; use endpoint=https://HOST, or say"
    ):
        check_exposure([bucket], allow_plaintext=False)
    with pytest.raises(SettingError, match="use True or False"):
        check_exposure([HERE], allow_plaintext="eth0")  # type: ignore[arg-type]


def test_a_state_is_given_to_other_machines_with_a_token_or_a_certificate_alone() -> None:
    place = "10.0.0.7:7300"
    with pytest.raises(SettingError, match="could read the weights; give the syncer and its learners certificates"):
        donation_place(place, [SAFE], token=None, has_optimizer=True)
    for how in ({"token": "t"}, {"token": None, "has_certificate": True}):
        assert donation_place(place, [SAFE], has_optimizer=True, **how) == ("10.0.0.7", 7300)  # type: ignore[arg-type]
