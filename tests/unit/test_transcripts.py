"""How a transcript is read and compared: what may differ, and what may not."""

import pytest

from tests.support.transcripts import Step, differs, steps

PAGE = """
```toml title="tidemark.toml"
version = 1
```
```console
$ tidemark lint \\
    --root .
1 target checked
$ tidemark status
```
```sh
tidemark log
```
"""


def test_the_steps_of_a_page_in_their_order():
    assert list(steps(PAGE)) == [
        Step(file="tidemark.toml", text="version = 1\n"),
        Step("tidemark lint     --root .", ("1 target checked",)),
        Step("tidemark status"),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("1,200 of 1,300 done", "7 of 9.5 done", True),
        ("at 05:41:16Z", "at 23:59:00Z", True),
        ("1 -> 5", "1 -> none", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...\nd", "a\nb\nd\ne", False),
        ("name ... end", "name of anything, end", True),
        ("│ a   │ 1 │\n━━━━", "│ a │ 22 │\n\n━━", True),
        ("a", "a\nb", False),
        ("a\nb", "a", False),
        ("a.b (c)", "a.b (c)", True),
        ("a.b", "axb", False),
        ("", "", True),
    ],
)
def test_what_is_printed_has_the_form_of_what_is_shown_or_has_not(shown, printed, same):
    assert (differs(tuple(shown.splitlines()), printed) == "") is same
