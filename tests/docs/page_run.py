"""Run one page of the documentation from its first line to its last, as a reader would.

    python tests/docs/page_run.py docs/tutorial.md            say what does not hold
    python tests/docs/page_run.py docs/tutorial.md --write    put what is printed into its output blocks

Blocks of a page share one folder, which has ``sql_examples``, one Python namespace and one shell environment. A
``python`` block shows the value of a last line that is an expression, as a notebook does. ``sql`` goes to the
function ``ask`` of the page's set-up; ``toml`` must be a policy, or a part of one; lines of a ``console`` block
that begin with ``$ `` are commands and the others what they print; ``bash`` is a script. What is refused shows as
``Name of the error: message``, and the page must show it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snippets import LANGUAGES, Snippet, difference, snippets

import dpsql
from dpsql.policy import Policy

ROOT = Path(__file__).parents[2]
OUTPUTS = ("text", "json")
PROGRESS = re.compile(r"^dpsql: [a-z ]+, \d+ s: .*\n", re.MULTILINE)  # printed where a machine is slow


class Wrong(Exception):  # noqa: N818 - what it says is not an error of the program
    """A snippet that does not hold."""


class Page:
    """A page as it runs: one namespace, one folder, one environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.shell: Any = None
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "MPLBACKEND": "agg",
        }

    def run(self, snippet: Snippet) -> str:
        """What a snippet prints. Raises Wrong where it fails as no page may."""
        text = snippet.text
        if snippet.language in ("setup", "python"):
            return self.python(text)
        if snippet.language == "sql":
            return self.python(f"ask({text!r})")
        if snippet.language == "toml":
            check_policy(text)
            return ""
        return self.script(text)

    def python(self, text: str) -> str:
        """Run Python, or a notebook's cell; what it prints, then the value of its last line or the refusal."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                if self.shell is not None or re.search(r"^%", text, re.MULTILINE):
                    self.cell(text)
                else:
                    self.statements(text)
            except dpsql.Error as error:
                print(f"{type(error).__name__}: {error}")
                for note in getattr(error, "__notes__", ()):
                    print(note)
            except Exception:  # noqa: BLE001 - whatever a snippet raises is the page's fault, and reported
                raise Wrong(traceback.format_exc()) from None
        return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())

    def statements(self, text: str) -> None:
        tree = ast.parse(text)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<page>", "exec"), self.names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<page>", "eval"), self.names)
            if value is not None:
                print(repr(value))

    def cell(self, text: str) -> None:
        """One cell of a notebook, in the same namespace: what it shows as text, and a refusal as the line below it."""
        if self.shell is None:
            from IPython.core.interactiveshell import InteractiveShell

            self.shell = InteractiveShell(user_ns=self.names)
            self.names = self.shell.user_ns
            self.shell.displayhook.write_output_prompt = lambda: None
        done = self.shell.run_cell(text)
        error = done.error_before_exec or done.error_in_exec
        if error is not None and not isinstance(error, dpsql.Error):
            raise error

    def script(self, text: str) -> str:
        """Run a script of the shell in the page's folder; what it prints to either stream."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode and not (done.returncode == 1 and "dpsql: error:" in done.stdout):
            raise Wrong(f"exit code {done.returncode}\n{done.stdout}")
        return PROGRESS.sub("", done.stdout).replace(f"{self.folder}{os.sep}", "")


def check_policy(text: str) -> None:
    """Read a policy. Of a part of one, what is missing is the least that a policy needs."""
    given = tomllib.loads(text)
    budget = "" if "budget" in given else "[budget]\nepsilon = 1.0\ndelta = 1e-9\n"
    if "columns" in given and "tables" not in given:
        text, given = text.replace("[columns", "[tables.visits.columns"), {**given, "tables": None}
    tables = "" if "tables" in given else '[tables.visits]\nunit = "row"\n'
    dataset = "" if "dataset" in given else 'dataset = "page-1"\n'
    Policy.parse(dataset + text + "\n" + budget + tables)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output below it."""
    command: list[str] = []
    output: list[str] = []
    for line in text.split("\n"):
        if line.startswith("$ "):
            if command:
                yield "\n".join(command), "\n".join(output)
            command, output = [line[2:]], []
        elif command and not output and command[-1].endswith("\\"):
            command.append(line)
        else:
            output.append(line)
    yield "\n".join(command), "\n".join(output)


def check(page: Page, text: str) -> tuple[list[str], str]:
    """What of a page does not hold, and its text with the outputs that were printed."""
    wrong: list[str] = []
    lines: list[str] = text.split("\n")
    blocks = snippets(text)
    replaced: list[tuple[Snippet, str]] = []
    for at, block in enumerate(blocks):
        following = blocks[at + 1] if at + 1 < len(blocks) else None
        shown = following if following is not None and following.language in OUTPUTS else None
        if block.language in OUTPUTS or block.marks.keys() & {"skip", "fresh"}:
            continue
        if block.language not in (*LANGUAGES, "setup"):
            wrong.append(f"line {block.line}: a block needs one of the languages {', '.join(LANGUAGES)}")
            continue
        if block.language == "markdown":
            continue
        try:
            if block.language == "console":
                parts = []
                for command, output in commands(block.text):
                    printed = page.script(command)
                    parts.append(f"$ {command}\n{printed}".rstrip("\n"))
                    if said := difference(output, printed, block.marks):
                        wrong.append(f"line {block.line}, $ {command}: {said}")
                replaced.append((block, "\n".join(parts)))
                continue
            printed = page.run(block)
        except Wrong as fault:
            wrong.append(f"line {block.line}: {fault}")
            continue
        if shown is None or block.language == "setup":
            if re.match(r"\w*Error: ", printed):
                wrong.append(f"line {block.line}: {printed}")
            continue
        replaced.append((shown, printed))
        if said := difference(shown.text, printed, shown.marks):
            wrong.append(f"line {shown.line}: {said}")
    for block, printed in reversed(replaced):
        body = [(block.indent + line).rstrip() for line in printed.strip("\n").split("\n")]
        lines[block.first : block.last] = body
    return wrong, "\n".join(lines)


def main(path: Path, *, write: bool = False) -> int:
    """Run the page at ``path`` in a folder of its own; 1 where something does not hold."""
    text = path.read_text(encoding="utf-8")
    os.environ |= {"MPLBACKEND": "agg", "COLUMNS": "120", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory(prefix="dpsql-page-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "sql_examples", folder / "sql_examples", ignore=shutil.ignore_patterns("*.ledger*"))
        os.environ["DPSQL_PAGE"] = str(path)  # for set-ups that use what the page shows
        os.chdir(folder)
        wrong, written = check(Page(folder), text)
        os.chdir(ROOT)
    if write:
        path.write_text(written, encoding="utf-8")
    for said in wrong:
        print(f"{path.name}, {said}\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), write="--write" in sys.argv[2:]))
