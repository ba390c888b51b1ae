"""Scripts by which shells complete commands, options and their values, made from the grammar of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from dpsql.surfaces.grammar import grammar, groups

_BASH = """\
_dpsql() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} offered= start=2
    case "$command" in @groups@) command="$command ${COMP_WORDS[2]}"; start=3 ;; esac
    if (( COMP_CWORD == 1 )); then
        offered="@commands@"
    elif (( COMP_CWORD < start )); then
        case "${COMP_WORDS[1]}" in
@within@
        esac
    else
        case "$command $before" in
@values@
        *)
            [[ $word == -* ]] && case "$command" in
@options@
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$offered" -- "$word"))
}
complete -o bashdefault -o default -F _dpsql dpsql
"""
"""Where nothing is offered, bash completes names of files."""


def completion(options: argparse.Namespace) -> None:
    """Print the script of a shell."""
    print(script(options.shell), end="")


def script(shell: str) -> str:
    """The script of "bash", "zsh" (by its own reader of bash's completions) or "fish"."""
    if shell == "fish":
        return "".join(f"complete -c dpsql {line}\n" for line in _fish())
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + _bash()


def _bash() -> str:
    commands, within, values, chosen = [], dict.fromkeys(groups(), ""), [], []
    for command, _, lines in grammar():
        group, _, name = command.rpartition(" ")
        commands.append(group or name)
        if group:
            within[group] += f" {name}"
        every: list[str] = []
        for option in lines:
            every += option.flags
            if option.choices:
                before = "|".join(f'"{command} {flag}"' for flag in option.flags or [name])
                values.append(f'        {before}) offered="{" ".join(option.choices)}" ;;')
        chosen.append(f'            "{command}") offered="{" ".join(every)}" ;;')
    parts = {
        "groups": "|".join(groups()),
        "commands": " ".join(dict.fromkeys(commands)),
        "within": "\n".join(f'        {group}) offered="{names.strip()}" ;;' for group, names in within.items()),
        "values": "\n".join(values),
        "options": "\n".join(chosen),
    }
    text = _BASH
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _fish() -> Iterator[str]:
    for group, (said, _) in groups().items():
        yield f"-n __fish_use_subcommand -a {group} -d {_quoted(said)}"
    for command, said, lines in grammar():
        group, _, name = command.rpartition(" ")
        first = f"'__fish_seen_subcommand_from {group}'" if group else "__fish_use_subcommand"
        yield f"-n {first} -a {name} -d {_quoted(said)}"
        seen = f"'__fish_seen_subcommand_from {group}; and __fish_seen_subcommand_from {name}'"
        seen = seen if group else f"'__fish_seen_subcommand_from {name}'"
        for option in lines:
            named = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
            takes = ["-r"] if named and option.value else []
            offers = [f"-f -a {_quoted(' '.join(option.choices))}"] if option.choices else []
            if named or offers:
                yield " ".join([f"-n {seen}", *named, *takes, *offers, f"-d {_quoted(option.meaning)}"])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
