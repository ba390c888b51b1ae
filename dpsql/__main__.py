"""``python -m dpsql``: the command line."""

from dpsql.surfaces.cli import main

raise SystemExit(main())
