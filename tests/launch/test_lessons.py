"""What jobs told of their script survives in a file, whatever else is in it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from maya.launch.lessons import Lesson, Lessons
from maya.launch.roles import Role

ROLES = st.builds(
    Role,
    st.lists(st.integers(0, 9)).map(tuple),
    st.integers(0, 9),
    st.frozensets(st.sampled_from(["all_reduce", "all_gather"])),
)
LESSONS = st.builds(
    Lesson,
    st.text(),
    st.none() | st.booleans(),
    st.none() | st.booleans(),
    st.lists(st.tuples(ROLES, st.booleans())).map(tuple),
    st.booleans(),
    st.frozensets(ROLES),
)


@given(st.lists(LESSONS))
def test_lessons_come_back_in_order_and_once(lessons: list[Lesson]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, reader = (Lessons(Path(folder) / "lessons.jsonl") for _ in range(2))
        half = len(lessons) // 2
        for part in (lessons[:half], lessons[half:]):
            for lesson in part:
                writer.add(lesson)
            assert list(reader.new()) == part
            assert list(reader.new()) == []


@given(st.binary(), LESSONS)
def test_a_damaged_line_is_none(damage: bytes, lesson: Lesson) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lessons.jsonl"
        path.write_bytes(damage + b"\n")
        Lessons(path).add(lesson)
        assert list(Lessons(path).new())[-1] == lesson
        path.write_bytes(path.read_bytes()[:-2])  # killed while it wrote
        assert lesson not in list(Lessons(path).new())


@given(st.text() | st.lists(st.none() | st.text() | st.lists(st.lists(st.integers()))).map(str))
def test_what_is_no_lesson_is_refused(text: str) -> None:
    try:
        Lesson.from_json(text)
    except ValueError:
        return
    raise AssertionError(text)
