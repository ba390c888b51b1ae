"""Work that takes long says so, in one output of the cell that is empty afterwards."""

from __future__ import annotations

from contextlib import contextmanager

from dpsql.common import progress
from dpsql.extensions.notebook.magics import over_output, progress_for


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


class Kernel:
    kernel = object()


def test_one_output_is_written_over_and_emptied():
    handle, times = Handle(), iter([0.0, 1.9, 2.5, 7.0])
    with progress.Line(over_output(handle.show), lambda: next(times)) as line:
        line("planning")
        line.tick()
        assert handle.texts == []
        line.tick()
        line(progress.MEASURING)
        line.tick()
    assert handle.texts == ["planning, 2 s", "reading rows, 7 s", ""]


def test_a_cell_says_that_planning_goes_on_and_that_rows_are_read(monkeypatch):
    stages = []

    class Recorded(progress.Line):
        def __call__(self, text):
            stages.append(text)

    monkeypatch.setattr(progress, "Line", Recorded)
    with progress_for(Kernel(), Handle().show):
        progress.say("planning: identity: error 5, best so far")
        progress.say(progress.MEASURING)
    assert stages == ["planning: looking for the least error", "reading rows"]
    assert not progress.is_heard()


def test_a_terminal_has_its_own_line(monkeypatch):
    entered = []

    @contextmanager
    def shown():
        entered.append(True)
        yield

    monkeypatch.setattr(progress, "shown", shown)
    with progress_for(object(), print):
        assert entered
