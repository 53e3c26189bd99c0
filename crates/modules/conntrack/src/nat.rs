//! Address translation: which addresses and ports a new connection gets.
//!
//! An address of a range is chosen by a keyed hash of the client's (and, unless it has to be persistent, the server's)
//! address. A port stays as it is if that is allowed and free. Else ports are tried from a start that is random, or a
//! hash: 128 in a row, then from other random starts 64, 32, 16 and 8, as the kernel does; a range of at most 128 is
//! thus tried whole. Then the range is crowded, and [`crate::crowd`] finds a free port if there is one. So a failure
//! means that the address has no free port. At most [`ADDRESSES_TRIED_MAX`] addresses of a range are tried for one
//! packet.

use std::net::IpAddr;

use lasthop_ct_packet::{CtTuple, IpBytes};
use lasthop_flow::{Nat, NatSource};

use crate::connection::{DST_NAT, SRC_NAT};
use crate::crowded_ranges::{PortBits, PortSide};
use crate::table::Table;

/// Addresses of a range that are tried for one packet: the first one by hash, the others at random.
const ADDRESSES_TRIED_MAX: u32 = 8;
/// Ports that are tried in a row, before another start is tried with half as many.
const TRIES_FIRST: u32 = 128;
const TRIES_LAST: u32 = 8;

/// The translation of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    /// The tuple of its replies.
    pub(crate) reply: CtTuple,
    /// [`SRC_NAT`], [`DST_NAT`].
    pub(crate) status: u16,
}

/// Selects addresses and ports for one connection.
pub(crate) struct Selection<'a, 'b> {
    pub(crate) table: &'a mut Table<'b>,
    pub(crate) now_ms: u64,
}

/// Ports to choose from.
#[derive(Clone, Copy)]
struct PortRange {
    first: u16,
    last: u16,
    /// The request names this range. Otherwise it has the ports that may replace a port that clashes.
    is_given: bool,
}

impl PortRange {
    fn of(nat: &Nat) -> Option<Self> {
        let first = nat.range.proto_min?;
        let last = nat.range.proto_max.unwrap_or(first);
        Some(Self { first: first.min(last), last: first.max(last), is_given: true })
    }

    /// The ports that may replace one that clashes: of the same class, since some servers trust low ports.
    fn instead_of(tuple: &CtTuple) -> Self {
        let (first, last) = match tuple.src_port {
            _ if tuple.is_icmp() => (0, u16::MAX),
            0..=511 => (1, 511),
            512..=1023 => (600, 1023),
            _ => (1024, u16::MAX),
        };
        Self { first, last, is_given: false }
    }

    fn has(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn count(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }

    /// The port `offset` behind the first one, modulo the range.
    fn at(self, offset: u64) -> u16 {
        (u64::from(self.first) + offset % u64::from(self.count())) as u16
    }
}

/// Addresses to choose from, as numbers.
#[derive(Clone, Copy)]
struct AddressRange {
    first: u128,
    last: u128,
}

impl AddressRange {
    /// `None` if the address stays, as with all zeroes.
    fn of(nat: &Nat, tuple: &CtTuple) -> Option<Self> {
        let number =
            |address: IpAddr| (address.is_ipv6() == tuple.is_ipv6).then(|| IpBytes::from(address).number());
        let first = nat.range.ip_min.filter(|address| !address.is_unspecified()).and_then(number)?;
        let last = nat.range.ip_max.and_then(number).unwrap_or(first);
        Some(Self { first: first.min(last), last: first.max(last) })
    }

    fn has(self, address: IpBytes) -> bool {
        (self.first..=self.last).contains(&address.number())
    }

    fn is_single(self) -> bool {
        self.first == self.last
    }

    /// Selects an address of the range by a random number.
    fn pick(self, tuple: &CtTuple, number: u64) -> IpBytes {
        // An IPv4 address is the upper 32 bits.
        let shift = if tuple.is_ipv6 { 0 } else { 96 };
        let count = ((self.last - self.first) >> shift).saturating_add(1);
        let offset = (u128::from(number) << 64 | u128::from(number)) % count;
        IpBytes((self.first + (offset << shift)).to_be_bytes())
    }
}

impl Selection<'_, '_> {
    /// The translation of a new connection with this tuple; none if no address and port are left.
    pub(crate) fn choose(&mut self, tuple: &CtTuple, nat: &Nat) -> Option<Translation> {
        let translated = match nat.source {
            Some(NatSource::Src) => self.source(tuple, nat)?,
            Some(NatSource::Dst) => self.destination(tuple, nat)?,
            None => *tuple,
        };
        translation(tuple, &translated)
    }

    /// A reply tuple that clashes with none, for a connection with given addresses; changes the source port if
    /// necessary.
    pub(crate) fn without_clash(&mut self, tuple: &CtTuple, translated: &CtTuple) -> Option<Translation> {
        let translated = self.source_port(translated, PortRange::instead_of(translated), &Nat::default())?;
        translation(tuple, &translated)
    }

    fn is_free(&mut self, translated: &CtTuple) -> bool {
        translated.inverse().is_some_and(|reply| self.table.is_free(&reply, self.now_ms))
    }

    fn source(&mut self, tuple: &CtTuple, nat: &Nat) -> Option<CtTuple> {
        let ports = PortRange::of(nat).unwrap_or_else(|| PortRange::instead_of(tuple));
        let Some(range) = AddressRange::of(nat, tuple) else { return self.source_port(tuple, ports, nat) };
        let is_random = nat.is_random || nat.is_hashed;
        let stays = !is_random && range.has(tuple.src) && (!ports.is_given || ports.has(tuple.src_port));
        if stays && self.is_free(tuple) {
            return Some(*tuple);
        }
        for attempt in 0..ADDRESSES_TRIED_MAX {
            let src = range.pick(tuple, self.number(tuple, nat, attempt));
            let found = self.source_port(&CtTuple { src, ..*tuple }, ports, nat);
            if found.is_some() || range.is_single() {
                return found;
            }
        }
        None
    }

    fn source_port(&mut self, tuple: &CtTuple, ports: PortRange, nat: &Nat) -> Option<CtTuple> {
        let may_stay = !(nat.is_random || nat.is_hashed) && (!ports.is_given || ports.has(tuple.src_port));
        if (may_stay || !tuple.has_ports()) && self.is_free(tuple) {
            return Some(*tuple);
        }
        if !tuple.has_ports() {
            return None;
        }
        self.free_port(tuple, PortSide::Source, ports, nat)
    }

    fn destination(&mut self, tuple: &CtTuple, nat: &Nat) -> Option<CtTuple> {
        let ports = PortRange::of(nat).filter(|_| tuple.has_ports() && !tuple.is_icmp());
        let range = AddressRange::of(nat, tuple);
        for attempt in 0..ADDRESSES_TRIED_MAX {
            let number = self.number(tuple, nat, attempt);
            let dst = range.map_or(tuple.dst, |range| range.pick(tuple, number));
            let mut translated = CtTuple { dst, ..*tuple };
            if let Some(ports) = ports {
                translated = self.destination_port(&translated, ports, nat);
            }
            // Two clients may reach one backend by two addresses and clash; then the source port changes.
            let found = self.source_port(&translated, PortRange::instead_of(tuple), &Nat::default());
            if found.is_some() || range.is_none_or(AddressRange::is_single) {
                return found;
            }
        }
        None
    }

    fn destination_port(&mut self, tuple: &CtTuple, ports: PortRange, nat: &Nat) -> CtTuple {
        let may_stay = !(nat.is_random || nat.is_hashed) && ports.has(tuple.dst_port);
        if may_stay && self.is_free(tuple) {
            return *tuple;
        }
        if ports.first == ports.last {
            return CtTuple { dst_port: ports.first, ..*tuple };
        }
        let found = self.free_port(tuple, PortSide::Destination, ports, nat);
        found.unwrap_or(CtTuple { dst_port: ports.first, ..*tuple })
    }

    /// A free port of a range, if there is one.
    fn free_port(&mut self, tuple: &CtTuple, side: PortSide, ports: PortRange, nat: &Nat) -> Option<CtTuple> {
        let mut start =
            if nat.is_hashed { self.number(tuple, nat, 0) } else { self.table.state.random.draw() };
        let range = (ports.first, ports.last);
        if let Ok(found) = self.table.state.crowds.free_port(tuple, side, range, ports.at(start)) {
            return found.map(|port| side.with(tuple, port)).filter(|found| self.is_free(found));
        }
        let mut tries = TRIES_FIRST;
        while tries >= TRIES_LAST {
            for offset in 0..u64::from(tries.min(ports.count())) {
                let candidate = side.with(tuple, ports.at(start % (1 << 32) + offset));
                if self.is_free(&candidate) {
                    return Some(candidate);
                }
            }
            if tries >= ports.count() {
                return None;
            }
            tries /= 2;
            start = self.table.state.random.draw();
        }
        self.crowd(tuple, side, range);
        let found = self.table.state.crowds.free_port(tuple, side, range, ports.at(start)).ok().flatten()?;
        Some(side.with(tuple, found)).filter(|found| self.is_free(found))
    }

    /// Tries all ports of a range once, and keeps the result.
    fn crowd(&mut self, tuple: &CtTuple, side: PortSide, range: (u16, u16)) {
        let mut taken = PortBits::default();
        for port in range.0..=range.1 {
            taken.set(port, !self.is_free(&side.with(tuple, port)));
        }
        self.table.state.crowds.add(tuple, side, range, taken);
    }

    /// The number that selects an address from the range.
    fn number(&mut self, tuple: &CtTuple, nat: &Nat, attempt: u32) -> u64 {
        if attempt > 0 {
            return self.table.state.random.draw();
        }
        let [src, dst, src_low, dst_low, ports] = tuple.words();
        let mut number = self.table.shared.key.of_words(src, src_low);
        if !nat.is_persistent {
            number = self.table.shared.key.of_words(number ^ dst, dst_low ^ u64::from(tuple.zone));
        }
        if nat.is_hashed {
            number = self.table.shared.key.of_words(number, ports);
        }
        number
    }
}

/// The translation from a packet's tuple before and after.
fn translation(tuple: &CtTuple, translated: &CtTuple) -> Option<Translation> {
    let is_source = (tuple.src, tuple.src_port) != (translated.src, translated.src_port);
    let is_destination = (tuple.dst, tuple.dst_port) != (translated.dst, translated.dst_port);
    let status = if is_source { SRC_NAT } else { 0 } | if is_destination { DST_NAT } else { 0 };
    Some(Translation { reply: translated.inverse()?, status })
}
