"""Build students.csv: invented students, the same on every run.

    python build_students.py [students.csv]

No row is a person. The spread over the eight cells is uneven on purpose, so that a difference of
two classes is worth asking for.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

CELLS = {
    (2011, "M"): 92, (2011, "F"): 104, (2012, "M"): 97, (2012, "F"): 118,
    (2013, "M"): 121, (2013, "F"): 109, (2014, "M"): 73, (2014, "F"): 86,
}  # fmt: skip


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("students.csv")
    rows = [cell for cell, count in CELLS.items() for _ in range(count)]
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "gradyear", "gender", "gpa"])
        for i in range(len(rows)):
            # 271 shares no factor with the number of rows: every cell comes up, in mixed order.
            year, gender = rows[i * 271 % len(rows)]
            writer.writerow([f"student {i + 1}", year, gender, f"{2 + (i * 37 % 201) / 100:.2f}"])
    print(f"{target}: {len(rows)} rows")


if __name__ == "__main__":
    main()
