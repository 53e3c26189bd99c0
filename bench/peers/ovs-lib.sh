# ovs-lib.sh - Open vSwitch with its DPDK datapath as a peer of `lasthop bench`: its own ovsdb-server and ovs-vswitchd,
# whose files are below LASTHOP_BENCH_DIR.  It connects to the sockets, as Open vSwitch recommends (dpdkvhostuserclient).
#
# Sourced after lib.sh by ovs-normal and ovs-flow, which give the bridge its flows.
# shellcheck shell=sh
. "$here/ovs-bridge.sh"

# Not the alternative of that name, which may be the build without DPDK.
vswitchd=/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
schema=/usr/share/openvswitch/vswitch.ovsschema

# The mask of one CPU in hexadecimal, for any CPU number.
cpu_mask() {
    mask=$((1 << $1 % 4)) digits=$(($1 / 4))
    while [ "$digits" -gt 0 ]; do
        mask=${mask}0
        digits=$((digits - 1))
    done
    echo "0x$mask"
}

start_database() {
    ask ovsdb-tool create "$dir/conf.db" "$schema"
    start ovsdb ovsdb-server "$dir/conf.db" --remote="punix:$OVS_RUNDIR/db.sock" \
        --pidfile --unixctl="$OVS_RUNDIR/ovsdb.ctl" --no-chdir
    wait_for "its database answers" test -S "$OVS_RUNDIR/db.sock"
    vsctl --no-wait init
}

# A pool for each port (20500 mbufs; memory.rst in its documentation has the sum) instead of a single one: that is
# created when the first guest connects, with 262144 mbufs or a half, a quarter ... of them, as memory allows, and
# connections meanwhile fail for lack of memory.
size_memory() {
    mtu=1500 port_mb=72
    [ "$frame_bytes" -le 1518 ] || mtu=9000 port_mb=240
    memory_mb=$((64 + ports * port_mb))
}

# ovs-vswitchd reads most of these only when it starts.
configure_dpdk() {
    extra="--no-pci --no-telemetry"
    [ "$huge" = 1 ] || extra="$extra --no-huge --legacy-mem --no-shconf -m $memory_mb"
    set -- dpdk-init=true "dpdk-extra=\"$extra\"" "pmd-cpu-mask=$(cpu_mask "$cpu")" per-port-memory=true
    [ "$frame_bytes" -le "$JUMBO_FRAME_BYTES" ] || set -- "$@" userspace-tso-enable=true
    configure "$@"
}

start_switch() {
    # All of its threads except the polling one also avoid the guests' CPUs if there are enough CPUs.
    start vswitchd taskset -c "$(control_cpus)" "$vswitchd" "unix:$OVS_RUNDIR/db.sock" \
        --pidfile="$OVS_RUNDIR/ovs-vswitchd.pid" --unixctl="$OVS_RUNDIR/ovs-vswitchd.ctl" --no-chdir
    wait_for "DPDK was initialised" dpdk_is_up
}

dpdk_is_up() {
    [ "$(ovs-vsctl --timeout=5 get Open_vSwitch . dpdk_initialized 2>/dev/null)" = true ]
}

interface() {
    echo "type=dpdkvhostuserclient options:vhost-server-path=$(socket "$1") mtu_request=$mtu"
}

start_ovs() {
    enter_namespace
    need "$vswitchd" openvswitch-switch-dpdk
    need ovsdb-server openvswitch-switch-dpdk
    size_memory
    need_huge_mb "$memory_mb"
    keep_files_below "$dir/ovs"
    setting "$("$vswitchd" --version | paste -sd ' ')"
    start_database
    configure_dpdk
    start_switch
    add_bridge datapath_type=netdev "$@"
    setting "ports: dpdkvhostuserclient, mtu_request=$mtu"
}
