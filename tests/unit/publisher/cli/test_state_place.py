"""Where `tidemark publish --state` cannot save anything, it says so at once."""

import errno
import os

import pytest

from tidemark.publisher.cli import publish
from tidemark.publisher.cli.publish import refuse_unwritable
from tidemark.publisher.errors import PublishSettingsError


def test_a_place_that_takes_a_state_is_left_as_it_was(tmp_path):
    kept = tmp_path / "kept.state"
    kept.write_bytes(b"state")
    refuse_unwritable(kept)
    refuse_unwritable(tmp_path / "new.state")

    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.state", b"state")]


@pytest.mark.parametrize("place", ["", "missing/new.state", "file/new.state"])
def test_a_folder_that_takes_no_file_is_named(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        PublishSettingsError, match=r"--state is '.*', where nothing can be written: .*; accepted:"
    ):
        refuse_unwritable(tmp_path / place)


def test_a_disk_that_is_full_is_named(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(publish, "NamedTemporaryFile", lambda **_: Full())
    with pytest.raises(PublishSettingsError, match="No space left on device"):
        refuse_unwritable(tmp_path / "new.state")
