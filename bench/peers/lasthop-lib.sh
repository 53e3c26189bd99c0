# lasthop-lib.sh - Lasthop as a back end of `lasthop bench` that is started differently from the built-in ones.  It
# serves the sockets.
#
# Sourced after lib.sh and read_contract.
# shellcheck shell=sh
lasthop=${LASTHOP:-$(cd "$here/../.." && pwd)/target/release/lasthop}
[ -x "$lasthop" ] || fail 77 "there is no $lasthop; make build"
# Addresses that the switch may know; each port gets a quarter of them.
entries=$((macs * 8 < 16384 ? 16384 : macs * 8 > 1048576 ? 1048576 : macs * 8))

# vnics [OPTION]: a --vnic for each port, all with the same options.
vnics() {
    number=0
    while [ "$number" -lt "$ports" ]; do
        printf -- '--vnic port%s,socket=%s%s ' "$number" "$(socket "$number")" "${1:-}"
        number=$((number + 1))
    done
}

sockets_are_there() {
    number=0
    while [ "$number" -lt "$ports" ]; do
        [ -S "$(socket "$number")" ] || return 1
        number=$((number + 1))
    done
}

# start_lasthop VNIC-OPTION WORD...: the switch with these words, on the CPUs of $cpus.
start_lasthop() {
    options=$1
    shift
    setting "lasthop run $* --cpus $cpus --fdb-entries $entries"
    start lasthop "$lasthop" --dir "$dir/run" run "$@" --cpus "$cpus" --fdb-entries "$entries" $(vnics "$options")
    wait_for "serving its $ports sockets" sockets_are_there
}
