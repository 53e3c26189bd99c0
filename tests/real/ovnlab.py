"""OVN over Lasthop: namespaces as machines, one with the databases and some with a switch, an Open vSwitch, ovn-controller and guests.

```
        central (NB, SB, northd)                    outside
    10.7.0.1 │ underlay (bridge)          172.16.0.1 │ provider (bridge)
        ┌────┴─────┐                            ┌────┴─────┐
      host1  …   host3    tunnels by eth0     host1  …   host3    the localnet port by eth1
     10.7.0.11  10.7.0.13
```
"""

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess

from openvswitch import OTHER, OpenVSwitch, environment
from realguests import LIMIT_S, ROOT, Console, Failure, Process, Started, Switch, check, free_name, image, listens, need, wait_until
from wires import Namespace, need_namespaces

# Of the version in OTHER, if it has an OVN.
THEIRS = pathlib.Path(OTHER or "/", "usr/share/ovn")
SCHEMAS = THEIRS if THEIRS.is_dir() else pathlib.Path("/usr/share/ovn")
CENTRAL, OUTSIDE = "10.7.0.1", "172.16.0.1"
# The outer headers of Geneve with OVN's option take 58 bytes.
MTU = 1442


def need_ovn():
    need("linux.uml", "ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl", "ovsdb-server")
    need_namespaces()


class Guest(Console):
    """A user-mode Linux guest at a vnic of its name; it does what it is told."""

    # The child is a script that ends its guest.
    end_s = 300

    def __init__(self, host, name, mac, shared):
        self.name, self.mac = name, mac
        command = [ROOT / "tools/uml-guest", "-c", "-t", LIMIT_S, host.switch.socket(name), image(shared)]
        command += [f"lh.mac={mac}", "lh.console=1"]
        super().__init__(free_name(host.directory, f"linux-{name}"), command, stdin=subprocess.PIPE)

    def ready(self):
        self.next("^guest: console", 240)
        return self

    def ask_dhcp(self):
        self.do("udhcpc -i eth0 -n -q -t 20 -T 1")

    def pings(self, ip):
        """Whether an answer comes."""
        return self.try_do(f"ping -c 1 -W 1 {ip}")[0] == 0

    def ping(self, ip):
        """Waits for the first answer; then each is answered."""
        wait_until(f"{self.name} to reach {ip}", lambda: self.pings(ip))
        said = self.do(f"ping -c 3 -i 0.2 {ip}")
        check("3 packets received" in said, f"{self.name} pings {ip}: {said[-200:]}")

    def wait_for_name(self, address, name):
        """Until the web server there says this."""
        wait_until(f"{self.name} to be answered by {name} at {address}", lambda: self.fetch(address) == name)

    def fetch(self, address):
        """What the web server there says; nothing if none can be reached."""
        status, said = self.try_do(f"timeout 2 wget -q -O - http://{address}/name")
        return said if status == 0 else ""


class Central(Started):
    """The namespace with OVN's databases and ovn-northd, and with the bridge `underlay` between all machines."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory / "central"
        self.directory.mkdir()
        self.env = environment(self.directory)
        self.namespace = None

    def begin(self):
        self.namespace = self.enter_context(Namespace("central"))
        add_bridge(self.namespace, "underlay", CENTRAL)
        self.database("nb")
        self.database("sb", "--remote=ptcp:6642")
        northd = ["ovn-northd", f"--ovnnb-db={self.remote('nb')}", f"--ovnsb-db={self.remote('sb')}", "-vconsole:info", "-vsyslog:off"]
        self.start("northd", *northd)

    def start(self, name, *command):
        return self.enter_context(Process(self.directory / f"{name}.log", [*self.namespace.prefix, *command], env=self.env))

    def remote(self, name):
        return f"unix:{self.directory}/{name}.sock"

    def database(self, name, *remotes):
        conf, sock = self.directory / f"{name}.db", self.directory / f"{name}.sock"
        subprocess.run(["ovsdb-tool", "create", conf, f"{SCHEMAS}/ovn-{name}.ovsschema"], env=self.env, check=True)
        words = [f"--remote=punix:{sock}", *remotes, f"--unixctl={self.directory}/{name}.ctl", "-voff"]
        self.start(name, "ovsdb-server", conf, *words)
        wait_until(f"the {name} database", lambda: listens(sock))

    def ctl(self, name, *words):
        command = [f"ovn-{name}ctl", f"--db={self.remote(name)}", "--timeout=120", "-voff", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=150, check=False)
        check(done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def nb(self, text, wait="hv"):
        """Commands of ovn-nbctl, one a line; done when all hosts (or northd, "sb") have done them."""
        lines = [line.split("#")[0].strip() for line in text.strip().splitlines()]
        words = " -- ".join(line for line in lines if line)
        return self.ctl("nb", f"--wait={wait}", *shlex.split(words))

    def sb(self, *words):
        return self.ctl("sb", *words)

    def chassis_of(self, port):
        """The name of the host that a port is bound to; empty if it is nowhere."""
        bound = self.sb("--bare", "--columns=chassis", "find", "port_binding", f"logical_port={port}").strip()
        return self.sb("--bare", "--columns=name", "list", "chassis", bound).strip() if bound else ""


class Outside(Started):
    """The namespace that is the network which OVN's localnet ports lead to."""

    def begin(self):
        self.namespace = self.enter_context(Namespace("outside"))
        add_bridge(self.namespace, "provider", OUTSIDE)


def add_bridge(namespace, name, ip):
    namespace.run(f"ip link add {name} type bridge")
    namespace.run(f"ip addr add {ip}/24 dev {name}")
    namespace.run(f"ip link set {name} up")


def plug(host, device, other, bridge):
    """A wire from a host's device to a bridge elsewhere."""
    port = f"{host.name.rsplit('-', 1)[1]}-{device}"
    other.run(f"ip link add {port} type veth peer name {device} netns {host.name}")
    other.run(f"ip link set {port} master {bridge} up")
    host.run(f"ip link set {device} up")


class Host(Started):
    """A chassis: a namespace with a switch, Open vSwitch and ovn-controller; its vnics are ports for guests, by MAC address."""

    def __init__(self, directory, number, central, outside, vnics):
        super().__init__()
        self.name, self.ip = f"host{number}", f"10.7.0.{10 + number}"
        self.directory = directory / self.name
        self.directory.mkdir()
        self.central, self.outside, self.vnics = central, outside, vnics
        self.namespace = self.switch = self.ovs = self.controller = None

    def begin(self):
        self.namespace = self.enter_context(Namespace(self.name))
        plug(self.namespace, "eth0", self.central.namespace, "underlay")
        plug(self.namespace, "eth1", self.outside, "provider")
        self.namespace.run(f"ip addr add {self.ip}/24 dev eth0")
        vnics = [f"{name},switch=ovs-system,mac={mac},mtu={MTU}" for name, mac in self.vnics.items()]
        words = ["--switch", "ovs-system,module=flow,controller=external"]
        self.switch = self.enter_context(Switch(self.directory, vnics, prefix=self.namespace.prefix, words=words))
        self.ovs = self.enter_context(OpenVSwitch(self.switch, self.namespace))
        settings = {
            "system-id": self.name,
            "ovn-remote": f"tcp:{CENTRAL}:6642",
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": self.ip,
            "ovn-bridge-mappings": "physnet:br-ex",
        }
        self.ovs.vsctl("set", "open", ".", *(f"external_ids:{name}={value}" for name, value in settings.items()))
        self.ovs.vsctl("add-br", "br-ex", "--", "add-port", "br-ex", "eth1")
        self.callback(self.end_controller)
        self.start_controller()
        wait_until("br-int", lambda: "br-int" in self.ovs.vsctl("list-br"))
        for name in self.vnics:
            self.ovs.vsctl("add-port", "br-int", name, "--", "set", "interface", name, f"external_ids:iface-id={name}")

    def hears_all(self, number):
        """Whether BFD says of this many tunnels that the other end is there: it chooses between gateways by that."""
        columns = ["--bare", "--columns=bfd_status", "find", "interface", "type=geneve"]
        return self.ovs.vsctl(*columns).count("forwarding=true") == number

    def tell(self):
        """Writes its flows, connections, counters and BFD into logs, for a test that failed."""
        for name, ask in {
            "flows": lambda: self.ovs.dpctl("dump-flows", "-m"),
            "connections": lambda: self.ovs.dpctl("dump-conntrack", "-m"),
            "datapath": lambda: self.ovs.dpctl("show", "-s"),
            "counters": lambda: self.switch.ask("stats").stdout,
            "bfd": lambda: self.ovs.appctl("bfd/show"),
            "openflow": lambda: self.ovs.ofctl("dump-flows", "br-int"),
        }.items():
            try:
                text = ask()
            except (Failure, OSError, subprocess.SubprocessError) as why:
                text = f"{why}\n"
            free_name(self.directory, f"failed-{name}").write_text(text)

    def start_controller(self):
        log = free_name(self.directory, "ovn-controller")
        command = [*self.namespace.prefix, "ovn-controller", self.ovs.remote, "-vconsole:info", "-vsyslog:off"]
        self.controller = Process(log, command, env=self.ovs.env)
        self.controller.__enter__()

    def end_controller(self):
        if self.controller:
            self.controller.__exit__()

    def kill_controller(self):
        """kill -9 of ovn-controller, and another one."""
        self.controller.child.send_signal(signal.SIGKILL)
        self.controller.child.wait()
        self.start_controller()

    def kill(self):
        """kill -9 of all that makes it a chassis."""
        for process in (self.controller, self.ovs.daemon):
            process.child.send_signal(signal.SIGKILL)
            process.child.wait()
        pids = self.switch.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.switch.child.wait()

    def sound(self):
        self.switch.check_alive()
        self.switch.check_conserved()
        # BFD of one that is started again begins with another number. An ovs-vswitchd that is started again knows no
        # Geneve options until ovn-controller has told it of them, and packets of live connections come before.
        expected = ("Incorrect your_disc", "Invalid Geneve tunnel metadata")
        warnings = [line for line in self.ovs.warnings() if not any(text in line for text in expected)]
        check(not warnings, f"ovs-vswitchd of {self.name} warns: {warnings}")
