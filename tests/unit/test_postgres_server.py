"""Where there is no PostgreSQL, the tests on it are skipped; on CI they fail instead."""

import pytest

from tests.support.servers import postgres


@pytest.mark.parametrize(
    ("ci", "outcome"), [(None, pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["here", "CI"]
)
def test_a_missing_server_skips_the_test_but_fails_it_on_ci(monkeypatch, ci, outcome):
    monkeypatch.setattr(postgres, "server_programs", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)

    with pytest.raises(outcome, match="install Debian's package postgresql"):
        postgres.running_server().__enter__()
