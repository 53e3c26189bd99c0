# lasthop-ovs-lib.sh - Lasthop's flow data plane under the stock ovs-vswitchd (`lasthop ovs run`) as a back end of `lasthop
# bench`: one worker, and its own ovsdb-server and ovs-vswitchd, whose files are below LASTHOP_BENCH_DIR.
#
# Sourced after lib.sh by lasthop-ovs-normal and lasthop-ovs-flow, which give the bridge its flows.
# shellcheck shell=sh
. "$here/ovs-bridge.sh"

# Open vSwitch's programs find it by OVS_RUNDIR.
ovs_answers() { [ -S "$OVS_RUNDIR/db.sock" ] && ovs-vsctl --timeout=5 show >/dev/null 2>&1 && ls "$OVS_RUNDIR"/ovs-vswitchd.pid >/dev/null 2>&1; }

# No settings: Lasthop finds the port by its name.
interface() { :; }

start_ovs() {
    enter_namespace
    . "$here/lasthop-lib.sh"
    need ovs-vswitchd openvswitch-switch
    need ovsdb-server openvswitch-switch
    [ -c /dev/net/tun ] || fail 77 "needs /dev/net/tun, for what ovs-vswitchd looks at; modprobe tun"
    cpus=$cpu
    start_lasthop ,switch=ovs-system --switch ovs-system,module=flow,controller=external --workers 1 ${UPCALLS:+--upcalls "$UPCALLS"}
    setting "lasthop ovs run: $(ovs-vswitchd --version | head -n 1), on CPU $(control_cpus)"
    keep_files_below "$dir/run/ovs"
    start ovs taskset -c "$(control_cpus)" "$lasthop" --dir "$dir/run" ovs run
    wait_for "Open vSwitch answered" ovs_answers
    configure
    add_bridge "$@"
}
