"""The logical network of the OVN test and demo, as ovn-nbctl makes it, and the lab in which it is.

```
   a1 (host1)   b1 (host2)            b2 (host2)
  10.1.0.11 │  │ 10.1.0.12               │ 10.2.0.13
        ┌───┴──┴───┐               ┌─────┴────┐
        │   blue   │               │  green   │
        └────┬─────┘               └────┬─────┘
    10.1.0.1 └──────── router ──────────┘ 10.2.0.1
                         │ 172.16.0.2, on host3, otherwise on host2
                    ┌────┴─────┐
                    │  public  │── localnet ── outside 172.16.0.1
                    └──────────┘
```

A gateway takes over for another one if it still hears some host: so there are three.
"""

import contextlib

from ovnlab import MTU, OUTSIDE, Central, Guest, Host, Outside, need_ovn
from realguests import wait_until

GUESTS = {
    "a1": (1, "02:00:00:01:00:11", "10.1.0.11"),
    "b1": (2, "02:00:00:01:00:12", "10.1.0.12"),
    "b2": (2, "02:00:00:02:00:13", "10.2.0.13"),
}
A1, B1, B2 = (ip for _, _, ip in GUESTS.values())
# By its MAC address and the prefix that the router announces.
A1_IP6, B1_IP6 = "fd01::ff:fe01:11", "fd01::ff:fe01:12"
B2_IP6 = "fd02::ff:fe02:13"
VIP = "10.9.9.9"
FLOATING = "172.16.0.12"

SWITCHES = f"""
    ls-add blue
    ls-add green
    lsp-add blue a1
    lsp-set-addresses a1 "{GUESTS['a1'][1]} {A1} {A1_IP6}"
    lsp-add blue b1
    lsp-set-addresses b1 "{GUESTS['b1'][1]} {B1} {B1_IP6}"
    lsp-add green b2
    lsp-set-addresses b2 "{GUESTS['b2'][1]} {B2} {B2_IP6}"
"""


def dhcp(switch, net, *ports):
    """Commands by which OVN answers DHCP of a logical switch's ports."""
    options = f"server_id={net}.1 server_mac=02:00:00:00:00:01 router={net}.1 dns_server={net}.1 mtu={MTU} lease_time=3600"
    words = " ".join(f"options:{option}" for option in options.split())
    lines = [f"--id=@{switch} create dhcp_options cidr={net}.0/24 {words}"]
    return "\n".join(lines + [f"set logical_switch_port {port} dhcpv4_options=@{switch}" for port in ports]) + "\n"


def advertise(port):
    """A command by which a router's port tells its prefix every few seconds: guests that asked at their boot do not ask again."""
    words = "address_mode=slaac send_periodic=true max_interval=4 min_interval=3"
    return " ".join([f"set logical_router_port {port}"] + [f"ipv6_ra_configs:{word}" for word in words.split()])


DHCP = dhcp("blue", "10.1.0", "a1", "b1") + dhcp("green", "10.2.0", "b2")
ROUTER = f"""
    lr-add router
    lrp-add router router-blue 02:00:00:01:00:01 10.1.0.1/24 fd01::1/64
    lrp-add router router-green 02:00:00:02:00:01 10.2.0.1/24 fd02::1/64
    {advertise("router-blue")}
    {advertise("router-green")}
    lsp-add blue blue-router
    lsp-set-type blue-router router
    lsp-set-addresses blue-router router
    lsp-set-options blue-router router-port=router-blue
    lsp-add green green-router
    lsp-set-type green-router router
    lsp-set-addresses green-router router
    lsp-set-options green-router router-port=router-green
"""
NAMES = f"""
    --id=@names create dns records:b2.lab="{B2}"
    set logical_switch blue dns_records=@names
"""
GATEWAY = f"""
    ls-add public
    lsp-add public localnet
    lsp-set-type localnet localnet
    lsp-set-addresses localnet unknown
    lsp-set-options localnet network_name=physnet
    lrp-add router router-public 02:00:00:03:00:01 172.16.0.2/24
    lsp-add public public-router
    lsp-set-type public-router router
    lsp-set-addresses public-router router
    lsp-set-options public-router router-port=router-public nat-addresses=router
    lrp-set-gateway-chassis router-public host3 20
    lrp-set-gateway-chassis router-public host2 10
    lr-route-add router 0.0.0.0/0 {OUTSIDE}
    lr-nat-add router snat 172.16.0.2 10.1.0.0/24
    lr-nat-add router dnat_and_snat {FLOATING} {B1}
"""
FIREWALL = """
    pg-add web b1 b2
    acl-add web to-lport 1000 'outport == @web && ip4 && tcp.dst == 80' allow-related
    acl-add web to-lport 900 'outport == @web && ip' drop
"""
BALANCER = f"""
    lb-add balancer {VIP}:80 {B1}:80,{B2}:80
    ls-lb-add blue balancer
    lr-lb-add router balancer
"""


class Lab(contextlib.ExitStack):
    """The machines and guests, before OVN knows any network."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory
        self.central = self.outside = None
        self.hosts, self.guests = {}, {}

    def start_central(self):
        self.central = self.enter_context(Central(self.directory))
        self.outside = self.enter_context(Outside()).namespace

    def start_hosts(self):
        for number in (1, 2, 3):
            vnics = {name: mac for name, (host, mac, _) in GUESTS.items() if host == number}
            host = Host(self.directory, number, self.central, self.outside, vnics)
            self.hosts[number] = self.enter_context(host)

    def boot(self):
        """All guests, at the same time."""
        for name, (number, mac, _) in GUESTS.items():
            self.guests[name] = self.enter_context(Guest(self.hosts[number], name, mac, self.directory))
        for guest in self.guests.values():
            guest.ready()

    def gateway(self):
        """The host that the router's way outside is on."""
        return self.central.chassis_of("cr-router-public")

    def wait_for_gateway(self, name):
        """Until the router's way outside is on this host, and all know it. OVN begins BFD with the gateway: a host that does not
        hear the best one yet sends to another one, which passes packets only as long as it does not hear the best one either.
        """
        others = len(self.hosts) - 1
        wait_until(f"{name} as the gateway", lambda: self.gateway() == name)
        wait_until("BFD between all hosts", lambda: all(host.hears_all(others) for host in self.hosts.values()))
        # By what it heard, each host has decided whether it is the gateway.
        self.central.nb("sync")
        wait_until(f"{name} to stay the gateway", lambda: self.gateway() == name)
        self.central.nb("sync")

    def serve(self):
        """A web server of each guest, which tells the guest's name, at two ports."""
        for guest in self.guests.values():
            guest.do(f"echo {guest.name} >/tmp/name; httpd -h /tmp; httpd -h /tmp -p 8080")
