"""Our effective partition keys against those of the SDK, which are the oracle."""

import pytest
from azure.cosmos.partition_key import NonePartitionKeyValue, PartitionKey
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET

from consumer.mapping.partition_hash import EFFECTIVE_KEYS, UNCERTAIN, hash_key, hash_key_v1, multi_hash_key
from devstack.cosmos.partitions.hashing import hash_v1

scalars = st.one_of(
    st.text(),
    st.text(min_size=90, max_size=300),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [True, False, None, UNSET, 0, -1, 2**32, 2**53 + 1, 0.0, -0.0, "", "\U0001f6eb", "Ü" * 100]
    ),
)


def theirs(values, kind, version=2):
    paths = [f"/p{level}" for level in range(len(values))]
    key = PartitionKey(path=paths if kind == "MultiHash" else paths[0], kind=kind, version=version)
    return key._get_effective_partition_key_string(
        [NonePartitionKeyValue if v is UNSET else v for v in values]
    )


@given(scalars)
@example("LGA")
@example(-1)
@example(None)
@example(UNSET)
def test_a_value_hashes_as_in_the_sdk(value):
    assert hash_key([value]) == theirs([value], "Hash")


@given(st.lists(scalars, min_size=1, max_size=3))
def test_hierarchical_values_hash_as_in_the_sdk(values):
    assert multi_hash_key(values) == theirs(values, "MultiHash")


@given(scalars)
def test_every_hash_lies_below_the_end_of_the_last_range(value):
    assert "" < hash_key([value]) < "FF"


def test_a_known_value_keeps_its_hash():
    assert hash_key(["LGA"]) == "02A087CE40169A4DC6808FDB115887F1"


@given(st.one_of(st.text(), st.integers(1, 2**32 - 1), st.sampled_from([True, False, UNSET])))
@example("LGA")
@example("Ü" * 50)
@example(1)
@example(2**32 - 1)
@example(2**31)
def test_in_version_1_a_value_hashes_as_in_the_sdk_and_in_net_where_both_agree(value):
    ours = hash_key_v1([value])

    assert (ours == UNCERTAIN) is (isinstance(value, str) and len(value.encode()) > 100)
    if ours != UNCERTAIN:
        assert ours == theirs([value], "Hash", 1).upper() == hash_v1(value)


@pytest.mark.parametrize("value", [0, -1, 2**32, 0.0, -2.5, 1.5, None, "x" * 101, "Ü" * 51])
def test_in_version_1_no_hash_is_guessed_that_the_sdks_disagree_about(value):
    assert hash_key_v1([value]) == UNCERTAIN


@pytest.mark.parametrize("definition", [("MultiHash", 1), ("Range", 2)])
def test_other_hashes_are_not_guessed(definition):
    assert definition not in EFFECTIVE_KEYS
