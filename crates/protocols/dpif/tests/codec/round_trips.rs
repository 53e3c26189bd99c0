//! Encoded values decode to the same values; decoded ones encode to the same bytes.

use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::family::{
    Band, CtLimitMessage, DatapathMessage, DatapathStats, FamilyMessage, FlowMessage, MegaflowStats,
    MeterMessage, MeterStats, PacketMessage, VportKind, VportMessage, VportOptions, VportStats, ZoneLimit,
};
use lasthop_dpif::{action, key};
use lasthop_flow::{FlowStats, Ufid};
use proptest::option::of;
use proptest::prelude::*;

use crate::values;

fn written(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    fill(&mut writer);
    writer.finish().expect("nothing is too long")
}

proptest! {
    #[test]
    fn keys(expected in values::key()) {
        let bytes = written(|writer| key::encode(writer, &expected));
        prop_assert_eq!(key::decode(Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn masks((key, mask) in values::key_and_mask()) {
        let bytes = written(|writer| key::encode(writer, &mask));
        prop_assert_eq!(key::decode_mask(Attrs::new(&bytes), &key), Ok(mask));
    }

    #[test]
    fn lists_of_actions(expected in values::actions()) {
        let bytes = written(|writer| action::encode(writer, &expected));
        prop_assert_eq!(action::decode(&bytes), Ok(expected));
    }

    #[test]
    fn flows(
        (key, mask) in values::key_and_mask(),
        with in any::<[bool; 5]>(),
        actions in of(values::actions()),
        ufid in any::<Option<[u8; 16]>>(),
        counted in any::<Option<(u64, u8, u64)>>(),
    ) {
        let [has_key, has_mask, is_clear, is_probe, has_omitted] = with;
        let counted = counted.filter(|(packets, flags, used_ms)| *packets != 0 || *flags != 0 || *used_ms != 0);
        let expected = FlowMessage {
            datapath: 3,
            mask: (has_key && has_mask).then_some(mask),
            key: has_key.then_some(key),
            actions,
            stats: counted.map(|(packets, tcp_flags, used_ms)| FlowStats {
                packets,
                bytes: packets / 2,
                used_ms,
                tcp_flags: tcp_flags.into(),
            }),
            is_clear,
            is_probe,
            ufid: ufid.map(Ufid),
            omitted: has_omitted.then_some(7),
        };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(FlowMessage::decode(3, Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn packets(
        key in values::key(),
        actions in of(values::actions()),
        egress_tunnel in of(values::tunnel()),
        packet in prop::collection::vec(any::<u8>(), 0..2000),
        user_data in of(prop::collection::vec(any::<u8>(), 0..64)),
        numbers in any::<(bool, Option<u16>, Option<u32>, Option<u64>)>(),
    ) {
        let (is_probe, mru_bytes, len_bytes, hash) = numbers;
        let expected = PacketMessage {
            datapath: 3, packet, key, actions, user_data, egress_tunnel, is_probe, mru_bytes, len_bytes, hash,
        };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(PacketMessage::decode(3, Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn datapaths(
        name in of("[a-z0-9-]{1,15}"),
        numbers in any::<(Option<u32>, Option<u32>, Option<u32>, Option<u32>)>(),
        counters in any::<Option<([u64; 4], u32)>>(),
        per_cpu_port_ids in of(prop::collection::vec(any::<u32>(), 0..64)),
    ) {
        let (upcall_port_id, user_features, masks_cache_size, ifindex) = numbers;
        let expected = DatapathMessage {
            datapath: 3,
            name,
            upcall_port_id,
            stats: counters.map(|([hit, missed, lost, flows], _)| DatapathStats { hit, missed, lost, flows }),
            megaflow_stats: counters.map(|([mask_hits, cache_hits, ..], masks)| MegaflowStats { mask_hits, masks, cache_hits }),
            user_features,
            masks_cache_size,
            per_cpu_port_ids,
            ifindex,
        };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(DatapathMessage::decode(3, Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn ports(
        name in of("[a-z0-9-]{1,15}"),
        numbers in any::<(Option<u32>, Option<u32>, Option<u32>, Option<i32>)>(),
        options in any::<Option<(Option<u16>, bool, bool)>>(),
        counters in any::<Option<[u64; 8]>>(),
        upcall_port_ids in of(prop::collection::vec(any::<u32>(), 0..64)),
    ) {
        let (number, kind, ifindex, netns_id) = numbers;
        let expected = VportMessage {
            datapath: 3,
            number,
            kind: kind.map(VportKind::from),
            name,
            options: options.map(|(dst_port, is_gbp, is_gpe)| VportOptions { dst_port, is_gbp, is_gpe: is_gpe && !is_gbp }),
            upcall_port_ids,
            stats: counters.map(|[rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped]| {
                VportStats { rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped }
            }),
            ifindex,
            netns_id,
        };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(VportMessage::decode(3, Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn meters(
        numbers in any::<(Option<u32>, Option<u64>, Option<u32>, Option<u32>)>(),
        flags in any::<[bool; 2]>(),
        counted in any::<Option<(u64, u64)>>(),
        band in any::<Option<[u32; 3]>>(),
    ) {
        let (id, used_ms, meters_max, bands_max) = numbers;
        let stats = counted.map(|(packets, bytes)| MeterStats { packets, bytes });
        let expected = MeterMessage {
            datapath: 3,
            id,
            is_kbps: flags[0],
            stats,
            bands: band.map(|[kind, rate, burst]| vec![Band { kind, rate, burst, stats }]),
            used_ms,
            is_clear: flags[1],
            meters_max,
            bands_max,
        };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(MeterMessage::decode(3, Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn limits_and_families(
        limits in any::<Vec<(i32, u32, u32)>>(),
        name in "[a-z_]{1,15}",
        id in any::<u16>(),
        groups in prop::collection::vec(("[a-z_]{1,15}", any::<u32>()), 0..3),
    ) {
        let limits = limits.into_iter().map(|(zone, limit, count)| ZoneLimit { zone, limit, count }).collect();
        let expected = CtLimitMessage { datapath: 0, limits: Some(limits) };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(CtLimitMessage::decode(0, Attrs::new(&bytes)), Ok(expected));

        let expected = FamilyMessage { id: Some(id), name: Some(name), version: Some(1), attr_max: Some(9), groups };
        let bytes = written(|writer| expected.encode(writer));
        prop_assert_eq!(FamilyMessage::decode(Attrs::new(&bytes)), Ok(expected));
    }

    #[test]
    fn bytes_that_are_a_flow_with_some_wrong(
        (key, mask) in values::key_and_mask(),
        actions in values::actions(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let flow = FlowMessage { key: Some(key), mask: Some(mask), actions: Some(actions), ..FlowMessage::default() };
        let mut bytes = written(|writer| flow.encode(writer));
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() * 4).max(1));
        if let Ok(read) = FlowMessage::decode(0, Attrs::new(&bytes)) {
            let again = written(|writer| read.encode(writer));
            prop_assert_eq!(FlowMessage::decode(0, Attrs::new(&again)), Ok(read));
        }
    }
}
