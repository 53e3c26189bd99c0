"""The pieces of a test with real guests: a switch, Linux guests, DPDK guests.

A test script defines functions and hands them to `main`, which prints one line for
each: `ok NAME`, `not ok NAME: why` or `skip NAME: why`.  Everything that a test starts is a context manager, so it ends
with the test, also when that is interrupted; logs
stay in LASTHOP_TEST_DIR, which tests/real/run makes and cleans up.
"""

import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Longest wait for anything that normally takes a few seconds, on a machine that is busy
# with other things as well.
PATIENCE_S = 300
# How long a guest may run. A test ends guests that only serve others.
LIMIT_S = 600
# iperf3's words for a test of TCP: a thousand of the largest frames. A time instead would load all CPUs, and other tests wait.
BULK = "-n 64M"


class Failure(Exception):
    """The switch did not do what the test expects."""


class Skip(Exception):
    """This machine cannot run the test."""


def check(condition, why):
    if not condition:
        raise Failure(why)


def wait_until(what, condition, patience_s=PATIENCE_S):
    """Waits for the condition and returns its first true value; the test fails at the time limit."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise Failure(f"waited {patience_s} s for {what}")


def listens(path):
    """Whether a program listens at a UNIX socket: between its bind(2) and its listen(2) the file is there already."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Skip(f"{program} is not installed (tools/deps test)")


def binary():
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    path = pathlib.Path(os.environ.get("LASTHOP", f"{target}/release/lasthop"))
    if not path.exists():
        raise Failure(f"{path} is not there; build it with: make build")
    return path


def image(directory):
    """The guests' file system: the run's own (LASTHOP_IMAGE), or a new one."""
    if shared := os.environ.get("LASTHOP_IMAGE"):
        return shared
    path = pathlib.Path(directory) / "guest.cpio"
    if not path.exists():
        subprocess.run([ROOT / "tools/mk-initramfs", path], check=True)
    return path


class Process:
    """A child with its output in a log file; on exit it is terminated, or killed if it does not end."""

    # How long it may take to end before force is used.
    end_s = 10

    def __init__(self, log, command, **options):
        self.log = pathlib.Path(log)
        self.command = [str(word) for word in command]
        self.options = options
        self.child = None

    def __enter__(self):
        with open(self.log, "wb") as out:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out} | self.options
            self.child = subprocess.Popen(self.command, **options)
        return self

    def __exit__(self, *_):
        if self.alive():
            self.child.terminate()
        try:
            self.child.wait(self.end_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def alive(self):
        return self.child.poll() is None

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern, patience_s=PATIENCE_S):
        """The first match of the pattern in the log."""

        def found():
            match = re.search(pattern, self.text(), re.MULTILINE)
            if not match and not self.alive():
                match = re.search(pattern, self.text(), re.MULTILINE)
                if not match:
                    raise Failure(f"{self.log.name}: ended with no line like '{pattern}'")
            return match

        return wait_until(f"'{pattern}' in {self.log.name}", found, patience_s)


class Console(Process):
    """A guest that does what it is told on its console (lh.console=1), which is the process' standard input and output."""

    # Up to where its output was looked at.
    seen = 0

    def new_text(self):
        return self.text()[self.seen :]

    def next(self, pattern, patience_s):
        """The first match of the pattern behind what was seen so far; all before it is seen then."""

        def found():
            check(self.alive(), f"{self.log.name}: the guest ended: {self.text().strip()[-200:]}")
            return re.search(pattern, self.new_text(), re.MULTILINE)

        match = wait_until(f"'{pattern}' in {self.log.name}", found, patience_s)
        self.seen += match.end()
        return match

    def send(self, command):
        self.child.stdin.write(f"{command}\n".encode())
        self.child.stdin.flush()

    def try_result(self, patience_s=120):
        """The status and the output of the command that was sent."""
        start = self.seen
        status = self.next(r"^guest: exit (\d+)", patience_s).group(1)
        said = self.text()[start : self.seen].replace("\r", "")
        return int(status), said.removesuffix(f"guest: exit {status}").strip()

    def result(self, command, patience_s=120):
        """What the command that was sent printed; it has to succeed."""
        status, said = self.try_result(patience_s)
        check(status == 0, f"{self.name}: '{command}' failed with status {status}: {said[-200:]}")
        return said

    def do(self, command, patience_s=120):
        self.send(command)
        return self.result(command, patience_s)

    def try_do(self, command, patience_s=120):
        self.send(command)
        return self.try_result(patience_s)


class Switch(Process):
    """`lasthop run` in a directory of its own.  Ports are --vnic values.

    With `default_dir`, where the switch should go by itself, it is not told a directory.
    LASTHOP_TEST_MODULE names another module for tests that name none.
    """

    def __init__(self, directory, ports, module=os.environ.get("LASTHOP_TEST_MODULE"), default_dir=None, program=None, prefix=(), env=None, words=()):
        self.directory = pathlib.Path(directory)
        self.run_dir = pathlib.Path(default_dir or self.directory / "run")
        self.ports = ports
        self.program = program or binary()
        where = [] if default_dir else ["--dir", self.run_dir]
        vnics = [word for port in ports for word in ("--vnic", port)]
        modules = ["--module", module] if module else []
        command = [*prefix, self.program, "run", *where, *modules, *vnics, *words]
        super().__init__(self.directory / "switch.log", command, env=env)

    def __enter__(self):
        super().__enter__()
        try:
            wait_until("the switch", self.ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def ready(self):
        check(self.alive(), f"the switch ended: {self.text().strip()[-300:]}")
        listening = [p.split(",")[0] for p in self.ports if "mode=connect" not in p and "socket=" not in p]
        return all(self.socket(name).exists() for name in listening) and self.ask("stats").returncode == 0

    def socket(self, port):
        return self.run_dir / f"{port}.sock"

    def ask(self, *words):
        command = [self.program, "--dir", self.run_dir, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def stats(self):
        """Each port's counters by the port's name."""
        answer = self.ask("stats", "--json")
        check(answer.returncode == 0, f"lasthop stats failed: {answer.stderr.strip()}")
        return {port["name"]: port for port in json.loads(answer.stdout)["ports"]}

    def show_port(self, port):
        """A port, as `port show` has it."""
        return json.loads(self.ask("port", "show", port, "--json").stdout)

    def show(self, port):
        """A vnic, with its rings while it has a guest."""
        answer = self.ask("vnic", "show", port, "--json")
        check(answer.returncode == 0, f"lasthop port show {port} failed: {answer.stderr.strip()}")
        return json.loads(answer.stdout)

    def check_conserved(self):
        answer = self.ask("stats", "--check")
        report = " ".join((answer.stdout + answer.stderr).split())
        check(answer.returncode == 0, f"packets are not conserved: {report[-300:]}")

    def check_alive(self):
        check(self.alive(), f"the switch ended: {self.text().strip()[-300:]}")

    def pids(self):
        """The supervisor and everything it started."""
        pids = [self.child.pid]
        for pid in pids:
            pids += children(pid)
        return pids


def children(pid):
    """The children of a process; none if it has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            # A thread may end meanwhile; another thread then has its children.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def warn_of_task_groups():
    """For what measures guests: a line about a setting with which Linux may leave them without CPU."""
    setting = pathlib.Path("/proc/sys/kernel/sched_autogroup_enabled")
    if setting.exists() and setting.read_text().strip() == "1":
        print("figures may vary: sysctl kernel.sched_autogroup_enabled=0 (CONTRIBUTING.md, \"CPU for guests\")", file=sys.stderr)


def process_fields(pid):
    """The fields of proc_pid_stat(5) behind the name, the state first."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pids, with_ended=False):
    """CPU time of processes so far. `with_ended`: also of their children that ended, and some of the processes may have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(*((FileNotFoundError, ProcessLookupError) if with_ended else ())):
            # utime, stime, and those of children that were waited for.
            ticks += sum(int(field) for field in process_fields(pid)[11 : 15 if with_ended else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


class Linux(Process):
    """A user-mode Linux guest; `job` is a list of commands for it to run.

    Its MAC address follows from its IP address, unless the switch is to choose (`own_mac=False`).
    """

    # The child is a script that ends its guest: if it is killed earlier, the guest keeps running, and is still
    # connected.
    end_s = PATIENCE_S

    def __init__(self, switch, port, ip, job=(), words=(), own_mac=True, prefix=(), tool=None, env=None, limit_s=LIMIT_S):
        command = [*prefix, tool or ROOT / "tools/uml-guest", "-t", limit_s, switch.socket(port), image(switch.directory)]
        command += [f"lh.ip={ip}/24", "lh.ip6=off", *words]
        if own_mac:
            command.append(f"lh.mac=02:00:00:00:10:{int(ip.split('.')[-1]):02x}")
        command.append("lh.do=" + ";;".join(line.replace(" ", "+") for line in job))
        super().__init__(free_name(switch.directory, f"linux-{port}"), command, env=env)

    def ready(self):
        self.wait_for("^guest: ready")
        return self

    def check_job(self, patience_s=PATIENCE_S):
        """Waits for the end of the job; all its commands have to succeed."""
        self.wait_for("^guest: poweroff", patience_s)
        failed = re.findall(r"^guest: \$ (.*)\n(?:(?!guest: ).*\n)*guest: exit [1-9]", self.text(), re.MULTILINE)
        check(not failed, f"{self.log.stem}: '{', '.join(failed)}' failed")


class Dpdk(Process):
    """testpmd with one virtio-user port for each socket, driven by its prompt.

    MAC addresses are numbered from `first` on.
    """

    def __init__(self, directory, sockets, mode="io", queues=1, options="", testpmd=(), first=0):
        need("dpdk-testpmd")
        # Threads of it poll: the forwarding thread has its own CPU, if we may use two.
        first_cpu, *others = sorted(os.sched_getaffinity(0))
        lcores = f"--lcores=0@{first_cpu},1@{others[0] if others else first_cpu}"
        # Line-buffered, as its answers are read from the log.
        command = f"stdbuf -oL dpdk-testpmd --no-huge -m 384 --no-pci {lcores} --main-lcore 1".split()
        log = free_name(directory, "testpmd")
        command.append(f"--file-prefix={log.stem}")
        for number, socket in enumerate(sockets):
            mac = f"mac=02:00:00:00:20:{first + number:02x}"
            extra = f",{options}" if options else ""
            command += ["--vdev", f"net_virtio_user{number},path={socket},{mac},queues={queues}{extra}"]
        command += ["--", "-i", f"--forward-mode={mode}", "--nb-cores=1", f"--rxq={queues}", f"--txq={queues}"]
        command += ["--total-num-mbufs=16000", "--no-mlockall"]
        # Frames of the first burst carry the other port's address, so that a bridge knows the way.
        for number in range(len(sockets)):
            command.append(f"--eth-peer={number},02:00:00:00:20:{(first + number) ^ 1:02x}")
        # The directory of its files, which remain when it is killed.
        env = os.environ | {"RUNTIME_DIRECTORY": str(directory)}
        super().__init__(log, [*command, *testpmd], stdin=subprocess.PIPE, env=env)

    def ready(self):
        self.wait_for("^testpmd> ")
        return self

    def say(self, command):
        self.child.stdin.write(f"{command}\n".encode())
        self.child.stdin.flush()

    def __exit__(self, *_):
        if self.alive():
            # A testpmd that gets no CPU for long, or waits for a switch that is gone, is killed.
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.say("quit")
                self.child.wait(5)
        super().__exit__()

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()


def free_name(directory, stem):
    """An unused path for a log file: the same guest may start again."""
    paths = (pathlib.Path(directory) / f"{stem}{n or ''}.log" for n in range(100))
    path = next(path for path in paths if not path.exists())
    path.touch()
    return path


class Started(contextlib.ExitStack):
    """Things that `begin` starts, by `enter_context`. If it fails, those that run already are ended."""

    def __enter__(self):
        super().__enter__()
        try:
            self.begin()
        except BaseException:
            self.close()
            raise
        return self


class Session(contextlib.ExitStack):
    """Guests that several tests use one after the other; `start` boots them for the first one."""

    why_not = None
    started = False

    def start(self, directory):
        raise NotImplementedError

    def enter(self, process):
        return self.enter_context(process)

    def tests(self, *named):
        """The tests, functions of the session, as `main` wants them."""
        return [(name, functools.partial(self.run, test)) for name, test in named]

    def run(self, test, directory):
        if not self.started:
            self.start_once(directory)
        if self.why_not:
            raise self.why_not
        test(self)

    def start_once(self, directory):
        """What keeps the guests from starting keeps all tests from running."""
        self.started = True
        try:
            self.start(directory)
        except Exception as why:
            self.why_not = why


def main(*tests):
    """Runs the tests, each a (name, function of a directory) pair; the script's exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    base = os.environ.get("LASTHOP_TEST_DIR")
    with contextlib.ExitStack() as stack:
        base = pathlib.Path(base or stack.enter_context(tempfile.TemporaryDirectory()))
        lines = [run_one(name, test, base / name) for name, test in tests]
    sys.exit(any(line.startswith("not ok") for line in lines))


def run_one(name, test, directory):
    directory.mkdir(parents=True)
    try:
        test(directory)
        line = f"ok {name}"
    except Skip as why:
        line = f"skip {name}: {why}"
    except Failure as why:
        line = f"not ok {name}: {why}"
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as why:
        line = f"not ok {name}: {type(why).__name__}: {why}"
    print(line, flush=True)
    return line
