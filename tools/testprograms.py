"""testprograms - the crates' tests as built programs: for tools/crate-tests and tools/soak."""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# A program uses a CPU for at most a quarter of its time; so do its threads.
THREADS_MIN = 4
# With other input each time, a property test could fail for a change that did not cause it; tools/soak tries new input.
# Half of the usual cases: the input is the same each time, so a fault that they do not meet now they never meet.
# The second chaos seed kills the switch process (`may_die`).
SEEDS = {"PROPTEST_RNG_SEED": "1", "PROPTEST_CASES": "128", "CHAOS_SEED": "1,2,4"}
# Tests make thousands of flow tables, each with 8 MiB of zeroes of which few pages are used. By default glibc allocates
# such memory from its heap once some was freed, and clears it each time; fresh mappings are zero (mallopt(3),
# M_MMAP_THRESHOLD).
MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}
# These start programs without test settings, as users do.
STARTERS = ("lasthop", "lasthop-bench", "lasthop-ovs-glue")
# The lines of a failed test that are shown: the first panic is in the head; the reason and a property test's smallest
# input are in the tail.
HEAD_LINES, TAIL_LINES, LINE_CHARACTERS = 40, 40, 1500
# The harness prints these lines before the output of a failed test, and before the names of all failed tests.
TEST_SAYS = re.compile(r"^(---- .* stdout ----|failures:)$")


def seeds():
    """The variables that select the tests' random input."""
    return SEEDS | {name: os.environ[name] for name in SEEDS if name in os.environ}


class Program:
    """The built tests of a target."""

    def __init__(self, message):
        target, self.path = message["target"], message["executable"]
        self.home = pathlib.Path(message["manifest_path"]).parent
        # "path+file:///crates/core/ring#lasthop-ring@0.1.0", where the name is left out if it is the directory's.
        location, _, name = message["package_id"].rpartition("#")
        self.package = name.partition("@")[0] if "@" in name else pathlib.Path(location).name
        self.is_unit = target["kind"] != ["test"]
        self.target = target["name"]
        self.name = f"{self.package}:{'unit' if self.is_unit else self.target}"

    def is_one_of(self, names):
        return self.name in names or self.package in names

    def start(self, words, output, env):
        """Starts it as cargo would."""
        threads = os.environ.get("RUST_TEST_THREADS", str(max(len(os.sched_getaffinity(0)), THREADS_MIN)))
        malloc = {} if self.package in STARTERS else MALLOC
        env = malloc | os.environ | {"CARGO_MANIFEST_DIR": str(self.home), "RUST_TEST_THREADS": threads} | env
        options = {"cwd": self.home, "env": env, "stdin": subprocess.DEVNULL}
        return subprocess.Popen([self.path, *words], stdout=output, stderr=output, **options)


def build(*options):
    """Builds the tests of all crates at once; a single package's tests would be built again with other features.

    LASTHOP_TEST_PROGRAMS may name a file: the first call lists them there, and later ones take them from it. So they do
    not wait for another cargo.
    """
    listed = pathlib.Path(os.environ["LASTHOP_TEST_PROGRAMS"]) if "LASTHOP_TEST_PROGRAMS" in os.environ else None
    if listed and listed.exists():
        return programs(listed.read_text())
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics", *options]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    if listed:
        listed.write_text(built.stdout)
    return programs(built.stdout)


def programs(text):
    """The programs in cargo's messages."""
    messages = map(json.loads, text.splitlines())
    return [Program(m) for m in messages if m.get("executable") and m["profile"]["test"]]


def property_tests():
    """The names of the property tests of each program that has some, by the program's name."""
    found = collections.defaultdict(list)
    for path in sorted(ROOT.glob("crates/**/*.rs")):
        home = next(parent for parent in path.parents if (parent / "Cargo.toml").exists())
        kind, *rest = path.relative_to(home).parts
        target = "unit" if kind == "src" else rest[0].removesuffix(".rs")
        text = path.read_text()
        for block in re.finditer(r"^( *)(?:proptest::)?proptest! \{\n(.*?)^\1\}", text, re.MULTILINE | re.DOTALL):
            names = re.findall(r"#\[test\]\s+(?:#\[[^\n]*\]\s+)*fn (\w+)", block[2])
            found[f"{package(home.name)}:{target}"] += names
    return found


def package(crate):
    """The package of the crate in the folder CRATE."""
    return crate if crate == "lasthop" else f"lasthop-{crate}"


def cut(lines, head=HEAD_LINES, tail=TAIL_LINES):
    """The first and the last lines, and the number of lines between them."""
    lines = [line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} [{len(line) - LINE_CHARACTERS} characters]" for line in lines]
    left_out = len(lines) - head - tail
    return lines if left_out <= 0 else [*lines[:head], f"[{left_out} lines]", *lines[-tail:]]


def cut_by_test(text):
    """The output of a program that failed, cut for each test."""
    tests = [[]]
    for line in text.splitlines():
        if TEST_SAYS.match(line):
            tests.append([])
        tests[-1].append(line)
    return "".join(f"{line}\n" for lines in tests for line in cut(lines))
