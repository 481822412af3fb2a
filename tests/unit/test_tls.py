"""The certificate made for loopback, and what a pair of PEM files must be."""

import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from sublimate.cli import certificate as maker
from sublimate.cli.certificate import own_certificate
from sublimate.edge.tls import fingerprint, server_context
from sublimate.errors import ConfigError


def test_it_is_made_once_for_loopback_alone(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls")
    first = certificate.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    known = x509.load_pem_x509_certificate(first)
    names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["127.0.0.1", "::1"]
    assert own_certificate(tmp_path / "tls") == (certificate, key)
    assert certificate.read_bytes() == first
    context = server_context(str(certificate), str(key))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(fingerprint(str(certificate))) == 64


def test_it_is_renewed_before_it_ends_and_made_again_if_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(maker, "VALID", datetime.timedelta(days=20))
        certificate, key = own_certificate(tmp_path)
    short = certificate.read_bytes()
    own_certificate(tmp_path)
    renewed = certificate.read_bytes()
    assert renewed != short
    certificate.write_text("nonsense")
    own_certificate(tmp_path)
    assert certificate.read_bytes() not in (short, renewed)
    key.unlink()
    server_context(*map(str, own_certificate(tmp_path)))
    assert key.is_file()


def test_a_pair_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    certificate, key = map(str, own_certificate(tmp_path / "a"))
    _, other = map(str, own_certificate(tmp_path / "b"))
    for pair in ((certificate, other), (key, key), (certificate, ""), (str(tmp_path / "no"), key)):
        with pytest.raises(ConfigError, match="TLS certificate cannot be used"):
            server_context(*pair)
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate).read_text() + Path(key).read_text())
    server_context(str(both), "")
    with pytest.raises(ConfigError, match="no PEM certificate"):
        fingerprint(key)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot hold a certificate"):
        own_certificate(tmp_path / "file" / "tls")
