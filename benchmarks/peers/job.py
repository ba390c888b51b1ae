"""What a peer's script shares: its task comes on standard input, its answers go to a file, both as JSON."""

import contextlib
import importlib.metadata
import json
import resource
import sys
import time


class Clock:
    """Seconds of the last block."""

    seconds = 0.0


@contextlib.contextmanager
def clock():
    """Measure a block's wall time."""
    found, began = Clock(), time.perf_counter()
    yield found
    found.seconds = time.perf_counter() - began


def peak_mb():
    """What this process has held at most; on Linux getrusage would count what the parent held before it, too."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return int(status.read().partition("VmHWM:")[2].split()[0]) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(main, package):
    """Run ``main(task)``, which yields (seconds, answers) for every release, and write what it found."""
    task = json.load(sys.stdin)
    seconds, answers = [], []
    for took, found in main(task):
        seconds.append(took)
        answers.append(found)
    peak = peak_mb()
    version = importlib.metadata.version(package)
    with open(task["result"], "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds, "answers": answers, "peak_mb": peak, "version": version}, file)
