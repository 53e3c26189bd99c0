"""Every kind of guest on one switch, whose process is killed or upgraded meanwhile; measures the effect on each guest.

The traffic that is measured is made and counted by `numbered`, an example of the crate `lasthop-frontend`.  Further
load is TCP by iperf3 between two user-mode Linux guests, and TCP of all Linux guests to a namespace behind an uplink.
"""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from qemuguests import Qemu, need_qemu
from realguests import ROOT, Dpdk, Failure, Linux, Process, Started, Switch, check, children, free_name, need, wait_until
from wires import Namespace, need_namespaces, wire

OUTSIDE, PINGER = "10.9.0.3", "10.9.0.9"
LINUX, LINUX_SERVER, QEMU = "10.9.0.1", "10.9.0.2", "10.9.0.4"
KINDS = ("own", "testpmd", "linux", "qemu", "uplink")
# Ports that have only the traffic of one row.
PORTS = {"own": ("own1", "own2"), "testpmd": ("left", "dpdk0", "dpdk1", "right")}
# The supervisor blames the guests for a switch process that lives shorter.
LIFE_S = 0.3
# Frames of a flow that have to arrive after a replacement before the next one.
SIGNS_OF_LIFE = 8
NICE = 5
# The counters of a killed process's last interval of this length are lost.
UNKNOWN_S = 0.01
RING_ENTRIES = 256
# No frame is in flight if counters were unchanged at this number of checks, 50 ms apart.
STILL_LOOKS = 20
# The file that is sent repeatedly over TCP.
FILE = shutil.which("busybox")
SINK_PORTS = {"linux-tcp": 7001, "qemu-tcp": 7002}
FOR_EVER_S = 86400


class Numbered(Process):
    """The program `numbered`, which sends and counts frames of many flows, on the last CPU that we may use.

    Its threads sleep and wake thousands of times a second. If they also changed CPUs, Linux 6.18 would leave tasks of other
    sessions without CPU for seconds (CONTRIBUTING.md, "CPU for guests").
    """

    def __init__(self, directory, flows, prefix=()):
        target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
        program = f"{target}/release/examples/numbered"
        check(os.path.exists(program), f"{program} is not there: cargo build --release -p lasthop-frontend --example numbered")
        log = free_name(directory, "numbered")
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        on_one_cpu = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0)))]
        super().__init__(log, [*prefix, *on_one_cpu, program, *flows], **options)

    def ask(self, order):
        """The lines that it answers."""
        check(self.alive(), f"numbered ended: {self.text()[-300:]}")
        print(order, file=self.child.stdin, flush=True)
        lines = []
        while (line := self.child.stdout.readline()) != ".\n":
            check(line, f"numbered ended: {self.text()[-300:]}")
            lines.append(line)
        return lines

    def look(self):
        """Each flow's counts by its name."""
        flows = {}
        for line in self.ask("look"):
            name, *counts = line.split()
            flows[name] = {key: int(count) for key, count in (word.split("=") for word in counts)}
        return flows


def send_for_ever(port):
    """A guest's command that sends the file to the namespace repeatedly over one connection."""
    return f"while :; do cat /bin/busybox; done | nc {OUTSIDE} {port}"


def is_program(fd):
    """Whether a descriptor is of a program of this name."""
    try:
        return fd.readlink().name == "lasthop"
    except OSError:  # it was closed meanwhile
        return True


class Crew(Started):
    """The switch and its guests, of the given kinds.

    `rate` is frames a second of each own guest, `mbit` Mbit/s of iperf3 between Linux guests. Upgrades are to `other` and back, if that
    is given.
    """

    def __init__(self, directory, kinds=KINDS, rate=20_000, mbit=200, workers=2, other=None, standby="off"):
        super().__init__()
        self.directory, self.kinds = directory, kinds
        self.rate, self.mbit, self.workers, self.other, self.standby = rate, mbit, workers, other, standby

    def begin(self):
        need("busybox")
        need_namespaces()
        self.host, self.outside = (self.enter_context(Namespace(name)) for name in ("host", "out"))
        wire(self.host, "wire", self.outside, "eth0")
        self.outside.run(f"ip addr add {OUTSIDE}/24 dev eth0")
        vnics = ["own1", "own2", "pinger", "linux1", "linux2", "qemu"]
        vnics += [f"{name},switch=pairs" for name in ("left", "dpdk0", "dpdk1", "right")]
        words = ["--switch", "pairs,module=dummy", "--uplink", "wire", "--workers", str(self.workers), "--standby", self.standby]
        self.switch = self.enter_context(Switch(self.directory, vnics, prefix=self.host.prefix, words=words))
        self.enter_context(self.outside.serve_iperf(self.directory))
        for kind, start in (("testpmd", self.start_testpmd), ("qemu", self.start_qemu), ("linux", self.start_linux)):
            if kind in self.kinds:
                start()
        self.numbered = self.enter_context(Numbered(self.directory, self.flows(), self.outside.prefix))
        if "qemu" in self.kinds:
            receive = f"iperf3 -c {OUTSIDE} -R -t {FOR_EVER_S} -b 20M >/tmp/iperf3"
            self.qemu.ready().send(f"{receive} & {send_for_ever(SINK_PORTS['qemu-tcp'])}")
        self.numbered.ask("go")
        try:
            wait_until("all guests", lambda: not self.silent(), 180)
        except Failure as failure:
            raise Failure(f"{failure}: {self.silent()}") from None

    def silent(self):
        """Flows that do not pass yet, and their counts."""
        return {name: flow for name, flow in self.numbered.look().items() if flow["heard"] <= 100}

    def start_testpmd(self):
        """Frames of one of our guests pass through it to another one."""
        self.dpdk = Dpdk(self.directory, [self.switch.socket(name) for name in ("dpdk0", "dpdk1")])
        self.enter_context(self.dpdk).ready()
        # It polls all the time: others have priority where CPUs are scarce.
        for task in os.listdir(f"/proc/{self.dpdk.child.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(task), NICE)
        self.dpdk.say("start")

    def start_qemu(self):
        need_qemu()
        self.qemu = self.enter_context(Qemu(self.switch, "qemu", QEMU))

    def start_linux(self):
        need("linux.uml")
        server = Linux(self.switch, "linux2", LINUX_SERVER, ["iperf3 -s"], limit_s=FOR_EVER_S)
        self.enter_context(server).ready()
        send = f"iperf3 -c {LINUX_SERVER} -t {FOR_EVER_S} -b {self.mbit}M"
        job = [f"{send} & {send_for_ever(SINK_PORTS['linux-tcp'])}"]
        self.client = self.enter_context(Linux(self.switch, "linux1", LINUX, job, limit_s=FOR_EVER_S))

    def flows(self):
        socket = self.switch.socket
        echoes = {"linux": f"linux-echo={LINUX}", "qemu": f"qemu-echo={QEMU}", "uplink": f"uplink-echo={OUTSIDE}"}
        echoes = ",".join(echo for kind, echo in echoes.items() if kind in self.kinds)
        slow = min(self.rate or 5000, 5000)
        flows = {
            "own": f"talk:own:{socket('own1')}:{socket('own2')}:{self.rate}",
            "testpmd": f"talk:testpmd:{socket('left')}:{socket('right')}:{slow}",
            "linux": f"sink:linux-tcp:{SINK_PORTS['linux-tcp']}:{FILE}",
            "qemu": f"sink:qemu-tcp:{SINK_PORTS['qemu-tcp']}:{FILE}",
        }
        flows = [flow for kind, flow in flows.items() if kind in self.kinds]
        return [*flows, f"echo:{socket('pinger')}:{PINGER}:500:{echoes}"] if echoes else flows

    def kill(self):
        """Kills the switch process, and waits for the next one."""
        starts = self.switch.text().count("running again")
        os.kill(self.switch_process(), signal.SIGKILL)
        wait_until("the next switch process", lambda: self.switch.text().count("running again") > starts)

    def upgrade(self):
        before = self.switch_process()
        own = str(self.switch.program)
        is_own = os.readlink(f"/proc/{before}/exe") == os.path.realpath(own)
        answer = self.switch.ask("upgrade", self.other if self.other and is_own else own)
        check(answer.returncode == 0, f"lasthop upgrade: {answer.stderr.strip()}")
        check(self.switch_process() != before, "the switch process is still the same")

    def nothing(self):
        """Does nothing, to measure the machine's own effect on guests."""
        time.sleep(0.05)

    def switch_process(self):
        return wait_until("a switch process", lambda: self.processes().get("switch-process"))

    def processes(self):
        """The supervisor and what it started, by their roles."""
        found = {}
        supervisor = self.switch.child.pid
        for pid in [supervisor, *children(supervisor)]:
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                # A switch process that stands by is younger than the present one.
                found.setdefault(words[1] if len(words) > 1 else words[0], pid)
        return found

    def descriptors(self):
        """The number of descriptors of each of them, but for that of the program that the supervisor was last told to upgrade to."""
        return {role: sum(not is_program(fd) for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()) for role, pid in sorted(self.processes().items())}

    def hear_more(self):
        before = self.numbered.look()

        def is_heard():
            return all(flow["heard"] >= before[name]["heard"] + SIGNS_OF_LIFE for name, flow in self.numbered.look().items())

        wait_until("frames of all guests", is_heard)

    def quiet(self):
        """Stops the numbered frames, and waits until all of them have arrived."""
        self.numbered.ask("quiet")
        seen = []

        def stands_still():
            now = self.numbered.look()
            seen.append([(flow["sent"], flow["heard"], flow["held"]) for name, flow in now.items() if "tcp" not in name])
            return len(seen) > STILL_LOOKS and all(look == seen[-1] for look in seen[-STILL_LOOKS:])

        wait_until("the last frames", stands_still)

    def drops(self):
        """Packets of each port that the switch dropped, by (port, reason)."""
        ports = self.switch.stats().items()
        return collections.Counter({(name, why): count for name, port in ports for why, count in port["rx_drops"].items()})

    def dpdk_drops(self):
        """The frames that testpmd dropped since the last call, as its transmit ring was full."""
        if "testpmd" not in self.kinds:
            return 0
        before = len(self.dpdk.text())
        self.dpdk.say("show fwd stats all")
        self.dpdk.say("clear fwd stats all")
        all_ports = r"Accumulated forward statistics for all ports[^T]*RX[^T]*TX-packets: \d+ +TX-dropped: (\d+)"
        found = wait_until("testpmd's counters", lambda: re.search(all_ports, self.dpdk.text()[before:]))
        return int(found.group(1))

    def connections_lost(self):
        """Long-lived TCP connections that have ended."""
        return {"iperf3": int(not self.iperf_goes_on())} if "linux" in self.kinds else {}

    def iperf_goes_on(self):
        """Waits until iperf3 between Linux guests moves bytes."""

        def seconds():
            return re.findall(r"^\[ +\d+\] .* sec +([\d.]+) [KMG]?Bytes", self.client.text(), re.M)

        before = len(seconds())
        with contextlib.suppress(Failure):
            # On two CPUs a guest's programs may get none for a minute, and TCP waits longer each time.
            wait_until("iperf3", lambda: any(float(moved) > 0 for moved in seconds()[before + 1 :]), 150)
        return any(float(moved) > 0 for moved in seconds()[before + 1 :]) and "iperf3: error" not in self.client.text()


class Phase:
    """Makes replacements of one kind, and measures them. `name` is a method of the crew."""

    def __init__(self, crew, name, count, period_s=LIFE_S):
        self.crew, self.name, self.count, self.period_s = crew, name, count, period_s
        self.gaps_ms = collections.defaultdict(list)

    def run(self):
        crew = self.crew
        crew.quiet()
        flows, drops = crew.numbered.look(), crew.drops()
        crew.dpdk_drops()
        began = time.monotonic()
        crew.numbered.ask("go")
        crew.hear_more()
        self.descriptors = [crew.descriptors()]
        for _ in range(self.count):
            self.replace_once()
        self.descriptors.append(self.settled_descriptors())
        self.connections_lost = crew.connections_lost()
        self.lasted_s = time.monotonic() - began
        crew.quiet()
        crew.switch.check_conserved()
        self.flows = grown(flows, crew.numbered.look())
        self.drops = crew.drops() - drops
        self.dpdk_drops = crew.dpdk_drops()
        return self

    def settled_descriptors(self):
        """Those of now. A process that stands by is started, and hears of guests, some time after a replacement."""
        with contextlib.suppress(Failure):
            wait_until("as many descriptors as before", lambda: self.crew.descriptors() == self.descriptors[0], 10)
        return self.crew.descriptors()

    def replace_once(self):
        time.sleep(self.period_s)
        self.crew.numbered.ask("mark")
        getattr(self.crew, self.name)()
        self.crew.hear_more()
        for name, flow in self.crew.numbered.look().items():
            self.gaps_ms[name].append(flow["gap_ns"] / 1e6)

    def rows(self):
        """The flows of one row of a table: both directions."""
        rows = collections.defaultdict(list)
        for name in self.flows:
            rows[name.removesuffix("-there").removesuffix("-back")].append(name)
        return rows

    def sum(self, key, names):
        return sum(self.flows[name][key] for name in names)

    def lost(self, names):
        return 0 if "tcp" in names[0] else self.sum("sent", names) - self.sum("heard", names)

    def counted(self, row):
        """The dropped frames of a row by reason; None if its ports have other traffic, too."""
        if row not in PORTS:
            return None
        reasons = collections.Counter()
        for (port, reason), count in self.drops.items():
            if port in PORTS[row]:
                reasons[reason] += count
        if row == "testpmd":
            reasons["by testpmd"] = self.dpdk_drops
        return +reasons

    def unknown(self, names):
        """How many frames killed processes may have dropped without their counts being saved."""
        if self.name != "kill":
            return 0
        rate = self.sum("sent", names) / self.lasted_s
        return self.count * (UNKNOWN_S * rate + RING_ENTRIES * len(names))

    def faults(self):
        """The errors that were found."""
        for row, names in self.rows().items():
            for key in ("twice", "late", "damaged", "ended"):
                if count := self.sum(key, names):
                    yield f"{row}: {count} {key}"
            if held := self.sum("held", names):
                yield f"{row}: {held} frames never came back"
            counted = self.counted(row)
            if counted is not None and self.lost(names) > counted.total() + self.unknown(names):
                yield f"{row}: {self.lost(names)} frames were lost, and counted are {dict(counted)}"
        for connection, lost in self.connections_lost.items():
            if lost:
                yield f"{connection}: the connection was lost"
        if self.descriptors[0] != self.descriptors[1]:
            yield f"descriptors: {self.descriptors[0]} before, {self.descriptors[1]} after"
        if "has to connect again" in self.crew.switch.text():
            yield f"a guest was not taken over: {self.crew.switch.text()[-300:]}"


def grown(before, after):
    """The change since then; `held` is the current state."""
    as_is = ("held", "gap_ns")
    return {
        name: {key: count if key in as_is else count - before[name][key] for key, count in flow.items()}
        for name, flow in after.items()
    }
