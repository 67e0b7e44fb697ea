"""Pack a commit, the data and the encoder into one ignored folder, for a machine without network or history.

    python experiments/consistency/pack.py --data DATA --records results/consistency/*.jsonl.gz
    bash carry/go.sh understanding,builtin 540            # there: contests, seconds; then processes, further flags

A tree with uncommitted changes is refused. ``--commit`` packs another commit or tag than the one that is checked out;
all runs of a contest come from one. ``carry/go.sh`` unpacks, starts CUDA's MPS where there is a GPU, and works the
queue off; records are in ``$OUT/runs.jsonl.gz``, to be merged by collect.py. The encoder is ADVREG_MINILM's or the
installed one.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import builtin_data

ROOT = Path(__file__).resolve().parents[2]
TASKS = ("rte", "mrpc", "cola", "stsb", "sst2", "mr")
CORPORA = ("multi30k_en-de", "multi30k_en-fr")
PACKAGES = (
    "sacrebleu",
    "portalocker",
    "colorama",
    "tabulate",
)  # of pure Python, which the machine may lack
MOST_MIB = 64

_GO = """\
#!/bin/bash
# usage: bash carry/go.sh CONTESTS SECONDS [PROCESSES] [FLAGS OF work.py]
set -eu
here=$(cd "$(dirname "$0")" && pwd); contests=$1; seconds=$2; jobs=${{3:-15}}; shift $(($# < 3 ? $# : 3))
begun=$(date +%s); home=/tmp/consistency-{short}; out=${{OUT:-$home/out}}; mkdir -p "$home" "$out"
if [ ! -f "$home/unpacked" ]; then
  for part in "$here"/*.tar.*; do tar xf "$part" -C "$home"; done
  touch "$home/unpacked"
fi
export ADVREG_COMMIT={commit} ADVREG_TREE=clean ADVREG_MINILM=$home/minilm OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
export PYTHONPATH=$home/src:$home/site PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
if command -v nvidia-cuda-mps-control >/dev/null; then
  echo get_server_list | nvidia-cuda-mps-control >/dev/null 2>&1 || nvidia-cuda-mps-control -d || true
fi
[ ! -f "$home/runs.jsonl.gz" ] || cp "$home/runs.jsonl.gz" "$out/"   # of an earlier call on this machine
left=$((seconds - ($(date +%s) - begun)))
python3 "$home/experiments/consistency/work.py" --contests "$contests" --data "$home/data" --out "$out/runs.jsonl.gz" \\
  --known $(ls "$here"/records/*.jsonl.gz 2>/dev/null || true) --jobs "$jobs" --seconds "$left" \\
  --scratch "$home/scratch" "$@" 2>&1 | tee "$out/log" || true
cp "$out/runs.jsonl.gz" "$home/" 2>/dev/null || true
"""


def main() -> None:
    asked = read_flags()
    commit = git("rev-parse", f"{asked.commit}^{{commit}}")
    if changes := git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(
            f"the tree must have no uncommitted changes, got:\n{changes}\ncommit or stash them"
        )
    shutil.rmtree(asked.target, ignore_errors=True)
    asked.target.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar.gz", commit, "src", "experiments/consistency"],
        check=True, capture_output=True,
    )  # fmt: skip
    (asked.target / "code.tar.gz").write_bytes(archive.stdout)
    pack_data(
        asked.target / "data.tar.gz", asked.data, asked.tasks.split(","), asked.corpora.split(",")
    )
    pack_encoder(asked.target / "minilm.tar.xz")
    pack_packages(asked.target / "site.tar.gz")
    (asked.target / "records").mkdir()
    for path in asked.records:
        shutil.copy(path, asked.target / "records" / f"{path.parent.name}-{path.name}")
    (asked.target / "go.sh").write_text(_GO.format(commit=commit, short=commit[:10]))
    size = sum(path.stat().st_size for path in asked.target.rglob("*") if path.is_file()) / 2**20
    print(
        f"{asked.target}: {size:.1f} MiB of commit {commit[:10]}; with the tree it must stay below "
        f"{MOST_MIB}"
    )


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=ROOT / "carry")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("ADVREG_DATA"), help="else ADVREG_DATA's"
    )
    parser.add_argument("--commit", default="HEAD", help="commit or tag to pack")
    parser.add_argument("--records", type=Path, nargs="*", default=[], help="of runs that are done")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--corpora", default=",".join(CORPORA))
    asked = parser.parse_args()
    if asked.data is None:
        parser.error("--data must name the folder with nlu/ and mt/, or ADVREG_DATA must")
    asked.data = Path(asked.data)
    return asked


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def pack_data(path: Path, data: Path, tasks: list[str], corpora: list[str]) -> None:
    """What the contests read; it is compressed already."""
    with tarfile.open(path, "w:gz") as tar, tempfile.TemporaryDirectory() as scratch:
        for name in (*(f"nlu/{task}" for task in tasks), *(f"mt/{corpus}" for corpus in corpora)):
            if not (data / name).is_dir():
                sys.exit(
                    f"data must hold {name}, got '{data}' without it; leave it out by --tasks or "
                    "--corpora"
                )
            tar.add(data / name, f"data/{name}")
        builtin_data.write(Path(scratch))
        tar.add(scratch, f"data/{builtin_data.FOLDER}")


def pack_encoder(path: Path) -> None:
    """MiniLM with weights in float16."""
    from transformers import AutoModel, AutoTokenizer

    from advreg.lab.kinds.models import model_folder

    folder = model_folder("minilm")
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(path, "w:xz") as tar:
        AutoModel.from_pretrained(folder).half().save_pretrained(scratch)
        AutoTokenizer.from_pretrained(folder).save_pretrained(scratch)
        tar.add(scratch, "minilm")


def pack_packages(path: Path) -> None:
    """Packages as they are installed here, and an empty lxml, which sacrebleu imports and does not
    need for a score.
    """
    with tarfile.open(path, "w:gz") as tar:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                sys.exit(f"{name} must be installed here to be packed; pip install {name}")
            place = Path(spec.origin)
            tar.add(place.parent if place.name == "__init__.py" else place, f"site/{place.parent.name}"
                    if place.name == "__init__.py" else f"site/{place.name}")  # fmt: skip
        for stub in ("site/lxml/__init__.py", "site/lxml/etree.py"):
            tar.addfile(tarfile.TarInfo(stub), io.BytesIO())


if __name__ == "__main__":
    main()
