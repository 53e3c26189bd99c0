# ovs-bridge.sh - the bridge of peers under Open vSwitch's control plane: settings, ports, and OpenFlow rules.  With `join_pairs`
# ports are in pairs (0-1, 2-3, ...), and RULES selects the fields that the rules match: "ports" (the default) only the
# port; "tuple" also the addresses and ports of UDP over IPv4, so that each combination needs its own flow in the data
# path; "ct" also the state of IPv4's connections; "ct-nat" the same, with their source address translated.
#
# Sourced after lib.sh.
# shellcheck shell=sh

# The directory for all files of Open vSwitch's programs.
keep_files_below() {
    mkdir -p "$1"
    export OVS_RUNDIR="$1" OVS_LOGDIR="$1" OVS_DBDIR="$1" OVS_SYSCONFDIR="$1"
}

vsctl() { ask ovs-vsctl --timeout=30 "$@"; }
ofctl() { ask ovs-ofctl "$@"; }

# configure OPTION...: sets these and the common options. max-idle, as flows of a back end that was frozen for longer
# than the usual 10 s would have to be set up again.
configure() {
    set -- "$@" flow-limit=250000 "max-idle=${MAX_IDLE_MS:-3600000}"
    for option in "$@"; do
        # ovs-vswitchd need not run yet.
        vsctl --no-wait set Open_vSwitch . "other_config:$option"
    done
    setting "other_config: $*"
}

# add_bridge OPTION...: bridge br0 with port N of the bench as port0, port1 ... and the OpenFlow numbers 1, 2 ...; the
# other settings of port N's interface are the words of `interface N`.
add_bridge() {
    addresses=$((macs * 8 > 8192 ? macs * 8 : 8192))
    set -- add-br br0 -- set bridge br0 other_config:mac-aging-time=3600 "other_config:mac-table-size=$addresses" "$@"
    setting "bridge: mac-aging-time=3600, mac-table-size=$addresses"
    number=0
    while [ "$number" -lt "$ports" ]; do
        set -- "$@" -- add-port br0 "port$number" \
            -- set Interface "port$number" "ofport_request=$((number + 1))" $(interface "$number")
        number=$((number + 1))
    done
    vsctl "$@"
    for name in $(ovs-vsctl --timeout=30 list-ports br0); do
        error=$(ovs-vsctl --timeout=30 get Interface "$name" error)
        [ "$error" = "[]" ] || fail 1 "$name: $error"
    done
}

# The bridge learns addresses.
learn_addresses() {
    ofctl del-flows br0
    ofctl add-flow br0 actions=NORMAL
    setting "flows: actions=NORMAL"
}

# OVS always matches bits that are moved to registers. A rule for each flow would also measure the cost of many rules,
# which is not the question here.
look=move:NXM_OF_UDP_SRC[]-\>NXM_NX_REG0[0..15],move:NXM_OF_UDP_DST[]-\>NXM_NX_REG0[16..31]
look=$look,move:NXM_OF_IP_SRC[]-\>NXM_NX_REG1[],move:NXM_OF_IP_DST[]-\>NXM_NX_REG2[]

# Port N of the bench has the OpenFlow number N + 1.
one_way() {
    ofctl add-flow br0 "in_port=$1,actions=output:$2"
    [ "$rules" != tuple ] || ofctl add-flow br0 "priority=40000,in_port=$1,udp,actions=$look,output:$2"
}

# track FROM TO ZONE NAT: connections that port FROM begins with port TO; NAT is empty or follows the zone.
track() {
    ofctl add-flow br0 "table=0,priority=40000,in_port=$1,ip,ct_state=-trk,actions=ct(zone=$3${4:+,nat},table=1)"
    ofctl add-flow br0 "table=1,in_port=$1,ip,ct_state=+trk+new,actions=ct(commit,zone=$3$4),output:$2"
    ofctl add-flow br0 "table=1,in_port=$1,ip,ct_state=+trk+est,actions=output:$2"
}

join_pairs() {
    rules=${RULES:-ports}
    number=1
    while [ "$number" -lt "$ports" ]; do
        one_way "$number" "$((number + 1))"
        one_way "$((number + 1))" "$number"
        case $rules in
            ct*)
                nat=
                [ "$rules" = ct ] || nat=",nat(src=10.99.0.1)"
                track "$number" "$((number + 1))" "$number" "$nat"
                track "$((number + 1))" "$number" "$number" "$nat"
                ;;
        esac
        number=$((number + 2))
    done
    setting "flows: in_port=1,actions=output:2 and back, the same for the other pairs"
    case $rules in
        tuple) setting "flows: for udp the same with $look in front" ;;
        ct*) setting "flows: for ip $(ovs-ofctl dump-flows br0 --no-stats | grep -o 'ct(commit[^ ]*' | head -n 1), and ct_state=+est" ;;
    esac
}
