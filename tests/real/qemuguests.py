"""Linux guests in QEMU, driven through their serial console, and the kernel that they boot.

The kernel is what tools/guest-kernel (part of `tools/deps test`) has put there, or what
LASTHOP_KERNEL_ROOT names.  KVM is used where it works; LASTHOP_QEMU_ACCEL=tcg is for machines where it works only
partly.
"""

import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess

from realguests import ROOT, Console, Skip, check, free_name, need, wait_until

# A guest without KVM on a machine that is busy with other things needs this long at most.
BOOT_PATIENCE_S = 240
# Of a kernel. On a busy machine no tick may come while Linux looks whether the timer works; it would give up then.
BOOT_WORDS = "console=ttyS0 quiet panic=-1 no_timer_check"
# Each guest serves this many copies of its busybox over HTTP, a file that exists anyway.
COPIES = 2
SERVE = [f"cat {' '.join(['/bin/busybox'] * COPIES)} >/tmp/data", "httpd -h /tmp"]


@functools.cache
def data():
    return pathlib.Path(shutil.which("busybox")).read_bytes() * COPIES


def data_bytes():
    return len(data())


@functools.cache
def data_md5():
    return hashlib.md5(data()).hexdigest()


def has_driver(modules):
    """Whether tools/mk-initramfs finds a virtio-net driver there, or needs none."""
    builtin = modules / "modules.builtin"
    return any(modules.glob("kernel/**/virtio_net.ko")) or (
        builtin.exists() and "/virtio_net.ko" in builtin.read_text()
    )


@functools.cache
def kernel():
    """The first usable kernel's image and modules; cloud kernels, which are small, come first."""
    found = subprocess.run([ROOT / "tools/guest-kernel", "-n"], capture_output=True, text=True, check=False)
    root = pathlib.Path(found.stdout.strip() or "/")
    for path in sorted(root.glob("boot/vmlinuz-*"), key=lambda path: ("cloud" not in path.name, path.name)):
        modules = root / "lib/modules" / path.name.removeprefix("vmlinuz-")
        if os.access(path, os.R_OK) and has_driver(modules):
            return path, modules
    raise Skip(f"no guest kernel: {' '.join(found.stderr.split())[-200:] or f'nothing usable in {root}'}")


@functools.cache
def accelerator():
    trial = subprocess.run([ROOT / "tools/qemu-accel", kernel()[0]], capture_output=True, text=True, check=True)
    return trial.stdout.strip()


# For translated code, in MiB: a boot takes three times as long while the code of the boot before is still there, since
# each write to its pages removes a part of it. It is removed at once when the room is full.
TRANSLATED_MIB = 24


def machine(accel):
    cpu = "host" if accel == "kvm" else "max"
    accel = "kvm" if accel == "kvm" else f"tcg,thread=multi,tb-size={TRANSLATED_MIB}"
    command = f"qemu-system-x86_64 -accel {accel} -cpu {cpu} -nodefaults -no-user-config -display none -serial stdio"
    return command.split()


def need_qemu():
    need("busybox", "iperf3", "ethtool")
    if not shutil.which("qemu-system-x86_64"):
        raise Skip("qemu-system-x86_64 is not installed (Debian: qemu-system-x86)")
    kernel()


@functools.cache
def guest_image(directory):
    path = directory / "qemu-guest.cpio"
    subprocess.run([ROOT / "tools/mk-initramfs", path, kernel()[1]], check=True)
    return path


def arguments_shown(switch, port, memory, device):
    """The output of `lasthop port show --qemu`, without options that this QEMU does not support."""
    shown = switch.ask("vnic", "show", port, "--qemu").stdout
    # Parsed like a shell does: a backslash joins lines.
    arguments = shlex.split(shown.replace("\\\n", " "), comments=True)
    check("-device" in arguments, f"port show --qemu prints no device: {shown.strip()}")
    arguments = [memory if word == "1G" else word.replace("size=1G", f"size={memory}") for word in arguments]
    at = arguments.index("-device") + 1
    if accelerator() == "tcg":
        # QEMU 7.2 without KVM crashes when its guest turns MSI-X on.
        arguments[at] = re.sub(",vectors=[0-9]+", "", arguments[at]) + ",vectors=0"
    arguments[at] += f"{device},romfile="
    return arguments


class Qemu(Console):
    """A Linux guest in QEMU that serves its data over HTTP and does what `do` is told.

    `device` is more of virtio-net-pci's options, such as ",rx_queue_size=1024".
    """

    def __init__(self, switch, port, ip, cpus=1, device=""):
        self.name, self.ip, self.switch = port, ip, switch
        self.qmp = switch.directory / f"{port}.qmp"
        image = guest_image(switch.directory)
        job = ";;".join(SERVE).replace(" ", "+")
        words = f"{BOOT_WORDS} lh.ip={ip}/24 lh.ip6=off lh.console=1 lh.do={job}"
        command = [*machine(accelerator()), "-smp", str(cpus), "-kernel", kernel()[0], "-initrd", image]
        command += ["-append", words, "-qmp", f"unix:{self.qmp},server=on,wait=off"]
        command += arguments_shown(switch, port, "192M", device)
        super().__init__(free_name(switch.directory, f"qemu-{port}"), command, stdin=subprocess.PIPE)

    def ready(self):
        self.next("^guest: console", BOOT_PATIENCE_S)
        return self

    def check_sums(self, said, streams):
        sums = re.findall(r"^([0-9a-f]{32}) ", said, re.MULTILINE)
        check(sums == [data_md5()] * streams, f"{self.name} got other data than was sent: {sums or said[-200:]}")

    def ask_qemu(self, command, **arguments):
        """One QMP command's answer."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(20)
            monitor.connect(str(self.qmp))
            lines = monitor.makefile("rw")
            for words in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                print(json.dumps(words), file=lines, flush=True)
                answer = next(a for a in map(json.loads, lines) if "return" in a or "error" in a)
            check("return" in answer, f"QEMU refuses {command}: {answer.get('error')}")
            return answer["return"]


def fetch(ip, limit_s=110):
    """A guest's command which gets another one's data and prints the checksum.

    By timeout, as the option of busybox' wget crashes it.
    """
    return f"timeout {limit_s} wget -q -O - http://{ip}/data | md5sum"


def fetch_side_by_side(ip, streams):
    return " & ".join([f"( {fetch(ip)} )"] * streams) + " & wait"


def transfer(switch, *pairs, streams=1):
    """Data over TCP for each (receiver, sender), all at once: every byte arrives, and the counters agree."""
    before = switch.stats()
    for receiver, sender in pairs:
        receiver.send(fetch_side_by_side(sender.ip, streams))
    for receiver, sender in pairs:
        receiver.check_sums(receiver.result("fetch"), streams)
    after = switch.stats()
    for receiver, sender in pairs:
        for name, counter in ((receiver.name, "tx_bytes"), (sender.name, "rx_bytes")):
            grown = after[name][counter] - before[name][counter]
            check(grown >= streams * data_bytes(), f"{name}: {counter} grew by {grown} only")
    switch.check_conserved()
    return before, after


def both_ways(switch, one, other, streams=1):
    return transfer(switch, (one, other), (other, one), streams=streams)


def ping(guest, ip, count=3, payload_bytes=56):
    said = guest.do(f"ping -c {count} -s {payload_bytes} {ip}")
    check(f"{count} packets received" in said, f"{guest.name} pings {ip}: {said[-120:]}")
