//! Features that are offered for a device which the kernel serves. For outgoing frames the kernel completes checksums
//! and segments, in software if the device cannot. For incoming frames it leaves the offloads to guests that accept
//! them.

use lasthop_vhost::features;

/// Checksums and TCP segmentation.
pub(super) const FEATURES: u64 = features::CSUM
    | features::HOST_TSO4
    | features::HOST_TSO6
    | features::HOST_ECN
    | features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN;
/// UDP segmentation, which kernels before 6.2 do not have.
pub(super) const UDP_FEATURES: u64 = features::HOST_USO | features::GUEST_USO4 | features::GUEST_USO6;
