//! The action `ct(...)` as words: compiled when a flow is installed, read for each packet.
//!
//! ```text
//!   [ policy : 8 | parts : 8 | helper : 8 | commit : 8 | zone : 16 | Ct ]   then the parts that are present:
//!   mark        [ value : 32 | mask : 32 ]
//!   labels      [ value : 128 ][ mask : 128 ]
//!   translation [ last port : 16 | first port : 16 | presence and flags : 16 ][ first address : 128 ][ last address : 128 ]
//! ```

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use arrayvec::ArrayVec;
use lasthop_conntrack::{CtCommit, CtHelper, CtRequest};
use lasthop_flow::{Conntrack, Masked, Nat, NatRange, NatSource};

use super::{Code, Step, load};
use crate::UnsupportedFlow;

/// The parts that follow a step, as bits.
const MARK: u64 = 1;
const LABELS: u64 = 2;
const NAT: u64 = 4;
/// Bits of the first word of a translation.
const SOURCE: u64 = 1;
const DESTINATION: u64 = 2;
const PERSISTENT: u64 = 4;
const HASHED: u64 = 8;
const RANDOM: u64 = 0x10;
const FIRST_ADDRESS: u64 = 0x20;
const LAST_ADDRESS: u64 = 0x40;
const IPV6: u64 = 0x80;
const FIRST_PORT: u64 = 0x100;
const LAST_PORT: u64 = 0x200;

/// Appends the words of `ct`, whose timeout policy has this number.
pub(crate) fn compile(words: &mut Vec<u64>, ct: &Conntrack, policy: u8) -> Result<(), UnsupportedFlow> {
    check(ct)?;
    let unknown = || UnsupportedFlow::Unsupported("a connection tracking helper other than ftp and tftp");
    let helper = ct.helper.as_deref().map(|name| CtHelper::named(name).ok_or_else(unknown));
    let helper = u64::from(CtHelper::number(helper.transpose()?));
    let commit = match (ct.is_commit, ct.is_force_commit) {
        (_, true) => 2,
        (true, false) => 1,
        (false, false) => 0_u64,
    };
    let parts = if ct.mark.is_some() { MARK } else { 0 }
        | if ct.labels.is_some() { LABELS } else { 0 }
        | if ct.nat.is_some() { NAT } else { 0 };
    let operands =
        u64::from(ct.zone.unwrap_or(0)) | commit << 16 | helper << 24 | parts << 32 | u64::from(policy) << 40;
    words.push(Step::new(Code::Ct, operands).0);
    words.extend(ct.mark.map(|mark| u64::from(mark.value & mark.mask) | u64::from(mark.mask) << 32));
    for labels in ct.labels.iter().flat_map(|(value, mask)| [value, mask]) {
        words.extend(halves(u128::from_be_bytes(*labels)));
    }
    if let Some(nat) = &ct.nat {
        put_nat(words, nat);
    }
    Ok(())
}

/// Whether an action only looks the connection up, and translates the packet as that connection requires.
pub(super) fn is_plain(ct: &Conntrack) -> bool {
    let has_parts = ct.is_commit || ct.is_force_commit || ct.mark.is_some() || ct.labels.is_some();
    let has_names = ct.helper.is_some() || ct.timeout.is_some();
    !has_parts && !has_names && ct.nat.is_none_or(|nat| nat == Nat::default())
}

/// The operands of such an action, without the id.
pub(super) fn plain_operands(ct: &Conntrack) -> u64 {
    u64::from(ct.zone.unwrap_or(0)) | u64::from(ct.nat.is_some()) << 16
}

/// Words of a translation, and the operands of a plain `ct` with `recirc`.
const NAT_WORDS: usize = 5;
const PLAIN_WORDS_MAX: usize = NAT_WORDS + 2;

/// A plain `ct` with the recirculation that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainCt {
    pub(crate) zone: u16,
    pub(crate) is_translated: bool,
    pub(crate) recirc_id: u32,
}

impl PlainCt {
    /// Decodes a step with [`Code::CtRecirc`].
    #[inline(always)]
    pub(crate) fn of(step: Step) -> Self {
        Self {
            zone: step.operand(0, 16) as u16,
            is_translated: step.operand(16, 8) != 0,
            recirc_id: step.operand(super::CT_RECIRC_ID_SHIFT, 32) as u32,
        }
    }

    /// The words of the two separate steps, the words of `ct` first.
    pub(crate) fn words(self) -> ArrayVec<u64, PLAIN_WORDS_MAX> {
        let parts = if self.is_translated { NAT } else { 0 };
        let ct = Step::new(Code::Ct, u64::from(self.zone) | parts << 32).0;
        let nat = [0; NAT_WORDS].into_iter().filter(|_| self.is_translated);
        let recirc = Step::new(Code::Recirc, self.recirc_id.into()).0;
        [ct].into_iter().chain(nat).chain([recirc]).collect()
    }

    pub(crate) fn request(self) -> CtRequest {
        let nat = self.is_translated.then(Nat::default);
        CtRequest { zone: self.zone, nat, ..CtRequest::default() }
    }
}

/// Checks the rules of the kernel's datapath.
fn check(ct: &Conntrack) -> Result<(), UnsupportedFlow> {
    let commits = ct.is_commit || ct.is_force_commit;
    let nat = ct.nat.unwrap_or_default();
    let NatRange { ip_min, ip_max, proto_min, proto_max } = nat.range;
    let is_range = ip_min.is_some() || ip_max.is_some() || proto_min.is_some() || proto_max.is_some();
    let is_chosen = is_range || nat.is_persistent || nat.is_hashed || nat.is_random;
    let are_of_one_version = ip_min.zip(ip_max).is_none_or(|(first, last)| first.is_ipv4() == last.is_ipv4());
    let rules = [
        (ct.is_commit && ct.is_force_commit, "a ct action that commits both with force and without"),
        (ct.mark.is_some_and(|mark| mark.mask == 0), "a ct action with an empty mask of the mark"),
        (ct.labels.is_some_and(|(_, mask)| mask == [0; 16]), "a ct action with an empty mask of the labels"),
        (!commits && ct.mark.is_some(), "a ct action that sets the mark and does not commit"),
        (!commits && ct.labels.is_some(), "a ct action that sets labels and does not commit"),
        (
            nat.source.is_none() && is_chosen,
            "a translation to a range that says neither source nor destination",
        ),
        (!commits && nat.source.is_some(), "a ct action with a new translation that does not commit"),
        (ip_min.is_none() && ip_max.is_some(), "a translation with a last address and no first one"),
        (proto_min.is_none() && proto_max.is_some(), "a translation with a last port and no first one"),
        (!are_of_one_version, "a translation to addresses of both IP versions"),
        (nat.is_hashed && nat.is_random, "a translation to ports both by hash and at random"),
    ];
    let broken = rules.iter().find(|(is_broken, _)| *is_broken);
    broken.map_or(Ok(()), |(_, what)| Err(UnsupportedFlow::Unsupported(what)))
}

fn put_nat(words: &mut Vec<u64>, nat: &Nat) {
    let NatRange { ip_min, ip_max, proto_min, proto_max } = nat.range;
    let is_ipv6 = ip_min.is_some_and(|address| address.is_ipv6());
    let bits = [
        (nat.source == Some(NatSource::Src), SOURCE),
        (nat.source == Some(NatSource::Dst), DESTINATION),
        (nat.is_persistent, PERSISTENT),
        (nat.is_hashed, HASHED),
        (nat.is_random, RANDOM),
        (ip_min.is_some(), FIRST_ADDRESS),
        (ip_max.is_some(), LAST_ADDRESS),
        (is_ipv6, IPV6),
        (proto_min.is_some(), FIRST_PORT),
        (proto_max.is_some(), LAST_PORT),
    ];
    let flags = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit);
    words.push(flags | u64::from(proto_min.unwrap_or(0)) << 32 | u64::from(proto_max.unwrap_or(0)) << 48);
    words.extend([ip_min, ip_max].into_iter().flat_map(|address| halves(number(address))));
}

fn number(address: Option<IpAddr>) -> u128 {
    match address {
        None => 0,
        Some(IpAddr::V4(address)) => u128::from(u32::from(address)),
        Some(IpAddr::V6(address)) => address.to_bits(),
    }
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

fn wide(words: &[AtomicU64], at: usize) -> u128 {
    u128::from(load(words, at)) << 64 | u128::from(load(words, at + 1))
}

/// Decodes the request of a step, and returns how many words behind it belong to it.
#[inline]
pub(crate) fn read(step: Step, rest: &[AtomicU64]) -> (CtRequest, usize) {
    let commit = match step.operand(16, 8) {
        0 => CtCommit::No,
        1 => CtCommit::Yes,
        _ => CtCommit::Force,
    };
    let helper = CtHelper::of_number(step.operand(24, 8) as u8);
    let (zone, parts, policy) = (step.operand(0, 16) as u16, step.operand(32, 8), step.operand(40, 8) as u8);
    let mut request = CtRequest { zone, commit, helper, policy, ..CtRequest::default() };
    let mut at = 0;
    if parts & MARK != 0 {
        let word = load(rest, at);
        request.mark = Masked { value: word as u32, mask: (word >> 32) as u32 };
        at += 1;
    }
    if parts & LABELS != 0 {
        request.labels = (wide(rest, at).to_be_bytes(), wide(rest, at + 2).to_be_bytes());
        at += 4;
    }
    if parts & NAT != 0 {
        request.nat = Some(read_nat(rest.get(at..).unwrap_or_default()));
        at += NAT_WORDS;
    }
    (request, at)
}

fn read_nat(words: &[AtomicU64]) -> Nat {
    let first = load(words, 0);
    let has = |bit: u64| first & bit != 0;
    let source = match (has(SOURCE), has(DESTINATION)) {
        (true, _) => Some(NatSource::Src),
        (false, true) => Some(NatSource::Dst),
        (false, false) => None,
    };
    let address = |number: u128| match has(IPV6) {
        true => IpAddr::V6(number.into()),
        false => IpAddr::V4((number as u32).into()),
    };
    let range = NatRange {
        ip_min: has(FIRST_ADDRESS).then(|| address(wide(words, 1))),
        ip_max: has(LAST_ADDRESS).then(|| address(wide(words, 3))),
        proto_min: has(FIRST_PORT).then_some((first >> 32) as u16),
        proto_max: has(LAST_PORT).then_some((first >> 48) as u16),
    };
    Nat { source, range, is_persistent: has(PERSISTENT), is_hashed: has(HASHED), is_random: has(RANDOM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(ct: &Conntrack) -> Vec<AtomicU64> {
        let mut words = Vec::new();
        compile(&mut words, ct, 7).expect("it is supported");
        words.into_iter().map(AtomicU64::new).collect()
    }

    fn read_back(ct: &Conntrack) -> CtRequest {
        let words = compiled(ct);
        let step = Step(load(&words, 0));
        assert!(step.is(Code::Ct));
        let (request, len) = read(step, &words[1..]);
        assert_eq!(len, words.len() - 1, "{ct:?}");
        request
    }

    #[test]
    fn a_look_up_is_one_word() {
        let ct = Conntrack { zone: Some(9), event_mask: Some(5), ..Conntrack::default() };
        assert_eq!(compiled(&ct).len(), 1);
        assert_eq!(read_back(&ct), CtRequest { zone: 9, policy: 7, ..CtRequest::default() });
        let nat = Conntrack { nat: Some(Nat::default()), ..ct };
        assert_eq!(read_back(&nat).nat, Some(Nat::default()));
    }

    #[test]
    fn a_look_up_with_its_pass_is_one_word_and_as_two_steps_the_same() {
        for nat in [None, Some(Nat::default())] {
            let ct = Conntrack { zone: Some(9), nat, ..Conntrack::default() };
            assert!(is_plain(&ct) && !is_plain(&Conntrack { is_commit: true, ..ct.clone() }));
            let operands = plain_operands(&ct) | 7 << super::super::CT_RECIRC_ID_SHIFT;
            let plain = PlainCt::of(Step::new(Code::CtRecirc, operands));
            assert_eq!(plain, PlainCt { zone: 9, is_translated: nat.is_some(), recirc_id: 7 });
            assert_eq!(plain.request(), CtRequest { policy: 0, ..read_back(&ct) });
            let words = plain.words().into_iter().map(AtomicU64::new).collect::<Vec<_>>();
            let (request, len) = read(Step(load(&words, 0)), &words[1..]);
            assert_eq!((request, len + 2), (plain.request(), words.len()));
            assert!(Step(load(&words, len + 1)).is(Code::Recirc));
        }
    }

    #[test]
    fn every_part_survives() {
        let range = |first: &str, last: &str| NatRange {
            ip_min: first.parse().ok(),
            ip_max: last.parse().ok(),
            proto_min: Some(1),
            proto_max: Some(u16::MAX),
        };
        let nats = [
            Nat {
                source: Some(NatSource::Src),
                range: range("10.0.0.1", "10.0.0.9"),
                is_random: true,
                ..Nat::default()
            },
            Nat {
                source: Some(NatSource::Dst),
                range: range("fc00::1", "fc00::ff"),
                is_hashed: true,
                ..Nat::default()
            },
            Nat {
                source: Some(NatSource::Src),
                range: range("0.0.0.0", ""),
                is_persistent: true,
                ..Nat::default()
            },
        ];
        for nat in nats {
            let mark = Masked { value: 0x1200, mask: 0xff00 };
            let labels = ([0x12; 16], [0xf0; 16]);
            let ct = Conntrack {
                is_commit: true,
                zone: Some(u16::MAX),
                mark: Some(mark),
                labels: Some(labels),
                helper: Some("tftp".to_owned()),
                nat: Some(nat),
                ..Conntrack::default()
            };
            let request = read_back(&ct);
            assert_eq!((request.mark, request.labels, request.nat), (mark, labels, Some(nat)));
            assert_eq!((request.commit, request.helper), (CtCommit::Yes, Some(CtHelper::Tftp)));
        }
        let force = Conntrack { is_force_commit: true, ..Conntrack::default() };
        assert_eq!(read_back(&force).commit, CtCommit::Force);
    }

    #[test]
    fn senseless_actions_are_refused() {
        let refused = |ct: Conntrack| compile(&mut Vec::new(), &ct, 0).is_err();
        let commit = || Conntrack { is_commit: true, ..Conntrack::default() };
        let source = |source, range| Some(Nat { source, range, ..Nat::default() });
        let first = NatRange { ip_min: "10.0.0.1".parse().ok(), ..NatRange::default() };
        assert!(!refused(commit()));
        assert!(refused(Conntrack { is_force_commit: true, ..commit() }));
        assert!(refused(Conntrack { mark: Some(Masked { value: 0, mask: 0 }), ..commit() }));
        assert!(refused(Conntrack { mark: Some(Masked { value: 1, mask: 1 }), ..Conntrack::default() }));
        assert!(refused(Conntrack { labels: Some(([0; 16], [0; 16])), ..commit() }));
        assert!(refused(Conntrack { helper: Some("sip".to_owned()), ..commit() }));
        assert!(refused(Conntrack { nat: source(None, first), ..commit() }));
        assert!(refused(Conntrack { nat: source(Some(NatSource::Src), first), ..Conntrack::default() }));
        assert!(!refused(Conntrack { nat: source(Some(NatSource::Src), first), ..commit() }));
        let both = NatRange { ip_max: "fc00::1".parse().ok(), ..first };
        assert!(refused(Conntrack { nat: source(Some(NatSource::Src), both), ..commit() }));
        let last = NatRange { ip_min: None, ip_max: first.ip_min, ..NatRange::default() };
        assert!(refused(Conntrack { nat: source(Some(NatSource::Src), last), ..commit() }));
    }
}
