"""What is settled beyond the mark, in a text that fits beside a checkpoint."""

import random

import pytest

from consumer.core.settled.completion_map import decode, encode


def runs_of(numbers):
    runs = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


def holes(share, width=50_000, mark=10**6):
    rng = random.Random(1)
    return runs_of(number for number in range(mark + 2, mark + 2 + width) if rng.random() > share), mark


def test_nothing_is_the_empty_text():
    assert encode((), 5, 4096) == ""
    assert decode("", 5) == ()


@pytest.mark.parametrize(("share", "most"), [(0.001, 250), (0.01, 1100)])
def test_a_window_of_50000_with_random_holes_fits_easily(share, most):
    runs, mark = holes(share)
    text = encode(runs, mark, 4096)

    assert decode(text, mark) == runs
    assert len(text) <= most


@pytest.mark.parametrize(
    "text", ["r0303vgMCAwIABg==", "R0303vnicY2ZiZmJgAwAAOgAR", "b0LkzfwOXPw==", "B0Lkzf3icY55uDwABeQDa"]
)
def test_the_texts_of_older_versions_are_read(text):
    assert decode(text, 4) == ((7, 9), (11, 11), (14, 20))


def test_over_the_limit_the_runs_furthest_away_are_left_out():
    runs, mark = holes(0.5)
    text = encode(runs, mark, 4096)
    kept = decode(text, mark)

    assert len(text) <= 4096
    assert kept == runs[: len(kept)]
    assert len(text) > 3500


def test_a_first_event_far_beyond_nothing_settled_costs_a_few_bytes():
    text = encode(((10**15, 10**15),), -1, 4096)

    assert len(text) < 40
    assert decode(text, -1) == ((10**15, 10**15),)


def test_no_more_is_written_than_is_read_however_well_it_deflates(monkeypatch):
    monkeypatch.setattr("consumer.core.settled.completion_map.MOST_BYTES", 1000)
    runs = tuple((n, n) for n in range(10**6, 10**6 + 5_000, 2))
    kept = decode(encode(runs, -1, 4096), -1)

    assert kept == runs[: len(kept)]
    assert len(kept) > 400


def test_a_map_is_never_read_with_a_mark_it_was_not_made_for():
    text = encode(((5, 7), (9, 9)), 2, 4096)

    with pytest.raises(ValueError, match="does not belong to this mark"):
        decode(text, 3)


@pytest.mark.parametrize("method", "rRbB")
def test_every_single_changed_character_is_noticed(method):
    runs, mark = holes(0.3, width=400, mark=-1)
    text = encode(runs, mark, 4096)
    for index in range(1, len(text)):
        changed = text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :]
        with pytest.raises(ValueError, match="completion map"):
            decode(changed, mark)
    if method != text[0]:
        with pytest.raises(ValueError, match="completion map"):
            decode(method + text[1:], mark)


@pytest.mark.parametrize(
    "text", ["x", "r", "R", "b", "B", "é", "r AAAA", "rAAAAAAAA", "RAAAAAAAA", "q" + "A" * 8]
)
def test_garbage_is_refused(text):
    with pytest.raises(ValueError, match="completion map"):
        decode(text, 1)
