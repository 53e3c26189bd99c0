"""Frames that were lost between two wires, as kernel and switch count them, for the scripts of this directory."""

import json
import re


def link_drops(namespace):
    """Frames that the kernel dropped at devices of the namespace."""
    links = json.loads(namespace.run("ip -s -j link"))
    return sum(link["stats64"][way]["dropped"] for link in links for way in ("rx", "tx"))


def socket_drops(namespace):
    """Frames that found packet sockets full."""
    return sum(map(int, re.findall(r"skmem:\([^)]*d(\d+)\)", namespace.run("ss -0 -m -H"))))


def switch_drops(switch):
    """Frames that Lasthop counts as dropped, before and after its driver process took them."""
    switch.check_conserved()
    drops = 0
    for name, port in switch.stats().items():
        drops += sum(port.get("rx_drops", {}).values()) + sum(port.get("tx_drops", {}).values())
        if name.startswith("wire"):
            counters = json.loads(switch.ask("port", "show", name, "--json").stdout)["counters"]
            drops += counters["missed"] + sum(counters["drops"].values())
    return drops


def links_drops(*namespaces):
    return sum(map(link_drops, namespaces))
