"""Clients that mean no good: malformed messages, half-open connections, plain text before TLS, fake proofs."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_world import accounts, connection, server
from wire_client import Client, Running, served

from dpsql.errors import DataError, OperationalError
from dpsql.extensions.server.listener import Server, tls_context
from dpsql.extensions.server.protocol.limits import Limits
from dpsql.extensions.server.protocol.scram import Exchange, SignInError, Verifier
from dpsql.extensions.server.service import Service


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(lambda: server(tmp_path_factory.mktemp("hostile"), Limits(stalled=0.5, sign_in=2.0))) as running:
        yield running


def malformed(draw: random.Random) -> bytes:
    """One message that is wrong somehow, or right by chance."""
    letter = draw.choice(b"QPBDECSHFXpdcfRZTK\0\xff")
    body = draw.choice([b"", b"\0", b"S\0", b"SELECT 1\0", b"\0SELECT $1\0\0\1", b"a\0\0", bytes(30), b"P"])
    body += draw.randbytes(draw.choice([0, 0, 1, 7, 40]))
    if draw.random() < 0.3:
        body = bytes(b ^ (draw.random() < 0.2) for b in body)
    length = len(body) + 4 if draw.random() < 0.7 else draw.choice([0, 3, 4, 2**31, 2**32 - 1, len(body)])
    return bytes([letter]) + struct.pack("!I", length) + body


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.long)])
def test_malformed_messages_end_their_connection_and_no_other(running: Running, count: int) -> None:
    draw = random.Random(20)
    sent = 0
    with Client(running.port, "bob") as other:
        while sent < count:
            with Client(running.port) as ann:
                ann.socket.settimeout(5)
                for _ in range(40):
                    sent += 1
                    try:
                        ann.socket.sendall(malformed(draw))
                    except OSError:
                        break
                said = b""
                try:
                    ann.socket.shutdown(socket.SHUT_WR)
                    while piece := ann.socket.recv(1 << 16):
                        said += piece
                except OSError:
                    pass
                assert b"Traceback" not in said
                assert b"XX000" not in said
            assert other.ask("SELECT 1").rows == [("1",)]


def test_first_words_that_are_none(running: Running) -> None:
    draw = random.Random(21)
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", running.port), timeout=5) as ann:
            code = draw.choice([0x30000, 0x20000, 80877102, 80877103, 80877104, draw.getrandbits(32)])
            body = struct.pack("!I", code) + draw.randbytes(draw.choice([0, 3, 20, 200]))
            length = len(body) + 4 if draw.random() < 0.7 else draw.choice([0, 7, 2**20, 2**31])
            ann.sendall(struct.pack("!I", length) + body)
            ann.shutdown(socket.SHUT_WR)
            try:
                while ann.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
    with Client(running.port) as ann:
        assert ann.ask("SELECT 1").rows == [("1",)]


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])
def test_half_open_connections_are_let_go_and_stop_nobody(running: Running, count: int) -> None:
    held = []
    for at in range(count):
        ann = socket.create_connection(("127.0.0.1", running.port), timeout=10)
        ann.sendall([b"", b"\0", b"\0\0\0\x10", b"\0\0\0\x10\0\3\0\0use"][at % 4])
        held.append(ann)
    with Client(running.port) as ann:  # before those are let go, as none of them has had its two seconds
        assert ann.ask("SELECT 1").rows == [("1",)]
    for waiting in held:
        with contextlib.suppress(ConnectionResetError):
            assert waiting.recv(1) == b""
        waiting.close()


def test_an_address_crowds_out_nobody_but_itself(tmp_path: Path) -> None:
    """127.0.0.2 keeps silent connections, more than there is room for; one of 127.0.0.1 waits longer than all."""
    start = struct.pack("!II", 8 + 10, 0x30000) + b"user\0ann\0\0"
    with (
        served(lambda: server(tmp_path, Limits(connections=4, sign_in=20.0))) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=10) as ann,
        contextlib.ExitStack() as crowd,
    ):
        there = ("127.0.0.1", running.port)
        ann.sendall(start[:7])
        for _ in range(12):
            crowd.enter_context(socket.create_connection(there, timeout=10, source_address=("127.0.0.2", 0)))
        with Client(running.port) as bob:  # all of the crowd are taken by now
            assert bob.ask("SELECT 1").rows == [("1",)]
        ann.sendall(start[7:])
        assert ann.recv(100)[:1] == b"R"


def test_a_message_that_stalls_ends_the_connection(running: Running) -> None:
    with Client(running.port) as ann:
        ann.socket.sendall(b"Q\0\0\0\x40SELECT")
        assert ann.answer().messages == []


def test_a_proof_needs_the_password() -> None:
    held = Verifier.of("secret", iterations=10)
    assert Verifier.read(str(held)) == held
    assert "secret" not in str(held)
    with pytest.raises(DataError):
        Verifier.read(str(held)[:-3])
    for first in (b"", b"n,,", b"p=tls-unique,,n=,r=x", b"n,,n=,r=", b"\xff", b"x,,n=,r=abc"):
        with pytest.raises(SignInError):
            Exchange(held).challenge(first)
    exchange = Exchange(held, nonce="n")
    exchange.challenge(b"n,,n=,r=abc")
    for final in (b"", b"c=biws,r=abcn", b"c=biws,r=abcn,p=AAAA", b"c=eSws,r=abcn,p=" + b"A" * 43 + b"="):
        with pytest.raises(SignInError):
            exchange.proved(final)
    with pytest.raises(SignInError):
        Exchange(held).proved(b"c=biws,r=,p=" + b"A" * 43 + b"=")


def test_the_sign_in_of_rfc_7677() -> None:
    """The exchange that RFC 7677 gives as an example, section 3."""
    salt = b"\x5b\x6d\x99\x68\x9d\x12\x35\x8e\xec\xa0\x4b\x14\x12\x36\xfa\x81"
    exchange = Exchange(Verifier.of("pencil", salt=salt, iterations=4096), nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.challenge(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.proved(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


# -- TLS -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*words, "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return folder / "cert.pem", folder / "key.pem"


def test_beyond_loopback_only_with_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    service = Service(connection(tmp_path))
    for host in ("0.0.0.0", "::", "example.org", "192.168.1.1"):
        with pytest.raises(DataError, match="--tls-cert"):
            Server(service, accounts, host=host)
    Server(service, accounts, host="0.0.0.0", tls=tls_context(*certificate))
    Server(service, accounts, host="::1")
    service.close()
    with pytest.raises(OperationalError, match="belong together"):
        tls_context(certificate[0], certificate[0])
    with pytest.raises(OperationalError, match="No such file"):
        tls_context(tmp_path / "no.pem", certificate[1])


def test_tls_is_asked_of_every_client(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    asked = struct.pack("!II", 8, 80877103)
    start = struct.pack("!II", 8 + 10, 0x30000) + b"user\0ann\0\0"
    with served(lambda: server(tmp_path, tls=tls_context(*certificate))) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as plain:
            plain.sendall(start)
            assert b"TLS only" in plain.recv(1000)
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as ann:
            ann.sendall(asked)
            assert ann.recv(1) == b"S"
            with context.wrap_socket(ann, server_hostname="127.0.0.1") as secure:
                secure.sendall(start)
                assert secure.recv(100)[:1] == b"R"
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as ann:
            ann.sendall(asked + start)  # what is sent before encryption is never taken for what was encrypted
            assert ann.recv(1) == b"S"
            rest = ann.recv(1000)
            assert rest[:1] == b"E"
            assert b"malformed" in rest


def test_without_tls_a_client_is_told_so(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as ann:
        ann.sendall(struct.pack("!II", 8, 80877103))
        assert ann.recv(1) == b"N"
        ann.sendall(struct.pack("!II", 8, 80877104))
        assert ann.recv(1) == b"N"


@pytest.mark.surfaces
def test_psycopg_verifies_the_certificate(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    psycopg = pytest.importorskip("psycopg")
    with served(lambda: server(tmp_path, tls=tls_context(*certificate))) as running:
        uri = f"postgresql://ann:secret@127.0.0.1:{running.port}/x?sslmode=verify-full&sslrootcert={certificate[0]}"
        with psycopg.connect(uri, autocommit=True) as con:
            assert con.execute("SELECT 1").fetchone() == (1,)
            # More than one buffer in both directions.
            assert len(con.execute("SELECT repeat('x', 100000) FROM range(50)").fetchall()) == 50
            assert con.execute("SELECT length(%s)", ("y" * 90_000,)).fetchone() == (90_000,)


def test_texts_that_are_slow_to_read_are_read_once(running: Running) -> None:
    """Each of them took minutes, or ended its session without a word."""
    with Client(running.port) as ann:
        blanks = " " * 100_000
        for text, state in (
            (f"COPY (SELECT 1) TO STDOUT{blanks}((x", "0A000"),
            (f"COPY (SELECT 1{blanks}", None),
            (f"COPY t{blanks}TO{blanks}x", "0A000"),
            ("SET dpsql.confidence = '1e7000000'", "22000"),
            ("SET dpsql.confidence = '0.9" + "9" * 5_000 + "'", "22023"),
            ("SET search_path = '" + "a''" * 10_000 + "'", "22023"),
            ("FETCH " + "9" * 5_000 + " FROM c", "42601"),
        ):
            (found,) = ann.ask(text).errors
            assert state in (None, found["C"])
        assert ann.ask("SELECT 1").rows == [("1",)]
        assert ann.ask("COPY (SELECT ')' AS a, 2 AS b) TO STDOUT WITH (FORMAT csv)").tags == ["COPY 1"]


def test_a_fault_of_the_session_is_told_in_fixed_words(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise UnicodeDecodeError("utf-8", b"secret", 0, 1, "secret")

    monkeypatch.setattr("dpsql.extensions.server.session.data_row", fails)
    with Client(running.port) as ann:
        (found,) = ann.ask("SELECT 1").errors
        assert (found["C"], "secret" in str(found)) == ("XX000", False)
        monkeypatch.undo()
        assert ann.ask("SELECT 1").rows == [("1",)]
