"""PostgreSQL's protocol as the server speaks it: messages, types, sign-in, settings, SQLSTATEs, parts of a text."""
