"""The public face of local releases: ``dpsql.local.device`` randomises a record on the device of its owner."""
