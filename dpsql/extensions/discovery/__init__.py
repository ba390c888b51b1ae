"""Finding privately what a policy leaves open: values, bounds, rows; and counts by groups of which most are empty."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "discovery",
    "finds privately what a policy leaves open, and counts by groups of which most are empty",
    commands="dpsql.extensions.discovery.command_line:COMMANDS",
    options="dpsql.extensions.discovery.command_line:OPTIONS",
    connection="dpsql.extensions.discovery.discovering:Discovering",
    methods={"sparse": "dpsql.extensions.discovery.sparse_plan:make_sparse_plan"},
    provides={
        "plan_with_finding": "dpsql.extensions.discovery.discovering:planned_with_finding",
        "find_groups": "dpsql.extensions.discovery.discovering:plan_over_groups",
        "measure_losses": "dpsql.extensions.discovery.discovering:losses_measured",
        "free_answer": "dpsql.extensions.discovery.counts_from_discovery:counted_before",
    },
)
