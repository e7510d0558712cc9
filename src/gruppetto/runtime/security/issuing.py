"""A private authority in a directory: it makes certificates, renews them, and says which count no more.

Keys are ECDSA P-256, files with secrets are made with mode 0600 and written whole or not at all, and a key that is
there stays unless somebody says ``new_keys``. A learner's certificate may be shown to a syncer and to a newcomer that
takes the learner's state; it names no host, so that no learner can pass for a syncer.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gruppetto.errors import SettingError, StateError
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.security.identity import Identity, Role, identity_of_uri
from gruppetto.runtime.security.places import CA, CA_KEY, ISSUED, REVOKED, TOKENS
from gruppetto.runtime.security.roster import new_token, parse_roster, token_digest

__all__ = ["Authority", "Paper"]

BACKDATED = dt.timedelta(minutes=5)
"""Clocks of hosts differ."""
CA_NAME = "gruppetto authority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """One certificate that is there."""

    identity: Identity | None
    """None: the authority's own."""
    path: Path
    serial: str
    hosts: tuple[str, ...]
    expires_at: float
    """Seconds since 1970."""
    revoked: bool = False


class Authority:
    """The authority in ``directory``, at ``now`` in seconds since 1970. Raises :class:`StateError` for files that are
    not what they should be, and OSError."""

    def __init__(self, directory: Path, *, now: float) -> None:
        self.directory, self._now = directory, dt.datetime.fromtimestamp(now, dt.UTC)

    # ── making ───────────────────────────────────────────────────────────────────────────────────────────────────

    def found(self, *, days: int) -> bool:
        """Make the authority if there is none; whether it was made now."""
        cert, key = self.directory / CA, self.directory / CA_KEY
        if cert.exists() and key.exists():
            return False
        if cert.exists() or key.exists():
            there = cert if cert.exists() else key
            fix = "certificates are made where the authority's key lies; or name an empty directory"
            raise StateError("has only one half of the authority", where=str(there), fix=fix)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME)])
        made = (
            self._builder(name, secret.public_key(), days)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(secret, hashes.SHA256())
        )
        self._write(key, _pem_of(secret))
        self._write(cert, made.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return True

    def make(self, identity: Identity, *, days: int, hosts: Sequence[str] = ()) -> bool:
        """A certificate, and a key for it, where there is none; whether it was made now."""
        if self.path(identity).exists() and self._key_path(identity).exists():
            return False
        return self._issue(identity, days=days, hosts=hosts, new_key=False)

    def renew(self, identity: Identity, *, days: int, hosts: Sequence[str] = (), new_key: bool = False) -> None:
        """Another certificate with the same hosts (if no others are said) and, unless told otherwise, the same key.

        The file is replaced in one go: whoever watches it takes it up. The one before counts until it expires, or is
        revoked.
        """
        old = self._paper(self.path(identity))
        self._issue(identity, days=days, hosts=hosts or old.hosts, new_key=new_key)

    def _issue(self, identity: Identity, *, days: int, hosts: Sequence[str], new_key: bool) -> bool:
        if identity.role is Role.SYNCER and not hosts:
            raise SettingError("a syncer's certificate names no host", where=str(identity), fix="give --host")
        if not is_name(identity.name):
            fix = "use 1 to 128 letters, digits or . _ -"
            raise SettingError(f"{identity.name!r} is no name", where=identity.role.value, fix=fix)
        authority, signer = self._authority()
        path = self._key_path(identity)
        if path.exists() and not new_key:
            secret = _key_in(path)
        else:
            secret = ec.generate_private_key(ec.SECP256R1())
        serves = [ExtendedKeyUsageOID.SERVER_AUTH] if identity.role in (Role.SYNCER, Role.LEARNER) else []
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), *map(_general, hosts)]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name[:64])])
        made = (
            self._builder(subject, secret.public_key(), days, until=authority.not_valid_after_utc)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, *serves]), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        # On record before it exists: what was made can always be revoked.
        self._append(ISSUED, f"{made.serial_number:x} {identity.role.value} {identity.name} {self._date}")
        self._write(path, _pem_of(secret))
        self._write(self.path(identity), made.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return True

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int, *, until: dt.datetime | None = None
    ) -> x509.CertificateBuilder:
        if not 0 < days <= 36500:
            raise SettingError(f"{days} days", where="--days", fix="use 1 to 36500")
        end = self._now + dt.timedelta(days=days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - BACKDATED)
            .not_valid_after(end if until is None else min(end, until))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────

    def add_token(self, identity: Identity, *, anew: bool = False) -> Path:
        """A token for ``identity``, in a file of its own; its digest joins the syncer's list. ``anew``: in place of one
        that is there, which from then on counts no more."""
        path = self.directory / f"{identity.stem}.token"
        if path.exists() and not anew:
            raise StateError("is there already", where=str(path), fix="say --new for another one in its place")
        if not is_name(identity.name):
            fix = "use 1 to 128 letters, digits or . _ -"
            raise SettingError(f"{identity.name!r} is no name", where=identity.role.value, fix=fix)
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = new_token()
        self._drop_tokens(identity)
        self._append(TOKENS, f"{token_digest(token)} {identity.role.value} {identity.name} {self._date}")
        self._write(path, f"{token}\n".encode())
        return path

    # ── revoking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def revoke(self, identity: Identity) -> int:
        """Certificates and tokens of ``identity`` count no more, those that were renewed included; how many there were.

        Its files are removed here, so that :meth:`make` gives it new ones if it is ever to come back.
        """
        gone = {serial for serial, whose in self._roster(ISSUED).items() if whose == identity} - set(
            self._roster(REVOKED)
        )
        lines = [f"{serial} {identity.role.value} {identity.name} {self._date}" for serial in sorted(gone)]
        if lines:
            self._append(REVOKED, *lines)
        tokens = self._drop_tokens(identity)
        for suffix in ("pem", "key", "token"):
            (self.directory / f"{identity.stem}.{suffix}").unlink(missing_ok=True)
        return len(gone) + tokens

    def revoke_tokens(self, identity: Identity) -> int:
        """Tokens of ``identity`` count no more, its certificates do; how many there were."""
        (self.directory / f"{identity.stem}.token").unlink(missing_ok=True)
        return self._drop_tokens(identity)

    def _drop_tokens(self, identity: Identity) -> int:
        held = self._roster(TOKENS)
        mine = {digest for digest, whose in held.items() if whose == identity}
        if mine:
            lines = (self.directory / TOKENS).read_text(encoding="utf-8").splitlines()
            self._replace(TOKENS, [line for line in lines if line.split()[:1] and line.split()[0] not in mine])
        return len(mine)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def papers(self) -> list[Paper]:
        """All certificates in the directory, the authority's first."""
        files = sorted(self.directory.glob("*.pem"), key=lambda path: (path.name != CA, path.name))
        return [self._paper(path) for path in files]

    def path(self, identity: Identity) -> Path:
        """Where its certificate lies."""
        return self.directory / f"{identity.stem}.pem"

    def _key_path(self, identity: Identity) -> Path:
        return self.directory / f"{identity.stem}.key"

    def _paper(self, path: Path) -> Paper:
        certificate = _certificate_in(path)
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = x509.SubjectAlternativeName([])
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
        serial = f"{certificate.serial_number:x}"
        return Paper(
            identity=identity_of_uri(uris[0]) if uris else None,
            path=path,
            serial=serial,
            hosts=tuple(hosts),
            expires_at=certificate.not_valid_after_utc.timestamp(),
            revoked=serial in self._roster(REVOKED),
        )

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        certificate, key = _certificate_in(self.directory / CA), _key_in(self.directory / CA_KEY)
        if key.public_key() != certificate.public_key():
            raise StateError("are not one authority", where=f"{self.directory / CA} and {CA_KEY}", fix="restore them")
        if certificate.not_valid_after_utc <= self._now:
            fix = "make a new one in another directory, and hand its papers out"
            raise StateError("the authority has expired", where=str(self.directory / CA), fix=fix)
        return certificate, key

    @property
    def _date(self) -> str:
        return self._now.strftime("%Y-%m-%dT%H:%M:%SZ")

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _roster(self, name: str) -> dict[str, Identity]:
        path = self.directory / name
        return parse_roster(path.read_text(encoding="utf-8"), serials=name != TOKENS) if path.exists() else {}

    def _append(self, name: str, *lines: str) -> None:
        path = self.directory / name
        before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._replace(name, [*before, *lines])

    def _replace(self, name: str, lines: Iterable[str]) -> None:
        self._write(self.directory / name, "".join(f"{line}\n" for line in lines).encode())

    def _write(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
        write_durably(path, [content])  # which makes it for this user alone
        if mode != 0o600:
            os.chmod(path, mode)  # noqa: PTH101
        force_directory(path.parent)


def _general(host: str) -> x509.GeneralName:
    """IPv4, IPv6 or a DNS name; ``*.example`` is one too."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    labels = host.removeprefix("*.").rstrip(".").split(".")
    if len(host) > 253 or not all(_is_label(label) for label in labels):
        raise SettingError(
            f"{host!r} is no host", where="--host", fix="give names or addresses, without port or scheme"
        )
    return x509.DNSName(host.rstrip("."))


def _is_label(text: str) -> bool:
    plain = text.replace("-", "").replace("_", "")
    return 0 < len(text) <= 63 and text.isascii() and plain.isalnum() and not text.startswith("-")


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_of(secret: ec.EllipticCurvePrivateKey) -> bytes:
    return secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_in(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise StateError("is not there", where=str(path), fix="say gruppetto certs make") from None
    except ValueError as wrong:
        raise StateError(f"is no certificate ({wrong})", where=str(path), fix="restore it") from wrong


def _key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise StateError("is not there", where=str(path), fix="certificates are made where the key lies") from None
    except (ValueError, TypeError) as wrong:
        raise StateError("is no key that can be read", where=str(path), fix="restore it") from wrong
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StateError("is a key of another kind", where=str(path), fix="use one that gruppetto certs has made")
    return key
