# lib.sh - the common part of the peers: the contract with `lasthop bench` (README.md),
# and processes that end together.  Sourced by sh, not run.
# shellcheck shell=sh
set -u
PATH=$PATH:/usr/sbin:/sbin
peer=${0##*/}
# The directory of the peers, as an absolute path, since read_contract changes the working directory.
here=$(cd "${0%/*}" && pwd)
# The number of attempts, ten a second, before a condition counts as failed.
PATIENCE_TRIES=300
# Largest frame that needs no segmentation offload: MTU 9000, Ethernet header and FCS.
JUMBO_FRAME_BYTES=9018

setting() { printf 'setting: %s\n' "$*"; }

# fail STATUS WHY...: 77 says that this machine cannot run the peer, 1 that it went wrong.
fail() {
    status=$1
    shift
    printf '%s: %s' "$peer" "$*" | tr -s '\n\t' '  ' >&2
    echo >&2
    exit "$status"
}

# Reads the environment, with defaults for a start by hand.
read_contract() {
    ports=${LASTHOP_BENCH_PORTS:-2}
    cpu=${LASTHOP_BENCH_CPU:-1}
    other_cpu=${LASTHOP_BENCH_OTHER_CPU:-0}
    frame_bytes=${LASTHOP_BENCH_FRAME_BYTES:-1518}
    macs=${LASTHOP_BENCH_MACS:-1}
    huge=${LASTHOP_BENCH_HUGE:-1}
    case $ports$cpu$other_cpu$frame_bytes$macs$huge in
        *[!0-9]*) fail 1 "LASTHOP_BENCH_{PORTS,CPU,OTHER_CPU,FRAME_BYTES,MACS,HUGE} have to be numbers" ;;
    esac
    dir=${LASTHOP_BENCH_DIR:-}
    [ -d "$dir" ] || fail 1 "LASTHOP_BENCH_DIR='$dir' is not a directory; make an empty one and name it there"
    [ "$ports" -ge 2 ] || fail 1 "LASTHOP_BENCH_PORTS=$ports: a switch has 2 ports at least"
    [ "$cpu" != "$other_cpu" ] || fail 77 "needs two CPUs: LASTHOP_BENCH_CPU and LASTHOP_BENCH_OTHER_CPU are both $cpu"
    for number in "$cpu" "$other_cpu"; do
        taskset -c "$number" true 2>/dev/null || fail 77 "CPU $number is not there or not allowed here; see: taskset -cp \$\$"
    done
    cd "$dir" || exit 1
    # No core files: a process that ends by abort() leaves a message in its log.
    ulimit -c 0
    # DPDK's own files: the default is outside the directory, below /run.
    export RUNTIME_DIRECTORY="$dir"
}

# For peers that can only join ports in pairs.
need_pairs() { [ $((ports % 2)) = 0 ] || fail 77 "joins ports in pairs, cannot switch between $ports"; }

socket() { printf '%s/port%s.sock' "$dir" "$1"; }

# need PROGRAM PACKAGE
need() {
    command -v "$1" >/dev/null ||
        fail 77 "$1 is not installed; run tools/deps bench, or: apt-get install $2"
}

# need_huge_mb MB: free huge pages for the peer.
need_huge_mb() {
    [ "$huge" = 1 ] || return 0
    free_mb=$(awk '/^HugePages_Free/ { n = $2 } /^Hugepagesize/ { k = $2 } END { print int(n * k / 1024) }' /proc/meminfo)
    [ "$free_mb" -ge "$1" ] || fail 77 "needs $1 MB of free huge pages and there are $free_mb;" \
        "run it under bench/huge-pages $((($1 + 1) / 2)), or set LASTHOP_BENCH_HUGE=0"
}

# Prints the first COUNT allowed CPUs that no peer uses, each after a comma; fails when there are fewer.
more_cpus() {
    left=$1
    for number in $(seq 0 255); do
        [ "$left" -gt 0 ] || return 0
        [ "$number" != "$cpu" ] && [ "$number" != "$other_cpu" ] && taskset -c "$number" true 2>/dev/null || continue
        printf ',%s' "$number"
        left=$((left - 1))
    done
    [ "$left" = 0 ]
}

# CPUs for threads that take no part in forwarding: one or two that neither the data path nor the guests use, or, if
# there are none, those of the guests.
control_cpus() {
    cpus=$(more_cpus 2) || cpus=$(more_cpus 1) || cpus=,$other_cpu
    echo "${cpus#,}"
}

# Starts $0 again in a new network namespace, so that network devices and Open vSwitch's only datapath of a namespace
# are ours, and end with the last process.
enter_namespace() {
    [ -z "${LASTHOP_BENCH_NAMESPACE:-}" ] || return 0
    options=-n
    [ "$(id -u)" = 0 ] || options=-rn
    unshare $options true 2>/dev/null ||
        fail 77 "a network namespace of its own is not allowed here (unshare $options); run it as root"
    LASTHOP_BENCH_NAMESPACE=1 exec unshare $options "$here/$peer"
}

ask() { "$@" >"$dir/answer.log" 2>&1 || fail 1 "'$*' failed: $(tail -n 2 "$dir/answer.log")"; }

pids=
# start NAME COMMAND...: a child with its output in DIR/NAME.log and an input that never ends. It ends with this script,
# even when that is killed.
start() {
    log=$dir/$1.log
    shift
    [ -p "$dir/never" ] || mkfifo "$dir/never"
    setpriv --pdeathsig KILL "$@" <>"$dir/never" >"$log" 2>&1 &
    child=$!
    pids="$child $pids"
}

alive() { kill -0 "$1" 2>/dev/null; }

# wait_for WHAT CONDITION...: until the condition's command succeeds.
wait_for() {
    what=$1 tries=$PATIENCE_TRIES
    shift
    until "$@"; do
        for pid in $pids; do
            alive "$pid" || fail 1 "ended before $what: $(last_words)"
        done
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail 1 "waited $((PATIENCE_TRIES / 10)) s for $what: $(last_words)"
        sleep 0.1
    done
}

# Prints the latest line of the child's log that names an error, or its last lines.
last_words() {
    grep -iE 'error|fail|cannot|invalid|EMER|ERR' "$log" | tail -n 2 | grep . || tail -n 2 "$log"
}

# end PID: terminates it, and kills it if it does not end.
end() {
    kill -TERM "$1" 2>/dev/null
    kill -CONT "$1" 2>/dev/null
    tries=50
    while alive "$1" && [ "$tries" -gt 0 ]; do
        sleep 0.1
        tries=$((tries - 1))
    done
    kill -KILL "$1" 2>/dev/null
    wait "$1" 2>/dev/null
}

# Ends the children, last one first.
end_all() {
    trap '' HUP INT TERM
    for pid in $pids; do
        end "$pid"
    done
    pids=
}
trap end_all EXIT
trap 'exit 0' HUP INT TERM

# serve listen|connect: reports the mode and waits for SIGTERM or the end of the last child.
serve() {
    echo "ready $1"
    wait "$child"
    fail 1 "ended by itself: $(last_words)"
}
