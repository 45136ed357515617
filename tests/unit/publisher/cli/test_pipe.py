"""Reading an input that cannot seek."""

import os
import threading

import pytest

from tidemark.publisher.cli.text.pipe import Pipe


@pytest.fixture
def ends():
    """A pipe and the descriptor that it is written by."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as file, Pipe(file) as pipe:
        yield pipe, write
    os.close(write)


def test_a_line_that_is_written_is_read_without_waiting_and_one_in_the_buffer_too(ends):
    pipe, write = ends
    assert pipe.would_wait()
    os.write(write, b"one\ntwo\nth")

    seen = []
    while not pipe.would_wait():
        seen.append(pipe.readline())

    assert seen == [b"one\n", b"two\n"]
    os.write(write, b"ree\n")
    assert not pipe.would_wait()
    assert pipe.readline() == b"three\n"


def test_the_end_is_read_as_of_any_file():
    read, write = os.pipe()
    os.write(write, b"one\ntwo")
    os.close(write)
    with os.fdopen(read, "rb") as file, Pipe(file) as pipe:
        assert [*pipe] == [b"one\n", b"two"]
        assert not pipe.would_wait()


def test_a_read_that_waits_ends_with_the_order_to_stop_and_so_do_later_ones(ends):
    pipe, _ = ends
    errors = []

    def read():
        for _ in range(2):
            try:
                pipe.readline()
            except OSError as error:
                errors.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    pipe.stop()
    reader.join(timeout=10)

    assert errors == ["the input is not read any more"] * 2
