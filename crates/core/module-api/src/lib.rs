//! The contract between the switching fabric and its modules (mSwitch: fabric and lookup function).
//!
//! **Purpose.** The fabric hands a module a [`Batch`] of header images and gets [`Verdicts`] back. The fabric knows
//! nothing of forwarding decisions, a module knows nothing of rings, guest memory, threads or clocks.
//!
//! **Contract.** A module decides every packet of a batch: at least one output, or one drop with a reason. A packet
//! with neither is counted as dropped for [`DropReason::NoDestination`]. Outputs of one packet to the same port twice
//! are delivered twice. A copy that is to look different from the packet gets a header image of its own
//! ([`Verdicts::add_image`]); where that cannot be made, a drop beside the other outputs counts the copy that is not.
//! Nothing here allocates after construction.
//!
//! **Not checked.** Whether an output names a live port: the fabric checks that, and counts `port_gone`.
//!
//! **Threading.** A module is shared by all workers and takes `&self`; everything else belongs to one worker.
//!
//! ```text
//!   fabric                      module
//!   fetch -> Batch{headers} --> decide(batch, now) --> Verdicts{outputs, drops} --> sort by destination -> deliver
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

/// Packets that a worker takes from one ring at a time.
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

    /// As an index into a table of at most `SWITCHES_MAX` entries.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A port of the switch; slots are re-used only after every reference to the old port is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// The switch's own port: re-injected packets, announcements. Never has a guest.
    pub const INTERNAL: PortId = PortId(0);

    /// As an index into a table of `PORTS_MAX` entries.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
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

    /// As a number, its first byte highest.
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

/// The packets of one visit to one ring, as a module sees them: index `i` is packet `i`.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Where all packets of the batch came in.
    pub port: PortId,
    /// One header image per packet.
    pub headers: &'a [Header],
    /// Hashes from their sender: none, unless it is an uplink's driver.
    pub hashes: &'a Hashes,
}

/// Frames per second that are taken from one port to be flooded; 0 is no limit. Up to a tenth of that, and at least a
/// batch, may come at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormLimits {
    /// To ff:ff:ff:ff:ff:ff.
    pub broadcast: u32,
    /// To any other group address.
    pub multicast: u32,
    /// To a unicast address that is not in the forwarding table.
    pub unknown: u32,
}

impl StormLimits {
    /// Largest limit: more is none.
    pub const RATE_MAX: u32 = 10_000_000;
}

/// The kind of a port, which restricts its destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// A guest, or the host itself.
    #[default]
    Inside,
    /// A wire. Nothing goes from one wire to another, so that no loop is made by connecting two.
    Uplink,
    /// A wire whose frames may go to other wires that allow it, too.
    TransitUplink,
}

/// A user's rules for the packets of a port, which a module keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPolicy {
    /// Static address: never learned elsewhere, and the only source address accepted from the port (anti-spoofing). `None`: the port
    /// may send from any.
    pub mac: Option<Mac>,
    /// Limits of flooded packets from the port.
    pub storm: StormLimits,
    /// VLANs that the port carries.
    pub vlans: PortVlans,
    /// Packets between two isolated ports are dropped.
    pub is_isolated: bool,
    /// Checks of what the port claims to be.
    pub guard: PortGuard,
    /// Groups that rules about connections name.
    pub groups: Vec<String>,
}

/// Checks of the network addresses that a port claims, and of services that it offers. A module may not know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortGuard {
    /// The port's own network addresses.
    pub addresses: Vec<IpAddr>,
    /// It has an Ethernet address of its own ([`PortPolicy::mac`]), which is checked anyway.
    pub has_mac: bool,
    /// It sends IP packets from its own addresses only.
    pub has_ip: bool,
    /// It claims its own addresses only, by ARP and neighbour advertisements.
    pub has_arp: bool,
    /// It is no DHCP server, and no router of IPv6.
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
    /// The switch that it belongs to; for the module that tells switches apart, and no other.
    pub switch: SwitchId,
    /// The rules for its packets.
    pub policy: PortPolicy,
    /// Addresses that may be learned from the port; `None` is the module's default.
    pub macs_max: Option<u32>,
    /// Its kind.
    pub kind: PortKind,
}

/// One line of a forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdbEntry {
    /// The address.
    pub mac: Mac,
    /// In which VLAN; `None` is untagged, or all that a static entry's port carries.
    pub vlan: Option<u16>,
    /// Where it is reached.
    pub port: PortId,
    /// Time since it was last seen as a source, in nanoseconds; 0 for static entries.
    pub age_ns: u64,
    /// Set by configuration; neither ages nor moves.
    pub is_static: bool,
}

/// A learned address that was seen on another port than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbMove {
    /// The address.
    pub mac: Mac,
    /// Where it was, the last time that it moved.
    pub from: PortId,
    /// Where it is since.
    pub to: PortId,
    /// Times that it moved since it is watched: once is a guest that moved, again and again are two guests.
    pub count: u32,
    /// Time since the last move, in nanoseconds.
    pub age_ns: u64,
}

/// A forwarding policy. Implementations keep shared state in atomics: `decide` runs on every worker at once.
pub trait Module: Send + Sync {
    /// As given to `--module`.
    fn name(&self) -> &'static str;
    /// Decides every packet of `batch`; `now_ns` is the worker's monotonic clock. Called once per visit to a ring.
    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts);
    /// Decides about one packet as [`Self::decide`] would now, and tells the reasons. Nothing changes: no address is learned, nothing is
    /// counted. False: this module cannot, and has decided nothing.
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
    /// Whether packets of `port` that worker `worker` takes still have to wait, after [`Verdicts::hold`].
    /// Asked at each visit until it says no, which has to happen within a bounded time.
    fn is_holding(&self, port: PortId, worker: usize, now_ns: u64) -> bool {
        let _ = (port, worker, now_ns);
        false
    }
    /// A copy for the control plane was decided on and is handed over as one packet more, each of which has its ticket. Told before
    /// that one is handed over.
    fn upcall_split(&self, upcall: &Upcall) {
        let _ = upcall;
    }
    /// A copy for the control plane was decided on and could not be handed over.
    fn upcall_lost(&self, upcall: &Upcall) {
        let _ = upcall;
    }
    /// A port appears; an error (one sentence with the remedy) refuses it.
    ///
    /// # Errors
    /// When the module cannot serve the port, for example because its static address is taken.
    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String>;
    /// A port's settings change while packets pass; an error (one sentence with the remedy) leaves it as it was.
    ///
    /// # Errors
    /// When the module cannot serve the port with its new settings.
    fn port_changed(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        let _ = (port, settings);
        Ok(())
    }
    /// A port is removed: all references to it are dropped before this returns.
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
    /// Addresses that changed ports lately, as far as the module keeps them; the most restless first.
    fn moves(&self, now_ns: u64) -> Vec<FdbMove> {
        let _ = now_ns;
        Vec::new()
    }
    /// Enters a static address behind `port`: in one VLAN, or in all that the port carries.
    ///
    /// # Errors
    /// One sentence with the remedy: the address is another port's, the port does not carry the VLAN, there is no room.
    fn fdb_add(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        let _ = (mac, vlan, port);
        Err(no_table(self.name()))
    }
    /// Removes an entry of `fdb_add` with the same arguments.
    ///
    /// # Errors
    /// One sentence with the remedy: there is no such entry.
    fn fdb_del(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        let _ = (mac, vlan, port);
        Err(no_table(self.name()))
    }
    /// Forgets learned addresses: of one port or all, of one VLAN or all. Returns how many.
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
