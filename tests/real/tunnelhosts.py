"""Namespaces as hosts with a switch and a stock Open vSwitch each, and namespaces as their guests, for tests and measurements of tunnels."""

import contextlib
import subprocess

from openvswitch import OpenVSwitch
from ovslab import driven
from realguests import Failure, Process, Started, Switch, check, wait_until
from wires import Namespace, need_namespaces, wire

# Of guests: room for the outer headers, those of IPv6 and eight bytes of options as well.
MTU = 1400
OUTER = {4: ("10.7.0.1", "10.7.0.2", 24), 6: ("fd07::1", "fd07::2", 64)}
# Of hosts with a router in between, and its addresses.
FAR = {4: ("10.7.1.1", "10.7.2.2", 24), 6: ("fd07:1::1", "fd07:2::2", 64)}
ROUTER = {4: ("10.7.1.254", "10.7.2.254"), 6: ("fd07:1::fe", "fd07:2::fe")}
GUESTS = ("10.8.0.1", "10.8.0.2")
GUESTS_6 = ("fd08::1", "fd08::2")
# In a warning: a guest solicits routers and neighbours once its own host has the tunnel, which may be before the other host has it.
EARLY = "receive tunnel port not found (icmp6"


class Host(Started):
    """A namespace with a switch, an Open vSwitch with the bridge br0, and a namespace as its guest."""

    def __init__(self, directory, number, namespace, program=None, words=()):
        super().__init__()
        self.directory = directory / f"host{number}"
        self.directory.mkdir()
        self.number, self.namespace = number, namespace
        self.program, self.words = program, words
        self.guest = self.switch = self.ovs = None

    def begin(self):
        self.guest = self.enter_context(Namespace(f"guest{self.number}"))
        self.namespace.run(f"ip link add p1 type veth peer name eth0 netns {self.guest.name}")
        self.namespace.run("ip link set p1 up")
        add_guest(self.guest, "eth0", self.number)
        self.start_switch()

    def start_switch(self):
        words = ["--controller", "external", *self.words]
        options = {"program": self.program, "prefix": self.namespace.prefix, "words": words}
        self.switch = self.enter_context(Switch(self.directory, [], **options))
        self.ovs = self.enter_context(OpenVSwitch(self.switch, self.namespace))
        self.ovs.vsctl("add-br", "br0", "--", "add-port", "br0", "p1")
        wait_until("the guest's wire", lambda: driven(self.switch).get("p1") == "up")

    def add_uplink(self):
        """The wire between the hosts as a port: guests' frames pass it as they are."""
        self.ovs.vsctl("add-port", "br0", "wire")
        wait_until("the wire between the hosts", lambda: driven(self.switch).get("wire") == "up")

    def pids(self):
        """Processes whose CPU time is the switch's."""
        return self.switch.pids()

    def add_tunnel(self, kind, options, name="tun0"):
        settings = [f"options:{key}={value}" for key, value in options.items()]
        self.ovs.vsctl("add-port", "br0", name, "--", "set", "interface", name, f"type={kind}", *settings)

    def check_serving(self):
        """No port was stopped for what its front end did."""
        stopped = {name: port["state"] for name, port in self.switch.stats().items() if str(port.get("state")).startswith("stopped")}
        check(not stopped, f"ports were stopped: {stopped}")

    def sound(self):
        self.switch.check_alive()
        self.check_serving()
        self.switch.check_conserved()
        warnings = [line for line in self.ovs.warnings() if EARLY not in line]
        check(not warnings, f"ovs-vswitchd warns: {warnings}")


def counters(host, port="genev_sys_6081"):
    """The tunnel port's counters of the driver process."""
    return host.switch.show_port(port)["counters"]


def counted(host, reason, port="genev_sys_6081"):
    """Packets that the tunnel port lost for this reason."""
    return counters(host, port)["drops"].get(reason, 0)


@contextlib.contextmanager
def explained(*hosts):
    """Adds the state of these hosts to a failure: without it a connection that stood still is not explained."""
    try:
        yield
    except Failure as failure:
        states = [
            {
                "flows": host.ovs.dpctl("dump-flows").splitlines(),
                "datapath": host.ovs.dpctl("show", "-s").splitlines(),
                "switch": host.switch.stats(),
                "devices": {name: counters(host, name) for name in driven(host.switch)},
            }
            for host in hosts
        ]
        raise Failure(f"{failure}; {states}") from failure


def add_guest(namespace, device, number):
    namespace.run(f"ip link set {device} mtu {MTU} up")
    namespace.run(f"ip addr add {GUESTS[number - 1]}/24 dev {device}")


@contextlib.contextmanager
def routed(mtu):
    """Two namespaces as hosts, and one as the router between them, whose wire to the second host has this MTU."""
    need_namespaces()
    with Namespace("host1") as one, Namespace("host2") as two, Namespace("router") as router:
        router.run("busybox sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        wire(one, "wire", router, "to1")
        wire(two, "wire", router, "to2", mtu)
        for number, host in enumerate((one, two)):
            for version, (first, second, length) in FAR.items():
                gateway = ROUTER[version][number]
                router.run(f"ip addr add {gateway}/{length} dev to{number + 1} nodad")
                host.run(f"ip addr add {(first, second)[number]}/{length} dev wire nodad")
                host.run(f"ip -{version} route add default via {gateway}")
        yield one, two, router


@contextlib.contextmanager
def wired():
    """Two namespaces as hosts, with a wire between them."""
    need_namespaces()
    with Namespace("host1") as one, Namespace("host2") as two:
        one.run(f"ip link add wire type veth peer name wire netns {two.name}")
        for number, host in enumerate((one, two)):
            for first, second, length in OUTER.values():
                host.run(f"ip addr add {(first, second)[number]}/{length} dev wire nodad")
            host.run("ip link set wire up")
        yield one, two


# Bytes that a connection carries: some hundred large frames.
CARRIED_BYTES = 8 << 20
# The receiving and the sending end: both print the digest of the bytes.
RECEIVE = """
import hashlib, socket
link, seen = socket.create_server(("", 5001)).accept()[0], hashlib.sha256()
while data := link.recv(1 << 20):
    seen.update(data)
print(seen.hexdigest())
"""
SEND = f"""
import hashlib, os, socket, sys
data = os.urandom({CARRIED_BYTES})
with socket.create_connection((sys.argv[1], 5001)) as link:
    link.sendall(data)
print(hashlib.sha256(data).hexdigest())
"""


def carry(sender, receiver, directory, address=GUESTS[1]):
    """Random bytes by TCP, from guest to guest; they have to arrive as they were."""
    with Process(directory / "receiver.log", [*receiver.prefix, "python3", "-c", RECEIVE]) as server:
        wait_until("the listener", lambda: ":5001" in receiver.run("ss -Hltn"))
        words = [*sender.prefix, "python3", "-c", SEND, address]
        try:
            sent = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout.strip()
        except subprocess.TimeoutExpired as late:
            ends = [guest.try_run("ss -Htnoi").stdout for guest in (sender, receiver)]
            raise Failure(f"the bytes did not arrive in {late.timeout} s: {ends}") from late
        wait_until("the end of the connection", lambda: not server.alive())
        check(server.text().strip() == sent, f"other bytes came: {server.text()} for {sent}")


# Of the outer path where it is narrow, in bytes. Guests' packets of 1400 bytes do not fit it.
NARROW = 1400
# Sends datagrams as long as the path to an address takes for all that is known, until the kernel has learnt no other MTU for a while.
FIND_MTU = """
import socket as s, sys, time
version, there = int(sys.argv[1]), sys.argv[2]
family, level, discover, mtu, headers = {4: (s.AF_INET, 0, 10, 14, 28), 6: (s.AF_INET6, 41, 23, 24, 48)}[version]
out = s.socket(family, s.SOCK_DGRAM)
out.setsockopt(level, discover, 2)
out.connect((there, 9))
known = lambda: out.getsockopt(level, mtu)
first, last, same = known(), known(), 0
for _ in range(200):
    try:
        out.send(bytes(last - headers))
    except OSError:
        pass
    time.sleep(0.05)
    same = same + 1 if known() == last else 0
    last = known()
    if last < first and same > 10:
        break
print(last)
"""


def learnt_mtu(guest, version, address=None):
    """The MTU of the path to the second guest, or to another address, as the guest's kernel finds it."""
    address = address or {4: GUESTS, 6: GUESTS_6}[version][1]
    words = [*guest.prefix, "python3", "-c", FIND_MTU, str(version), address]
    return int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout)
