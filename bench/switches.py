"""Switches between Linux guests, for the scripts of this directory that measure them: Lasthop, the Linux bridge with taps,
Open vSwitch's userspace datapath with taps, Open vSwitch's kernel datapath, DPDK's vhost forwarder.

Each is a context manager with `socket(port)`, which tools/uml-guest takes, and `pids()`, the processes whose CPU time is
the switch's. Ports are vm1, vm2 ...
"""

import collections
import contextlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/real"))
import openvswitch
from benchfiles import compiled
from realguests import Failure, Process, Skip, Switch, check, need, wait_until
from wires import Namespace, wire

FAR_IP = "10.9.0.9"
# CTRL_VQ with its dependants, and RING_PACKED: see tools/vu-mask.
HIDDEN = "17,18,21,22,34"


def sh(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    check(done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()[-200:]}")
    return done.stdout


# Namespaces: `host`, which has the switch, and `fars`, each behind a wire.
Places = collections.namedtuple("Places", "host fars")


@contextlib.contextmanager
def places_with(fars):
    with contextlib.ExitStack() as stack:
        host, *others = (stack.enter_context(Namespace(name)) for name in ["host", *(f"far{n}" for n in range(fars))])
        for number, far in enumerate(others):
            wire(host, f"wire{number}", far, "eth0")
            far.run(f"ip link set eth0 address 02:00:00:00:30:{number:02x}")
            far.run(f"ip addr add 10.9.0.{9 + number}/24 dev eth0")
        yield Places(host, others)


def guests_of(places, guests):
    """The number of guests; by default one, or none between several namespaces."""
    return int(len(places.fars) < 2) if guests is None else guests


def tap(port):
    """The tap of port vmN."""
    return f"tap{int(port.removeprefix('vm')) - 1}"


class Lasthop(Switch):
    name = "lasthop"

    def __init__(self, places, directory, module="bridge", cpus=None, flags=(), guests=None, uplink=""):
        """`uplink`: further settings of each uplink, as `,KEY=VALUE`."""
        several = len(places.fars) > 1
        self.fars = len(places.fars)
        guests = guests_of(places, guests)
        wires = [f"wire{number}{uplink}" + ",transit=true" * several for number in range(len(places.fars))]
        words = [*flags, *(word for wire in wires for word in ("--uplink", wire))]
        prefix = places.host.prefix
        if cpus:
            words += ["--cpus", cpus]
            prefix = [*prefix, "taskset", "-c", cpus]
        super().__init__(directory, [f"vm{number + 1}" for number in range(guests)], module, prefix=prefix, words=words)

    def ready(self):
        if not super().ready():
            return False
        return self.fars == 0 or json.loads(self.ask("port", "show", "wire0", "--json").stdout)["state"] == "up"

    def crowded(self):
        stats = json.loads(self.ask("stats", "--json").stdout)
        return sum(worker.get("crowded", 0) for worker in stats["workers"])


class Bridge:
    name = "bridge"

    def __init__(self, places, directory, guests=None):
        self.places, self.directory, self.guests = places, directory, guests_of(places, guests)

    def __enter__(self):
        host = self.places.host
        host.run("ip link add br0 type bridge")
        host.run("ip link set br0 up")
        for number in range(len(self.places.fars)):
            host.run(f"ip link set wire{number} master br0")
        for number in range(self.guests):
            host.run(f"ip tuntap add tap{number} mode tap vnet_hdr")
            host.run(f"ip link set tap{number} master br0 up")
        return self

    def __exit__(self, *_):
        pass  # goes with its namespace

    def socket(self, port):
        return f"tap:{tap(port)}"

    def pids(self):
        return []


class Direct:
    name = "direct"

    def __init__(self, places, directory):
        self.places, self.directory = places, directory

    def __enter__(self):
        far = self.places.fars[0]
        far.run("ip link del eth0")
        far.run("ip tuntap add tap0 mode tap vnet_hdr")
        far.run(f"ip addr add {FAR_IP}/24 dev tap0")
        far.run("ip link set tap0 up")
        return self

    def __exit__(self, *_):
        pass  # goes with its namespace

    def socket(self, _):
        return "tap:tap0"

    def pids(self):
        return []


class Relay:
    """No switch but the least program that forwards frames in a process (bench/relay.c): between the guest's tap and the wire. It
    sleeps when there is no frame, so a round trip has the wake-ups that any such switch needs."""

    name = "relay"

    def __init__(self, places, directory):
        self.places, self.directory = places, directory

    def __enter__(self):
        host = self.places.host
        host.run("ip tuntap add tap0 mode tap vnet_hdr")
        host.run("ip link set tap0 up")
        command = [*host.prefix, compiled("bench/relay.c"), "tap0", "wire0"]
        self.process = Process(self.directory / "relay.log", command)
        self.process.__enter__()
        return self

    def __exit__(self, *_):
        check(self.process.alive(), f"the relay ended: {self.process.text()[-300:]}")
        self.process.__exit__()

    def socket(self, _):
        return "tap:tap0"

    def pids(self):
        return [self.process.child.pid]


class Ovs:
    name = "ovs"
    # Where packets move: in ovs-vswitchd (netdev), or in the kernel (system).
    datapath = "netdev"
    # Settings of the interface of each wire, as words of ovs-vsctl.
    wire_settings = ()

    def __init__(self, places, directory, guests=None, cpu=None):
        """`cpu`: the one for all its threads."""
        self.places, self.directory, self.guests, self.cpu = places, directory, guests_of(places, guests), cpu
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        need("ovs-vswitchd", "ovsdb-server", "ovs-vsctl")
        with self.stack:
            self.start()
            self.stack = self.stack.pop_all()
        return self

    def start(self):
        path, host = self.directory, self.places.host
        self.stack.enter_context(openvswitch.database(path))
        env, remote = openvswitch.environment(path), f"unix:{path}/db.sock"
        vsctl = ["ovs-vsctl", f"--db={remote}", "--timeout=20"]
        sh(*vsctl, "--no-wait", "init")
        on_one = [] if self.cpu is None else ["taskset", "-c", str(self.cpu)]
        if on_one:
            sh(*vsctl, "--no-wait", "set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << self.cpu:x}")
        command = [*host.prefix, *on_one, "ovs-vswitchd", remote, f"--unixctl={path}/switch.ctl"]
        self.switch = self.stack.enter_context(Process(path / "ovs-vswitchd.log", command, env=env))
        ports = [f"wire{number}" for number in range(len(self.places.fars))]
        for number in range(self.guests):
            host.run(f"ip tuntap add tap{number} mode tap")
            host.run(f"ip link set tap{number} up")
            ports.append(f"tap{number}")
        sh(*vsctl, "add-br", "br0", "--", "set", "bridge", "br0", f"datapath_type={self.datapath}", env=env)
        for port in ports:
            settings = ["--", "set", "interface", port, *self.wire_settings] if port.startswith("wire") and self.wire_settings else []
            sh(*vsctl, "add-port", "br0", port, *settings, env=env)
        if self.datapath == "netdev":
            # By default it accepts neither unsegmented frames nor partial checksums.
            for far in self.places.fars:
                far.run("ethtool -K eth0 tx off tso off gso off")

    def __exit__(self, *_):
        self.stack.close()

    def socket(self, port):
        return f"tuntap:{tap(port)}"

    def pids(self):
        return [self.switch.child.pid]


class KernelOvs(Ovs):
    """With two wires. In user-mode Linux 6.1 its datapath sometimes loses each packet without a flow (`lost` of ovs-dpctl show, from
    the start on); then it starts again."""

    name = "kernel-ovs"
    datapath = "system"
    ATTEMPTS = 8

    def start(self):
        done = subprocess.run(["modprobe", "openvswitch"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skip(f"the kernel has no module openvswitch: {done.stderr.strip()}")
        for _ in range(self.ATTEMPTS):
            super().start()
            far = self.places.fars[1]
            if far.try_run(f"busybox ping -c 3 -W 1 {FAR_IP}").returncode == 0:
                return
            self.stack.close()
            sh(*self.places.host.prefix, "ovs-dpctl", "del-dp", "ovs-system")
            for file in ("conf.db", "db.sock"):
                (self.directory / file).unlink(missing_ok=True)
        raise Failure(f"no packet arrived by Open vSwitch's kernel datapath, which was started {self.ATTEMPTS} times")


class LasthopOvs(Switch):
    """Lasthop where the stock ovs-vswitchd expects the kernel's datapath. It has no ports but wires."""

    name = "lasthop-ovs"

    def __init__(self, places, directory):
        self.places, self.stack = places, contextlib.ExitStack()
        super().__init__(directory, [], None, prefix=places.host.prefix, words=["--controller", "external"])

    def __enter__(self):
        super().__enter__()
        with contextlib.ExitStack() as stack:
            stack.callback(super().__exit__)
            ovs = stack.enter_context(openvswitch.OpenVSwitch(self, self.places.host))
            ovs.vsctl("add-br", "br0")
            for number in range(len(self.places.fars)):
                ovs.vsctl("add-port", "br0", f"wire{number}")
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()


class Testpmd(Process):
    """testpmd as the switch: it joins two vhost-user ports."""

    name = "testpmd"

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.masks = contextlib.ExitStack()
        command = ["dpdk-testpmd", "--no-huge", "-m", "512", "--no-pci", "-l", "0,1"]
        for number in (0, 1):
            path = self.socket(f"back{number}")
            command += ["--vdev", f"net_vhost{number},iface={path},queues=1,tso=1,legacy-ol-flags=1"]
        command += ["--", "--auto-start", "--forward-mode=io", "--nb-cores=1"]
        command += ["--total-num-mbufs=20000", "--no-mlockall"]
        env = os.environ | {"RUNTIME_DIRECTORY": str(self.directory)}
        super().__init__(self.directory / "testpmd.log", command, stdin=subprocess.PIPE, env=env)

    def socket(self, port):
        return self.directory / f"{port}.sock"

    def __enter__(self):
        super().__enter__()
        wait_until("testpmd's sockets", lambda: all(self.socket(f"back{n}").exists() for n in (0, 1)))
        for number, port in enumerate(("vm1", "vm2")):
            words = [ROOT / "tools/vu-mask", HIDDEN, self.socket(port), self.socket(f"back{number}")]
            self.masks.enter_context(Process(self.directory / f"mask{number}.log", words))
        wait_until("vu-mask's sockets", lambda: all(self.socket(p).exists() for p in ("vm1", "vm2")))
        return self

    def __exit__(self, *_):
        self.masks.close()
        super().__exit__()

    def pids(self):
        return [self.child.pid]
