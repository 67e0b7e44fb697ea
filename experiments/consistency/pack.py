"""Pack a commit, the data and the models into one ignored folder, for a machine without network or
history.

    python experiments/consistency/pack.py --data DATA --records results/consistency/*.jsonl.gz
    bash carry/go.sh understanding,builtin 540  # there: contests, seconds; processes, more flags

The encoder is 39 MiB, too much for one call with tree and records. Two calls follow each other
while the machine stays warm:

    1. carry carry/weights    mkdir -p /tmp/advreg-weights && cp carry/weights/* /tmp/advreg-weights/
    2. carry carry/environment.sh carry/go.sh carry/code.tar.gz carry/data.tar.gz carry/site.tar.gz
             carry/records    bash carry/go.sh understanding,confirmation 570 15

A tree with uncommitted changes is refused. ``--commit`` packs another commit or tag than the one
that is checked out; all runs of a contest come from one. ``carry/go.sh`` unpacks, starts CUDA's MPS
where there is a GPU, and works the queue off; records are in ``$OUT/runs.jsonl.gz``, to be merged
by collect.py. The encoder is ADVREG_MINILM's or the installed one; without tasks there is none.

The contest ``language`` needs SmolLM2-135M, whose weights do not fit in one call and go there in
parts. SMOLLM2 is a folder with its config, tokenizer and GGUF file, the file whole (``*.gguf``) or
in parts (``part-0``, ``part-1``, …):

    python experiments/consistency/pack.py --data DATA --tasks "" --corpora "" --smollm2 SMOLLM2
    [--records …]

packs ``carry/weights/part-0`` to ``part-2``, 31 MiB each, and all else in 4 MiB. Three calls follow
each other while the machine stays warm (it waits 30 seconds for the next one):

    1. carry carry/weights/part-0    mkdir -p /tmp/advreg-weights && cp carry/weights/part-0
        /tmp/advreg-weights/
    2. carry carry/weights/part-1    mkdir -p /tmp/advreg-weights && cp carry/weights/part-1
        /tmp/advreg-weights/
    3. carry carry/weights/part-2 carry/environment.sh carry/go.sh carry/code.tar.gz
        carry/data.tar.gz
             carry/site.tar.gz carry/smollm2.tar.gz carry/records
                                     bash carry/go.sh language 540 8

Call 3 puts the parts together, compares the checksum, and dequantises them once. Repeated on that
machine it resumes from the checkpoints of the stopped runs; a fresh machine needs all
three calls, and the records so far in ``--records``.

The sketch curve (sketch_curve.py) needs the same with ``--corpora multi30k_en-de``, and as the
third command:

    . carry/environment.sh && python3 $home/experiments/consistency/sketch_curve.py --data
    $home/data \\
        --out $OUT/sketch.json
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
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
WEIGHTS = "weights"
ENCODER = "minilm.tar.xz"
SETS = ("gsm8k", "e2e_low")
MOST_MIB = 64
PART_MIB = 40  # of weights; the tree adds 17

_ENVIRONMENT = """\
# usage: . carry/environment.sh   unpacks what was carried, once, and sets what Python needs
set -eu
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
home=/tmp/consistency-{short}; out=${{OUT:-$home/out}}; mkdir -p "$home" "$out"
if [ ! -f "$home/unpacked" ]; then
  for part in "$here"/*.tar.*; do tar xf "$part" -C "$home"; done
  touch "$home/unpacked"
fi
weights=/tmp/advreg-weights; smollm2=$home/smollm2; mkdir -p "$weights"
cp "$here"/weights/* "$weights/" 2>/dev/null || true
if [ -n "{encoder}" ] && [ ! -d "$home/minilm" ]; then
  [ -f "$weights/{encoder}" ] || {{ echo "carry carry/weights/{encoder} first"; exit 1; }}
  tar xf "$weights/{encoder}" -C "$home"
fi
if [ -d "$smollm2" ] && [ ! -f "$smollm2/model.safetensors" ]; then
  cat "$weights"/part-* > "$smollm2/model.gguf"
  (cd "$smollm2" && sha256sum -c model.gguf.sha256) || {{ echo "carry all parts of the weights first"; exit 1; }}
  python3 "$home/experiments/consistency/gguf_weights.py" "$smollm2/model.gguf" "$smollm2"
  rm "$smollm2/model.gguf"
fi
export ADVREG_SMOLLM2=$smollm2
export ADVREG_COMMIT={commit} ADVREG_TREE=clean ADVREG_MINILM=$home/minilm OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
export PYTHONPATH=$home/src:$home/site PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
"""
_GO = """\
#!/bin/bash
# usage: bash carry/go.sh CONTESTS SECONDS [PROCESSES] [FLAGS OF work.py]
begun=$(date +%s); . "$(dirname "$0")/environment.sh"
contests=$1; seconds=$2; jobs=${3:-15}; shift $(($# < 3 ? $# : 3))
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
    folders = [
        *(f"nlu/{task}" for task in asked.tasks),
        *(f"mt/{corpus}" for corpus in asked.corpora),
    ]
    if asked.smollm2 is not None:
        folders += [*(f"sft/{name}" for name in SETS), "mt/newstest_de-en/newstest2014.en.xz"]
        pack_language_model(asked.target, asked.smollm2)
    pack_data(asked.target / "data.tar.gz", asked.data, folders)
    if asked.tasks:
        (asked.target / WEIGHTS).mkdir(exist_ok=True)
        pack_encoder(asked.target / WEIGHTS / ENCODER)
    pack_packages(asked.target / "site.tar.gz")
    (asked.target / "records").mkdir()
    for path in asked.records:
        shutil.copy(path, asked.target / "records" / f"{path.parent.name}-{path.name}")
    (asked.target / "environment.sh").write_text(
        _ENVIRONMENT.format(
            commit=commit, short=commit[:10], encoder=ENCODER if asked.tasks else ""
        )
    )
    (asked.target / "go.sh").write_text(_GO)
    size = mebibytes(path for path in asked.target.rglob("*") if path.parent.name != WEIGHTS)
    print(
        f"{asked.target}: {size:.1f} MiB of commit {commit[:10]}; with the tree it must stay below "
        f"{MOST_MIB}"
    )
    for part in sorted((asked.target / WEIGHTS).glob("*")):
        print(f"{part}: {mebibytes([part]):.1f} MiB, in a separate call")


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
    parser.add_argument(
        "--tasks", type=names, default=TASKS, help="separated by commas; '' for none"
    )
    parser.add_argument("--corpora", type=names, default=CORPORA, help="the same")
    parser.add_argument(
        "--smollm2", type=Path, help="folder of SmolLM2-135M, for the contest language"
    )
    asked = parser.parse_args()
    if asked.data is None:
        parser.error("--data must name the folder with nlu/ and mt/, or ADVREG_DATA must")
    asked.data = Path(asked.data)
    return asked


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def mebibytes(paths: Iterable[Path]) -> float:
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def pack_data(path: Path, data: Path, wanted: Sequence[str]) -> None:
    """What the contests read; it is compressed already."""
    with tarfile.open(path, "w:gz") as tar, tempfile.TemporaryDirectory() as scratch:
        for name in wanted:
            if not (data / name).exists():
                sys.exit(
                    f"data must hold {name}, got '{data}' without it; leave it out by --tasks or "
                    "--corpora"
                )
            tar.add(data / name, f"data/{name}")
        builtin_data.write(Path(scratch))
        tar.add(scratch, f"data/{builtin_data.FOLDER}")


def pack_language_model(target: Path, folder: Path) -> None:
    """Config, tokenizer and checksum in an archive; the weights, still quantised, in parts."""
    found = sorted(folder.glob("*.gguf"))[:1] or sorted(folder.glob("part-*"))
    if not found or not (folder / "config.json").is_file():
        sys.exit(
            "--smollm2 must name a folder with config.json and a .gguf file or its parts, got "
            f"'{folder}'"
        )
    content = b"".join(path.read_bytes() for path in found)
    (target / WEIGHTS).mkdir(exist_ok=True)
    for number, part in enumerate(in_parts(content, PART_MIB * 2**20)):
        (target / WEIGHTS / f"part-{number}").write_bytes(part)
    checksum = f"{hashlib.sha256(content).hexdigest()}  model.gguf\n".encode()
    with tarfile.open(target / "smollm2.tar.gz", "w:gz") as tar:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*.jinja")]):
            tar.add(path, f"smollm2/{path.name}")
        entry = tarfile.TarInfo("smollm2/model.gguf.sha256")
        entry.size = len(checksum)
        tar.addfile(entry, io.BytesIO(checksum))


def in_parts(content: bytes, most: int) -> list[bytes]:
    """Parts of nearly equal size, none above ``most`` bytes."""
    count = -(-len(content) // most)
    size = -(-len(content) // count)
    return [content[first : first + size] for first in range(0, len(content), size)]


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
