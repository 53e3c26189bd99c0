"""Network namespaces with wires between them, and commands that run there."""

import json
import os
import re
import subprocess

from realguests import PATIENCE_S, Process, Skip, check, free_name, need, wait_until

# Device names have 15 bytes at most, and all tests of a machine share its namespaces' names.
UNIQUE = f"lh{os.getpid()}"


def need_namespaces():
    need("ip", "busybox", "tcpdump", "ethtool", "iperf3")
    if os.geteuid() != 0:
        raise Skip("only root makes network namespaces")


class Namespace:
    """A network namespace, deleted on exit."""

    def __init__(self, name):
        self.name = f"{UNIQUE}-{name}"
        self.prefix = ["ip", "netns", "exec", self.name]

    def __enter__(self):
        try:
            subprocess.run(["ip", "netns", "add", self.name], check=True)
            self.run("ip link set lo up")
            # Addresses are of use at once.
            self.run("busybox sysctl -qw net.ipv6.conf.default.accept_dad=0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "del", self.name], check=False)

    def try_run(self, command):
        words = [*self.prefix, *command.split()]
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def run(self, command):
        """A command's output; it has to succeed."""
        done = self.try_run(command)
        said = " ".join((done.stdout + done.stderr).split())
        check(done.returncode == 0, f"'{command}' failed in {self.name}: {said[-300:]}")
        return done.stdout

    def ping(self, ip, count=3, payload_bytes=56):
        # One by one: behind the last of several, ping waits a second only.
        for _ in range(count):
            self.run(f"busybox ping -c 1 -W {PATIENCE_S // 2} -s {payload_bytes} {ip}")

    def serve_iperf(self, directory, port=5201):
        return IperfServer(free_name(directory, "iperf3"), [*self.prefix, "iperf3", "-s", "--forceflush", "-p", port])

    def tcpdump(self, directory, device, words):
        command = [*self.prefix, "tcpdump", "-n", "-vv", "-i", device, "--immediate-mode", "-l", *words.split()]
        return Process(free_name(directory, "tcpdump"), command)


class IperfServer(Process):
    """iperf3's server. It serves one client at a time and opens its socket anew for the next one; in between it resets a client,
    or tells it that it is busy."""

    def __enter__(self):
        super().__enter__()
        self.wait_until_free()
        return self

    def wait_until_free(self):
        def free():
            text = self.text()
            check(self.alive(), f"iperf3's server ended: {text[-300:]}")
            return text.rfind("Server listening") > text.rfind("Accepted connection")

        wait_until("iperf3's server", free)

    def test(self, client, words):
        """Runs a client with these words in its namespace; it has to succeed."""
        self.wait_until_free()
        return client.run(f"iperf3 {words}")


# iperf3's client says so before its first second.
CONNECTED = "connected to"


def when_served(iperf, log):
    """Shell words that run a client of iperf3 whose server may have yet to be reached, or be busy for a moment after a test."""
    return f"until {iperf} --connect-timeout 5000 >{log} 2>&1 || grep -q '{CONNECTED}' {log}; do sleep 0.2; done"


def links(namespace):
    """The names of the namespace's network devices."""
    return {link["ifname"] for link in json.loads(namespace.run("ip -j link"))}


def wire(one, device, other, others_device, mtu=1500):
    """A wire between two namespaces."""
    one.run(f"ip link add {device} mtu {mtu} type veth peer name {others_device} mtu {mtu} netns {other.name}")
    one.run(f"ip link set {device} up")
    other.run(f"ip link set {others_device} up")


def check_sums(dump):
    """Every checksum that tcpdump saw is right, and it saw some."""
    text = dump.text()
    wrong = re.findall(r"^.*(?:incorrect|bad udp cksum|bad cksum).*$", text, re.MULTILINE)
    check(not wrong, f"{len(wrong)} wrong checksums: {wrong[:1]}")
    check("(correct)" in text or "[udp sum ok]" in text, f"no checksum was seen: {text[-300:]}")
