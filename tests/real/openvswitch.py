"""The stock ovsdb-server and ovs-vswitchd in front of a switch, with directories of their own."""

import os
import pathlib
import signal
import subprocess

from realguests import Failure, Process, binary, check, free_name, need, wait_until

SCHEMA = pathlib.Path("/usr/share/openvswitch/vswitch.ovsschema")


def glue():
    path = binary().parent / "liblasthop_ovs_glue.so"
    if not path.exists():
        raise Failure(f"{path} is not there; build it with: make build")
    return path


class OpenVSwitch:
    """Both daemons; ovs-vswitchd is where the switch is, in `namespace`, since it looks for devices there."""

    def __init__(self, switch, namespace):
        need("ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl", "ovs-ofctl", "ovsdb-tool")
        self.switch = switch
        self.namespace = namespace
        self.dir = pathlib.Path(switch.directory) / "ovs"
        self.dir.mkdir()
        places = ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")
        self.env = os.environ | {name: str(self.dir) for name in places}
        self.glued = self.env | {"LD_PRELOAD": str(glue()), "LASTHOP_DATAPATH": str(switch.run_dir / "datapath.sock")}
        self.remote = f"unix:{self.dir}/db.sock"
        self.database = self.daemon = None

    def __enter__(self):
        conf = self.dir / "conf.db"
        subprocess.run(["ovsdb-tool", "create", conf, SCHEMA], env=self.env, check=True)
        command = ["ovsdb-server", conf, f"--remote=p{self.remote}", "-voff"]
        self.database = Process(self.dir / "ovsdb.log", command, env=self.env)
        self.database.__enter__()
        try:
            wait_until("the database", (self.dir / "db.sock").exists)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in (self.daemon, self.database):
            if process:
                process.__exit__()

    def start(self):
        """Starts ovs-vswitchd and waits until it has done what the database says."""
        log = free_name(self.dir, "vswitchd")
        command = [*self.namespace.prefix, "ovs-vswitchd", self.remote, "-vconsole:info", "-vsyslog:off"]
        self.daemon = Process(log, command, env=self.glued)
        self.daemon.__enter__()
        self.vsctl("--no-wait", "init")
        self.vsctl("list", "open")

    def kill(self):
        """kill -9 of ovs-vswitchd."""
        self.daemon.child.send_signal(signal.SIGKILL)
        self.daemon.child.wait()

    def control(self):
        """Where ovs-vswitchd listens for ovs-appctl."""
        return self.dir / f"ovs-vswitchd.{self.daemon.child.pid}.ctl"

    def run(self, *command, env=None, in_namespace=False):
        prefix = self.namespace.prefix if in_namespace else []
        words = [*prefix, *map(str, command)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=env or self.env, check=False)

    def succeed(self, *command, **options):
        done = self.run(*command, **options)
        said = " ".join((done.stdout + done.stderr).split())
        check(done.returncode == 0, f"{' '.join(map(str, command))}: {said[-400:]}")
        return done.stdout

    def vsctl(self, *words):
        return self.succeed("ovs-vsctl", f"--db={self.remote}", "--timeout=30", "-voff", *words)

    def get(self, interface, *columns):
        """Columns of an interface, as text."""
        return [line.strip('"') for line in self.vsctl("get", "interface", interface, *columns).split("\n")[:-1]]

    def statistics(self, interface):
        (text,) = self.get(interface, "statistics")
        pairs = (pair.split("=") for pair in text.strip("{}").split(", ") if pair)
        return {name: int(count) for name, count in pairs}

    def appctl(self, *words):
        return self.succeed("ovs-appctl", "--timeout=30", "-t", self.control(), *words)

    def dpctl(self, *words):
        return self.succeed("ovs-dpctl", "--timeout=30", *words, env=self.glued, in_namespace=True)

    def ofctl(self, *words):
        return self.succeed("ovs-ofctl", "--timeout=30", *words)

    def ports(self):
        """Names of the datapath's ports, by number."""
        lines = (line.strip() for line in self.dpctl("show").splitlines())
        found = (line.removeprefix("port ").split(": ", 1) for line in lines if line.startswith("port "))
        return {int(number): name.split(" ")[0] for number, name in found}
