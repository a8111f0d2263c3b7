"""Input files made bad: bytes changed at random, and values that no honest file holds."""

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: Examples of each fuzzed reader; a long run sets more.
EXAMPLES = int(os.environ.get("HEADSCOPE_FUZZ", "12"))


fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=20_000,  # ms: whatever a file holds, it is read or refused soon
    suppress_health_check=list(HealthCheck),
    derandomize=EXAMPLES <= 100,
)
#: A tenth as often, for what takes a tenth of a second.
fuzzed_slowly = settings(fuzzed, max_examples=max(4, EXAMPLES // 10))

_DEEP = "[" * 100_000
#: Pieces of text that readers have stumbled over somewhere.
PIECES: list[bytes] = [
    b"",
    b"\0",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b'"',
    b"'",
    b",",
    b"#",
    b"_",
    b"-",
    b"\\",
    b"%s",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"\x1b[2J",
    "٣²".encode(),
    b"0",
    b"-1",
    b"1e999",
    b"nan",
    b"inf",
    b"1_0",
    b"9" * 30,
    b"9" * 5000,
    b"1-2",
    b"3.1",
    b"[",
    b"]",
    b"{",
    b"}",
    b"null",
    b"true",
    b"{}",
    b"[]",
    _DEEP.encode(),
    b'{"a":' * 50_000,
    b"a" * 200_000,
    b"\t" * 20_000,
    b"L0H0",
    b"L*H*",
    b"label",
    b"sentence1\tsentence2\tscore",
    b"\\ud800",
    b"\\u0000",
    b"NaN",
    b"-Infinity",
    b"[[a]]",
    b"a.b.c = 1",
    b"'''",
    b'"""',
]
#: Values in the place of others.
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    7,
    2**31,
    2**63,
    10**30,
    -(10**18),
    0.5,
    -0.1,
    1e308,
    "",
    "x",
    "0",
    "../../x",
    "a\0b",
    "\ud800",
    "x\x1b[2J\u202e",
    "x" * 10_000,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [1, 2, 3],
    ["a"],
    {"0": [0]},
    [0] * 1000,
]


@st.composite
def changed_bytes(draw: st.DrawFn, original: bytes) -> bytes:
    """Bytes with a few places cut, doubled, overwritten, or with something put in."""
    data = original
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from((0, 1, 2, 8, 60, 10**9)))
        copied = st.just(data[position : position + size])
        piece = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=12), copied))
        data = data[:position] + piece + data[position + draw(st.sampled_from((0, size))) :]
    return data


@st.composite
def changed_values(draw: st.DrawFn, document: Any) -> Any:
    """A document of plain values in which a few stand for others, or are gone."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.integers(0, 5)) == 0:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        if not document:
            break
    return document


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list) and len(value) < 200:
            yield from _places(value)
