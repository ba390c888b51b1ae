"""What each stage made of the statements of a batch, for ``dpsql plan --stages``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from dpsql.planning.prepare import understood_for
from dpsql.policy import Policy
from dpsql.sql.parse.stages import STAGES, Heard, listening


def stages_of(sql: str, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Heard:
    """The stages that the statements pass, in order, each with what it made. Plans nothing; raises as ``prepare``."""
    with listening() as heard:
        understood_for(sql, policy, schemas)
    return heard


def stages_text(heard: Sequence[tuple[str, str]]) -> str:
    """The same for people: what a stage leaves as it was is not printed again."""
    does = {stage.name: stage.does for stage in STAGES}
    lines, before = [], ""
    for name, made in heard:
        same = made == before
        lines += [f"{name:<10} {does[name]}", textwrap.indent("unchanged" if same else made, "  "), ""]
        before = made
    return "\n".join(lines).rstrip()
