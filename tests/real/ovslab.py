"""Open vSwitch in a namespace with wires to others, and ways to kill processes there."""

import contextlib
import json
import os
import pathlib
import re
import signal

from openvswitch import OpenVSwitch
from realguests import ROOT, Switch, check, wait_until
from wires import Namespace, need_namespaces

# Replies to wait for after a death.
PINGS = 40
# Keeps descriptors for a supervisor that is started again, as systemd does.
MANAGER = ROOT / "crates/lasthop/tests/support/service-manager"


@contextlib.contextmanager
def lab(directory, wires=2, is_service=False):
    """A switch, as a service if wanted, and Open vSwitch in the namespace `host`, and others with wires to it: `p1`, `p2`."""
    need_namespaces()
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(Namespace("host"))
        others = [stack.enter_context(Namespace(f"ns{number}")) for number in range(1, wires + 1)]
        for number, other in enumerate(others, 1):
            host.run(f"ip link add p{number} type veth peer name eth0 netns {other.name}")
            host.run(f"ip link set p{number} up")
            other.run("ip link set eth0 up")
            other.run(f"ip addr add 10.8.0.{number}/24 dev eth0")
        manager = [MANAGER, directory / "notify", directory / "state"] if is_service else []
        env = os.environ | {"FDSTORE": "512"}
        words = ["--controller", "external"]
        switch = stack.enter_context(Switch(directory, [], prefix=[*host.prefix, *manager], env=env, words=words))
        ovs = stack.enter_context(OpenVSwitch(switch, host))
        yield switch, ovs, host, others
        switch.check_alive()
        switch.check_conserved()


def driven(switch):
    """Device ports and their state."""
    answer = switch.ask("port", "list", "--json")
    return {port["name"]: port["state"] for port in json.loads(answer.stdout)["ports"] if "device" in port}


def upcalls(switch):
    return sum(port["upcalls"] for port in switch.stats().values())


def icmp_packets(ovs):
    """Packets of a ping's flows."""
    flows = [line for line in ovs.dpctl("dump-flows").splitlines() if "0x0800" in line]
    return sum(int(count) for count in re.findall(r"packets:(\d+)", " ".join(flows)))


def hear_pings(ping):
    last = lambda: int((re.findall(r"seq=(\d+) ", ping.text()) or ["0"])[-1])
    before = last()
    wait_until("answers", lambda: last() > before + PINGS)


def upgrade(switch):
    done = switch.ask("upgrade")
    check(done.returncode == 0, f"the upgrade failed: {done.stderr}")


def restart_service(switch):
    """Restarts the service: all its processes are replaced."""
    before = set(switch.pids()[1:])
    switch.child.send_signal(signal.SIGUSR1)
    wait_until("another supervisor", lambda: answers(switch) and not before & set(switch.pids()))


def answers(switch):
    return switch.ask("stats").returncode == 0


@contextlib.contextmanager
def stopped(switch):
    """Stops the supervisor meanwhile."""
    os.kill(switch.child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(switch.child.pid, signal.SIGCONT)


def kill_driver(switch, device="p1"):
    pid = switch.show_port(device)["driver"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until("another driver process", lambda: pid not in switch.pids())


def kill_switch(switch):
    pid = kill_only(switch)
    wait_until("another switch process", lambda: answers(switch) and pid not in switch.pids())


def kill_only(switch):
    pid = next(pid for pid in switch.pids() if pathlib.Path(f"/proc/{pid}/comm").read_text() == "lasthop-switch\n")
    os.kill(pid, signal.SIGKILL)
    return pid
