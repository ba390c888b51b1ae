"""Extensions of dpsql: each package adds one capability to the kernel and is described in its README."""
