"""Hosts for bench/tunnels whose switch is Open vSwitch itself: with its datapath in ovs-vswitchd, there with DPDK, or in the kernel.

With a datapath in ovs-vswitchd the host's wire and its outer address belong to a bridge of that datapath, as Open vSwitch's
documentation of its tunnels has it:

    guest -- p1 -- br0 -- tun0 ... br-out -- wire -- the other host
"""

import pathlib
import subprocess

import openvswitch
from realguests import Process, Skip, check
from tunnelhosts import OUTER, Host


class OvsHost(Host):
    """Its datapath in ovs-vswitchd, on packet sockets."""

    daemon = "ovs-vswitchd"
    datapath = "netdev"

    def start_switch(self):
        self.env = openvswitch.environment(self.directory)
        self.enter_context(openvswitch.database(self.directory))
        self.vsctl("--no-wait", "init")
        self.configure()
        command = [*self.namespace.prefix, self.daemon, f"unix:{self.directory}/db.sock", "-vconsole:info", "-vsyslog:off"]
        self.process = self.enter_context(Process(self.directory / "vswitchd.log", command, env=self.env))
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", f"datapath_type={self.datapath}")
        self.add_device("br0", "p1")
        if self.datapath == "netdev":
            self.add_outer_bridge()

    def configure(self):
        # By default it accepts neither unsegmented frames nor partial checksums.
        self.guest.run("ethtool -K eth0 tx off tso off gso off")

    def vsctl(self, *words):
        command = ["ovs-vsctl", f"--db=unix:{self.directory}/db.sock", "--timeout=30", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self.env, check=False)
        said = " ".join((done.stdout + done.stderr).split())
        check(done.returncode == 0 and "rror" not in said, f"ovs-vsctl {' '.join(words)}: {said}")

    def add_device(self, bridge, device):
        self.vsctl("add-port", bridge, device)

    def add_outer_bridge(self):
        self.vsctl("add-br", "br-out", "--", "set", "bridge", "br-out", f"datapath_type={self.datapath}")
        self.add_device("br-out", "wire")
        self.namespace.run("ip addr flush dev wire")
        for first, second, length in OUTER.values():
            self.namespace.run(f"ip addr add {(first, second)[self.number - 1]}/{length} dev br-out nodad")
        self.namespace.run("ip link set br-out up")

    def add_tunnel(self, kind, options, name="tun0"):
        settings = [f"options:{key}={value}" for key, value in options.items()]
        self.vsctl("add-port", "br0", name, "--", "set", "interface", name, f"type={kind}", *settings)

    def pids(self):
        return [self.process.child.pid]

    def sound(self):
        check(self.process.alive(), f"{self.daemon} ended: {self.process.text()[-300:]}")


class RelayHost(Host):
    """No switch but the least program that forwards frames in a process (bench/relay.c), between the guest and the wire to the other host."""

    def start_switch(self):
        program = self.directory / "relay"
        subprocess.run(["cc", "-O2", "-o", program, pathlib.Path(__file__).with_name("relay.c")], check=True)
        self.process = self.enter_context(Process(self.directory / "relay.log", [*self.namespace.prefix, program, "p1", "wire"]))

    def add_uplink(self):
        """It is there from the start."""

    def pids(self):
        return [self.process.child.pid]

    def sound(self):
        check(self.process.alive(), f"the relay ended: {self.process.text()[-300:]}")


class KernelOvsHost(OvsHost):
    """Its datapath in the kernel, whose tunnels the host's own addresses serve."""

    datapath = "system"

    def configure(self):
        done = subprocess.run(["modprobe", "-a", "openvswitch", "vport_geneve"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skip(f"the kernel has no module openvswitch: {done.stderr.strip()}")


class DpdkOvsHost(OvsHost):
    """Its datapath in ovs-vswitchd with DPDK, whose ports are packet sockets, too, and whose thread polls: that of each host has a CPU."""

    daemon = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
    MEMORY_MB = 400

    def configure(self):
        if not pathlib.Path(self.daemon).exists():
            raise Skip(f"{self.daemon} is not there; Debian's package is openvswitch-switch-dpdk")
        super().configure()
        extra = f"--no-pci --no-telemetry --no-huge --legacy-mem --no-shconf -m {self.MEMORY_MB}"
        settings = ["dpdk-init=true", f'dpdk-extra="{extra}"', "per-port-memory=true", f"pmd-cpu-mask={self.number:#x}"]
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{setting}" for setting in settings))

    def add_device(self, bridge, device):
        words = ["type=dpdk", f"options:dpdk-devargs=net_af_packet{device},iface={device}"]
        self.vsctl("add-port", bridge, device, "--", "set", "interface", device, *words)
