"""A router in a network namespace of its own, whose connection tracking is the kernel's.

    left0 == left1 [ forwards; nftables writes the state of each packet into its DSCP ] right1 == right0

Started by `unshare --net`. Reads lines: `left HEX` and `right HEX` send a frame from that side, `entry PORT` asks for the
connection of a client's port. Answers each with a line: the frame as it came out on the other side, or `-`; the entry as
/proc/net/nf_conntrack has it, or `-`.
"""

import json
import select
import socket
import subprocess
import sys

ETH_P_IP = 0x0800
SENTINEL_PORT = 9
# For a packet to come out, or the sentinel behind it: only a machine that stands still needs so long.
WAIT_S = 20


def run(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def write(path, value):
    with open(path, "w") as file:
        file.write(value)


def set_up(nat):
    run("ip", "link", "set", "lo", "up")
    for side, net in ("left", 0), ("right", 1):
        run("ip", "link", "add", f"{side}0", "type", "veth", "peer", "name", f"{side}1")
        for end in "01":
            write(f"/proc/sys/net/ipv6/conf/{side}{end}/disable_ipv6", "1")
            run("ip", "link", "set", f"{side}{end}", "up")
        run("ip", "address", "add", f"10.0.{net}.254/24", "dev", f"{side}1")
        # An address that no device here has, so that nothing but this program takes packets that come out.
        for host in "1", "2", "3", "4", "5":
            run("ip", "neighbour", "replace", f"10.0.{net}.{host}", "lladdr", "02:00:00:00:00:99", "dev", f"{side}1")
        write(f"/proc/sys/net/ipv4/conf/{side}1/rp_filter", "0")
    write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")
    write("/proc/sys/net/ipv4/ip_forward", "1")
    rules = f"""
        table ip t {{
            chain raw {{ type filter hook prerouting priority raw; udp dport {SENTINEL_PORT} notrack; }}
            chain state {{
                type filter hook prerouting priority mangle;
                ct state invalid ip dscp set 1
                ct state new ip dscp set 2
                ct state established ct direction original ip dscp set 3
                ct state established ct direction reply ip dscp set 4
                ct state related ct direction original ip dscp set 5
                ct state related ct direction reply ip dscp set 6
            }}
            {nat}
        }}
    """
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)


def port(name):
    shown = subprocess.run(["ip", "-json", "link", "show", f"{name[:-1]}1"], check=True, capture_output=True).stdout
    peer = bytes.fromhex(json.loads(shown)[0]["address"].replace(":", ""))
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    end.bind((name, ETH_P_IP))
    return end, peer


def sentinel(side, number):
    source, destination = (b"\x0a\x00\x00\x05", b"\x0a\x00\x01\x05") if side == "left" else (b"\x0a\x00\x01\x05", b"\x0a\x00\x00\x05")
    udp = SENTINEL_PORT.to_bytes(2, "big") * 2 + b"\0\x0c\0\0" + number.to_bytes(4, "big")
    head = b"\x45\0\0\x20\0\0\0\0\x40\x11"
    words = head + source + destination
    total = sum(int.from_bytes(words[at : at + 2], "big") for at in range(0, len(words), 2))
    total = (total & 0xFFFF) + (total >> 16)
    check = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    return b"\x08\0" + head + check + source + destination + udp


def is_sentinel(frame):
    return frame[23] == 17 and frame[36:38] == SENTINEL_PORT.to_bytes(2, "big")


def exchange(ends, side, frame, number):
    end, peer = ends[side]
    out, _ = ends["right" if side == "left" else "left"]
    source = b"\x02\0\0\0\0\x01"
    end.send(peer + source + frame[12:])
    end.send(peer + source + sentinel(side, number))
    came = "-"
    while select.select([out], [], [], WAIT_S)[0]:
        found, address = out.recvfrom(70000)
        if address[2] == socket.PACKET_OUTGOING:
            continue
        if not is_sentinel(found):
            came = found.hex()
        elif found[42:46] == number.to_bytes(4, "big"):
            return came
    return "stuck"


def entry(client):
    with open("/proc/net/nf_conntrack") as file:
        wanted = f"port={client} "
        lines = [line.strip() for line in file if wanted in line.split("src=")[1]]
    return lines[0] if lines else "-"


def main():
    set_up(sys.argv[1] if len(sys.argv) > 1 else "")
    ends = {side: port(f"{side}0") for side in ("left", "right")}
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin, 1):
        what, value = line.split()
        answer = entry(value) if what == "entry" else exchange(ends, what, bytes.fromhex(value), number)
        print(answer, flush=True)


main()
