"""The stock ovsdb-server and ovs-vswitchd in front of a switch, with directories of their own."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess

from realguests import PATIENCE_S, Failure, Process, binary, check, free_name, listens, need, wait_until

# How long Open vSwitch's tools wait for an answer.
TIMEOUT = f"--timeout={PATIENCE_S // 2}"
# ovs-vswitchd's name of its datapath; the switch has further ones.
DATAPATH = "ovs-system"
SCHEMA = pathlib.Path("/usr/share/openvswitch/vswitch.ovsschema")
# The directory of another version that was built, or unpacked by tools/ovs-packages, to use instead.
OTHER = os.environ.get("OVS")
if OTHER:
    is_built = (pathlib.Path(OTHER) / "vswitchd").is_dir()
    SCHEMA = pathlib.Path(OTHER) / ("vswitchd/vswitch.ovsschema" if is_built else "usr/share/openvswitch/vswitch.ovsschema")
    parts = ("vswitchd", "ovsdb", "utilities") if is_built else ("usr/sbin", "usr/bin")
    os.environ["PATH"] = ":".join([*(f"{OTHER}/{part}" for part in parts), os.environ["PATH"]])
# Words for `lasthop ovs relay`; with OVS_RELAY, all tests have it between ovs-vswitchd and its database.
RELAY = [] if os.environ.get("OVS_RELAY") else None
# Open vSwitch's own suite treats all other warnings as failures (OVS_TRAFFIC_VSWITCHD_STOP). These are caused by a busy
# machine, and by unreachable tables.
HARMLESS = re.compile("timeval|poll interval|context switches|faults|disk|blocked .* ms waiting for|overran|Broken pipe")


def glue():
    path = binary().parent / "liblasthop_ovs_glue.so"
    if not path.exists():
        raise Failure(f"{path} is not there; build it with: make build")
    return path


def environment(directory):
    """What keeps Open vSwitch's programs out of the machine's own directories."""
    places = [f"{kind}_{place}" for kind in ("OVS", "OVN") for place in ("RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR")]
    return os.environ | {name: str(directory) for name in [*places, "RUNTIME_DIRECTORY"]}


@contextlib.contextmanager
def database(directory):
    """An ovsdb-server with a fresh database, which listens at `db.sock` of the directory."""
    env, conf, sock = environment(directory), directory / "conf.db", directory / "db.sock"
    subprocess.run(["ovsdb-tool", "create", conf, SCHEMA], env=env, check=True)
    command = ["ovsdb-server", conf, f"--remote=punix:{sock}", f"--unixctl={directory}/ovsdb.ctl", "-voff"]
    with Process(directory / "ovsdb.log", command, env=env):
        wait_until("the database", lambda: listens(sock))
        yield


class OpenVSwitch(contextlib.ExitStack):
    """Both daemons; ovs-vswitchd runs in the switch's `namespace`, since it looks for devices there."""

    def __init__(self, switch, namespace, relay=RELAY):
        super().__init__()
        need("ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl", "ovs-ofctl", "ovsdb-tool")
        self.switch = switch
        self.namespace = namespace
        self.dir = pathlib.Path(switch.directory) / "ovs"
        self.dir.mkdir()
        self.env = environment(self.dir)
        self.glued = self.env | {"LD_PRELOAD": str(glue()), "LASTHOP_DATAPATH": str(switch.run_dir / "datapath.sock")}
        self.remote = f"unix:{self.dir}/db.sock"
        self.relay_words = relay
        self.daemons_remote = self.remote if relay is None else f"unix:{self.dir}/relay.sock"
        self.relay = self.daemon = None

    def __enter__(self):
        super().__enter__()
        with contextlib.ExitStack() as stack:
            stack.enter_context(database(self.dir))
            stack.callback(self.end)
            self.start()
            self.push(stack.pop_all())
        return self

    def end(self):
        """Ends the running ovs-vswitchd and the relay, if there are any."""
        for process in filter(None, (self.daemon, self.relay)):
            process.__exit__()

    def start_relay(self):
        """Starts what makes vnics of OVS-DPDK's vhost-user ports."""
        socket = self.dir / "relay.sock"
        command = [binary(), "--dir", self.switch.run_dir, "ovs", "relay", "--database", self.dir / "db.sock", "--listen", socket]
        self.relay = Process(free_name(self.dir, "relay"), [*command, *self.relay_words])
        self.relay.__enter__()
        wait_until("the relay", lambda: listens(socket))

    def start(self):
        """Starts ovs-vswitchd and waits until it has done what the database says."""
        if self.relay_words is not None and not self.relay:
            self.start_relay()
        log = free_name(self.dir, "vswitchd")
        command = [*self.namespace.prefix, "ovs-vswitchd", self.daemons_remote, "-vconsole:info", "-vsyslog:off"]
        self.daemon = Process(log, command, env=self.glued)
        self.daemon.__enter__()
        self.vsctl("--no-wait", "init")
        self.vsctl("list", "open")
        wait_until("ovs-vswitchd's control socket", lambda: listens(self.control()))

    def warnings(self):
        """Lines of its logs that its own suite would reject."""
        lines = "".join(path.read_text() for path in self.dir.glob("vswitchd*.log")).splitlines()
        return [line for line in lines if re.search(r"\|(WARN|ERR|EMER)\|", line) and not HARMLESS.search(line)]

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
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=env or self.env, check=False)

    def succeed(self, *command, **options):
        done = self.run(*command, **options)
        said = " ".join((done.stdout + done.stderr).split())
        check(done.returncode == 0, f"{' '.join(map(str, command))}: {said[-400:]}")
        return done.stdout

    def vsctl(self, *words):
        return self.succeed("ovs-vsctl", f"--db={self.remote}", TIMEOUT, "-voff", *words)

    def get(self, interface, *columns):
        """Columns of an interface, as text."""
        return [line.strip('"') for line in self.vsctl("get", "interface", interface, *columns).split("\n")[:-1]]

    def statistics(self, interface):
        (text,) = self.get(interface, "statistics")
        pairs = (pair.split("=") for pair in text.strip("{}").split(", ") if pair)
        return {name: int(count) for name, count in pairs}

    def appctl(self, *words):
        return self.succeed("ovs-appctl", TIMEOUT, "-t", self.control(), *words)

    def dpctl(self, *words):
        return self.succeed("ovs-dpctl", TIMEOUT, *words, env=self.glued, in_namespace=True)

    def ofctl(self, *words):
        return self.succeed("ovs-ofctl", TIMEOUT, *words)

    def ports(self):
        """Names of its datapath's ports, by number."""
        _, _, own = self.dpctl("show").partition(f"system@{DATAPATH}:")
        lines = (line.strip() for line in own.partition("system@")[0].splitlines())
        found = (line.removeprefix("port ").split(": ", 1) for line in lines if line.startswith("port "))
        return {int(number): name.split(" ")[0] for number, name in found}


def interface(ovs, name, **expected):
    """Waits until ovs-vswitchd knows an interface's columns."""
    columns = list(expected)
    wanted = [str(value) for value in expected.values()]
    wait_until(f"{name}: {expected}", lambda: ovs.get(name, *columns) == wanted)


def go_on_without(ovs, ping):
    """Kills ovs-vswitchd amid a ping and starts another one: known flows continue meanwhile. The new one first removes
    all flows, and installs them again as packets arrive."""
    ping.wait_for("seq=20 ")
    ovs.kill()
    ping.wait_for("seq=50 ")
    seen = [int(number) for number in re.findall(r"seq=(\d+) ", ping.text())]
    check(seen[:51] == list(range(51)), f"packets of a known flow were lost: {seen}")
    ovs.start()
    last = seen[-1]
    wait_until("answers by flows of the other one", lambda: last + 20 < int(re.findall(r"seq=(\d+) ", ping.text())[-1]))
