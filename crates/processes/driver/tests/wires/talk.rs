//! Traffic of the kernel's own stacks, which verify all checksums.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use crate::lab::Namespace;
use crate::support::PATIENCE;

/// Sends `bytes` of a pattern over TCP from one namespace to another, and checks that it arrives.
pub(crate) fn stream(from: &Namespace, to: &Namespace, address: &str, bytes: usize) {
    let listener = to.within(|| TcpListener::bind(format!("{address}:0"))).unwrap();
    let target = listener.local_addr().unwrap();
    let pattern = |at: usize| ((at * 31) >> 3) as u8;
    let sent: Vec<u8> = (0..bytes).map(pattern).collect();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = from.within(|| TcpStream::connect_timeout(&target, PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(receiver.join().unwrap() == sent, "something else arrived");
    });
}

/// Datagrams there and back, of each of the given lengths.
pub(crate) fn datagrams(from: &Namespace, to: &Namespace, address: &str, lens: &[usize]) {
    let there = to.within(|| UdpSocket::bind(format!("{address}:0"))).unwrap();
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let here = from.within(|| UdpSocket::bind(any)).unwrap();
    for socket in [&there, &here] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut buffer = vec![0; 65536];
    for len in lens {
        let datagram: Vec<u8> = (0..*len).map(|at| (at * 7) as u8).collect();
        here.send_to(&datagram, there.local_addr().unwrap()).unwrap();
        let (received, sender) = there.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..received], datagram, "{len} there");
        there.send_to(&datagram, sender).unwrap();
        let received = here.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..received], datagram, "{len} back");
    }
}

/// Sends 20 times ten datagrams of 1000 bytes as one GSO datagram (udp(7), `UDP_SEGMENT`), for which std has
/// no call. Each ten are answered before the next, since a socket's buffer is bounded.
const SEGMENTED: &str = "import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_UDP, 103, 1000)
s.settimeout(60)
for _ in range(20):
    s.sendto(b''.join(bytes([65 + i]) * 1000 for i in range(10)), (sys.argv[1], int(sys.argv[2])))
    s.recv(1)";

/// Like [`datagrams`], with 200 datagrams that their sender leaves to be segmented.
pub(crate) fn segmented_datagrams(from: &Namespace, to: &Namespace, address: &str) {
    let there = to.within(|| UdpSocket::bind(format!("{address}:0"))).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = there.local_addr().unwrap().port().to_string();
    let mut sender = Command::new("ip")
        .args([
            "netns",
            "exec",
            &from.name,
            "python3",
            "-c",
            SEGMENTED,
            address.trim_matches(['[', ']']),
            &port,
        ])
        .spawn()
        .unwrap();
    let mut buffer = vec![0; 65536];
    for number in 0..200 {
        let (received, sender) = there.recv_from(&mut buffer).unwrap();
        assert!(received == 1000 && buffer[..1000] == [65 + number % 10; 1000], "{number}: {received}");
        if number % 10 == 9 {
            there.send_to(b"x", sender).unwrap();
        }
    }
    assert!(sender.wait().unwrap().success());
}
