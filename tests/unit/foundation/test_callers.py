"""Whose word counts: the platform's where it signs people in, nobody's header where it does not."""

import pytest

from foundation.http.callers import Caller, caller_of, named, opened_by_sign_in, refusal

ON = {"WEBSITE_AUTH_ENABLED": "True"}
OPEN = {**ON, "TIDEMARK_SIGN_IN": "true", "TIDEMARK_OPERATORS": "Anna@example.org, ben@example.org"}
HEADER = {"x-ms-client-principal-name": "anna@example.org"}


@pytest.mark.parametrize("settings", [{}, {"WEBSITE_AUTH_ENABLED": "False"}, {"TIDEMARK_SIGN_IN": "true"}])
def test_a_header_is_a_claim_while_the_platform_signs_nobody_in(settings):
    assert caller_of(HEADER, settings) == Caller(claimed="anna@example.org")
    assert not opened_by_sign_in(settings)
    assert (
        refusal(caller_of(HEADER, settings), settings, order=True) is None
    )  # the key was checked by the host


def test_with_sign_in_the_header_is_the_user():
    assert caller_of(HEADER, ON) == Caller(name="anna@example.org")
    assert caller_of({"x-ms-client-principal-id": "0b1c"}, ON) == Caller(name="0b1c")
    assert caller_of({}, ON) == Caller()


def test_keys_stay_needed_until_sign_in_is_to_open_the_page():
    assert not opened_by_sign_in(ON)
    assert opened_by_sign_in(OPEN)


@pytest.mark.parametrize(
    ("headers", "order", "status"),
    [
        ({}, False, 401),
        ({}, True, 401),
        (HEADER, False, None),
        (HEADER, True, None),
        ({"x-ms-client-principal-name": "BEN@example.org"}, True, None),
        ({"x-ms-client-principal-name": "eve@example.org"}, False, None),
        ({"x-ms-client-principal-name": "eve@example.org"}, True, 403),
    ],
)
def test_who_signed_in_may_look_and_operators_give_orders(headers, order, status):
    answer = refusal(caller_of(headers, OPEN), OPEN, order=order)

    assert (answer and answer[0]) == status


@pytest.mark.parametrize(("operators", "allowed"), [("", False), (" , ", False), ("*", True)])
def test_without_a_list_nobody_gives_orders_and_a_star_is_everybody(operators, allowed):
    settings = {**OPEN, "TIDEMARK_OPERATORS": operators}

    assert (refusal(caller_of(HEADER, settings), settings, order=True) is None) is allowed


def test_the_user_counts_for_more_than_the_name_in_the_order():
    assert named(Caller(name="anna"), "boss") == ("anna", "anna")
    assert named(Caller(claimed="boss"), "eve") == (
        "eve",
        "eve (a header without sign-in behind it claims to be 'boss')",
    )


def test_headers_are_shown_as_names_of_one_line():
    caller = caller_of({"x-ms-client-principal-name": "a\x1b[2J" + "b" * 500}, {})

    assert caller.claimed.isprintable()
    assert len(caller.claimed) == 200
