"""What the authority makes: whole, private, never over a key, and good or revoked as it says."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.errors import SettingError, StateError
from gruppetto.runtime.security.expiry import expiry_of
from gruppetto.runtime.security.fresh import client_context, server_context
from gruppetto.runtime.security.identity import Identity, Role, identity_in
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import any_papers, papers_of
from gruppetto.runtime.security.roster import Roster, parse_roster, token_digest

NOW = 1_800_000_000.0
DAY = 86_400.0
SYNCER, A, B = (
    Identity(role=Role.SYNCER, name="syncer"),
    Identity(role=Role.LEARNER, name="a"),
    Identity(role=Role.LEARNER, name="b" * 128),
)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    directory = tmp_path / "certs"
    authority = Authority(directory, now=NOW)
    assert authority.found(days=1000)
    for one in (SYNCER, A, B):
        assert authority.make(one, days=30, hosts=["s.example", "10.0.0.7", "fd00::7"] if one is SYNCER else [])
    return directory


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_secrets_are_their_owners_alone_and_making_again_changes_nothing(certs: Path) -> None:
    before = content(certs)
    Authority(certs, now=NOW).add_token(Identity(role=Role.VIEWER, name="v"))
    for path in certs.iterdir():
        assert path.stat().st_mode & 0o777 == (0o644 if path.suffix == ".pem" else 0o600), path
    assert certs.stat().st_mode & 0o777 == 0o700
    again = Authority(certs, now=NOW + 5 * DAY)
    assert not again.found(days=1000)
    assert not any(again.make(one, days=30, hosts=["x"]) for one in (SYNCER, A, B))
    assert content(certs).items() >= before.items()


def test_papers_say_whom_until_when_and_where(certs: Path) -> None:
    papers = {paper.identity: paper for paper in Authority(certs, now=NOW).papers()}
    assert set(papers) == {None, SYNCER, A, B}
    assert papers[SYNCER].hosts == ("s.example", "10.0.0.7", "fd00::7")
    assert papers[A].hosts == ()
    assert papers[A].expires_at == NOW + 30 * DAY
    for paper in papers.values():
        assert expiry_of(paper.path) == paper.expires_at, "read with and without the library"


def test_no_certificate_outlives_its_authority(certs: Path) -> None:
    late = Authority(certs, now=NOW + 990 * DAY)
    late.renew(A, days=30)
    assert expiry_of(late.path(A)) == NOW + 1000 * DAY
    with pytest.raises(StateError, match="the authority has expired"):
        Authority(certs, now=NOW + 1000 * DAY).renew(A, days=30)


def test_a_renewal_keeps_key_and_hosts_unless_told(certs: Path) -> None:
    before, authority = content(certs), Authority(certs, now=NOW + DAY)
    authority.renew(SYNCER, days=60)
    after = content(certs)
    assert after["syncer.key"] == before["syncer.key"] and after["syncer.pem"] != before["syncer.pem"]
    paper = next(paper for paper in authority.papers() if paper.identity == SYNCER)
    assert paper.hosts == ("s.example", "10.0.0.7", "fd00::7") and paper.expires_at == NOW + 61 * DAY
    authority.renew(SYNCER, days=60, hosts=["other.example"], new_key=True)
    assert content(certs)["syncer.key"] != before["syncer.key"]
    assert next(paper for paper in authority.papers() if paper.identity == SYNCER).hosts == ("other.example",)
    server_context(certs / "syncer.pem", certs / "syncer.key")


def test_revoking_meets_all_that_was_ever_made_for_that_one_and_nobody_else(certs: Path) -> None:
    authority = Authority(certs, now=NOW)
    serials = {paper.identity: paper.serial for paper in authority.papers()}
    authority.renew(A, days=60)
    newer = next(paper.serial for paper in authority.papers() if paper.identity == A)
    authority.add_token(A)
    token = (certs / "learner-a.token").read_text().strip()
    roster = Roster(certs)
    assert roster.of_token(token) == A and not roster.is_revoked(newer)
    assert authority.revoke(A) == 3
    assert roster.look() and not roster.look()
    assert roster.is_revoked(serials[A]) and roster.is_revoked(newer) and roster.of_token(token) is None
    assert not roster.is_revoked(serials[B]) and not roster.is_revoked(serials[SYNCER])
    assert not list(certs.glob("learner-a.*")) and authority.revoke(A) == 0
    assert authority.make(A, days=30), "it may come back, with new papers"
    roster.look()
    back = next(paper for paper in authority.papers() if paper.identity == A)
    assert not roster.is_revoked(back.serial) and not back.revoked


def test_tokens_are_kept_as_digests_and_replaced_when_told(certs: Path) -> None:
    authority = Authority(certs, now=NOW)
    first = authority.add_token(A).read_text().strip()
    with pytest.raises(StateError, match="is there already"):
        authority.add_token(A)
    second = authority.add_token(A, anew=True).read_text().strip()
    text = (certs / "tokens").read_text()
    assert first not in text and second not in text
    assert parse_roster(text, serials=False) == {token_digest(second): A}
    assert papers_of(certs, A).token == second and second not in repr(papers_of(certs, A))
    assert authority.revoke_tokens(A) == 1 and parse_roster((certs / "tokens").read_text(), serials=False) == {}
    assert papers_of(certs, A).token is None and papers_of(certs, A).tls is not None


@pytest.mark.parametrize(
    ("text", "serials"),
    [
        ("xyz learner a 2026", True),
        ("0a learner", True),
        ("0a king a x", True),
        ("0a learner ../a x", True),
        ("0a learner a x", False),
    ],
)
def test_a_line_that_is_none_takes_nobody_in_and_nobody_out(tmp_path: Path, text: str, serials: bool) -> None:
    with pytest.raises(StateError, match="line 1"):
        parse_roster(text, serials=serials)
    (tmp_path / "revoked").write_text("0a learner a 2026\n")
    roster = Roster(tmp_path)
    (tmp_path / "revoked").write_text(f"{text}\n" if serials else "nonsense\n")
    assert not roster.look() and roster.is_revoked("0a")
    (tmp_path / "revoked").unlink()
    assert not roster.look() and roster.is_revoked("0a"), "a file that vanishes takes nobody back in"
    (tmp_path / "revoked").write_text("0b learner b 2026\n")
    assert roster.look() and roster.is_revoked("0b") and not roster.is_revoked("0a")
    with pytest.raises(StateError, match="revoked"):
        (tmp_path / "revoked").write_text("nonsense\n")
        Roster(tmp_path)


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> dict[str, Any]:
    """A handshake in memory; the client's certificate as the server sees it. Raises what either side raises."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    mine = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    done = False
    for _ in range(10):
        for side in (mine, theirs):
            try:
                side.do_handshake()
                done = side is theirs
            except ssl.SSLWantReadError:
                pass
        if done:
            return dict(theirs.getpeercert() or {})
    raise AssertionError("it never ends")


@pytest.mark.parametrize("host", ["s.example", "10.0.0.7", "fd00::7"])
def test_names_and_addresses_of_both_kinds_are_found_in_a_handshake(tmp_path: Path, host: str) -> None:
    from gruppetto.runtime.clock import wall_time_s

    authority = Authority(tmp_path, now=wall_time_s())
    authority.found(days=10)
    authority.make(SYNCER, days=5, hosts=["s.example", "10.0.0.7", "fd00::7"])
    authority.make(B, days=5)
    server = server_context(tmp_path / "syncer.pem", tmp_path / "syncer.key", clients=tmp_path / "ca.pem")
    papers = papers_of(tmp_path, B)
    assert papers.tls is not None
    assert identity_in(shake(server, papers.tls, host)) == B
    assert shake(server, client_context(tmp_path / "ca.pem"), host) == {}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid"):
        shake(server, papers.tls, "elsewhere.example")
    # A learner cannot pass for the syncer: its certificate names no host.
    posing = server_context(tmp_path / f"{B.stem}.pem", tmp_path / f"{B.stem}.key")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid"):
        shake(posing, papers.tls, host)
    # Nor an operator for anybody who serves.
    operator = Identity(role=Role.OPERATOR, name="o")
    authority.make(operator, days=5)
    posing = server_context(tmp_path / "operator-o.pem", tmp_path / "operator-o.key")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(posing, client_context(tmp_path / "ca.pem", checks_host=False), host)
    assert any_papers(tmp_path).cert == tmp_path / "operator-o.pem"


def test_a_renewed_certificate_counts_from_the_next_handshake_on_and_half_of_a_pair_does_not(tmp_path: Path) -> None:
    from gruppetto.runtime.clock import wall_time_s

    authority = Authority(tmp_path, now=wall_time_s())
    authority.found(days=10)
    authority.make(SYNCER, days=5, hosts=["s"])
    server = server_context(tmp_path / "syncer.pem", tmp_path / "syncer.key")
    client = client_context(tmp_path / "ca.pem")

    def serial() -> str:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        mine = client.wrap_bio(down, up, server_hostname="s")
        theirs = server.wrap_bio(up, down, server_side=True)
        for side in (mine, theirs, mine):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        return str((mine.getpeercert() or {})["serialNumber"])

    first, files = serial(), content(tmp_path)
    authority.renew(SYNCER, days=6, new_key=True)
    new = content(tmp_path)
    second = serial()
    assert second != first
    (tmp_path / "syncer.key").write_bytes(files["syncer.key"])  # of the pair before
    assert serial() == second
    (tmp_path / "syncer.key").write_bytes(b"")
    assert serial() == second
    (tmp_path / "syncer.pem").unlink()
    assert serial() == second
    (tmp_path / "syncer.key").write_bytes(files["syncer.key"])
    (tmp_path / "syncer.pem").write_bytes(files["syncer.pem"])
    assert serial() == first, "when they fit again they count"
    assert new["syncer.key"] != files["syncer.key"]


@pytest.mark.parametrize("host", ["", "a b", "http://a", "a:7171", "a/b", "-a", "a..b", "a" * 64, "é.example", "a\x00"])
def test_no_host_gets_into_a_certificate_that_is_none(certs: Path, host: str) -> None:
    with pytest.raises(SettingError, match="--host"):
        Authority(certs, now=NOW).renew(SYNCER, days=1, hosts=[host])


def test_half_an_authority_makes_no_other_one(certs: Path) -> None:
    (certs / "ca.key").unlink()
    with pytest.raises(StateError, match="one half"):
        Authority(certs, now=NOW).found(days=10)
    with pytest.raises(StateError, match="is not there"):
        Authority(certs, now=NOW).make(Identity(role=Role.LEARNER, name="c"), days=1)


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_what_is_no_certificate_has_no_expiry(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("x") / "c.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(data) if data else "nothing")
    with pytest.raises(StateError, match="no certificate"):
        expiry_of(path)
    os.unlink(path)  # noqa: PTH108


def test_expiry_is_read_of_dates_beyond_2050_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path, now=NOW)
    authority.found(days=36_500)
    assert x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()).not_valid_after_utc.year > 2050
    assert expiry_of(tmp_path / "ca.pem") == NOW + 36_500 * DAY
