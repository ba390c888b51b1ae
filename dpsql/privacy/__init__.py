"""What a release costs, the noise that pays for it, and the ledger that remembers.

``calibrate`` turns (epsilon, delta) into the one number mu of a Gaussian release and
back; ``noise`` draws exact integers; ``accountant`` knows accounts, requests and charges;
``ledger`` is the durable store. None of them ever sees private data.
"""
