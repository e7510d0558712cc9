from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ProtocolError
from gruppetto.numerics.runs import MAX_RUNS, MAX_RUNS_CHARS, Runs

NUMEL = 60
ELEMENTS = st.sets(st.integers(0, NUMEL - 1))


def runs_of(elements: set[int]) -> Runs:
    return Runs.of((e, e + 1) for e in elements)


def elements_of(runs: Runs) -> list[int]:
    return [e for start, stop in runs for e in range(start, stop)]


@given(elements=ELEMENTS)
def test_runs_are_their_elements(elements: set[int]) -> None:
    runs = runs_of(elements)
    assert elements_of(runs) == sorted(elements)
    assert runs.numel == len(elements)
    assert all(a[1] < b[0] for a, b in zip(runs.bounds, runs.bounds[1:], strict=False)), "apart"
    assert Runs.decode(runs.encode(), NUMEL) == runs


@given(elements=ELEMENTS, start=st.integers(0, NUMEL), stop=st.integers(0, NUMEL), by=st.integers(0, 9))
def test_clipping_and_shifting(elements: set[int], start: int, stop: int, by: int) -> None:
    runs = runs_of(elements)
    assert elements_of(runs.clipped(start, stop)) == [e for e in sorted(elements) if start <= e < stop]
    assert elements_of(runs.shifted(by)) == [e + by for e in sorted(elements)]


@given(held=ELEMENTS, data=st.data())
def test_places_in_a_vector_that_holds_more(held: set[int], data: st.DataObject) -> None:
    some = data.draw(st.sets(st.sampled_from(sorted(held)))) if held else set()
    places = runs_of(some).within(runs_of(held))
    assert [sorted(held)[place] for place in elements_of(places)] == sorted(some)


@given(text=st.text(st.sampled_from("AQIBgD_-=x "), max_size=12))
def test_any_text_is_runs_or_refused(text: str) -> None:
    try:
        runs = Runs.decode(text, NUMEL)
    except ProtocolError:
        return
    assert runs == runs_of(set(elements_of(runs)))
    assert not runs.bounds or runs.bounds[-1][1] <= NUMEL


def _text(*octets: int) -> str:
    return base64.urlsafe_b64encode(bytes(octets)).decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("é", "not base64url"),
        (_text(0), "pairs are expected"),
        (_text(0, 0), "not apart, or empty"),
        (_text(0, 3, 0, 3), "not apart, or empty"),
        (_text(0, 61), "reach element 61 of 60"),
        (_text(0x80), "cut short"),
        (_text(*[0xFF] * 10, 1), "absurdly large"),
        ("A" * (MAX_RUNS_CHARS + 1), "characters"),
        (_text(*[1] * (2 * MAX_RUNS + 2)), f"{MAX_RUNS} at most"),
    ],
)
def test_nonsense_is_refused(text: str, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        Runs.decode(text, NUMEL)
