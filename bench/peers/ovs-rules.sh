# ovs-rules.sh - the OpenFlow rules of ovs-flow and lasthop-ovs-flow: ports in pairs (0-1, 2-3, ...).  RULES says what they
# look at: "ports" (the default) at the port alone; "tuple" has the addresses and ports of UDP over IPv4 decide, too, so that
# each of them takes a flow of its own in the data path.
#
# Sourced after lib.sh.
# shellcheck shell=sh

# What is moved to registers is looked at, whatever becomes of it: a rule for each flow would be as many rules, and what they
# cost is not what is asked.
look=move:NXM_OF_UDP_SRC[]-\>NXM_NX_REG0[0..15],move:NXM_OF_UDP_DST[]-\>NXM_NX_REG0[16..31]
look=$look,move:NXM_OF_IP_SRC[]-\>NXM_NX_REG1[],move:NXM_OF_IP_DST[]-\>NXM_NX_REG2[]

# Port N of the bench has the OpenFlow number N + 1.
one_way() {
    ofctl add-flow br0 "in_port=$1,actions=output:$2"
    [ "$rules" = ports ] || ofctl add-flow br0 "priority=40000,in_port=$1,udp,actions=$look,output:$2"
}

join_pairs() {
    rules=${RULES:-ports}
    number=1
    while [ "$number" -lt "$ports" ]; do
        one_way "$number" "$((number + 1))"
        one_way "$((number + 1))" "$number"
        number=$((number + 2))
    done
    setting "flows: in_port=1,actions=output:2 and back, the same for the other pairs"
    [ "$rules" = ports ] || setting "flows: for udp the same with $look in front"
}
