"""Published methods that stand for comparison."""
