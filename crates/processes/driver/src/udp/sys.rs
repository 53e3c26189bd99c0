//! System calls on UDP and raw sockets: datagrams in batches, with addresses and the fields of their IP headers.
//!
//! As in `crate::sys`, this makes no reference into the vNIC's memory: it checks addresses against the arena and passes
//! them on.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_device::TunnelSocket;
use rustix::io::Errno;

use super::control::{CONTROL_BYTES, Endpoint, mapped, read_control, write_control, write_segment_len};
use super::headers::WRITTEN_BYTES_MAX;
use crate::bounds::{INNER_BYTES_MAX, MESSAGE_DATAGRAMS_MAX, SEND_DATAGRAMS_MAX, SEND_PIECES_MAX};
use crate::sys::{Arena, BATCH, EMPTY, Span, blank, checked};

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(libc::sockaddr_in6, sin6_flowinfo) == offset_of!(libc::sockaddr_in, sin_addr));
    assert!(offset_of!(libc::sockaddr_in6, sin6_family) == offset_of!(libc::sockaddr_in, sin_family));
    assert!(offset_of!(libc::sockaddr_in6, sin6_port) == offset_of!(libc::sockaddr_in, sin_port));
};

#[repr(C, align(8))] // a cmsghdr starts with a size_t
struct Control([u8; CONTROL_BYTES]);

fn no_name() -> libc::sockaddr_in6 {
    // SAFETY: all its fields are numbers, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

/// The address in a name; that of a socket of IPv4, which is a sockaddr_in, mapped.
pub(super) fn address_of(name: &libc::sockaddr_in6, is_ipv4_only: bool) -> u128 {
    match is_ipv4_only {
        true => mapped(u32::from_be(name.sin6_flowinfo)), // where a sockaddr_in has it
        false => u128::from_be_bytes(name.sin6_addr.s6_addr),
    }
}

/// Buffers for `recvmmsg`. The pointers in its messages are valid during a call only.
pub(super) struct UdpInbox {
    arena: Arc<Arena>,
    messages: Box<[libc::mmsghdr; BATCH]>,
    iovecs: Box<[libc::iovec; BATCH]>,
    names: Box<[libc::sockaddr_in6; BATCH]>,
    controls: Box<[Control; BATCH]>,
    /// Its socket knows no addresses of IPv6.
    is_ipv4_only: bool,
}

// SAFETY: between calls its pointers are not followed.
unsafe impl Send for UdpInbox {}

impl std::fmt::Debug for UdpInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UdpInbox")
    }
}

impl UdpInbox {
    pub(super) fn new(arena: Arc<Arena>, socket: TunnelSocket) -> Self {
        Self {
            arena,
            is_ipv4_only: socket.is_ipv4_only(),
            messages: Box::new([blank(); BATCH]),
            iovecs: Box::new([EMPTY; BATCH]),
            names: Box::new([no_name(); BATCH]),
            controls: Box::new([const { Control([0; CONTROL_BYTES]) }; BATCH]),
        }
    }

    /// Receives one datagram for each of the `buffers`, at most [`BATCH`]; returns their number.
    ///
    /// # Errors
    /// Errors of recvmmsg(2) for the first of them; `AGAIN` if there is none.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = Span>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        let places = self.iovecs.iter_mut().zip(self.names.iter_mut()).zip(self.controls.iter_mut());
        for ((message, ((iovec, name), control)), span) in self.messages.iter_mut().zip(places).zip(buffers) {
            *iovec = self.arena.iovec(span);
            let header = &mut message.msg_hdr;
            (header.msg_iov, header.msg_iovlen) = (std::ptr::from_mut(iovec), 1);
            header.msg_name = std::ptr::from_mut(name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            count += 1;
        }
        let messages = self.messages.as_mut_ptr();
        // SAFETY: the first `count` messages point to iovecs, names and control buffers of ours, as just set, and the iovecs into
        // the arena, which we keep.
        let received = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(fd.as_raw_fd(), messages, count, flags as _, std::ptr::null_mut())
        };
        checked(received).map(|received| received as usize)
    }

    /// Message `index` of the last call.
    pub(super) fn message(&self, index: usize) -> Message {
        let (message, name) = (&self.messages[index], &self.names[index]);
        #[allow(clippy::unnecessary_cast, reason = "a socklen_t with musl")]
        let control_len = (message.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES);
        let is_whole = message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        let remote = address_of(name, self.is_ipv4_only);
        let first = Endpoint { remote, port: u16::from_be(name.sin6_port), ..Endpoint::default() };
        let (endpoint, datagram_bytes) = read_control(&self.controls[index].0[..control_len], first);
        let len = message.msg_len;
        // An empty datagram is one, too.
        let datagram_bytes = datagram_bytes.unwrap_or(len).clamp(1, len.max(1));
        Message { len, datagram_bytes, endpoint: is_whole.then_some(endpoint) }
    }
}

/// A received message: a datagram, or several of one sender with the same fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// Bytes.
    pub(super) len: u32,
    /// Bytes of each datagram; the last one may have fewer.
    pub(super) datagram_bytes: u32,
    /// Where it came from; none if it was cut. A raw socket of IPv4 does not say where: the datagram does.
    pub(super) endpoint: Option<Endpoint>,
}

impl Message {
    /// Where each datagram begins, and its bytes.
    pub(super) fn datagrams(self) -> impl Iterator<Item = (u32, u32)> {
        let starts = (0..self.len.max(1)).step_by(self.datagram_bytes as usize);
        starts.map(move |start| (start, self.datagram_bytes.min(self.len - start)))
    }
}

/// Bytes of datagrams that are sent as one message at most: of the longest datagram of IPv4, less its headers.
const RUN_BYTES_MAX: usize = 65_535 - 28;
/// Bytes of a tunnel's header, and of the headers of a part of a frame.
const HEAD_BYTES_MAX: usize = WRITTEN_BYTES_MAX + INNER_BYTES_MAX;

/// A datagram in an outbox.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The destination that it shares with others of its frame.
    destination: usize,
    /// Its bytes.
    len: usize,
}

/// Datagrams for `sendmmsg`, each with a header of ours in front of its parts in the arena.
///
/// Datagrams of one length to one host are one message with UDP_SEGMENT (udp(7)), so they pass the host's stack as one:
///
/// ```text
///   datagrams   | 1442 | 1442 | 1442 | 300 | 1442 |          other lengths begin another message; a shorter datagram ends one
///   messages    |<-------- one ----------->|< one >|
/// ```
pub(super) struct UdpOutbox {
    arena: Arc<Arena>,
    messages: Box<[libc::mmsghdr; BATCH]>,
    /// Of the messages: that of their destination, and the length of their datagrams.
    message_controls: Box<[Control; BATCH]>,
    iovecs: Box<[libc::iovec; SEND_PIECES_MAX]>,
    heads: Box<[[u8; HEAD_BYTES_MAX]; SEND_DATAGRAMS_MAX]>,
    /// Of the destinations, one for each frame.
    names: Box<[libc::sockaddr_in6; BATCH]>,
    controls: Box<[Control; BATCH]>,
    control_lens: [usize; BATCH],
    destinations: usize,
    /// Its socket knows no addresses of IPv6.
    is_ipv4_only: bool,
    /// Its socket is of UDP: several datagrams can be one message.
    is_udp: bool,
    entries: ArrayVec<Entry, SEND_DATAGRAMS_MAX>,
    /// The first part of each datagram, and where the last one ends.
    starts: Box<[usize; SEND_DATAGRAMS_MAX + 1]>,
    /// Datagrams of the message that the last call failed at, if there is one.
    failed: Option<usize>,
}

// SAFETY: as for UdpInbox.
unsafe impl Send for UdpOutbox {}

impl std::fmt::Debug for UdpOutbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpOutbox of {} datagrams", self.entries.len())
    }
}

impl UdpOutbox {
    pub(super) fn new(arena: Arc<Arena>, socket: TunnelSocket) -> Self {
        Self {
            arena,
            is_ipv4_only: socket.is_ipv4_only(),
            is_udp: socket.is_udp(),
            messages: Box::new([blank(); BATCH]),
            message_controls: Box::new([const { Control([0; CONTROL_BYTES]) }; BATCH]),
            iovecs: Box::new([EMPTY; SEND_PIECES_MAX]),
            heads: Box::new([[0; HEAD_BYTES_MAX]; SEND_DATAGRAMS_MAX]),
            names: Box::new([no_name(); BATCH]),
            controls: Box::new([const { Control([0; CONTROL_BYTES]) }; BATCH]),
            control_lens: [0; BATCH],
            destinations: 0,
            entries: ArrayVec::new(),
            starts: Box::new([0; SEND_DATAGRAMS_MAX + 1]),
            failed: None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.destinations = 0;
    }

    /// Takes the number of datagrams of the message that the last [`Self::send`] failed at. None if it did not fail: then the socket's error
    /// queue has nothing new.
    pub(super) fn take_failed(&mut self) -> Option<usize> {
        self.failed.take()
    }

    /// Where an entered datagram goes, and the port there.
    pub(super) fn destination(&self, at: usize) -> (u128, u16) {
        let name = &self.names[self.entries[at].destination];
        (u128::from_be_bytes(name.sin6_addr.s6_addr), u16::from_be(name.sin6_port))
    }

    /// The first bytes of an entered datagram: all of the tunnel's header, the headers of a part of a frame, and behind them nothing of use.
    pub(super) fn head(&self, at: usize) -> &[u8; HEAD_BYTES_MAX] {
        &self.heads[at]
    }

    /// Bytes of an entered datagram, the tunnel's header included.
    pub(super) fn datagram_bytes(&self, at: usize) -> usize {
        self.entries[at].len
    }

    /// Whether datagram `at` would be refused for its length where `other` was: it is no shorter, and takes the same path.
    pub(super) fn is_as_long(&self, at: usize, other: usize) -> bool {
        self.entries[at].len >= self.entries[other].len && self.is_alike(at, other)
    }

    /// Whether two datagrams go to the same host with the same fields.
    fn is_alike(&self, at: usize, other: usize) -> bool {
        let control = |of: usize| &self.controls[of].0[..self.control_lens[of]];
        let [one, two] = [at, other].map(|at| self.entries[at].destination);
        one == two || (self.destination(at) == self.destination(other) && control(one) == control(two))
    }

    /// Begins a frame: its datagrams go `to` there. Returns false if there is no room.
    pub(super) fn begin(&mut self, to: &Endpoint) -> bool {
        let at = self.destinations;
        let (Some(name), Some(control)) = (self.names.get_mut(at), self.controls.get_mut(at)) else {
            return false;
        };
        name.sin6_family = if self.is_ipv4_only { libc::AF_INET } else { libc::AF_INET6 } as _;
        name.sin6_port = to.port.to_be();
        name.sin6_addr.s6_addr = to.remote.to_be_bytes();
        // Where a sockaddr_in has its address; one of IPv6 has no label.
        name.sin6_flowinfo = if self.is_ipv4_only { (to.remote as u32).to_be() } else { 0 };
        self.control_lens[at] = write_control(to, self.is_ipv4_only, &mut control.0);
        self.destinations += 1;
        true
    }

    /// Adds a datagram of the frame that began last: `head`, `inner`, then the parts. Returns false, without adding it, if there is no room.
    pub(super) fn push(&mut self, head: &[u8], inner: &[u8], parts: impl Iterator<Item = Span>) -> bool {
        let at = self.entries.len();
        let head_len = head.len() + inner.len();
        let Some(destination) = self.destinations.checked_sub(1) else { return false };
        if self.entries.is_full() || head_len > HEAD_BYTES_MAX {
            return false;
        }
        let place = &mut self.heads[at];
        place[..head.len()].copy_from_slice(head);
        place[head.len()..head_len].copy_from_slice(inner);
        let (mut end, mut len) = (self.starts[at], 0);
        let first = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: head_len };
        let rest = parts.map(|span| self.arena.iovec(span));
        for iovec in std::iter::once(first).chain(rest) {
            let Some(place) = self.iovecs.get_mut(end) else { return false };
            *place = iovec;
            end += 1;
            len += iovec.iov_len;
        }
        self.entries.push(Entry { destination, len });
        self.starts[at + 1] = end;
        true
    }

    /// Sends the entered datagrams from number `first` to the one before `end`. Returns the number sent.
    ///
    /// # Errors
    /// Errors of sendmmsg(2) for the first of them.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, first: usize, end: usize) -> Result<usize, Errno> {
        let end = end.min(self.entries.len());
        match self.send_runs(fd, first, end, self.is_udp) {
            // The kernel does not know UDP_SEGMENT, or cannot cut these: they are longer than their path takes, or IPsec encrypts them.
            Err(Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP)
                if self.is_udp && self.run(first, end) > 1 =>
            {
                self.send_runs(fd, first, end, false)
            }
            result => result,
        }
    }

    /// Datagrams from number `first` on that one message can have: as long as the first, and to the same host.
    fn run(&self, first: usize, end: usize) -> usize {
        let len = self.entries[first].len;
        let (mut bytes, mut next) = (len, first + 1);
        while next < end.min(first + MESSAGE_DATAGRAMS_MAX) {
            let next_len = self.entries[next].len;
            bytes += next_len;
            if next_len > len || bytes > RUN_BYTES_MAX || !self.is_alike(next, first) {
                break;
            }
            next += 1;
            if next_len < len {
                break;
            }
        }
        next - first
    }

    fn send_runs(
        &mut self,
        fd: BorrowedFd<'_>,
        first: usize,
        end: usize,
        joins: bool,
    ) -> Result<usize, Errno> {
        let mut runs: ArrayVec<usize, BATCH> = ArrayVec::new();
        let mut at = first;
        while at < end && !runs.is_full() {
            let run = if joins { self.run(at, end) } else { 1 };
            self.point(runs.len(), at, run);
            runs.push(run);
            at += run;
        }
        let messages = self.messages.as_mut_ptr();
        // SAFETY: these messages point to iovecs, names and control buffers of ours, as just set, and the iovecs to heads of ours and into
        // the arena, which we keep.
        let sent =
            unsafe { libc::sendmmsg(fd.as_raw_fd(), messages, runs.len() as _, libc::MSG_DONTWAIT as _) };
        let sent = checked(sent).map(|sent| sent as usize);
        if let Some(run) = runs.get(sent.unwrap_or(0)) {
            self.failed = Some(*run);
        }
        sent.map(|sent| runs.iter().take(sent).sum())
    }

    /// Has message `index` send `run` datagrams from number `at` on.
    fn point(&mut self, index: usize, at: usize, run: usize) {
        let (start, stop) = (self.starts[at], self.starts[at + run]);
        let Entry { destination, len } = self.entries[at];
        let mut control_len = self.control_lens[destination];
        let control = &mut self.message_controls[index].0;
        control[..control_len].copy_from_slice(&self.controls[destination].0[..control_len]);
        if run > 1 {
            control_len += write_segment_len(len as u16, &mut control[control_len..]); // at most RUN_BYTES_MAX
        }
        let header = &mut self.messages[index].msg_hdr;
        header.msg_iov = self.iovecs[start..stop].as_mut_ptr();
        header.msg_iovlen = (stop - start) as _;
        header.msg_name = std::ptr::from_mut(&mut self.names[destination]).cast();
        header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control_len as _;
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::tests::world;

    /// Of datagrams in the order of sending, and the messages that they are.
    const LENS: [usize; 7] = [40, 40, 40, 30, 40, 50, 50];
    const RUNS: [usize; 3] = [4, 1, 2];

    /// Sends them to a socket, and checks that it gets them one by one.
    fn check_datagrams(out: &UdpSocket, here: &UdpSocket) {
        let world = world();
        let mut outbox = UdpOutbox::new(Arc::new(Arena::of(&world.pair).expect("memory")), TunnelSocket::Udp);
        let port = here.local_addr().expect("its address").port();
        let to = Endpoint { remote: 1, port, ttl: 64, ..Endpoint::default() };
        for (number, len) in (1..).zip(LENS) {
            assert!(outbox.begin(&to));
            assert!(outbox.push(&[number; WRITTEN_BYTES_MAX][..len], &[], std::iter::empty()));
        }
        let mut at = 0;
        for run in RUNS {
            assert_eq!(outbox.run(at, LENS.len()), run, "from {at} on");
            at += run;
        }
        assert_eq!(outbox.send(out.as_fd(), 0, LENS.len()).expect("sent"), LENS.len());
        for (number, len) in (1..).zip(LENS) {
            let mut got = [0; 256];
            let bytes = here.recv(&mut got).expect("a datagram");
            assert_eq!(got[..bytes], [number; WRITTEN_BYTES_MAX][..len]);
        }
    }

    fn sockets() -> (UdpSocket, UdpSocket) {
        let here = UdpSocket::bind("[::1]:0").expect("a socket");
        here.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        (UdpSocket::bind("[::1]:0").expect("a socket"), here)
    }

    #[test]
    fn datagrams_of_one_length_are_one_message_and_arrive_one_by_one() {
        let (out, here) = sockets();
        check_datagrams(&out, &here);
    }

    #[test]
    fn where_the_kernel_does_not_cut_messages_datagrams_are_sent_by_themselves() {
        let (out, here) = sockets();
        // Without checksums there is no UDP_SEGMENT.
        let no_checksums = 101; // linux/udp.h: UDP_NO_CHECK6_TX
        crate::sys::set_option(out.as_fd(), libc::IPPROTO_UDP, no_checksums, 1).expect("set");
        crate::sys::set_option(here.as_fd(), libc::IPPROTO_UDP, no_checksums + 1, 1).expect("set");
        check_datagrams(&out, &here);
    }

    #[test]
    fn datagrams_to_other_hosts_or_with_other_headers_are_other_messages() {
        let world = world();
        let arena = Arc::new(Arena::of(&world.pair).expect("memory"));
        let to = Endpoint { remote: 1, port: 9, ttl: 64, ..Endpoint::default() };
        let others = [Endpoint { remote: 2, ..to }, Endpoint { port: 8, ..to }, Endpoint { tos: 4, ..to }];
        for other in others {
            let mut outbox = UdpOutbox::new(Arc::clone(&arena), TunnelSocket::Udp);
            for to in [to, other, other] {
                assert!(outbox.begin(&to) && outbox.push(&[0; 20], &[], std::iter::empty()));
            }
            assert_eq!((outbox.run(0, 3), outbox.run(1, 3), outbox.run(1, 2)), (1, 2, 1), "{other:?}");
        }
    }
}
