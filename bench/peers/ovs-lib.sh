# ovs-lib.sh - Open vSwitch with its DPDK datapath as a peer of `lasthop bench`: an own
# ovsdb-server and ovs-vswitchd with everything they keep below LASTHOP_BENCH_DIR.  It
# connects to the sockets, as Open vSwitch recommends (dpdkvhostuserclient).
#
# Sourced after lib.sh by ovs-normal and ovs-flow, which give the bridge its flows.
# shellcheck shell=sh

# Not the alternative of that name, which may be the build without DPDK.
vswitchd=/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
schema=/usr/share/openvswitch/vswitch.ovsschema

# The mask of one CPU, in hexadecimal and for any number.
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
    ask ovs-vsctl --no-wait --timeout=30 init
}

# A pool for each port (20500 mbufs; memory.rst in its documentation has the sum) instead of
# a single one: that is made when the first guest connects, of 262144 mbufs or what half, a
# quarter ... of that the memory suffices for, and connections that come while it tries are
# lost for want of memory.
size_memory() {
    mtu=1500 port_mb=72
    [ "$frame_bytes" -le 1518 ] || mtu=9000 port_mb=240
    memory_mb=$((64 + ports * port_mb))
}

# Most of these are read only when ovs-vswitchd starts.  max-idle is there because flows
# that were frozen for longer than the usual 10 s would have to be set up again.
configure() {
    extra="--no-pci --no-telemetry"
    [ "$huge" = 1 ] || extra="$extra --no-huge --legacy-mem --no-shconf -m $memory_mb"
    set -- dpdk-init=true "dpdk-extra=\"$extra\"" "pmd-cpu-mask=$(cpu_mask "$cpu")" \
        per-port-memory=true flow-limit=250000 "max-idle=${MAX_IDLE_MS:-3600000}"
    [ "$frame_bytes" -le "$JUMBO_FRAME_BYTES" ] || set -- "$@" userspace-tso-enable=true
    for option in "$@"; do
        ask ovs-vsctl --no-wait --timeout=30 set Open_vSwitch . "other_config:$option"
    done
    setting "other_config: $*"
}

start_switch() {
    # All of its threads but the polling one stay away from the guests, too, where there are CPUs enough.
    start vswitchd taskset -c "$(control_cpus)" "$vswitchd" "unix:$OVS_RUNDIR/db.sock" \
        --pidfile="$OVS_RUNDIR/ovs-vswitchd.pid" --unixctl="$OVS_RUNDIR/ovs-vswitchd.ctl" --no-chdir
    wait_for "DPDK was initialised" dpdk_is_up
}

dpdk_is_up() {
    [ "$(ovs-vsctl --timeout=5 get Open_vSwitch . dpdk_initialized 2>/dev/null)" = true ]
}

# add_bridge OPTION...: bridge br0 with port N of the bench as port0, port1 ... and the
# OpenFlow numbers 1, 2 ...
add_bridge() {
    set -- add-br br0 -- set bridge br0 datapath_type=netdev \
        other_config:mac-aging-time=3600 other_config:mac-table-size=$((macs * 8 > 8192 ? macs * 8 : 8192)) "$@"
    number=0
    while [ "$number" -lt "$ports" ]; do
        set -- "$@" -- add-port br0 "port$number" -- set Interface "port$number" type=dpdkvhostuserclient \
            "options:vhost-server-path=$(socket "$number")" "ofport_request=$((number + 1))" "mtu_request=$mtu"
        number=$((number + 1))
    done
    vsctl "$@"
    setting "ports: dpdkvhostuserclient, mtu_request=$mtu"
    for name in $(ovs-vsctl --timeout=30 list-ports br0); do
        error=$(ovs-vsctl --timeout=30 get Interface "$name" error)
        [ "$error" = "[]" ] || fail 1 "$name: $error"
    done
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
    configure
    start_switch
    add_bridge "$@"
}
