"""SQL over what is released: which functions it may call, and how much it can take, decided before it runs."""
