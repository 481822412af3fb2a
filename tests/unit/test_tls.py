"""The certificate made for loopback, and what a pair of PEM files must be."""

import datetime
import os
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from sublimate.cli import certificate as maker
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.config.folders import DATA_FOLDERS, check_data_folders
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


def test_f10_starts_at_once_make_one_pair(tmp_path: Path) -> None:
    barrier, made = threading.Barrier(8), list[bytes]()

    def start() -> None:
        barrier.wait()
        certificate, key = own_certificate(tmp_path / "tls")
        server_context(str(certificate), str(key))
        made.append(certificate.read_bytes())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len(set(made)) == 1


@pytest.mark.parametrize("of_other", ["certificate.pem", "key.pem"])
def test_f10_a_pair_that_does_not_match_is_made_anew(tmp_path: Path, of_other: str) -> None:
    certificate, key = own_certificate(tmp_path / "tls")
    own_certificate(tmp_path / "other")
    before = (tmp_path / "other" / of_other).read_bytes()
    (tmp_path / "tls" / of_other).write_bytes(before)
    with pytest.raises(ConfigError):
        server_context(str(certificate), str(key))
    own_certificate(tmp_path / "tls")
    server_context(str(certificate), str(key))
    assert (tmp_path / "tls" / of_other).read_bytes() != before
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_f11_a_link_is_refused_and_its_target_left_alone(tmp_path: Path, name: str) -> None:
    target, data = tmp_path / "target", tmp_path / "data"
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    data.mkdir()
    (data / name).symlink_to(target)
    settings = EdgeSettings(data_dir=str(data))
    with pytest.raises(ConfigError, match=r"is a link.*--data-dir"):
        check_data_folders(settings)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    if name == "tls":
        with pytest.raises(ConfigError, match="is a link"):
            own_certificate(data / name)
    (data / name).unlink()
    (data / name).write_text("")
    with pytest.raises(ConfigError, match=r"cannot be used as a folder.*--data-dir"):
        check_data_folders(settings)


@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_f11_a_folder_of_another_user_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EdgeSettings(data_dir=str(tmp_path))
    check_data_folders(settings)
    assert not list(tmp_path.iterdir()), "nothing is made"
    (tmp_path / name).mkdir(mode=0o777)
    check_data_folders(settings)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / name).stat().st_uid + 1)
    with pytest.raises(ConfigError, match=r"belongs to another user.*--data-dir"):
        check_data_folders(settings)
