"""Scripts of shells: what bash would offer at a place of a command, and every command in the others."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from dpsql.surfaces.cli import main
from dpsql.surfaces.completion import script
from dpsql.surfaces.grammar import grammar

OFFERED = {
    "p": "plan policy",
    "releases ": "list show rename drop export rebuild",
    "releases sh": "show",
    "plan --max": "--max-error",
    "plan --method ": "auto adaptive sparse mwem mwem-strategy",
    "releases export --format ": "table csv json parquet duckdb",
    "completion ": "bash zsh fish",
    "plan ba": "",  # names of files
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_commands_options_and_values() -> None:
    lines = [script("bash")]
    for typed in OFFERED:
        *words, last = typed.split(" ")
        quoted = " ".join(["dpsql", *words, f'"{last}"'])
        lines.append(f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) + 1}; _dpsql; echo "${{COMPREPLY[*]}}"')
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert dict(zip(OFFERED, done.stdout.split("\n"), strict=False)) == OFFERED


def test_every_command_and_option_is_in_each_script(capsys: pytest.CaptureFixture[str]) -> None:
    zsh, fish = script("zsh"), script("fish")
    assert zsh.startswith("autoload")
    assert script("bash") in zsh
    for command, _, lines in grammar():
        assert f'"{command}") offered=' in zsh
        assert f"-a {command.split()[-1]} -d" in fish
        for option in lines:
            for flag in (flag for flag in option.flags if flag.startswith("--")):
                assert f" {flag}" in zsh or f'"{flag}' in zsh
                assert f"-l {flag[2:]} " in fish
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "invalid choice" in capsys.readouterr().err


def test_the_version_imports_nothing_else() -> None:
    code = "import sys; from dpsql.surfaces.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'duckdb', 'sqlglot', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]
