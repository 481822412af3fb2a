"""The store of uploaded files alone: what a kill, a limit or another process leaves of it."""

import os
import threading
from pathlib import Path

import pytest

from sublimate.api.files import store as file_store
from sublimate.api.files.store import FileStore
from sublimate.edge.errors import ApiError

OWNER, OTHER = b"owner", b"other"


def opened(folder: Path, *, file_max: int = 100, owner_max: int = 150) -> FileStore:
    return FileStore(folder, file_bytes_max=file_max, owner_bytes_max=owner_max)


def kept(store: FileStore, identifier: str, *pieces: bytes, owner: bytes = OWNER) -> bool:
    """Whether it counts as text."""
    incoming = store.begin(identifier, owner)
    for piece in pieces:
        store.write(incoming, piece)
    return store.keep(incoming, "name", "text/plain", 1.0).is_text


def contents(folder: Path) -> set[str]:
    return {entry.name for entry in (folder / "content").iterdir()}


def test_a_kill_leaves_no_orphan_and_what_was_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    kept(store, "file_kept", b"abc")
    store.write(store.begin("file_half", OWNER), b"half")
    assert contents(tmp_path) == {"file_kept", "file_half"}
    os.close(store._lock)  # as a kill does: nothing is closed in order
    (tmp_path / "content" / "file_lost").write_bytes(b"")
    again = opened(tmp_path)
    assert contents(tmp_path) == {"file_kept"}
    found = again.get("file_kept", OWNER)
    assert found is not None
    descriptor = again.open(found)
    assert os.pread(descriptor, 9, 0) == b"abc" and os.fstat(descriptor).st_mode & 0o777 == 0o600
    os.close(descriptor)
    (tmp_path / "content" / "file_kept").unlink()
    again.close()
    assert opened(tmp_path).identifiers(OWNER) == []


def test_limits_of_a_file_and_of_an_owner(tmp_path: Path) -> None:
    store = opened(tmp_path)
    large = store.begin("file_large", OWNER)
    store.write(large, bytes(100))
    with pytest.raises(ApiError, match="file_too_large"):
        store.write(large, b"x")
    beside = store.begin("file_beside", OWNER)
    store.write(beside, bytes(50))
    with pytest.raises(ApiError, match="files_too_large") as caught:
        store.write(beside, b"x")
    assert "150" in caught.value.text and "--files-bytes-max" in caught.value.text
    kept(store, "file_other", bytes(100), owner=OTHER)
    store.drop(large)
    store.write(beside, bytes(50))
    store.keep(beside, "name", "text/plain", 1.0)
    store.drop(beside)
    assert contents(tmp_path) == {"file_beside", "file_other"}
    assert not store.delete("file_beside", OTHER) and store.get("file_beside", OTHER) is None
    assert store.delete("file_beside", OWNER) and not store.delete("file_beside", OWNER)
    store.write(store.begin("file_new", OWNER), bytes(100))
    store.close()
    assert contents(tmp_path) == {"file_other"}


@pytest.mark.parametrize(
    ("pieces", "is_text"),
    [
        ((b"plain",), True),
        ((b"\xc3", b"\xa4"), True),
        ((b"\xc3",), False),
        ((b"a\0b",), False),
        ((b"%P", b"DF-1.7"), False),
        ((b"x%PDF-",), True),
        ((), True),
    ],
)
def test_what_counts_as_text(tmp_path: Path, pieces: tuple[bytes, ...], is_text: bool) -> None:
    assert kept(opened(tmp_path), "file_a", *pieces) is is_text


def test_uploads_under_way_count_to_the_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_store, "FILES_PER_OWNER_MAX", 3)
    store = opened(tmp_path)
    kept(store, "file_0", b"a")
    under_way = [store.begin(f"file_{number}", OWNER) for number in (1, 2)]
    with pytest.raises(ApiError, match="too_many_files"):
        store.begin("file_3", OWNER)
    store.begin("file_4", OTHER)
    store.drop(under_way[0])
    store.begin("file_5", OWNER)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(ApiError, match="data_in_use"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


def test_a_folder_that_is_being_left_is_waited_for(tmp_path: Path) -> None:
    store = opened(tmp_path)
    leaving = threading.Timer(0.1, store.close)
    leaving.start()
    coming = FileStore(tmp_path, file_bytes_max=1, owner_bytes_max=1, wait_seconds=20.0)
    leaving.join()
    assert coming.identifiers(OWNER) == []
    coming.close()
