"""Digests depend on the value, not on how it was put together."""

import hashlib

import pytest

from schemas.digest import canonical_json, digest, sha256


def test_canonical_json_is_sorted_compact_utf8() -> None:
    assert canonical_json({"b": [1, 2.5, None, True], "a": {"ü": "€", "A": ""}}) == (
        '{"a":{"A":"","ü":"€"},"b":[1,2.5,null,true]}'.encode()
    )
    assert canonical_json({"x": 1, "y": 2}) == canonical_json({"y": 2, "x": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_say_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json([value])


def test_digests_are_sha256_in_hex() -> None:
    assert sha256(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert digest({"a": 1}) == sha256(b'{"a":1}')
