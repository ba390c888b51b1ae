"""The command that installs the packages of an optional extra, for however dpsql itself was installed."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

_MARKER = re.compile(r'\s*;.*extra\s*==\s*["\']([\w-]+)["\']')


def install_command(extra: str) -> str:
    """``python -m pip install 'matplotlib>=3.8'`` for the extra ``plot``; uv's and pipx's where these manage dpsql.

    The packages are named instead of the extra, so that the command works from a checkout, a wheel and an index alike.
    They are those of the installed metadata; where there are none, a sentence says where they are listed.
    """
    try:
        dpsql = metadata.distribution("dpsql")
    except metadata.PackageNotFoundError:
        return f"the packages that pyproject.toml lists for the extra {extra}"
    packages = []
    for requirement in dpsql.requires or []:
        marker = _MARKER.search(requirement)
        if marker is not None and marker[1] == extra:
            packages.append(f"'{requirement[: marker.start()]}'")
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return f"pipx inject dpsql {' '.join(packages)}"
    installer = (dpsql.read_text("INSTALLER") or "").strip()
    return f"{'uv pip' if installer == 'uv' else 'python -m pip'} install {' '.join(packages)}"
