//! The rules apply to any port and frame, and depend only on the recorded bits.

use lasthop_bridge_policy::{
    FloodKind, IsolationClass, MAC_ONES, Recorder, SourceEntry, TCI_VID, Target, admit, classify,
    entry_holds, refused_source_bits, route,
};
use lasthop_module_api::{DropReason, FrameTag, PortKind, PortVlans, StormLimits, Vid};
use proptest::prelude::*;

/// The port that sends the frames.
const FROM: u16 = 1;
const GROUP: u64 = 1 << 40;
/// 01-80-C2-00-00-00.
const LINK_LOCAL: u64 = 0x0180_c200_0000;

/// A static address: port, address, and the VLAN that it was entered for.
type Entry = (u16, u64, Option<u16>);

#[derive(Clone, Debug)]
struct Switch {
    vlans: PortVlans,
    own_mac: u64,
    limits: StormLimits,
    /// Other ports carry all VLANs.
    entries: Vec<Entry>,
    learned: Vec<(u16, u64)>,
    /// No frame passes to this port.
    barred: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    source: u64,
    destination: u64,
    tag_vid: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bits {
    source: u64,
    destination: u64,
    tci: u16,
}

struct BitRecorder<'a> {
    bits: &'a mut Bits,
    addresses: Vec<u64>,
}

impl Recorder for BitRecorder<'_> {
    fn tci(&mut self, bits: u16) {
        self.bits.tci |= bits;
    }

    fn source(&mut self, bits: u64) {
        self.bits.source |= bits;
    }

    fn destination(&mut self, bits: u64) {
        self.bits.destination |= bits;
    }

    fn refused_source(&mut self, source: u64) {
        self.bits.source |= refused_source_bits(source, self.addresses.iter().copied());
    }
}

/// All effects of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decided {
    vid: u16,
    tag: FrameTag,
    learns: Option<u64>,
    target: Target<u16>,
    /// The limited kind that counts it; `None` if there is no limit.
    limited: Option<FloodKind>,
}

impl Switch {
    fn holds(&self, entry: &Entry, vid: u16) -> bool {
        let carries = |vid| entry.0 != FROM || self.vlans.carries(vid);
        entry_holds(entry.2, vid, carries)
    }

    fn entry(&self, mac: u64, vid: u16) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.1 == mac && self.holds(entry, vid))
    }

    /// The addresses that the port may send from in a VLAN.
    fn addresses(&self, vid: u16) -> Vec<u64> {
        let entered = self.entries.iter().filter(|entry| entry.0 == FROM && self.holds(entry, vid));
        entered.map(|entry| entry.1).chain([self.own_mac]).collect()
    }

    fn decide(&self, frame: Frame, bits: &mut Bits) -> Result<Decided, DropReason> {
        let mut recorder = BitRecorder { bits, addresses: Vec::new() };
        let (vid, tag) = classify(&self.vlans, frame.tag_vid, &mut recorder)?;
        recorder.addresses = self.addresses(vid);
        let is_entered = || self.entry(frame.source, vid).is_some_and(|entry| entry.0 == FROM);
        let look_up = || match self.entry(frame.source, vid) {
            Some(entry) if entry.0 == FROM => SourceEntry::Here,
            Some(_) => SourceEntry::Elsewhere,
            None => SourceEntry::None(frame.source),
        };
        let learns = admit(frame.source, self.own_mac, is_entered, look_up, &mut recorder)?;
        let find = || {
            let learned = || self.learned.iter().find(|(_, mac)| *mac == frame.destination);
            self.entry(frame.destination, vid)
                .map(|entry| entry.0)
                .or_else(|| learned().map(|(port, _)| *port))
        };
        let barrier = |port| (self.barred == Some(port)).then_some(DropReason::Isolated);
        let target = route(frame.destination, FROM, find, barrier, &mut recorder)?;
        let flood = (target == Target::Flood)
            .then(|| FloodKind::recorded(frame.destination, &self.limits, &mut recorder));
        Ok(Decided { vid, tag, learns, target, limited: flood.filter(|kind| kind.limit(&self.limits) > 0) })
    }
}

fn vids() -> impl Strategy<Value = u16> {
    prop_oneof![Just(1_u16), Just(5), Just(6), Just(7), Just(4094)]
}

fn vlans() -> impl Strategy<Value = PortVlans> {
    let vid = || vids().prop_map(|vid| Vid::try_from(vid).expect("a VLAN"));
    let lists = prop_oneof![Just(None), Just(Some("5")), Just(Some("5-6+4094")), Just(Some("7"))];
    prop_oneof![
        Just(PortVlans::Any),
        vid().prop_map(PortVlans::Access),
        (lists, proptest::option::of(vid())).prop_map(|(list, native)| PortVlans::Trunk {
            carried: list.map(|list| list.parse().expect("a list")),
            native
        }),
    ]
}

/// Few addresses and their neighbours, so that frames match entries or nearly match them.
fn macs() -> impl Strategy<Value = u64> {
    let known = prop_oneof![
        4 => (1_u64..4).prop_map(|number| 0x0200_0000_0000 + number),
        1 => Just(0),
        1 => Just(MAC_ONES),
        1 => Just(LINK_LOCAL),
        1 => Just(LINK_LOCAL + 0x10),
        1 => 0..=MAC_ONES,
    ];
    (known, proptest::option::of(0_u32..48)).prop_map(|(mac, bit)| mac ^ bit.map_or(0, |bit| 1 << bit))
}

fn unicast() -> impl Strategy<Value = u64> {
    macs().prop_map(|mac| (mac & !GROUP).max(1))
}

fn limits() -> impl Strategy<Value = StormLimits> {
    let limit = || prop_oneof![Just(0_u32), Just(10)];
    (limit(), limit(), limit()).prop_map(|(broadcast, multicast, unknown)| StormLimits {
        broadcast,
        multicast,
        unknown,
    })
}

prop_compose! {
    fn switches()(
        vlans in vlans(),
        own_mac in prop_oneof![Just(0), unicast()],
        limits in limits(),
        entries in proptest::collection::vec((1_u16..4, unicast(), proptest::option::of(vids())), 0..4),
        learned in proptest::collection::vec((1_u16..4, unicast()), 0..4),
        barred in proptest::option::of(2_u16..4),
    ) -> Switch {
        Switch { vlans, own_mac, limits, entries, learned, barred }
    }
}

prop_compose! {
    fn frames()(
        source in macs(),
        destination in macs(),
        tag_vid in proptest::option::of(prop_oneof![3 => vids(), 1 => Just(0), 1 => Just(4095)]),
    ) -> Frame {
        Frame { source, destination, tag_vid }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    /// A flow for the recorded bits gives each of its packets the decision of the first one.
    #[test]
    fn frames_that_agree_in_the_recorded_bits_are_decided_alike(
        switch in switches(), frame in frames(), noise in (0..=MAC_ONES, 0..=MAC_ONES, 0..=TCI_VID),
    ) {
        let mut bits = Bits::default();
        let decided = switch.decide(frame, &mut bits);
        let mix = |kept: u64, bits: u64, noise: u64| kept & bits | noise & !bits;
        let other = Frame {
            source: mix(frame.source, bits.source, noise.0),
            destination: mix(frame.destination, bits.destination, noise.1),
            tag_vid: frame.tag_vid.map(|vid| mix(vid.into(), bits.tci.into(), noise.2.into()) as u16),
        };
        prop_assert_eq!(switch.decide(other, &mut Bits::default()), decided, "{:?} and {:?}", frame, other);
    }

    /// Frames that differ in one unrecorded bit get the same decision.
    #[test]
    fn a_bit_that_is_not_recorded_changes_nothing(switch in switches(), frame in frames(), bit in 0_u32..48) {
        let mut bits = Bits::default();
        let decided = switch.decide(frame, &mut bits);
        let flip = 1 << bit;
        if bits.source & flip == 0 {
            let other = Frame { source: frame.source ^ flip, ..frame };
            prop_assert_eq!(switch.decide(other, &mut Bits::default()), decided);
        }
        if bits.destination & flip == 0 {
            let other = Frame { destination: frame.destination ^ flip, ..frame };
            prop_assert_eq!(switch.decide(other, &mut Bits::default()), decided);
        }
    }

    #[test]
    fn a_port_sends_from_its_own_addresses_and_no_port_from_anothers(switch in switches(), frame in frames()) {
        let Ok(Decided { vid, learns, .. }) = switch.decide(frame, &mut Bits::default()) else { return Ok(()) };
        prop_assert!(frame.source != 0 && frame.source & GROUP == 0);
        if switch.own_mac == 0 {
            let entry = switch.entry(frame.source, vid);
            prop_assert!(entry.is_none_or(|entry| entry.0 == FROM));
            prop_assert_eq!(learns, entry.is_none().then_some(frame.source));
        } else {
            prop_assert!(switch.addresses(vid).contains(&frame.source));
            prop_assert_eq!(learns, None);
        }
    }

    #[test]
    fn frames_belong_to_a_vlan_that_their_port_carries(switch in switches(), frame in frames()) {
        let mut recorder = BitRecorder { bits: &mut Bits::default(), addresses: Vec::new() };
        let own = switch.vlans.untagged_vid();
        let expected = match (frame.tag_vid, &switch.vlans) {
            (None | Some(0), PortVlans::Trunk { native: None, .. }) => Err(DropReason::VlanUntagged),
            (None, _) => Ok((own, FrameTag::None)),
            (Some(0), _) => Ok((own, FrameTag::PriorityOnly)),
            (Some(_), PortVlans::Access(_)) => Err(DropReason::VlanTagged),
            (Some(vid), vlans) if vlans.carries(vid) => Ok((vid, FrameTag::Vlan)),
            (Some(_), _) => Err(DropReason::VlanNotCarried),
        };
        prop_assert_eq!(classify(&switch.vlans, frame.tag_vid, &mut recorder), expected);
    }

    #[test]
    fn frames_go_to_one_port_that_may_get_them_or_to_all(switch in switches(), frame in frames()) {
        let decided = switch.decide(frame, &mut Bits::default());
        let is_link_local = frame.destination & !0xf == LINK_LOCAL;
        prop_assert!(!is_link_local || decided.is_err());
        let Ok(Decided { target, limited, .. }) = decided else { return Ok(()) };
        match target {
            Target::Port(port) => {
                prop_assert!(port != FROM && switch.barred != Some(port) && frame.destination & GROUP == 0);
                prop_assert_eq!(limited, None);
            }
            Target::Flood => {
                let kind = match frame.destination {
                    MAC_ONES => FloodKind::Broadcast,
                    group if group & GROUP != 0 => FloodKind::Multicast,
                    _ => FloodKind::Unknown,
                };
                prop_assert_eq!(limited, Some(kind).filter(|kind| kind.limit(&switch.limits) > 0));
            }
        }
    }

    #[test]
    fn a_barrier_keeps_both_ways(one in 0_u8..6, other in 0_u8..6) {
        let class = |number: u8| {
            let kinds = [PortKind::Inside, PortKind::Uplink, PortKind::TransitUplink];
            IsolationClass::of(number % 2 == 1, kinds[usize::from(number / 2)])
        };
        let (one, other) = (class(one), class(other));
        prop_assert_eq!(one.barrier(other), other.barrier(one));
        prop_assert!(one.barrier(other).is_none() || one.is_barred() && other.is_barred());
        prop_assert_eq!(IsolationClass::from_bits(one.bits()), one);
    }
}
