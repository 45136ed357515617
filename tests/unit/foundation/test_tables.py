"""Tables of commands on terminals of any width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Column

from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import Console

HEADERS = ("partition", "low-water", "owner", "age", "failed at", "lag")
ROWS = [
    ("0", "123,456,789", "website-instance-0a1b2c3d4e5f6a7b8c9d0e1f-2026", "3 min 12 s", "2026-11-27 05:41:16Z", "1,234,567"),
    ("1", "the beginning", "[red]plan_of.orders/a@b[/]", "-1.5 %", "2026-11-27T05:41:16.199Z", "?"),
]  # fmt: skip
WHOLE = ("123,456,789", "3 min", "12 s", "-1.5 %", "2026-11-27", "05:41:16Z", "2026-11-27T05:41:16.199Z", "beginning", "partition", "instance-")  # fmt: skip


def printed(headers, rows, width):
    made = FittedTable(*headers)
    for row in rows:
        made.add_row(*row)
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(made)
    return captured.get()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 140])
def test_numbers_times_and_words_stay_whole(width):
    shown = printed(HEADERS, ROWS, width)

    assert [text for text in WHOLE if text not in shown] == []
    assert max(map(len, shown.splitlines())) <= width


def test_a_column_wraps_at_the_joints_of_a_name_and_the_widest_gives_way():
    row = ("plan-of-orders-in-western-europe", "3", "1..10 instances", "incomplete_window")

    assert printed(("target", "now", "bounds", "reason"), [row], 50).splitlines()[3:-1] == [
        "│ plan-of-    │ 3   │ 1..10       │ incomplete_  │",
        "│ orders-in-  │     │ instances   │ window       │",
        "│ western-    │     │             │              │",
        "│ europe      │     │             │              │",
    ]


def test_a_row_that_fits_in_no_way_is_a_list_of_what_it_has():
    rows = [("0", "123,456,789", "instance-0a1b2c3d", "1,234,567"), ("1", "none", "", "?")]

    assert printed(("partition", "low-water", "owner", "lag"), rows, 40).splitlines() == [
        "partition 0",
        "  low-water 123,456,789 · owner",
        "  instance-0a1b2c3d · lag 1,234,567",
        "partition 1",
        "  low-water none · lag ?",
    ]


def test_what_has_a_least_width_is_not_wrapped():
    name = "3-000-000-abc-of-orders"

    assert name in printed((Column("id", min_width=len(name)), "detail"), [(name, "none")], 32)


def test_a_line_break_of_a_cell_stays_one():
    lines = printed(("a", "b"), [("one\ntwo", "x")], 80).splitlines()

    assert [line.split("│")[1].strip() for line in lines[3:5]] == ["one", "two"]


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")) | st.sampled_from(" -_/.,:0123456789"), max_size=60)  # fmt: skip


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=3), st.integers(10, 120))
def test_nothing_of_any_text_is_cut(rows, width):
    made = FittedTable("a", "b", "c")
    for row in rows:
        made.add_row(*(cell.replace("[", "(") for cell in row))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(made)
    shown = captured.get()

    letters = sorted("".join("".join("".join(row).replace("[", "(").split()) for row in rows))
    left = list(shown)
    for letter in letters:
        left.remove(letter)  # raises ValueError for what is not shown
