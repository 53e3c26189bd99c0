//! All queued fragments, by datagram, and the limits of their holders.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use lasthop_wire::{Fragment, FragmentFault};

use crate::bounds::{FragmentBounds, FragmentShare};
use crate::datagram::{Datagram, Entered, WholePacket};

/// The fields that fragments of one packet share besides addresses and identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentPlace {
    /// The datapath.
    pub datapath: i32,
    /// The zone of the `ct` action that they wait at.
    pub zone: u16,
    /// The port that they came in by.
    pub source: u16,
}

/// A reason to drop fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FragmentLoss {
    /// Two fragments of a packet overlap, or it has two ends.
    Overlap,
    /// The other fragments did not arrive in time.
    Timeout,
    /// A limit of the source, the zone, the pool or one packet was reached.
    Share,
    /// See [`FragmentFault::TooSmall`].
    TooSmall,
    /// See [`FragmentFault::TooLarge`].
    TooLarge,
    /// See [`FragmentFault::Malformed`].
    Malformed,
}

impl From<FragmentFault> for FragmentLoss {
    fn from(fault: FragmentFault) -> Self {
        match fault {
            FragmentFault::Malformed => Self::Malformed,
            FragmentFault::TooSmall => Self::TooSmall,
            FragmentFault::TooLarge => Self::TooLarge,
        }
    }
}

/// Dropped fragments of one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostFragments {
    /// Where they waited.
    pub place: FragmentPlace,
    /// Why.
    pub reason: FragmentLoss,
    /// How many.
    pub fragments: u32,
}

/// The key of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DatagramKey {
    place: FragmentPlace,
    src: IpAddr,
    dst: IpAddr,
    identification: u32,
    /// The protocol; zero for IPv6.
    proto: u8,
}

/// Queued fragments of all datapaths.
#[derive(Debug, Default)]
pub struct FragmentPool {
    bounds: FragmentBounds,
    datagrams: HashMap<DatagramKey, Datagram>,
    /// Keys by number, oldest first.
    order: BTreeMap<u64, DatagramKey>,
    /// Keys by source and number.
    of_source: BTreeMap<(i32, u16, u64), DatagramKey>,
    shares: BTreeMap<Holder, FragmentShare>,
    last_number: u64,
}

/// A holder of fragments that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    All,
    Zone(i32, u16),
    /// A source, in one zone.
    Place(i32, u16, u16),
    Source(i32, u16),
}

impl Holder {
    fn of(place: FragmentPlace) -> [Self; 4] {
        let FragmentPlace { datapath, zone, source } = place;
        [
            Self::All,
            Self::Zone(datapath, zone),
            Self::Place(datapath, zone, source),
            Self::Source(datapath, source),
        ]
    }
}

impl FragmentPool {
    /// An empty pool.
    #[must_use]
    pub fn new(bounds: FragmentBounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// All queued fragments.
    #[must_use]
    pub fn queued(&self) -> FragmentShare {
        self.share(Holder::All)
    }

    /// Takes a fragment, and returns its packet if that is complete now. `lost` gets the dropped fragments, perhaps
    /// including this one.
    pub fn take(
        &mut self,
        place: FragmentPlace,
        frame: Vec<u8>,
        now_ms: u64,
        lost: &mut Vec<LostFragments>,
    ) -> Option<WholePacket> {
        let mut lose = |reason| lost.push(LostFragments { place, reason, fragments: 1 });
        let fragment = match Fragment::parse(&frame) {
            Ok(fragment) => fragment,
            Err(fault) => {
                lose(fault.into());
                return None;
            }
        };
        let Some(key) = key_of(place, &fragment, &frame) else {
            lose(FragmentLoss::Malformed);
            return None;
        };
        let bytes = frame.len() as u32;
        self.make_room(&key, bytes, lost);
        let mut lose = |reason, fragments| lost.push(LostFragments { place, reason, fragments });
        if !self.has_room(place, bytes) {
            lose(FragmentLoss::Share, 1);
            return None;
        }
        let number = self.begin(key, now_ms);
        let datagram = self.datagrams.get_mut(&key)?;
        match datagram.enter(fragment, frame) {
            Entered::Queued => self.add(place, bytes),
            Entered::Twice => lose(FragmentLoss::Overlap, 1),
            Entered::Overlap => lose(FragmentLoss::Overlap, 1 + self.remove(number, &key)),
            Entered::TooMany => lose(FragmentLoss::Share, 1 + self.remove(number, &key)),
            Entered::TooLarge => {
                self.add(place, bytes);
                lose(FragmentLoss::TooLarge, self.remove(number, &key));
            }
            Entered::All => {
                self.add(place, bytes);
                let whole = self.datagrams.get(&key)?.whole();
                self.remove(number, &key);
                return Some(whole);
            }
        }
        None
    }

    /// Drops datagrams whose time has expired.
    pub fn expire(&mut self, now_ms: u64, lost: &mut Vec<LostFragments>) {
        while let Some((number, key)) = self.order.first_key_value().map(|(number, key)| (*number, *key)) {
            if self.datagrams.get(&key).is_some_and(|oldest| now_ms < oldest.began_ms + self.bounds.time_ms) {
                return;
            }
            self.lose(number, &key, FragmentLoss::Timeout, lost);
        }
    }

    /// The time at which the next datagram expires, in milliseconds.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        let (_, key) = self.order.first_key_value()?;
        self.datagrams.get(key).map(|oldest| oldest.began_ms + self.bounds.time_ms)
    }

    fn share(&self, holder: Holder) -> FragmentShare {
        self.shares.get(&holder).copied().unwrap_or_default()
    }

    fn has_room(&self, place: FragmentPlace, bytes: u32) -> bool {
        let [all, zone, _, source] = Holder::of(place).map(|holder| self.share(holder));
        let FragmentBounds { all: in_all, zone: of_zone, source: of_source, .. } = self.bounds;
        all.fits(bytes, in_all) && zone.fits(bytes, of_zone) && source.fits(bytes, of_source)
    }

    /// Drops datagrams, except the fragment's own, until there is room for the fragment.
    fn make_room(&mut self, key: &DatagramKey, bytes: u32, lost: &mut Vec<LostFragments>) {
        let FragmentPlace { datapath, zone, source } = key.place;
        while !self.share(Holder::Source(datapath, source)).fits(bytes, self.bounds.source) {
            if !self.evict(key, (datapath, source), |_| true, lost) {
                return;
            }
        }
        while !self.share(Holder::Zone(datapath, zone)).fits(bytes, self.bounds.zone) {
            let most = self.largest(|holder| match holder {
                Holder::Place(of, in_zone, source) if (of, in_zone) == (datapath, zone) => Some((of, source)),
                _ => None,
            });
            let in_zone = |other: &DatagramKey| other.place.zone == zone;
            if !most.is_some_and(|most| self.evict(key, most, in_zone, lost)) {
                return;
            }
        }
        while !self.share(Holder::All).fits(bytes, self.bounds.all) {
            let most = self.largest(|holder| match holder {
                Holder::Source(of, source) => Some((of, source)),
                _ => None,
            });
            if !most.is_some_and(|most| self.evict(key, most, |_| true, lost)) {
                return;
            }
        }
    }

    /// The source with most bytes among those that `chosen` returns.
    fn largest(&self, chosen: impl Fn(Holder) -> Option<(i32, u16)>) -> Option<(i32, u16)> {
        let shares = self.shares.iter().filter_map(|(holder, share)| Some((share.bytes, chosen(*holder)?)));
        shares.max_by_key(|(bytes, _)| *bytes).map(|(_, source)| source)
    }

    /// Drops the oldest datagram of a source that `chosen` accepts and that is not `spared`. Returns false if there is
    /// none.
    fn evict(
        &mut self,
        spared: &DatagramKey,
        (datapath, source): (i32, u16),
        chosen: impl Fn(&DatagramKey) -> bool,
        lost: &mut Vec<LostFragments>,
    ) -> bool {
        let mut own = self.of_source.range((datapath, source, 0)..=(datapath, source, u64::MAX));
        let oldest = own.find(|(_, key)| *key != spared && chosen(key));
        let Some((number, key)) = oldest.map(|((_, _, number), key)| (*number, *key)) else { return false };
        self.lose(number, &key, FragmentLoss::Share, lost);
        true
    }

    fn lose(&mut self, number: u64, key: &DatagramKey, reason: FragmentLoss, lost: &mut Vec<LostFragments>) {
        let fragments = self.remove(number, key);
        if fragments > 0 {
            lost.push(LostFragments { place: key.place, reason, fragments });
        }
    }

    /// Returns the number of a datagram, and creates the datagram if it does not exist.
    fn begin(&mut self, key: DatagramKey, now_ms: u64) -> u64 {
        if let Some(datagram) = self.datagrams.get(&key) {
            return datagram.number;
        }
        self.last_number += 1;
        let (number, FragmentPlace { datapath, source, .. }) = (self.last_number, key.place);
        self.datagrams.insert(key, Datagram::new(number, now_ms));
        self.order.insert(number, key);
        self.of_source.insert((datapath, source, number), key);
        number
    }

    fn add(&mut self, place: FragmentPlace, bytes: u32) {
        for holder in Holder::of(place) {
            let share = self.shares.entry(holder).or_default();
            share.fragments += 1;
            share.bytes += bytes;
        }
    }

    /// Removes a datagram, and returns the number of its fragments.
    fn remove(&mut self, number: u64, key: &DatagramKey) -> u32 {
        let place = key.place;
        self.order.remove(&number);
        self.of_source.remove(&(place.datapath, place.source, number));
        let Some(queued) = self.datagrams.remove(key).map(|datagram| datagram.share()) else { return 0 };
        for holder in Holder::of(place) {
            let Some(share) = self.shares.get_mut(&holder) else { continue };
            share.fragments -= queued.fragments;
            share.bytes -= queued.bytes;
            if share.fragments == 0 {
                self.shares.remove(&holder);
            }
        }
        queued.fragments
    }
}

fn key_of(place: FragmentPlace, fragment: &Fragment, frame: &[u8]) -> Option<DatagramKey> {
    let addresses = fragment.addresses(frame);
    let (src, dst) = addresses.split_at(addresses.len() / 2);
    let src = address(src)?;
    Some(DatagramKey {
        place,
        src,
        dst: address(dst)?,
        identification: fragment.identification,
        proto: if src.is_ipv6() { 0 } else { fragment.proto },
    })
}

/// Reads 4 or 16 bytes; `None` for any other length.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    ipv4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests;
