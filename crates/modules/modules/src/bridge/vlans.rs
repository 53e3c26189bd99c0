//! The VLANs that each port carries, the form of their frames there, and the port's own address.
//!
//! VLAN 0 stands for "none": untagged frames of ports without VLAN settings. Only such ports carry it, and its frames
//! are sent unchanged.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use lasthop_bridge_policy::VlanRules;
use lasthop_module_api::{NO_VID, PORTS_MAX, PortId, PortVlans, TagForm, Vid, VlanSet};

use super::table::mac_bits;

/// Number of VIDs, including those with another meaning.
const VIDS: usize = 4096;
const VID_WORDS: usize = VIDS / 64;

/// The settings that apply to every frame from or to a port, in one word.
///
/// ```text
///   BARRED | LISTED | TRUNK | ACCESS | vid of untagged frames : 12, 0 = none | static address : 48, 0 = none
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing(u64);

const VID_SHIFT: u32 = 48;
const VID_MASK: u64 = 0x0fff;
const ACCESS: u64 = 1 << 60;
const TRUNK: u64 = 1 << 61;
/// The trunk carries only the VLANs of its list.
const LISTED: u64 = 1 << 62;
/// Isolation may forbid frames between this port and some others.
const BARRED: u64 = 1 << 63;

impl Standing {
    fn of(vlans: &PortVlans, is_barred: bool) -> Self {
        let kind = match vlans {
            PortVlans::Any => 0,
            PortVlans::Access(_) => ACCESS,
            PortVlans::Trunk { carried: None, .. } => TRUNK,
            PortVlans::Trunk { carried: Some(_), .. } => TRUNK | LISTED,
        };
        let untagged = u64::from(vlans.untagged_vid()) << VID_SHIFT;
        Self(kind | untagged | if is_barred { BARRED } else { 0 })
    }

    /// Whether the port has no VLAN settings: frames pass unchanged.
    #[inline]
    pub(crate) fn is_any(self) -> bool {
        self.0 & (ACCESS | TRUNK) == 0
    }

    /// The port's own address; 0 for none. The port may send from this address and from entries that a user added for
    /// it, and no others.
    #[inline]
    pub(crate) fn static_mac(self) -> u64 {
        mac_bits(self.0)
    }

    #[inline]
    pub(crate) fn is_access(self) -> bool {
        self.0 & ACCESS != 0
    }

    #[inline]
    pub(crate) fn is_barred(self) -> bool {
        self.0 & BARRED != 0
    }

    /// The VLAN of untagged frames; [`NO_VID`] if there is none.
    #[inline]
    pub(crate) fn untagged_vid(self) -> u16 {
        (self.0 >> VID_SHIFT & VID_MASK) as u16
    }

    /// The form of frames of VLAN `vid` at a port that carries it.
    #[inline]
    pub(crate) fn form(self, vid: u16) -> TagForm {
        TagForm::of(vid, self.untagged_vid())
    }
}

/// The VLAN settings of one port; its list is read only if it is needed.
pub(crate) struct PortRules<'a> {
    pub(crate) vlans: &'a Vlans,
    pub(crate) port: PortId,
    pub(crate) standing: Standing,
}

impl VlanRules for PortRules<'_> {
    #[inline]
    fn is_any(&self) -> bool {
        self.standing.is_any()
    }

    #[inline]
    fn is_access(&self) -> bool {
        self.standing.is_access()
    }

    #[inline]
    fn untagged_vid(&self) -> u16 {
        self.standing.untagged_vid()
    }

    #[inline]
    fn carries(&self, vid: u16) -> bool {
        self.vlans.carries(self.port, vid)
    }
}

/// Standings of all ports; changes require the bridge's writer lock.
#[derive(Debug)]
pub(crate) struct Vlans {
    standings: Box<[AtomicU64]>,
    /// Bit `vid` is set if the port's list contains it; allocated for the first list of a port of this number.
    lists: Box<[OnceLock<Box<[AtomicU64; VID_WORDS]>>]>,
}

impl Default for Vlans {
    fn default() -> Self {
        Self {
            standings: (0..PORTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            lists: (0..PORTS_MAX).map(|_| OnceLock::new()).collect(),
        }
    }
}

impl Vlans {
    /// Sets the VLANs of a port and removes its address. The caller makes the port live afterwards, with release and
    /// acquire.
    pub(crate) fn set(&self, port: PortId, vlans: &PortVlans, is_barred: bool) {
        self.change(port, vlans, is_barred, 0);
    }

    /// Sets the VLANs of a port and its own address while frames pass. Returns whether the VLANs have changed. During a
    /// change of the list, each VLAN is in it or not at any time.
    pub(crate) fn change(&self, port: PortId, vlans: &PortVlans, is_barred: bool, mac: u64) -> bool {
        let index = port.index();
        let (Some(standing), Some(list)) = (self.standings.get(index), self.lists.get(index)) else {
            return false;
        };
        let mut is_other_list = false;
        if let PortVlans::Trunk { carried: Some(set), native } = vlans {
            let listed = list.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
            for (to, word) in listed.iter().zip(words_of(set, *native)) {
                is_other_list |= to.swap(word, Ordering::Relaxed) != word;
            }
        }
        let new = Standing::of(vlans, is_barred).0 | mac_bits(mac);
        // Release: a thread that sees that the port has a list sees this list.
        let old = standing.swap(new, Ordering::Release);
        let carried = |word: u64| word & !BARRED & !mac_bits(u64::MAX);
        is_other_list || carried(old) != carried(new)
    }

    /// Sets a port's own address; 0 is none.
    pub(crate) fn set_static_mac(&self, port: PortId, mac: u64) {
        if let Some(standing) = self.standings.get(port.index()) {
            let old = standing.load(Ordering::Relaxed);
            standing.store(old & !mac_bits(u64::MAX) | mac_bits(mac), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn of(&self, port: PortId) -> Standing {
        // Acquire: a thread that sees that the port has a list sees that list.
        Standing(self.standings.get(port.index()).map_or(0, |standing| standing.load(Ordering::Acquire)))
    }

    /// Whether the port receives and sends frames of VLAN `vid`.
    #[inline]
    pub(crate) fn carries(&self, port: PortId, vid: u16) -> bool {
        let standing = self.of(port);
        if standing.is_any() {
            return true;
        }
        vid != NO_VID && (standing.untagged_vid() == vid || self.lists(port, standing, vid))
    }

    fn lists(&self, port: PortId, standing: Standing, vid: u16) -> bool {
        if standing.0 & LISTED == 0 {
            return standing.0 & TRUNK != 0 && usize::from(vid) < VIDS - 1; // the last one is reserved
        }
        let listed = self.lists.get(port.index()).and_then(OnceLock::get);
        let word = listed.and_then(|words| words.get(usize::from(vid / 64)));
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (vid % 64) & 1 != 0)
    }

    /// Whether there is a VLAN that both ports carry.
    pub(crate) fn overlap(&self, one: PortId, other: PortId) -> bool {
        (0..VIDS as u16).any(|vid| self.carries(one, vid) && self.carries(other, vid))
    }
}

/// The bits of a trunk's list, including its native VLAN.
fn words_of(set: &VlanSet, native: Option<Vid>) -> [u64; VID_WORDS] {
    let mut words = [0_u64; VID_WORDS];
    let ranges = set.ranges().iter().copied().chain(native.map(|vid| (vid, vid)));
    for vid in ranges.flat_map(|(first, last)| first.get()..=last.get()) {
        words[usize::from(vid / 64)] |= 1 << (vid % 64);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(vlans: &Vlans, port: u16, settings: &PortVlans) {
        vlans.set(PortId(port), settings, false);
    }

    fn trunk(carried: Option<&str>, native: Option<u16>) -> PortVlans {
        let carried = carried.map(|text| text.parse().expect("a list"));
        PortVlans::Trunk { carried, native: native.map(|vid| vid.try_into().expect("a VLAN")) }
    }

    fn carried(vlans: &Vlans, port: u16) -> Vec<u16> {
        (0..VIDS as u16).filter(|vid| vlans.carries(PortId(port), *vid)).collect()
    }

    #[test]
    fn ports_carry_their_vlans() {
        let vlans = Vlans::default();
        set(&vlans, 1, &PortVlans::Access(5.try_into().expect("a VLAN")));
        set(&vlans, 2, &trunk(Some("5+63-65+4094"), Some(9)));
        set(&vlans, 3, &trunk(None, None));
        assert_eq!(carried(&vlans, 1), [5]);
        assert_eq!(carried(&vlans, 2), [5, 9, 63, 64, 65, 4094]);
        assert_eq!(carried(&vlans, 3), (1..4095).collect::<Vec<_>>());
        assert_eq!(carried(&vlans, 4), (0..4096).collect::<Vec<_>>());
        set(&vlans, 2, &trunk(Some("7"), None));
        assert_eq!(carried(&vlans, 2), [7], "nothing of an earlier list is left");
        assert!(vlans.overlap(PortId(1), PortId(3)) && !vlans.overlap(PortId(1), PortId(2)));
    }
}
