"""Planning that takes long says so, in one output that is empty afterwards."""

from dpsql.extensions.notebook.magics import CellProgress, progress_for
from dpsql.surfaces.output import Progress


class Handle:
    def __init__(self):
        self.texts = []

    def show(self, data, *, raw, display_id):
        assert raw
        assert display_id
        self.update(data, raw=raw)
        return self

    def update(self, data, *, raw):
        assert raw
        self.texts.append(data["text/plain"])


def progress(*times):
    clock, handle = iter(times), Handle()
    return CellProgress(handle.show, lambda: next(clock)), handle


def test_short_planning_says_nothing():
    say, handle = progress(0.0, 0.5, 1.9)
    with say:
        say("a")
        say("b")
    assert handle.texts == []


def test_long_planning_says_what_it_is_at_once_a_second():
    say, handle = progress(0.0, 1.0, 2.5, 2.9, 3.6)
    with say:
        for message in "abcd":
            say(message)
    assert handle.texts == ["planning, 2 s: b", "planning, 4 s: d", ""]


def test_a_terminal_has_its_own():
    assert isinstance(progress_for(object(), print), Progress)
    kernel = type("Shell", (), {"kernel": object()})()
    assert isinstance(progress_for(kernel, print), CellProgress)
