"""Encrypted groups: certificates, real processes, strangers on their port, data on the wire."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import skyphos as sky
from conftest import Processes
from skyphos.cli.certificates import command
from skyphos.launch.tls import files

HOSTS = ("a", "b", "c")
NAMES = ("AUTHORITY", "CERTIFICATE", "KEY")


def make(folder: Path, hosts: str, *more: str) -> Result:
    return CliRunner().invoke(command, [str(folder), "--hosts", hosts, *more])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    argv = [sys.executable, "-m", "skyphos.cli", "certificates", str(folder), "--hosts", ",".join(HOSTS)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    assert "SKYPHOS_TLS_KEY=/etc/skyphos/key.pem" in said.stdout and "authority.key secret" in said.stdout
    return folder


def files_of(folder: Path, host: str) -> tuple[str, str, str]:
    return str(folder / "authority.pem"), str(folder / f"{host}.pem"), str(folder / f"{host}.key")


def variables(folder: Path, size: int) -> dict[str, dict[int, str]]:
    """What each rank must have in its environment; each is on a host of its own."""
    by_rank = [files_of(folder, HOSTS[rank]) for rank in range(size)]
    return {f"SKYPHOS_TLS_{name}": {r: by_rank[r][k] for r in range(size)} for k, name in enumerate(NAMES)}


def free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def met_at(place: str, token: str, size: int) -> dict[str, dict[int, str]]:
    """Variables of a group that meets at ``place`` and whose ranks start one by one."""
    everyone = range(size)
    return {
        "SKYPHOS_RENDEZVOUS": dict.fromkeys(everyone, place),
        "SKYPHOS_TOKEN": dict.fromkeys(everyone, token),
        "SKYPHOS_LISTEN_FD": dict.fromkeys(everyone, ""),
    }


def test_keys_are_for_their_owner_and_nothing_else_is_left(certificates: Path) -> None:
    names = sorted(path.name for path in certificates.iterdir())
    assert names == sorted(f"{name}.{kind}" for name in (*HOSTS, "authority") for kind in ("pem", "key"))
    for path in certificates.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == 0o600 if path.suffix == ".key" else mode & 0o600 == 0o600, path


def test_an_authority_signs_further_certificates_and_nothing_is_overwritten(tmp_path: Path) -> None:
    assert make(tmp_path, "a").exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert isinstance(make(tmp_path, "b,a").exception, sky.BadInput)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert make(tmp_path, "b,c.example.org", "--days", "2").exit_code == 0
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    for host in ("a", "b", "c.example.org"):  # each is checked against the authority when it is read
        sky.init(tls=sky.TLS(*files_of(tmp_path, host))).close()
    (tmp_path / "authority.key").unlink()
    error = make(tmp_path, "d").exception
    assert isinstance(error, sky.BadInput) and "authority.key is missing" in str(error)
    (tmp_path / "authority.key").write_bytes((tmp_path / "a.key").read_bytes())
    error = make(tmp_path, "d").exception
    assert isinstance(error, sky.BadInput) and "is not the key of" in str(error)
    (tmp_path / "authority.key").write_text("nothing")
    error = make(tmp_path, "d").exception
    assert isinstance(error, sky.BadInput) and "cannot be read" in str(error)


@pytest.mark.parametrize("hosts", ["", "a,,b", "a,a", "../a", "a/b", "authority", ".a", "a b"])
def test_names_that_cannot_be_files(tmp_path: Path, hosts: str) -> None:
    assert isinstance(make(tmp_path / "new", hosts).exception, sky.BadInput)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = make(tmp_path / "file" / "below", "a").exception
    assert isinstance(error, sky.BadInput) and "file" in str(error)


def test_without_cryptography_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    error = make(tmp_path, "a").exception
    assert isinstance(error, sky.BadInput) and "pip install 'skyphos[tls]'" in str(error)


def test_partial_settings_are_refused(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files_of(certificates, "a")
    whole = dict(zip((f"SKYPHOS_TLS_{name}" for name in NAMES), paths, strict=True))
    assert files(None, whole) == paths and files(None, dict.fromkeys(whole, "")) is None
    for name in whole:
        with pytest.raises(sky.BadInput, match=f"but {name} is not: set all three"):
            files(None, {key: path for key, path in whole.items() if key != name})
    assert files(sky.TLS(*map(Path, files_of(certificates, "b"))), whole) == files_of(certificates, "b")
    with pytest.raises(sky.BadInput, match="key must be the path"):
        sky.TLS(authority="a", certificate="b", key="")
    with pytest.raises(sky.BadInput, match=r"tls must be skyphos\.TLS"):
        sky.init(tls=paths)  # type: ignore[arg-type]
    monkeypatch.setenv("SKYPHOS_TLS_KEY", paths[2])
    with pytest.raises(sky.BadInput, match="SKYPHOS_TLS_AUTHORITY and SKYPHOS_TLS_CERTIFICATE are not"):
        sky.init()


def test_files_that_cannot_be_used_are_named_even_by_one_rank(certificates: Path) -> None:
    authority, certificate, key = files_of(certificates, "a")
    with pytest.raises(sky.BadInput, match=r"nowhere\.pem: No such file"):
        sky.init(tls=sky.TLS("nowhere.pem", certificate, key))
    with pytest.raises(sky.BadInput, match=r"b\.key: it does not fit the certificate"):
        sky.init(tls=sky.TLS(authority, certificate, files_of(certificates, "b")[2]))
    sky.init(tls=sky.TLS(authority, certificate, key)).close()


@pytest.mark.parametrize("shared_memory", ["0", "1"])
def test_a_group_over_tls(processes: Processes, certificates: Path, shared_memory: str) -> None:
    code = """
x = sky.SparseVector(np.arange(comm.rank, 300_000, 3), np.full(100_000, 1.0 + comm.rank), 300_000)
for _ in range(3):
    y = comm.allreduce(x)
big = comm.allreduce(np.ones(2_000_000, dtype=np.float32))
say(float(y.values.sum()), float(big.min()), float(big.max()))
comm.close()
"""
    shared = {"SKYPHOS_SHARED_MEMORY": dict.fromkeys(range(3), shared_memory)}
    for out, err in processes.lines(3, code, **variables(certificates, 3), **shared):
        assert (out.strip(), err) == ("600000.0 3.0 3.0", "")


def test_a_rank_with_tls_in_a_group_without_is_refused(processes: Processes, certificates: Path) -> None:
    alone = {name: {1: by_rank[1]} for name, by_rank in variables(certificates, 2).items()}
    ranks = processes.start(2, "", timeout=5.0, **alone)
    error = ranks[1].communicate(timeout=30)[1]
    assert "Refused" in error and "rank 1" in error and "without TLS" in error, error
    error = ranks[0].communicate(timeout=30)[1]
    assert "Timeout" in error and "it speaks TLS" in error, error


def test_strangers_on_the_port_are_refused_and_do_not_delay_the_group(processes: Processes, certificates: Path) -> None:
    place, token, code = free_place(), secrets.token_hex(8), "say(comm.allreduce(np.ones(5)).sum())"
    group = met_at(place, token, 3) | variables(certificates, 3)
    early = processes.start(3, code, ranks=[0, 1], **group)
    address = ("127.0.0.1", int(place.rpartition(":")[2]))
    strangers = [waiting(address)]  # connects and sends nothing
    for said in (b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(4000), b"\x16\x03\x01\x02\x00\x01", bytes(300)):
        strangers.append(waiting(address))
        strangers[-1].sendall(said)
    # A valid TLS handshake without a certificate: it seems complete to the client, and is then refused.
    context = ssl.create_default_context(cafile=str(certificates / "authority.pem"))
    with (
        waiting(address) as raw,
        context.wrap_socket(raw, server_hostname="skyphos") as stranger,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        stranger.recv(100)
    # A valid certificate, but no token.
    context.load_cert_chain(*files_of(certificates, "b")[1:])
    with waiting(address) as raw, context.wrap_socket(raw, server_hostname="skyphos") as stranger:
        assert b"SKYPHOS" in stranger.recv(100)
        stranger.sendall((132).to_bytes(4, "little") + b"\x02" + bytes(131))
        assert ended(stranger)
    assert all(rank.poll() is None for rank in early)
    late = {name: {0: by_rank[2]} for name, by_rank in group.items()}
    for rank in (*early, *processes.start(3, code, ranks=[2], **late)):
        out, err = rank.communicate(timeout=60)
        assert (out.strip(), err) == ("15.0", "")
    for stranger in strangers:
        stranger.close()


def waiting(address: tuple[str, int]) -> socket.socket:
    """A connection to an address at which a process will listen soon."""
    for _ in range(3000):
        try:
            return socket.create_connection(address, timeout=30)
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
    raise TimeoutError(address)


def ended(connection: ssl.SSLSocket) -> bool:
    try:
        return connection.recv(100) == b""
    except (ssl.SSLEOFError, ConnectionResetError):
        return True


@contextmanager
def recorder(target: str) -> Iterator[tuple[str, bytearray]]:
    """An address that passes everything on to ``target``, and a copy of what it has passed on."""
    seen, host, port = bytearray(), *target.split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                seen.extend(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection((host, int(port)))
            except ConnectionRefusedError:
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()
            kept.extend((near, far))

    kept: list[socket.socket] = []
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in kept:
            connection.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_data_on_the_wire_are_encrypted(processes: Processes, certificates: Path, encrypted: bool) -> None:
    pattern, place, token = secrets.token_bytes(1024), free_place(), secrets.token_hex(8)
    code = f"""
mine = np.frombuffer(bytes.fromhex("{pattern.hex()}"), dtype=np.uint8)
say(all(bool((part == mine).all()) for part in comm.allgather(mine)))
comm.close()
"""
    with recorder(place) as (proxy, seen):
        group = met_at(place, token, 2) | (variables(certificates, 2) if encrypted else {})
        group["SKYPHOS_RENDEZVOUS"] = {0: place, 1: proxy}
        group["SKYPHOS_SHARED_MEMORY"] = {0: "0", 1: "0"}
        for out, err in processes.lines(2, code, **group):
            assert (out.strip(), err) == ("True", "")
    assert token.encode() not in seen and len(seen) > 2 * len(pattern)
    # A short host name may occur by chance, so it is searched together with the bytes next to it in the hello.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    machine = f"{boot} {os.readlink('/proc/self/ns/net')}"
    host = b"".join(bytes([len(text)]) + text.encode() for text in (os.uname().nodename, machine))
    plain = [pattern in seen, b"SKYPHOS" in seen, host in seen]
    assert plain == [not encrypted] * 3
    # If the data are encrypted, no part of the pattern is visible either.
    parts = [pattern[k : k + 8] in seen for k in range(0, 1024, 8)]
    assert all(parts) if not encrypted else not any(parts)
