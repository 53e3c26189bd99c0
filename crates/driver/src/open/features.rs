//! What guests are offered at a device that the kernel serves: it completes and segments frames that go out, in software if
//! the device cannot, and leaves undone of those that come what guests may take.

use lasthop_vhost::features;

/// Checksums, and TCP.
pub(super) const FEATURES: u64 = features::CSUM
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN;
/// UDP, which kernels before 6.2 do not segment.
pub(super) const UDP_FEATURES: u64 = features::HOST_USO | features::GUEST_USO4 | features::GUEST_USO6;
