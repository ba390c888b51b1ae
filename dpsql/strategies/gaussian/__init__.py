"""The strategy of least total error under Gaussian noise, with its certificate."""
