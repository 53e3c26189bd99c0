//! The interface between the switching fabric and its modules (mSwitch: fabric and lookup function).
//!
//! **Purpose.** The fabric hands a module a [`Batch`] of header images and gets [`Verdicts`] back. The fabric has no
//! knowledge of forwarding decisions; a module has none of rings, guest memory, threads or clocks.
//!
//! **Contract.** A module decides every packet of a batch: at least one output, or one drop with a reason. A packet
//! with neither is counted as dropped for [`DropReason::NoDestination`]. A packet with two outputs to one port is
//! delivered twice. A copy that differs from the packet gets its own header image ([`Verdicts::add_image`]). If there
//! is no room for that image, the module adds a drop, which counts the missing copy. Nothing here allocates after
//! construction.
//!
//! **Not checked.** A module may name a port that is gone: the fabric checks outputs, and counts `port_gone`.
//!
//! **Threading.** A module is shared by all workers and takes `&self`; everything else belongs to one worker.
//!
//! ```text
//!   fabric                      module
//!   fetch -> Batch{headers} --> decide(batch, now) --> Verdicts{outputs, drops} --> sort by destination -> deliver
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_module_api::{Batch, DropReason, Hashes, Header, Module, PortId, PortSettings, Verdicts};
//!
//! /// A tee: packets of each port go to port 1, and those of port 1 nowhere.
//! struct Tee;
//!
//! impl Module for Tee {
//!     fn name(&self) -> &'static str {
//!         "tee"
//!     }
//!
//!     fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
//!         for packet in 0..batch.headers.len() {
//!             match batch.port {
//!                 PortId(1) => verdicts.drop_packet(packet, DropReason::NoDestination),
//!                 _ => verdicts.output(packet, PortId(1)),
//!             }
//!         }
//!     }
//!
//!     fn port_added(&self, _port: PortId, _settings: &PortSettings) -> Result<(), String> {
//!         Ok(())
//!     }
//!
//!     fn port_removed(&self, _port: PortId) {}
//!
//!     fn counters(&self) -> Vec<(&'static str, u64)> {
//!         Vec::new()
//!     }
//! }
//!
//! let headers = [Header::new(&[0; 60], 60, lasthop_wire::Offload::default())];
//! let mut verdicts = Verdicts::default();
//! Tee.decide(&Batch { port: PortId(7), headers: &headers, hashes: &Hashes::NONE }, 0, &mut verdicts);
//! assert_eq!(verdicts.outputs()[0].port, PortId(1));
//! assert!(verdicts.drops().is_empty());
//! ```
#![forbid(unsafe_code)]

mod drops;
mod form;
mod hashes;
mod header;
mod outputs;
mod reasons;
mod vlan;

pub use drops::DropReason;
pub use form::{FrameTag, TagForm};
pub use hashes::Hashes;
pub use header::{Header, IMAGE_BYTES, IMAGE_FETCH_BYTES, TAG_BYTES, TagEdit};
pub use outputs::{
    IMAGES_MADE_MAX, Mark, Output, SUSPENDED_WORDS_MAX, SuspendedWords, UPCALLS_MAX, Upcall, UpcallReason,
    Verdicts,
};
pub use reasons::{Reason, Reasons};
pub use vlan::{NO_VID, PortVlans, Vid, VlanSet, parse_vlan_range};

use std::fmt;
use std::net::IpAddr;

/// Packets that a worker fetches from one ring at a time.
pub const BATCH_PACKETS_MAX: usize = 32;
/// Ports of one switch, `internal` included.
pub const PORTS_MAX: usize = 1024;

/// Switches of one process: one for each four ports, and few enough that their default tables take 64 MiB together.
pub const SWITCHES_MAX: usize = 256;

/// One of the switches that share the workers. Ports of different switches never exchange a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchId(pub u16);

impl SwitchId {
    /// The switch of ports that name none, and of the port `internal`.
    pub const DEFAULT: SwitchId = SwitchId(0);

    /// The number as an index into a table of at most `SWITCHES_MAX` entries.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A port of the switch. A slot is reused only when no reference to its former port is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// The switch's own port, for re-injected packets and announcements. It never has a guest.
    pub const INTERNAL: PortId = PortId(0);

    /// The number as an index into a table of `PORTS_MAX` entries.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A receive or transmit ring: queue pair `queue` of `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingId {
    /// The port.
    pub port: PortId,
    /// The queue pair.
    pub queue: u16,
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether the group bit is set (IEEE 802-2014, 8.2.2): multicast or broadcast.
    #[must_use]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The address as a number, its first byte most significant.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The address in the lower 48 of `bits`.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let [_, _, mac @ ..] = bits.to_be_bytes();
        Self(mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl std::str::FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("\"{text}\" is not an Ethernet address; write it as 02:00:00:00:00:01");
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Self(bytes)) }
    }
}

/// The packets of one visit to one ring. Index `i` is packet `i` in verdicts.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The port that received all packets of the batch.
    pub port: PortId,
    /// One header image per packet.
    pub headers: &'a [Header],
    /// Hashes that the sender supplied. Only the driver of an uplink supplies any.
    pub hashes: &'a Hashes,
}

/// Limits of flooded frames from one port, in frames per second; 0 is no limit. A burst of a tenth of the limit, at
/// least a batch, is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormLimits {
    /// Broadcast frames (ff:ff:ff:ff:ff:ff).
    pub broadcast: u32,
    /// Frames to any other group address.
    pub multicast: u32,
    /// Frames to unicast addresses that are not in the forwarding table.
    pub unknown: u32,
}

impl StormLimits {
    /// The largest limit that can be set.
    pub const RATE_MAX: u32 = 10_000_000;
}

/// The kind of a port, which restricts its destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// A guest, or the host itself.
    #[default]
    Inside,
    /// An uplink. Frames from one uplink never go to another, so that two uplinks cannot form a loop.
    Uplink,
    /// An uplink that exchanges frames with other uplinks of this kind.
    TransitUplink,
}

/// A user's rules for the packets of a port, which a module enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPolicy {
    /// Static address: it is never learned on another port, and it is the only source address that the port may send
    /// from (anti-spoofing). `None`: the port may send from any.
    pub mac: Option<Mac>,
    /// Limits of flooded frames from the port.
    pub storm: StormLimits,
    /// VLANs that the port carries.
    pub vlans: PortVlans,
    /// Packets between two isolated ports are dropped.
    pub is_isolated: bool,
    /// Checks of addresses and services that the port claims.
    pub guard: PortGuard,
    /// Port groups that rules for connections name.
    pub groups: Vec<String>,
}

/// Checks of the network addresses that a port claims, and of services that it offers. A module may not support them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortGuard {
    /// The port's own network addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses that a DHCP server gives to the port are its own, too, while their lease lasts.
    pub follows_dhcp: bool,
    /// Every link-local IPv6 address is its own, not only the one made of its Ethernet address.
    pub has_any_link_local: bool,
    /// The port has a static Ethernet address ([`PortPolicy::mac`]), which is checked in any case.
    pub has_mac: bool,
    /// The port sends IP packets from its own addresses only.
    pub has_ip: bool,
    /// The port claims its own addresses only, in ARP and neighbour discovery.
    pub has_arp: bool,
    /// The port sends no messages of a DHCP server or an IPv6 router.
    pub has_dhcp: bool,
}

impl PortGuard {
    /// Whether anything is checked.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.has_ip || self.has_arp || self.has_dhcp
    }
}

/// A port's settings for a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    /// Unique name.
    pub name: String,
    /// The switch that the port belongs to; only the module that dispatches to switches uses it.
    pub switch: SwitchId,
    /// The rules for its packets.
    pub policy: PortPolicy,
    /// How many addresses may be learned from the port; `None` is the module's default.
    pub macs_max: Option<u32>,
    /// Its kind.
    pub kind: PortKind,
}

/// One entry of a forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdbEntry {
    /// The address.
    pub mac: Mac,
    /// The VLAN; `None` is untagged, or every VLAN of a static entry's port.
    pub vlan: Option<u16>,
    /// The port that leads to the address.
    pub port: PortId,
    /// Time since it was last seen as a source, in nanoseconds; 0 for static entries.
    pub age_ns: u64,
    /// Set by configuration: it neither ages nor moves.
    pub is_static: bool,
}

/// A learned address that appeared on another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbMove {
    /// The address.
    pub mac: Mac,
    /// The port before the last move.
    pub from: PortId,
    /// The port since the last move.
    pub to: PortId,
    /// Number of moves while it is watched. One move is a guest that migrated; repeated moves are two guests with one
    /// address.
    pub count: u32,
    /// Time since the last move, in nanoseconds.
    pub age_ns: u64,
}

/// A forwarding policy. Implementations keep shared state in atomics: all workers call `decide` concurrently.
pub trait Module: Send + Sync {
    /// The name for `--module`.
    fn name(&self) -> &'static str;
    /// Decides every packet of `batch`; `now_ns` is the worker's monotonic clock. Called once per visit to a ring.
    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts);
    /// The packets of a batch for which [`Verdicts::leave_rest`] was called are delivered, and their receivers signalled: does work that they need not wait for. The
    /// module may not rely on this call.
    fn delivered(&self, port: PortId, rest: u16) {
        let _ = (port, rest);
    }
    /// Decides about one packet as [`Self::decide`] would now, and records the reasons. Nothing changes: no address is
    /// learned, nothing is counted. Returns false, without a decision, if the module has no explanations.
    fn explain(
        &self,
        packet: (PortId, &Header),
        now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        let _ = (packet, now_ns, verdicts, reasons);
        false
    }
    /// Whether packets of `port` that worker `worker` takes still have to wait, after [`Verdicts::pause_ring`].
    /// Asked at each visit until it says no, which has to happen within a bounded time.
    fn keeps_paused(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        let _ = (port, worker, now_ns);
        false
    }
    /// Whether the control plane has none of the packets of `port` that worker `worker` took, so that another worker may
    /// take the next ones without overtaking them. Asked before a ring of the port moves. While it says no, this worker
    /// takes no packets of the port; it has to say yes within a bounded time.
    fn may_leave(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        let _ = (port, worker, now_ns);
        true
    }
    /// The guest of `port` has left. Its packets that worker `worker` took and that the control plane has are dropped when
    /// they come back: another worker may take those of the next guest, and these would come behind them. Returns false
    /// while one is being sent; then it is called again.
    fn guest_left(&self, port: PortId, worker: usize) -> bool {
        let _ = (port, worker);
        true
    }
    /// An upcall is handed over as one more packet, with the same ticket as the others. The fabric calls this before it
    /// hands that packet over.
    fn upcall_split(&self, upcall: &Upcall) {
        let _ = upcall;
    }
    /// An upcall could not be handed over.
    fn upcall_lost(&self, upcall: &Upcall) {
        let _ = upcall;
    }
    /// Adds a port; an error (one sentence with the remedy) refuses it.
    ///
    /// # Errors
    /// When the module cannot serve the port, for example because its static address is taken.
    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String>;
    /// Changes a port's settings while packets pass; an error (one sentence with the remedy) leaves them as they were.
    ///
    /// # Errors
    /// When the module cannot serve the port with its new settings.
    fn port_changed(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        let _ = (port, settings);
        Ok(())
    }
    /// Removes a port. The module drops all references to it before this returns.
    fn port_removed(&self, port: PortId);
    /// Statistics of the module's tables: counts by name, in a fixed order.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// The forwarding table, if the module has one; ordered by address and VLAN.
    fn fdb(&self, now_ns: u64) -> Vec<FdbEntry> {
        let _ = now_ns;
        Vec::new()
    }
    /// Addresses that moved to other ports recently, as far as the module tracks them; the most moves first.
    fn moves(&self, now_ns: u64) -> Vec<FdbMove> {
        let _ = now_ns;
        Vec::new()
    }
    /// Adds a static address behind `port`: in one VLAN, or in all that the port carries.
    ///
    /// # Errors
    /// One sentence with the remedy: another port has the address, the port does not carry the VLAN, or there is no
    /// room.
    fn fdb_add(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        let _ = (mac, vlan, port);
        Err(no_table(self.name()))
    }
    /// Removes an entry that `fdb_add` added with the same arguments.
    ///
    /// # Errors
    /// One sentence with the remedy if there is no such entry.
    fn fdb_del(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        let _ = (mac, vlan, port);
        Err(no_table(self.name()))
    }
    /// Removes learned addresses: of one port or all, of one VLAN or all. Returns how many.
    ///
    /// # Errors
    /// One sentence if the module has no forwarding table.
    fn fdb_flush(&self, port: Option<PortId>, vlan: Option<Vid>) -> Result<usize, String> {
        let _ = (port, vlan);
        Err(no_table(self.name()))
    }
}

fn no_table(module: &str) -> String {
    format!("the module \"{module}\" has no forwarding table; run the switch with --module bridge")
}
