"""Progress where there is no terminal."""

from io import StringIO

from rich.console import Console

from tidemark.publisher.cli.command import show_progress


def test_without_a_terminal_a_line_is_printed_every_ten_seconds_and_with_quiet_none():
    clock, said = iter([0.0, 4.0, 10.0, 10.0, 15.0, 19.0, 21.0, 21.0]), StringIO()
    console = Console(file=said)
    with show_progress(console, "sending", total=200, quiet=False, clock=lambda: next(clock)) as show:
        for done in (10, 50, 60, 70, 150):
            show(done, f"{done} sent")
    with show_progress(console, "sending", total=None, quiet=True) as show:
        show(200, "nothing of this")

    assert said.getvalue().splitlines() == ["50 sent (25 % of the input)", "150 sent (75 % of the input)"]
