"""Merge records that came back from another machine into one file; a run that is there already is left alone.

python experiments/consistency/collect.py results/consistency/runs.jsonl.gz FOLDER/runs.jsonl.gz …
"""

from __future__ import annotations

import sys
from pathlib import Path

from advreg.records.log import RecordLog


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    kept = RecordLog(sys.argv[1])
    known = {record.name for record in kept.records()}
    for path in map(Path, sys.argv[2:]):
        fresh = [record for record in RecordLog(path).records() if record.name not in known]
        for record in fresh:
            kept.append(record)
            known.add(record.name)
        print(f"{path}: {len(fresh)} new records")
    print(f"{kept.path}: {len(known)} records")


if __name__ == "__main__":
    main()
