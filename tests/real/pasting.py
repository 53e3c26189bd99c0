"""Commands of documents, pasted into a shell of a host."""

import os
import pathlib
import re
import subprocess
import sys

from openvswitch import glue
from realguests import PATIENCE_S, ROOT, Process, Skip, binary, check, need, wait_until

sys.path.insert(0, str(ROOT / "tools"))

import pastedlines

# The same as systemd and packages do at the start of a service: there is no systemd here. Of Open vSwitch the unit has a drop-in.
SYSTEMCTL = r"""#!/bin/sh
case $* in
"stop openvswitch-switch") ovs-appctl exit && while [ -e /run/openvswitch/ovs-vswitchd.pid ]; do sleep 0.1; done ;;
"start openvswitch-switch"|"restart openvswitch-switch")
    mkdir -p /run/openvswitch /var/log/openvswitch
    if [ ! -e /run/openvswitch/db.sock ]; then
        ovsdb-tool create /run/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
        ovsdb-server /run/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach --no-chdir -vconsole:off
        ovs-vsctl --no-wait init
    fi
    [ ! -e /run/openvswitch/ovs-vswitchd.pid ] || ovs-appctl exit
    unit=/etc/systemd/system/ovs-vswitchd.service.d/lasthop.conf
    [ ! -e $unit ] || eval "$(sed -n ':a;/\\$/{N;s/\\\n//;ba};s/^ExecStartPre=-\(.*\)/\1 || true/p;s/^ExecStart=\(..*\)/\1/p' $unit)"
    ;;
"restart lasthop")
    lasthop run --config lasthop.toml &
    until lasthop version | grep -q process; do sleep 0.1; done
    ;;
"enable --now lasthop")
    eval "$(sed -n 's/^ExecStart=\(..*\)/\1/p' /usr/local/lib/systemd/system/lasthop.service) &"
    until lasthop version | grep -q process; do sleep 0.1; done
    ;;
"start ovn-central") /usr/share/ovn/scripts/ovn-ctl start_northd --no-monitor ;;
"start ovn-host") /usr/share/ovn/scripts/ovn-ctl start_controller --no-monitor ;;
esac
"""
# Packages are there; a fresh one starts its services.
APT = r"""#!/bin/sh
case $* in *openvswitch-switch*) systemctl restart openvswitch-switch ;; esac
for service in ovn-central ovn-host; do
    case $* in *$service*) systemctl start $service ;; esac
done
"""
# Directories into which the commands write.
PRIVATE = ("/run", "/etc/systemd", "/var/log")
# A terminal in which commands are pasted; a line of its own says that one is over, and how.
OVER = "pasted:"


class Terminal(Process):
    """A shell of the host, with directories of its own in which the commands may write."""

    def __init__(self, directory, namespace, path, more_private=()):
        private = " && ".join(f"mount -t tmpfs tmpfs {place}" for place in [*PRIVATE, *more_private])
        # In a PID namespace everything ends with the shell, also daemons.
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*namespace.prefix, *isolated, "sh", "-c", f"{private} && exec sh"]
        env = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "LASTHOP_OVS_GLUE": str(glue())}
        super().__init__(directory / "terminal.log", command, env=env, stdin=subprocess.PIPE)
        self.pasted = 0

    def paste(self, line):
        self.child.stdin.write(f"{line}\n".encode())
        self.child.stdin.flush()

    def run(self, line, statuses=(0,), patience_s=PATIENCE_S):
        """Pastes a command and waits for its end; what it said."""
        self.pasted += 1
        before = len(self.text())
        self.paste(f"{line}\nstatus=$?; echo; echo {OVER} {self.pasted} $status")
        status = int(self.wait_for(rf"^{OVER} {self.pasted} (\d+)$", patience_s)[1])
        said = self.text()[before:].rpartition(f"{OVER} {self.pasted}")[0]
        check(status in statuses, f"'{line}' ends with {status}: {' '.join(said.split())[-300:]}")
        return said

    def begin(self, line):
        """Pastes a command that stays."""
        self.paste(f"{line} &")

    def begin_switch(self, line):
        self.begin(line)
        self.run("until lasthop version | grep -q 'process'; do sleep 0.1; done")

    def run_until(self, line, pattern, signal="TERM"):
        """Pastes a command that never ends, waits for what it says, and ends it; all that it said."""
        before = len(self.text())
        self.begin(line)
        wait_until(f"'{pattern}' of '{line}'", lambda: re.search(pattern, self.text()[before:], re.MULTILINE))
        # A shell without job control waits for a whole pipeline by its last process.
        self.run(f"kill -{signal} $!; wait $! || :")
        return self.text()[before:]

    def __exit__(self, *_):
        if self.alive():
            self.paste("exit")
            self.child.stdin.close()
        super().__exit__()


def pasted(test):
    """The commands that this program's test has to paste (tests/documented.tsv), in the order of their pages."""
    return [line.text for line in pastedlines.pasted_by(f"tests/real/{pathlib.Path(sys.argv[0]).name} {test}")]


def bare(line):
    return line.split(" #")[0].strip()


def own_programs(directory):
    """A PATH with `lasthop`."""
    for place in PRIVATE:
        if not os.path.isdir(place):
            raise Skip(f"there is no {place} here, which commands write to")
    (directory / "bin").mkdir()
    (directory / "bin/lasthop").symlink_to(binary())
    return str(directory / "bin")


def programs(directory, version):
    """Where an Open vSwitch is, with a `lasthop` beside it: a PATH."""
    own = own_programs(directory)
    if version is None:
        need("ovs-vswitchd", "ovsdb-server", "ovs-vsctl")
        return own
    found = subprocess.run([ROOT / "tools/ovs-packages", "-n", version], capture_output=True, text=True, check=False)
    if found.returncode:
        raise Skip(" ".join(found.stderr.split())[-200:])
    root = found.stdout.strip()
    return f"{own}:{root}/usr/bin:{root}/usr/sbin"


def put_systemctl(directory):
    """`systemctl` and `apt`, for those commands that the documents have."""
    for name, text in (("systemctl", SYSTEMCTL), ("apt", APT), ("apt-get", APT)):
        path = directory / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
