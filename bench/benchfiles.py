"""The files in which the scripts of this directory leave their samples."""

import json


def write_samples(directory, name, keys, rows, whole):
    """NAME.tsv with the rows, and NAME.json with `whole` and the rows as objects, in a directory that is made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in [keys, *rows]]
    (directory / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    whole = whole | {"samples": [dict(zip(keys, row)) for row in rows]}
    (directory / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
