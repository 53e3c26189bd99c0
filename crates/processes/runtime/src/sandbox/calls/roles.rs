//! Further calls of each process, beside those of all (`common.rs`).

use super::common::OWN;
use super::{Call, NO_ADDRESS, Term, Terms, Value, call, int};

/// Of the switch process: guests' memory, captures.
pub(in crate::sandbox) const SWITCH_CALLS: &[Call] = &[
    Call::with(
        call!(SYS_readlinkat),
        &[&[Term { argument: 0, is: Value::DescriptorNames }]],
        "to check a front end's eventfd: the kernel's name for it in /proc/self/fd",
    ),
    Call::with(
        call!(SYS_getsockopt),
        &[
            &[int(1, libc::SOL_SOCKET), int(2, libc::SO_DOMAIN)],
            &[int(1, libc::SOL_SOCKET), int(2, libc::SO_TYPE)],
        ],
        "kind of a descriptor: a UNIX socket (calls of User Mode Linux) or a UNIX stream (back-end channel)",
    ),
    Call::with(
        call!(SYS_getrusage),
        &[&[int(0, libc::RUSAGE_THREAD)]],
        "page faults of a worker, sampled per visit",
    ),
    Call::with(
        call!(SYS_tgkill),
        &[&[OWN, int(2, libc::SIGURG)]],
        "the watchdog interrupts a worker that hangs",
    ),
    Call::with(call!(SYS_clone), &[&[int(0, libc::CLONE_VM)]], "the keeper of this memory starts").once(),
    Call::with(
        call!(SYS_seccomp),
        &[&[int(0, libc::SECCOMP_SET_MODE_FILTER as i32)]],
        "forbids clone of the keeper, and itself, here and in the keeper",
    )
    .once(),
    Call::any(call!(SYS_shutdown), "ends a session; the supervisor has a copy of its connection"),
    Call::any(call!(SYS_clock_nanosleep), "work under way ends before an upgrade").kept(),
    Call::with(call!(SYS_sched_setaffinity), &[&[int(0, 0)]], "a worker stays on its CPUs"),
    Call::with(
        call!(SYS_sendto),
        &[NO_ADDRESS],
        "captures are written to their clients, and answers of the control interface",
    ),
    Call::with(
        call!(SYS_ioctl),
        &[&[int(1, libc::FIONBIO as i32)]],
        "connections of the control interface become non-blocking",
    ),
    Call::any(
        call!(SYS_read),
        "the keeper waits for the end of this process; eventfds of upcalls and session threads",
    ),
    Call::any(call!(SYS_ppoll), "a session waits for its front end, a capture for its client"),
    Call::with(
        call!(SYS_setpriority),
        &[&[int(0, libc::PRIO_PROCESS as i32), int(1, 0)]],
        "threads of captures, and of sessions that take much time, give way to workers",
    ),
];

/// Options of XDP sockets, and the length of their address in bytes (linux/if_xdp.h).
const XDP_MMAP_OFFSETS: i32 = 1;
const XDP_RX_RING: i32 = 2;
const XDP_TX_RING: i32 = 3;
const XDP_UMEM_REG: i32 = 4;
const XDP_UMEM_FILL_RING: i32 = 5;
const XDP_UMEM_COMPLETION_RING: i32 = 6;
const XDP_STATISTICS: i32 = 7;
const XDP_ADDRESS_BYTES: i32 = 16;

/// The socket option `name` of `level`.
const fn option(level: i32, name: i32) -> [super::Term; 2] {
    [int(1, level), int(2, name)]
}

const PACKETS_LOST: Terms = &option(libc::SOL_PACKET, libc::PACKET_STATISTICS);

/// Of the driver process: for frames of devices, and for the front end's side of vhost-user. Its devices are descriptors
/// that the supervisor has opened and bound. Only XDP sockets are bound here, since they use the memory of this process.
pub(in crate::sandbox) const DRIVER_CALLS: &[Call] = &[
    // The packet path, with any arguments.
    Call::any(call!(SYS_recvmmsg), "receives frames from packet sockets"),
    Call::any(call!(SYS_sendmmsg), "and go"),
    Call::any(call!(SYS_read), "receives frames from taps; the eventfd of events"),
    Call::any(call!(SYS_writev), "sends frames to taps"),
    Call::any(call!(SYS_recvfrom), "wakes an XDP socket's fill ring").kept(),
    Call::with(call!(SYS_sendto), &[NO_ADDRESS], "wakes an XDP socket's transmit ring"),
    Call::any(
        call!(SYS_getsockname),
        "checks whether a packet socket's device exists; tells whether a tunnel's socket is of IPv4 alone",
    ),
    Call::with(
        call!(SYS_getsockopt),
        &[
            PACKETS_LOST,
            &option(libc::SOL_SOCKET, libc::SO_MEMINFO),
            &option(libc::SOL_SOCKET, libc::SO_ERROR),
        ],
        "counts frames that a packet socket or a tunnel's socket lost; tells whether a device is gone",
    ),
    Call::with(
        call!(SYS_getsockopt),
        &[&option(libc::SOL_XDP, XDP_MMAP_OFFSETS), &option(libc::SOL_XDP, XDP_STATISTICS)],
        "offsets of an XDP socket's rings, and its losses",
    ),
    Call::with(
        call!(SYS_setsockopt),
        &[
            &option(libc::SOL_XDP, XDP_UMEM_REG),
            &option(libc::SOL_XDP, XDP_UMEM_FILL_RING),
            &option(libc::SOL_XDP, XDP_UMEM_COMPLETION_RING),
            &option(libc::SOL_XDP, XDP_RX_RING),
            &option(libc::SOL_XDP, XDP_TX_RING),
        ],
        "memory and rings of an XDP socket",
    ),
    Call::with(
        call!(SYS_setsockopt),
        &[
            &option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            &option(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        ],
        "whether the host may cut datagrams of tunnels into fragments",
    ),
    Call::with(
        call!(SYS_bind),
        &[&[int(2, XDP_ADDRESS_BYTES)]],
        "device of an XDP socket: no other address is as short",
    )
    .kept(),
    Call::any(call!(SYS_clock_nanosleep), "waits while the kernel still holds the last XDP socket's queue")
        .kept(),
    // A front end waits for the switch's replies.
    Call::with(
        call!(SYS_setsockopt),
        &[&option(libc::SOL_SOCKET, libc::SO_RCVTIMEO), &option(libc::SOL_SOCKET, libc::SO_SNDTIMEO)],
        "timeouts for sending and receiving",
    ),
    Call::with(call!(SYS_ioctl), &[&[int(1, libc::FIONBIO as i32)]], "makes the connection blocking"),
];

/// Of the controller process: datagrams of the datapath socket.
pub(in crate::sandbox) const CONTROLLER_CALLS: &[Call] = &[
    Call::any(call!(SYS_recvfrom), "receives upcalls, and answers of the switch process"),
    Call::with(call!(SYS_sendto), &[NO_ADDRESS], "sends flows, and packets to execute"),
];
