//! Virtio features: those that a port offers, and the meaning for packets of those that were negotiated.

use lasthop_fabric::Capabilities;
use lasthop_module_api::PortKind;
use lasthop_vhost::features as virtio;
use lasthop_wire::{hash, tunnel, vnet};

use crate::PortConfig;

/// All features with which a guest can be served.
pub const GUEST_FEATURES: u64 = virtio::VERSION_1
    | virtio::INDIRECT_DESC
    | virtio::EVENT_IDX
    | virtio::IN_ORDER
    | virtio::RING_PACKED
    | virtio::MRG_RXBUF
    | virtio::CSUM
    | virtio::GUEST_CSUM
    | virtio::GUEST_TSO4
    | virtio::GUEST_TSO6
    | virtio::GUEST_ECN
    | virtio::HOST_TSO4
    | virtio::HOST_TSO6
    | virtio::HOST_ECN
    | virtio::GUEST_USO4
    | virtio::GUEST_USO6
    | virtio::HOST_USO
    | virtio::STATUS
    | virtio::MAC
    | virtio::MTU
    | virtio::MQ
    | virtio::CTRL_VQ;

/// Features that may only be offered together with another one (virtio 1.2, 5.1.3.1; those of UDP: virtio 1.3).
const REQUIRES: &[(u64, u64)] = &[
    (virtio::GUEST_TSO4 | virtio::GUEST_TSO6 | virtio::GUEST_USO4 | virtio::GUEST_USO6, virtio::GUEST_CSUM),
    (virtio::GUEST_ECN, virtio::GUEST_TSO4 | virtio::GUEST_TSO6),
    (virtio::HOST_TSO4 | virtio::HOST_TSO6 | virtio::HOST_USO, virtio::CSUM),
    (virtio::HOST_ECN, virtio::HOST_TSO4 | virtio::HOST_TSO6),
    (virtio::MQ, virtio::CTRL_VQ),
    // Ours: the control queue has commands for several queues only.
    (virtio::CTRL_VQ, virtio::MQ),
];

/// The features offered to a port's guest: those that its settings imply, without those that its mask removes.
pub(crate) fn offered(config: &PortConfig) -> u64 {
    let mut features = GUEST_FEATURES & config.features_mask;
    if config.policy.mac.is_none() {
        features &= !virtio::MAC;
    }
    if config.mtu.is_none() {
        features &= !virtio::MTU;
    }
    if config.queue_pairs <= 1 {
        // Linux refuses MQ without a control queue, and waits for ever for a control queue that is not served.
        features &= !(virtio::MQ | virtio::CTRL_VQ);
    }
    for &(bits, needed) in REQUIRES {
        if features & needed == 0 {
            features &= !bits;
        }
    }
    features
}

/// The private protocol features that are offered to the switch's own driver: tunnel metadata for tunnel ports, packet
/// hashes for uplinks. Guests get none.
pub(crate) fn private(config: &PortConfig) -> u64 {
    match (config.is_tunnel, config.kind) {
        (true, _) => virtio::protocol::TUNNEL,
        (false, PortKind::Inside) => 0,
        (false, _) => virtio::protocol::PACKET_HASH,
    }
}

/// The properties of packets that follow from negotiated features.
pub(crate) fn capabilities(features: u64, protocol_features: u64) -> Capabilities {
    let has = |bit| features & bit != 0;
    let modern = has(virtio::VERSION_1) || has(virtio::MRG_RXBUF);
    let header_bytes = if modern { vnet::HEADER_BYTES } else { vnet::HEADER_BYTES_LEGACY };
    // Hashes need the long header, so a guest without VERSION_1 reports none, even if it acknowledged the feature.
    let has_tunnel = modern && protocol_features & virtio::protocol::TUNNEL != 0;
    let header_bytes = if has_tunnel { tunnel::HEADER_BYTES } else { header_bytes };
    let tells_hashes = modern && !has_tunnel && protocol_features & virtio::protocol::PACKET_HASH != 0;
    Capabilities {
        mergeable: has(virtio::MRG_RXBUF),
        csum: has(virtio::GUEST_CSUM),
        tso4: has(virtio::GUEST_TSO4),
        tso6: has(virtio::GUEST_TSO6),
        ecn: has(virtio::GUEST_ECN),
        uso: has(virtio::GUEST_USO4) && has(virtio::GUEST_USO6),
        header_bytes,
        sent_header_bytes: if tells_hashes { hash::HEADER_BYTES } else { header_bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(features_mask: u64) -> PortConfig {
        PortConfig { name: "p".into(), features_mask, ..PortConfig::default() }
    }

    #[test]
    fn offers_nothing_that_needs_what_is_masked() {
        let features = offered(&config(!virtio::GUEST_CSUM));
        let needing = virtio::GUEST_TSO4 | virtio::GUEST_TSO6 | virtio::GUEST_ECN;
        assert_eq!(features & (needing | virtio::GUEST_USO4 | virtio::GUEST_USO6), 0);
        assert_ne!(features & virtio::HOST_TSO4, 0);
        let features = offered(&config(!(virtio::HOST_TSO4 | virtio::HOST_TSO6)));
        assert_eq!(features & virtio::HOST_ECN, 0);
        let features = offered(&config(!virtio::CSUM));
        assert_eq!(features & (virtio::HOST_TSO4 | virtio::HOST_TSO6 | virtio::HOST_USO), 0);
        assert_ne!(features & virtio::GUEST_USO4, 0);
    }

    #[test]
    fn one_queue_pair_offers_neither_multiqueue_nor_a_control_queue() {
        assert_eq!(offered(&config(u64::MAX)) & (virtio::MQ | virtio::CTRL_VQ), 0);
    }

    #[test]
    fn multiqueue_and_a_control_queue_are_offered_together_or_not_at_all() {
        let both = virtio::MQ | virtio::CTRL_VQ;
        let of_mask = |features_mask| offered(&PortConfig { queue_pairs: 2, ..config(features_mask) }) & both;
        assert_eq!([u64::MAX, !virtio::MQ, !virtio::CTRL_VQ].map(of_mask), [both, 0, 0]);
    }

    /// Feature bits that affect packets; a mask may remove each of them, and a guest may refuse it.
    const OPTIONAL: [u64; 14] = [
        virtio::CSUM,
        virtio::GUEST_CSUM,
        virtio::GUEST_TSO4,
        virtio::GUEST_TSO6,
        virtio::GUEST_ECN,
        virtio::HOST_TSO4,
        virtio::HOST_TSO6,
        virtio::HOST_ECN,
        virtio::MRG_RXBUF,
        virtio::INDIRECT_DESC,
        virtio::GUEST_USO4,
        virtio::GUEST_USO6,
        virtio::HOST_USO,
        virtio::VERSION_1,
    ];

    fn choices() -> impl Iterator<Item = u64> {
        (0..1_u32 << OPTIONAL.len()).map(|choice| {
            let chosen = OPTIONAL.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 != 0);
            chosen.fold(0, |bits, (_, feature)| bits | feature)
        })
    }

    #[test]
    fn no_mask_leaves_a_feature_without_what_it_needs() {
        let all = OPTIONAL.iter().fold(0, |all, feature| all | feature);
        for kept in choices() {
            let features = offered(&config(kept | !all));
            assert_eq!(features & all & !kept, 0, "nothing that was masked is offered");
            for &(bits, needed) in REQUIRES {
                assert!(features & bits == 0 || features & needed != 0, "{}", virtio::names(features));
            }
        }
    }

    #[test]
    fn every_choice_of_a_guest_means_what_it_says() {
        for features in choices() {
            let has = |bit| features & bit != 0;
            let Capabilities { mergeable, csum, tso4, tso6, ecn, uso, header_bytes, sent_header_bytes } =
                capabilities(features, !(virtio::protocol::PACKET_HASH | virtio::protocol::TUNNEL));
            assert_eq!(sent_header_bytes, header_bytes);
            assert_eq!(
                (mergeable, csum, tso4, tso6, ecn),
                (
                    has(virtio::MRG_RXBUF),
                    has(virtio::GUEST_CSUM),
                    has(virtio::GUEST_TSO4),
                    has(virtio::GUEST_TSO6),
                    has(virtio::GUEST_ECN)
                )
            );
            assert_eq!(uso, has(virtio::GUEST_USO4) && has(virtio::GUEST_USO6));
            assert_eq!(header_bytes == 10, !has(virtio::VERSION_1) && !mergeable);
        }
    }

    #[test]
    fn legacy_guests_have_the_short_header() {
        assert_eq!(capabilities(0, 0).header_bytes, 10);
        assert_eq!(capabilities(virtio::MRG_RXBUF, 0).header_bytes, 12);
        assert_eq!(capabilities(virtio::VERSION_1, 0).header_bytes, 12);
    }

    #[test]
    fn tunnel_ports_have_a_header_of_their_own_both_ways() {
        let told = |features, protocol| {
            let Capabilities { header_bytes, sent_header_bytes, .. } = capabilities(features, protocol);
            (header_bytes, sent_header_bytes)
        };
        let (tunnel, hash) = (virtio::protocol::TUNNEL, virtio::protocol::PACKET_HASH);
        assert_eq!(told(virtio::VERSION_1, tunnel | hash), (128, 128));
        assert_eq!(told(0, tunnel), (10, 10));
        let config = |kind| PortConfig { is_tunnel: true, kind, ..PortConfig::default() };
        assert_eq!([PortKind::Inside, PortKind::Uplink].map(|kind| private(&config(kind))), [tunnel; 2]);
    }

    #[test]
    fn hashes_are_told_behind_the_long_header_by_uplinks_alone() {
        let told = |features| capabilities(features, virtio::protocol::PACKET_HASH).sent_header_bytes;
        assert_eq!((told(0), told(virtio::VERSION_1)), (10, 20));
        assert_eq!(capabilities(virtio::VERSION_1, virtio::protocol::PACKET_HASH).header_bytes, 12);
        for (kind, bits) in [(PortKind::Inside, 0), (PortKind::Uplink, virtio::protocol::PACKET_HASH)] {
            assert_eq!(private(&PortConfig { kind, ..PortConfig::default() }), bits);
        }
    }
}
