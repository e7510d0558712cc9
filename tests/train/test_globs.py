"""Patterns mean what a shell with ``**`` means by them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import DataError
from gruppetto.train.globs import matcher


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txt2", "atxt"]),
        ("**/*.txt", ["a.txt", "a/b.txt", "a/b/c.txt"], ["a/b.c"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a", "a"]),
        ("**", ["a", "a/b", "a\nb"], []),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/xb"]),
        ("?.[ch]", ["a.c", "é.h"], ["/.c", "a.x", "ab.c"]),
        ("[!a-c]", ["d", "-"], ["a", "b", "/"]),
        ("[]]", ["]"], ["["]),
        ("[a", ["[a"], ["a"]),
        ("(a|b)+$", ["(a|b)+$"], ["a", "ab"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    find = matcher(pattern).fullmatch
    assert [path for path in yes if not find(path)] == [] and [path for path in no if find(path)] == []


@given(st.text("ab/*?[]!-^&~|\\.é", max_size=12))
def test_any_text_is_a_pattern(pattern: str) -> None:
    try:
        find = matcher(pattern).fullmatch
    except DataError as error:
        assert re.search(r"\[.+-.+\]", pattern) and "\n" not in str(error)
    else:
        assert find(pattern) or re.search(r"[*?\[]", pattern)
