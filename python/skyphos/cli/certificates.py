"""``skyphos certificates``: make an authority, and a certificate and key for each host."""

from __future__ import annotations

import os
import re
import secrets
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadInput

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["command"]

#: The name in every certificate, the only one that a rank checks.
_NAME = "skyphos"
_AUTHORITY = "authority"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

#: Certificates are valid from this time before now, because clocks of hosts differ.
_EARLIER = timedelta(hours=1)


@click.command("certificates")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--hosts", required=True, metavar="A,B,C", help="Names of the hosts, for files and for people.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they are valid.")
def command(*, folder: str, hosts: str, days: int) -> None:
    """Make certificates with which groups encrypt their connections.

    FOLDER gets an authority (authority.pem and authority.key), and NAME.pem and NAME.key for each host. An authority
    that is there already signs further certificates. No file is overwritten.

    \b
    skyphos certificates certificates --hosts n1,n2,n3
    """
    names = [name.strip() for name in hosts.split(",")]
    for name in names:
        if not _HOST.fullmatch(name) or name == _AUTHORITY:
            raise BadInput(f"--hosts: {name!r} cannot be the name of a host's files")
    if len(set(names)) < len(names):
        raise BadInput("--hosts: a name is given twice")
    directory = Path(folder)
    taken = [path for name in names for path in (directory / f"{name}.pem", directory / f"{name}.key") if path.exists()]
    if taken:
        raise BadInput(f"{taken[0]} is there already, and is not overwritten: remove it, or name another folder")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority = _authority(directory)
        for name in names:
            certificate, key = _signed(f"{_NAME} on {name}", days, authority)
            _save(directory / f"{name}.key", _key_pem(key), 0o600)
            _save(directory / f"{name}.pem", _pem(certificate), 0o644)
    except OSError as error:
        raise BadInput(f"{error.filename or directory}: {error.strerror or error}") from None
    click.echo(
        f"{directory}: a certificate and key for each of {', '.join(names)}, valid for {days} days.\n"
        f"Give each host {_AUTHORITY}.pem and its own two files, under the same names everywhere. Set these variables\n"
        "for all ranks (here the files are in /etc/skyphos):\n"
        f"  SKYPHOS_TLS_AUTHORITY=/etc/skyphos/{_AUTHORITY}.pem\n"
        "  SKYPHOS_TLS_CERTIFICATE=/etc/skyphos/certificate.pem\n"
        "  SKYPHOS_TLS_KEY=/etc/skyphos/key.pem\n"
        f"Keep {_AUTHORITY}.key secret: it can sign more certificates."
    )


def _cryptography() -> Any:
    try:
        import cryptography.hazmat.primitives.asymmetric.ec
        import cryptography.hazmat.primitives.hashes
        import cryptography.hazmat.primitives.serialization
        import cryptography.x509
    except ImportError:
        raise BadInput(
            "making certificates needs the package cryptography: pip install 'skyphos[tls]'; groups need nothing but "
            "the files, which any other tool may make (docs/threat-model.md)"
        ) from None
    return cryptography


def _authority(directory: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The authority of a folder: an existing one, or a new one."""
    lib = _cryptography()
    serialization = lib.hazmat.primitives.serialization
    paths = directory / f"{_AUTHORITY}.pem", directory / f"{_AUTHORITY}.key"
    there = [path.exists() for path in paths]
    if all(there):
        try:
            certificate = lib.x509.load_pem_x509_certificate(paths[0].read_bytes())
            key = serialization.load_pem_private_key(paths[1].read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise BadInput(f"the authority in {directory} cannot be read: {error}") from None
        if certificate.public_key() != key.public_key():
            raise BadInput(f"{paths[1]} is not the key of {paths[0]}")
        return certificate, key
    if any(there):
        raise BadInput(f"{paths[there[0]]} is missing beside {paths[not there[0]]}: an authority is made of both")
    # A random name: TLS then reports a certificate of another authority as such, and not as one with a bad signature.
    certificate, key = _signed(f"{_NAME} authority {secrets.token_hex(4)}", 3650, None)
    _save(paths[1], _key_pem(key), 0o600)
    _save(paths[0], _pem(certificate), 0o644)
    return certificate, key


def _signed(
    name: str, days: int, authority: tuple[x509.Certificate, EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """A new key and its certificate, signed by the authority, or by itself if it is a new authority's."""
    lib = _cryptography()
    x509, ec = lib.x509, lib.hazmat.primitives.asymmetric.ec
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer = key if authority is None else authority[1]
    now = datetime.now(timezone.utc)
    uses = ("digital_signature", "key_cert_sign", "crl_sign")
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    use = dict.fromkeys((*uses[1:], *others, "decipher_only"), False) | {uses[0]: True}
    if authority is None:
        use |= {uses[1]: True, uses[2]: True}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=0 if authority is None else None), True)
        .add_extension(x509.KeyUsage(**use), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    )
    if authority is not None:
        sides = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), False).add_extension(
            x509.ExtendedKeyUsage(sides), False
        )
    return builder.sign(signer, lib.hazmat.primitives.hashes.SHA256()), key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(_cryptography().hazmat.primitives.serialization.Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    s = _cryptography().hazmat.primitives.serialization
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())


def _save(path: Path, content: bytes, mode: int) -> None:
    """Write a file that gets its name when it is complete; an existing file of that name is not replaced."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Renaming would replace a file that another process has just made; a hard link fails instead.
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
