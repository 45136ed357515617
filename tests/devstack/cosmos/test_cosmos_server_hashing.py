import subprocess
from pathlib import Path

import msgspec
import pytest
from azure.cosmos.partition_key import NonePartitionKeyValue, PartitionKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from devstack.cosmos.partitions.keys import KeyDefinition, canonical, identity_reader, same_key
from devstack.cosmos.partitions.ranges import RangeMap
from devstack.cosmos.protocol.errors import CosmosError

V1 = KeyDefinition(("/pk",), version=1)
V2 = KeyDefinition(("/pk",))
MULTI = KeyDefinition(("/a", "/b", "/c"), kind="MultiHash")
NODE_MODULES = Path(__file__).parents[3] / "devstack" / "node_modules"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
components = texts | numbers | st.booleans() | st.none() | st.just(UNSET)


def for_sdk(component):
    return NonePartitionKeyValue if component is UNSET else component


def sdk_hash(key, paths, version=2):
    definition = PartitionKey(paths, version=version)
    return definition._get_epk_range_for_partition_key([for_sdk(part) for part in key]).min.upper()


@given(components)
def test_version_2_puts_a_key_where_the_sdk_looks_for_it(component):
    assert V2.effective([component]) == sdk_hash([component], "/pk")


@given(st.lists(components, min_size=1, max_size=3))
def test_a_hierarchical_key_and_each_prefix_of_it_hash_as_in_the_sdk(key):
    assert MULTI.effective(key) == sdk_hash(key, ["/a", "/b", "/c"])


# Elsewhere the SDKs disagree with each other, see the module's docstring.
agreed = st.text(st.characters(max_codepoint=126, min_codepoint=1), max_size=120) | st.integers(1, 2**32 - 1)


@given(agreed | st.booleans())
def test_version_1_puts_a_key_where_the_sdk_looks_for_it_wherever_the_sdks_agree(component):
    assert V1.effective([component]) == sdk_hash([component], "/pk", version=1)


def test_version_1_hashes_negative_and_large_numbers_as_the_javascript_sdk_does():
    keys = [-1, 2**32, -1.5, 5, "ORD"]
    script = f"""
      const {{hashV1PartitionKey}} = require("{NODE_MODULES}/@azure/cosmos/dist/commonjs/utils/hashing/v1.js");
      console.log(JSON.stringify({msgspec.json.encode(keys).decode()}.map((key) => hashV1PartitionKey([key]))));
    """
    answer = subprocess.run(["node", "-e", script], capture_output=True, check=True, text=True)

    assert [V1.effective([key]) for key in keys] == msgspec.json.decode(answer.stdout)


@pytest.mark.parametrize("definition", [V1, V2, MULTI])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_ranges_cover_the_key_space_without_gap_or_overlap_through_splits_and_merges(definition, count):
    range_map = RangeMap(definition, count)
    for step in range(4):
        range_map.split(range_map.ranges[step % len(range_map)])
    merged = range_map.merge(range_map.ranges[0])

    bounds = [range_map.ranges[0].minimum, *(one.maximum for one in range_map.ranges)]
    assert bounds == sorted(set(bounds))
    assert (bounds[0], bounds[-1]) == ("", "FF")
    assert [one.minimum for one in range_map.ranges[1:]] == [one.maximum for one in range_map.ranges[:-1]]
    assert len(merged.parents) == len(set(merged.parents)) >= 2


@given(st.lists(components, min_size=1, max_size=20))
def test_a_split_hands_every_key_to_one_of_the_halves(keys):
    range_map = RangeMap(V2, 2)
    before = [range_map.of(V2.effective([key])) for key in keys]
    gone = range_map.ranges[0]
    halves = range_map.split(gone)

    after = [range_map.of(V2.effective([key])) for key in keys]
    assert all(new in halves if old is gone else new is old for old, new in zip(before, after, strict=True))
    with pytest.raises(CosmosError, match="gone") as caught:
        range_map.by_id(gone.id)
    assert (caught.value.status, caught.value.substatus) == (410, 1002)


def test_only_ranges_of_later_versions_are_news_to_a_client():
    range_map = RangeMap(V2, 1)
    left, right = range_map.split(range_map.ranges[0])
    version = range_map.version
    newer = range_map.split(right)

    assert list(range_map.since(0)) == [left, *newer]
    assert list(range_map.since(version)) == list(newer)
    assert newer[0].parents == ("0", right.id)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"id":"1","a":"x","b":{"c":2}}', ("x", 2)),
        (b'{"id":"1","b":{}}', (UNSET, UNSET)),
        (b'{"id":"1","a":null,"b":5}', (None, UNSET)),
    ],
)
def test_the_key_of_a_document_is_read_along_its_paths(body, key):
    read = identity_reader(KeyDefinition(("/a", "/b/c"), kind="MultiHash"))

    assert read(body) == ("1", key)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b"\xff",
        b"{}",
        b'{"id":1}',
        b'{"id":""}',
        b'{"id":"a/b"}',
        b'{"id":"' + b"x" * 1024 + b'"}',
    ],
)
def test_what_is_no_document_or_has_no_usable_id_is_a_bad_request(body):
    with pytest.raises(CosmosError) as caught:
        identity_reader(V2)(body)

    assert caught.value.status == 400


@pytest.mark.parametrize("header", [None, "x", '{"a":1}', '["a","b"]', "[[1]]", '["' + "x" * 2049 + '"]'])
def test_what_is_no_partition_key_is_a_bad_request(header):
    with pytest.raises(CosmosError) as caught:
        V2.parse(header)

    assert caught.value.status == 400


def test_true_is_not_the_key_1_but_1_is_the_key_1_0():
    assert not same_key((True,), (1,))
    assert same_key((1,), (1.0,))
    assert canonical((1,)) == canonical((1.0,)) != canonical((True,))
