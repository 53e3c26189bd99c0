"""The files of the scripts of this directory: programs that they compile, and their samples."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def program(name):
    """Where a compiled program is."""
    return ROOT / "target/bench" / name


def compiled(source):
    """A program of the given C source."""
    path = program(pathlib.Path(source).stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-o", path, ROOT / source], check=True)
    return path


def write_samples(directory, name, keys, rows, whole):
    """NAME.tsv with the rows, and NAME.json with `whole` and the rows as objects, in a directory that is made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in [keys, *rows]]
    (directory / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    whole = whole | {"samples": [dict(zip(keys, row)) for row in rows]}
    (directory / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
