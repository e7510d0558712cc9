"""What a syncer may be told beyond the protocol: where it lives, what it computes, whom it lets in."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gruppetto.errors import AddressError, SettingError
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.deal import ONE, Shard
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.fragments import FRAGMENTERS
from gruppetto.numerics.merge import rule_for
from gruppetto.numerics.outer import OuterSetting, choose_outer
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.checkpoint_timer import check_checkpoints
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.pacing import LEAST_BYTES_PER_S
from gruppetto.runtime.plausible import is_name

__all__ = ["DEFAULT_LISTEN", "SyncerSetting", "host_and_port", "is_loopback"]

DEFAULT_LISTEN = "127.0.0.1:7171"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerSetting:
    """The syncer's dials. Impossible values are refused with the fix.

    >>> SyncerSetting(state=Path("state"), uplink="zip")
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: syncer.uplink: unknown codec 'zip'; use one of bf16, fp32, fp4-e3m0, int4, int8
    """

    state: Path
    """The directory of the durable state."""
    listen: str = DEFAULT_LISTEN
    """host:port. Port 0 takes any free port; which one is written to endpoint.json in the state directory."""
    token: str | None = field(default=None, repr=False)
    """Who asks for anything must show it; None lets everybody in who can reach the address."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    identities: Path | None = None
    """A directory of ``gruppetto certs``: whoever asks for anything shows a certificate or a token of his own. Its
    ``syncer.pem`` serves where no other certificate is given."""
    allow_shared_token: bool = False
    """Listen off loopback with one token for all, knowingly: each learner can speak for every other."""
    allow_plaintext: bool = False
    """Listen off loopback without TLS or without identities, knowingly."""
    mailbox: str = ""
    """A place in an object store, ``s3://BUCKET/PREFIX``, through which learners reach it besides; "": none."""
    fragmenter: str = "balanced"
    merge: tuple[tuple[str, str], ...] = ()
    """(regex, rule): the merge rule of tensors whose name the regex finds; first come, first served."""
    outer: str | OuterSetting = "auto"
    uplink: str = "bf16"
    """How contributions are encoded. They are differences and keep their meaning with few bits."""
    downlink: str = "fp32"
    """How published fragments are encoded. In bf16 a learner would train from rounded weights; ``delta`` sends steps of
    eight bits to who has the value before, exactly."""
    exit_when_finished: bool = False
    """Stop after the last round, when the learners have said goodbye; otherwise the last weights stay on offer."""
    goodbye_s: float = 15.0
    """How long a finished run waits for goodbyes."""
    run_id: str = ""
    """The run's name; empty: a new one, or that of the state directory."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Handed to learners as it is: what the reference trainer needs to know."""
    lease_s: float = 10.0
    """A standby takes over when the syncer has not renewed its lease for so long, though it is not known to be dead."""
    snapshots_kept: int = 2
    """Older commits that are kept whole, at least ``sync_period`` rounds apart, in case newer ones are damaged."""
    shard: Shard = ONE
    """Which of the processes this is that serve the run together, each with fragments of its own."""
    directory: str = ""
    """The address of the first shard, or those of it and its standbys. Any other shard is announced there."""
    max_bodies: int = 8
    """Uploads held in memory at once. Further ones wait at their sockets."""
    checkpoint_every_s: float | None = None
    """Take a checkpoint of the whole run so often, if a round has passed; None: only when somebody asks for one."""
    checkpoints_kept: int = 2
    """Of those that were taken by themselves, so many of the newest stay. Those that somebody named stay anyway."""
    max_bytes_per_s: float | None = None
    """What all published fragments together may leave at; None: as fast as the link takes them."""
    shared_memory: bool = True
    """Learners of the same user on the same machine copy tensors from this process's memory, and it from theirs. Off
    loopback, or where what leaves is held to a rate, it is not offered."""

    def __post_init__(self) -> None:
        if self.fragmenter not in FRAGMENTERS:
            raise SettingError(
                f"unknown fragmenter {self.fragmenter!r}",
                where="syncer.fragmenter",
                fix=f"use one of {', '.join(sorted(FRAGMENTERS))}",
            )
        for name, known in (("uplink", CODECS), ("downlink", DOWNLINKS)):
            codec = getattr(self, name)
            if codec not in known:
                what = f"{codec!r} is for differences" if codec in CODECS else f"unknown codec {codec!r}"
                raise SettingError(what, where=f"syncer.{name}", fix=f"use one of {', '.join(sorted(known))}")
        if self.run_id and not is_name(self.run_id):
            raise SettingError(
                f"run_id is {self.run_id!r}", where="syncer.run_id", fix="use 1 to 128 letters, digits or . _ -"
            )
        if not self.lease_s > 0:
            raise SettingError(f"lease_s is {self.lease_s}", where="syncer.lease_s", fix="use more than 0 seconds")
        if not 0 <= self.snapshots_kept <= 1000:
            raise SettingError(
                f"snapshots_kept is {self.snapshots_kept}", where="syncer.snapshots_kept", fix="use 0 to 1000"
            )
        check_checkpoints(self.checkpoint_every_s, self.checkpoints_kept, self.shard.of)
        if not 1 <= self.max_bodies <= 1024:
            raise SettingError(f"max_bodies is {self.max_bodies}", where="syncer.max_bodies", fix="use 1 to 1024")
        if self.max_bytes_per_s is not None and not LEAST_BYTES_PER_S <= self.max_bytes_per_s < float("inf"):
            raise SettingError(
                f"max_bytes_per_s is {self.max_bytes_per_s}",
                where="syncer.max_bytes_per_s",
                fix=f"use {LEAST_BYTES_PER_S} or more, or leave it out",
            )
        if not self.goodbye_s >= 0:
            raise SettingError(f"goodbye_s is {self.goodbye_s}", where="syncer.goodbye_s", fix="use 0 seconds or more")
        if bool(self.directory) != (self.shard.number > 1):
            first = self.shard.number == 1
            raise SettingError(
                f"shard {self.shard} {'is given' if first else 'does not know'} the address of the first shard",
                where="syncer.directory",
                fix="leave it out: this is the first" if first else "give --directory URL",
            )
        if self.directory:
            SyncerAddress.parse_all(self.directory)
        if self.mailbox:
            self._check_mailbox()
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise SettingError("the token is empty or not plain text", where="syncer.token", fix="use printable ASCII")
        rule_for("", (), self.merge)
        choose_outer(self.outer, rounds=None, sync_period=1)
        host_and_port(self.listen)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingError("TLS needs a certificate and its key", where="syncer.tls_cert", fix="give both")
        if self.identities is not None and self.token is not None:
            raise SettingError(
                "a token for all beside identities", where="syncer.token", fix="say gruppetto tokens add NAME for each"
            )

    def _check_mailbox(self) -> None:
        MailboxAddress.parse(self.mailbox)
        if self.shard.of > 1:
            raise SettingError(
                f"is given, and this is shard {self.shard}", where="syncer.mailbox", fix="serve the run with one syncer"
            )
        if self.identities is not None:
            raise SettingError(
                "nobody can show a certificate in a mailbox",
                where="syncer.mailbox",
                fix="leave out certs, and say in the bucket's policy who may write below the prefix",
            )

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """What to serve TLS with, and its key; None: plain text."""
        if self.tls_cert is not None and self.tls_key is not None:
            return self.tls_cert, self.tls_key
        return None if self.identities is None else (self.identities / "syncer.pem", self.identities / "syncer.key")

    @property
    def shares_memory(self) -> bool:
        """Whether it is offered."""
        return self.shared_memory and self.max_bytes_per_s is None and is_loopback(host_and_port(self.listen)[0])

    def check_exposure(self) -> None:
        """Off loopback nobody listens by accident without TLS and identities. Raises :class:`AddressError`."""
        host, _ = host_and_port(self.listen)
        if self.mailbox:
            store = MailboxAddress.parse(self.mailbox)
            if not (store.secure or store.is_loopback or self.allow_plaintext):
                raise AddressError(
                    "weights would travel to the store in plain text",
                    where=str(store),
                    fix="use endpoint=https://HOST, or say --allow-plaintext",
                )
        if is_loopback(host) or self.allow_plaintext:
            return
        known = self.identities is not None or (self.token is not None and self.allow_shared_token)
        missing = [
            what
            for what, given in (("TLS", self.certificate is not None), ("an identity for each learner", known))
            if not given
        ]
        if missing:
            raise AddressError(
                f"is reachable from other machines, and {' and '.join(missing)} is missing",
                where=self.listen,
                fix="say gruppetto certs make and name its directory with --certs, listen on 127.0.0.1, or say "
                "--allow-plaintext (with TLS and one token for all, --allow-shared-token)",
            )


def host_and_port(listen: str) -> tuple[str, int]:
    """The two parts of ``host:port``. Raises :class:`AddressError`.

    >>> host_and_port("[::1]:7171"), host_and_port("127.0.0.1:0")
    (('::1', 7171), ('127.0.0.1', 0))
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise AddressError("is not an address to listen on", where=repr(listen), fix="use HOST:PORT, 127.0.0.1:7171")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Only this machine can reach it.

    >>> is_loopback("::1"), is_loopback("::ffff:127.0.0.1"), is_loopback("::ffff:10.0.0.1")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Who listens at :: sees IPv4 so.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
