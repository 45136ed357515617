"""A worker finds out that its parent is gone, and leaves; its part of a rate."""

import os
import threading

import pytest

from consumer.errors import OrphanedError
from consumer.running.worker import Worker, watch_parent
from tidemark.foundation.errors import SettingsError


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


class Watched:
    """What `watch_parent` did: told, then left."""

    def __init__(self, reader, on_gone=None):
        self.told, self.left = threading.Event(), []
        self.thread = watch_parent(reader, on_gone or self.told.set, within=0.0, leave=self.left.append)

    def end(self):
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_the_end_of_the_pipe_is_the_end_of_the_parent_and_what_does_not_end_by_then_is_left(pipe):
    reader, writer = pipe
    watched = Watched(reader)
    os.write(writer, b"whatever")

    assert not watched.told.wait(0.0)
    os.close(writer)
    watched.end()
    assert watched.told.is_set()
    assert watched.left == [6]


def test_a_pipe_that_cannot_be_read_is_the_end_of_the_parent_too(pipe):
    _, writer = pipe
    os.close(writer)
    watched = Watched(1_000_000)

    watched.end()
    assert (watched.told.is_set(), watched.left) == (True, [6])


def test_a_loop_that_is_closed_already_does_not_keep_the_process_from_leaving(pipe):
    reader, writer = pipe

    def closed():
        raise RuntimeError("Event loop is closed")

    os.close(writer)
    watched = Watched(reader, closed)

    watched.end()
    assert watched.left == [6]


def test_a_worker_is_told_in_one_word_which_it_is():
    worker = Worker(1, 4)

    assert str(worker) == "1/4"
    assert Worker.parse(str(worker)) == worker
    assert [Worker(index, 4).share(1001.0) for index in range(4)] == [251, 250, 250, 250]
    assert worker.share(None) is None


@pytest.mark.parametrize("text", ["1", "a/2", "1/2/3", "-1/2"])
def test_a_word_that_is_none_is_refused(text):
    with pytest.raises(SettingsError, match="accepted: index/count,"):
        Worker.parse(text)


def test_the_status_of_an_orphan_is_its_own():
    assert OrphanedError("").exit_status == 7
