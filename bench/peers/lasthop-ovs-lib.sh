# lasthop-ovs-lib.sh - Lasthop's flow data plane under the stock ovs-vswitchd (`lasthop ovs run`) as a back end of `lasthop
# bench`: one worker, an own ovsdb-server and ovs-vswitchd with everything they keep below LASTHOP_BENCH_DIR.
#
# Sourced after lib.sh by lasthop-ovs-normal and lasthop-ovs-flow, which give the bridge its flows.
# shellcheck shell=sh

# Open vSwitch's programs find it by OVS_RUNDIR.
ovs_answers() { [ -S "$OVS_RUNDIR/db.sock" ] && ovs-vsctl --timeout=5 show >/dev/null 2>&1 && ls "$OVS_RUNDIR"/ovs-vswitchd.pid >/dev/null 2>&1; }

# As ovs-lib.sh has it for Open vSwitch with DPDK.
configure() {
    set -- flow-limit=250000 "max-idle=${MAX_IDLE_MS:-3600000}"
    for option in "$@"; do
        vsctl set Open_vSwitch . "other_config:$option"
    done
    setting "other_config: $*"
}

# add_bridge OPTION...: bridge br0 with port N of the bench as port0, port1 ... and the OpenFlow numbers 1, 2 ...
add_bridge() {
    addresses=$((macs * 8 > 8192 ? macs * 8 : 8192))
    set -- add-br br0 -- set bridge br0 other_config:mac-aging-time=3600 "other_config:mac-table-size=$addresses" "$@"
    setting "bridge: mac-aging-time=3600, mac-table-size=$addresses"
    number=0
    while [ "$number" -lt "$ports" ]; do
        set -- "$@" -- add-port br0 "port$number" -- set Interface "port$number" "ofport_request=$((number + 1))"
        number=$((number + 1))
    done
    vsctl "$@"
    for name in $(ovs-vsctl --timeout=30 list-ports br0); do
        error=$(ovs-vsctl --timeout=30 get Interface "$name" error)
        [ "$error" = "[]" ] || fail 1 "$name: $error"
    done
}

start_ovs() {
    enter_namespace
    . "$here/lasthop-lib.sh"
    need ovs-vswitchd openvswitch-switch
    need ovsdb-server openvswitch-switch
    [ -c /dev/net/tun ] || fail 77 "needs /dev/net/tun, for what ovs-vswitchd looks at; modprobe tun"
    cpus=$cpu
    start_lasthop ,switch=ovs-system --switch ovs-system,module=flow,controller=external --workers 1
    setting "lasthop ovs run: $(ovs-vswitchd --version | head -n 1), on CPU $(control_cpus)"
    keep_files_below "$dir/run/ovs"
    start ovs taskset -c "$(control_cpus)" "$lasthop" --dir "$dir/run" ovs run
    wait_for "Open vSwitch answered" ovs_answers
    configure
    add_bridge "$@"
}
