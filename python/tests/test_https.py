"""Tokens come from a server behind TLS whose certificate an authority signed that is trusted, and from no other."""

import datetime
import ssl
import subprocess
import sys

import numpy
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from test_cached_datasets import server  # noqa: F401

READ = """
import sys, gangline, numpy
options = {"sequence_length": 1024, "global_batch": 64, "source_dtype": "uint16", "kind": "numpy", "shuffle": "none"}
found = [inputs for inputs, _ in gangline.Tokens(sys.argv[1], cache=sys.argv[2], **options)]
numpy.save(sys.argv[3], numpy.concatenate(found))
"""


def certificate(name, key, issuer, issuer_key, extensions):
    now = datetime.datetime.now(datetime.timezone.utc)
    called = lambda text: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])  # noqa: E731
    builder = x509.CertificateBuilder().subject_name(called(name)).issuer_name(called(issuer)).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=2))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


@pytest.fixture
def authority(server, tmp_path):  # noqa: F811
    """Puts the server behind TLS; returns the file of the authority's certificate."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    signed_by = ("Sled CA", authority_key)
    authority = certificate("Sled CA", authority_key, *signed_by, [x509.BasicConstraints(ca=True, path_length=None)])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    leaf = certificate("localhost", key, *signed_by, [names, x509.BasicConstraints(ca=False, path_length=None)])
    pem = serialization.Encoding.PEM
    (tmp_path / "ca.pem").write_bytes(authority.public_bytes(pem))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "server.pem").write_bytes(key.private_bytes(pem, *plain) + leaf.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return tmp_path / "ca.pem"


def read(url, tmp_path, environment):
    command = [sys.executable, "-c", READ, url, tmp_path / "cache", tmp_path / "found.npy"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_tokens_from_a_server_behind_tls(server, authority, tmp_path, monkeypatch):  # noqa: F811
    url = f"https://localhost:{server.server_address[1]}/tokens.bin"
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    refused = read(url, tmp_path, None)
    assert refused.returncode == 1 and "invalid peer certificate: UnknownIssuer" in refused.stderr, refused.stderr
    assert server.counted["get"] == 0
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    made = read(url, tmp_path, None)
    assert made.returncode == 0, made.stderr
    written = numpy.frombuffer(server.content, numpy.uint16)
    found = numpy.load(tmp_path / "found.npy").reshape(-1)
    # The last batch of an epoch is filled up with the first samples of the next.
    whole = (len(written) - 1) // 1024 * 1024
    assert len(found) >= whole and numpy.array_equal(found[:whole], written[:whole])
    assert server.counted["get"] == 3 + 1, "three ranges, and the beginning"
