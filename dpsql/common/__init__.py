"""What every room may use: checks of arguments, array types, names of files in SQL, locks and memory."""
