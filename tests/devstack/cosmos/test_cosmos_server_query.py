import pytest

from devstack.cosmos.protocol.errors import CosmosError
from devstack.cosmos.query import parse
from devstack.cosmos.store.patching import patched

FLIGHTS = [
    {"id": "1", "origin": "JFK", "delay": 12, "tags": ["a", "b"], "plane": {"seats": 180}},
    {"id": "2", "origin": "LGA", "delay": -3, "tags": [], "cancelled": True},
    {"id": "3", "origin": "JFK", "delay": 40, "tags": ["b"]},
    {"id": "4", "origin": "EWR", "delay": None},
    {"id": "5", "origin": "EWR"},
]


def ids(where):
    return "".join(parse(f"SELECT VALUE c.id FROM c WHERE {where}", now=2000.0).run(FLIGHTS))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("c.origin = 'JFK'", "13"),
        ("c.origin != 'JFK'", "245"),
        ("c.delay > 0", "13"),
        ("c.delay <= 12", "12"),
        ("c.delay > 'a'", ""),
        ("c.delay = null", "4"),
        ("NOT c.delay > 0", "2"),
        ("c.delay > 0 OR c.origin = 'EWR'", "1345"),
        ("c.origin = 'JFK' AND c.delay < 20", "1"),
        ("c.origin IN ('LGA', 'EWR')", "245"),
        ("c.origin NOT IN ('LGA', 'EWR')", "13"),
        ("c.delay BETWEEN -3 AND 12", "12"),
        ("c.origin LIKE '_F%'", "13"),
        ("STARTSWITH(c.origin, 'j', true)", "13"),
        ("CONTAINS(c.origin, 'W')", "45"),
        ("IS_DEFINED(c.delay)", "1234"),
        ("IS_NULL(c.delay)", "4"),
        ("ARRAY_CONTAINS(c.tags, 'b')", "13"),
        ("c.plane.seats = 180", "1"),
        ('c["plane"]["seats"] > 100', "1"),
        ("c.tags[1] = 'b'", "1"),
        ("c.delay + 8 = 20", "1"),
        ("c.cancelled", "2"),
        ("c.cancelled = 1", ""),
        ("(c.cancelled ?? false) = false AND c.id < '3'", "1"),
        ("LOWER(c.origin) || c.id = 'jfk3'", "3"),
        ("EXISTS(SELECT VALUE t FROM t IN c.tags WHERE t = 'b')", "13"),
        ("EXISTS (SELECT VALUE t FROM t IN c.tags WHERE t = 'b' AND c.delay > 20)", "3"),
        ("NOT EXISTS(SELECT VALUE t FROM t IN c.tags)", "245"),
        ("EXISTS(SELECT VALUE c.cancelled)", "2"),
        ("(SELECT VALUE COUNT(1) FROM t IN c.tags) = 2", "1"),
        ("ARRAY(SELECT VALUE t FROM t IN c.tags)[1] = 'b'", "1"),
        ("c.delay < GetCurrentTimestamp() / 100000", "12"),
    ],
)
def test_a_condition_picks_the_documents_for_which_it_is_true(where, expected):
    assert ids(where) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT VALUE COUNT(1) FROM c", [5]),
        ("SELECT VALUE COUNT(1) FROM c WHERE EXISTS(SELECT VALUE COUNT(1) FROM t IN c.tags)", [5]),
        ("SELECT VALUE COUNT(c.delay) FROM c", [4]),
        ("SELECT COUNT(1) AS n, MAX(c.delay) AS worst FROM c WHERE c.delay > 0", [{"n": 2, "worst": 40}]),
        ("SELECT VALUE SUM(c.delay) FROM c WHERE IS_NUMBER(c.delay)", [49]),
        ("SELECT VALUE AVG(c.delay) FROM c WHERE c.delay > 0", [26.0]),
        ("SELECT VALUE MIN(c.origin) FROM c", ["EWR"]),
        ("SELECT VALUE COUNT(1) FROM c WHERE false", [0]),
        (
            "SELECT c.origin, COUNT(1) AS n FROM c GROUP BY c.origin",
            [{"origin": "JFK", "n": 2}, {"origin": "LGA", "n": 1}, {"origin": "EWR", "n": 2}],
        ),
        ("SELECT TOP 2 c.id FROM c", [{"id": "1"}, {"id": "2"}]),
        ("SELECT VALUE c.id FROM c ORDER BY c.delay DESC, c.id", ["3", "1", "2", "4", "5"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.origin, c.id DESC", ["5", "4", "3", "1", "2"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.id OFFSET 1 LIMIT 2", ["2", "3"]),
        ("SELECT DISTINCT VALUE c.origin FROM c", ["JFK", "LGA", "EWR"]),
        ("SELECT VALUE t FROM c JOIN t IN c.tags", ["a", "b", "b"]),
        ("SELECT c.id, c.delay FROM flights c WHERE c.id = '5'", [{"id": "5"}]),
        (
            "SELECT VALUE {n: c.id, big: c.delay > 20 ? 'y' : 'n'} FROM c WHERE c.id = '3'",
            [{"n": "3", "big": "y"}],
        ),
    ],
)
def test_a_query_projects_orders_groups_and_pages(text, expected):
    assert parse(text).run(FLIGHTS) == expected


def test_parameters_stand_for_their_values():
    assert parse("SELECT VALUE c.id FROM c WHERE c.origin = @o", {"@o": "LGA"}).run(FLIGHTS) == ["2"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELECT", "the end"),
        ("SELECT * FROM c WHERE", "the end"),
        ("SELECT * FROM c WHERE c.a = @p", "@p"),
        ("SELECT * FROM c WHERE NOSUCH(c.a)", "NOSUCH"),
        ("SELECT * FROM c ORDER c.a", "BY"),
        ("SELECT * FROM c WHERE c.a = #", "#"),
        ("SELECT * FROM c extra more", "more"),
    ],
)
def test_a_query_that_is_not_understood_is_refused_by_what_is_wrong_with_it(text, named):
    with pytest.raises(CosmosError, match=named) as caught:
        parse(text)

    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "takes", "counts"),
    [
        ("SELECT * FROM c", True, False),
        ("SELECT * FROM c WHERE c.a = 1", False, False),
        ("SELECT TOP 1 * FROM c", False, False),
        ("SELECT VALUE COUNT(1) FROM c", False, True),
        ("SELECT COUNT(1) AS n FROM c", False, True),
        ("SELECT VALUE COUNT(c.a) FROM c", False, False),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.a = 1", False, False),
        ("SELECT COUNT(1) AS n FROM c GROUP BY c.a", False, False),
    ],
)
def test_only_queries_that_need_no_look_into_documents_are_answered_without(text, takes, counts):
    query = parse(text)

    assert (query.takes_all, query.counts_all) == (takes, counts)
    if counts:
        assert query.of_count(5) == query.run(FLIGHTS)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ('{"op":"set","path":"/a","value":2}', b'{"a":2,"l":[1,2]}'),
        ('{"op":"add","path":"/l/1","value":9}', b'{"a":1,"l":[1,9,2]}'),
        ('{"op":"add","path":"/l/-","value":9}', b'{"a":1,"l":[1,2,9]}'),
        ('{"op":"replace","path":"/l/0","value":9}', b'{"a":1,"l":[9,2]}'),
        ('{"op":"remove","path":"/a"}', b'{"l":[1,2]}'),
        ('{"op":"incr","path":"/a","value":5}', b'{"a":6,"l":[1,2]}'),
        ('{"op":"incr","path":"/n","value":5}', b'{"a":1,"l":[1,2],"n":5}'),
        ('{"op":"set","path":"/x~1y~0","value":5}', b'{"a":1,"l":[1,2],"x/y~":5}'),
        ('{"op":"move","from":"/a","path":"/b"}', b'{"l":[1,2],"b":1}'),
    ],
)
def test_a_patch_changes_what_its_path_names(steps, expected):
    assert patched(b'{"a":1,"l":[1,2]}', f'{{"operations":[{steps}]}}'.encode()) == expected


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ('{"operations":[{"op":"replace","path":"/x","value":1}]}', 400),
        ('{"operations":[{"op":"incr","path":"/l","value":1}]}', 400),
        ('{"operations":[{"op":"jump","path":"/a"}]}', 400),
        ('{"operations":[]}', 400),
        ('{"operations":[{"op":"set","path":"/id","value":1}]}', 400),
        ('{"operations":[{"op":"set","path":"/_etag","value":1}]}', 400),
        ('{"condition":"from c where c.a = 2","operations":[{"op":"set","path":"/a","value":1}]}', 412),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch, status):
    with pytest.raises(CosmosError) as caught:
        patched(b'{"a":1,"l":[1,2]}', patch.encode())

    assert caught.value.status == status
