//! DHCP messages: the addresses that a server gives to a client, and that the client returns.
//!
//! ```text
//!   DHCP (RFC 2131, 2)     | op, htype, hlen, hops | xid | secs, flags | ciaddr | yiaddr | siaddr | giaddr | chaddr : 16 bytes
//!                          | sname : 64 bytes, file : 128 bytes | 99, 130, 83, 99 | options: code, length, data
//!   DHCPv6 (RFC 8415, 8)   | type, xid : 24 | options: code : 16, length : 16, data
//!     IA_NA (3)            | IAID, T1, T2 | options: IA Address (5): address, preferred, valid | options
//! ```
//!
//! Options that DHCP moves into sname and file (option 52) are not read.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::headers::{Layers, PROTO_UDP};

/// The client requests an address: the type of DHCP messages (RFC 2132, 9.6).
pub const DHCPREQUEST: u8 = 3;
/// The client refuses an address, which is in use.
pub const DHCPDECLINE: u8 = 4;
/// The server gives the address.
pub const DHCPACK: u8 = 5;
/// The server refuses the request.
pub const DHCPNAK: u8 = 6;
/// The client gives its address back.
pub const DHCPRELEASE: u8 = 7;

/// The client looks for servers: the type of DHCPv6 messages (RFC 8415, 7.3).
pub const SOLICIT: u8 = 1;
/// The client requests addresses.
pub const REQUEST: u8 = 3;
/// The client asks whether its addresses fit its link.
pub const CONFIRM: u8 = 4;
/// The client asks its server for a longer lifetime.
pub const RENEW: u8 = 5;
/// The client asks any server for a longer lifetime.
pub const REBIND: u8 = 6;
/// The server's answer.
pub const REPLY: u8 = 7;
/// The client gives addresses back.
pub const RELEASE: u8 = 8;
/// The client refuses addresses, which are in use.
pub const DECLINE: u8 = 9;

const UDP_BYTES: usize = 8;
/// Bytes of a DHCP message before its options.
const FIXED_BYTES: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Hardware type and address length of Ethernet.
const ETHERNET: [u8; 2] = [1, 6];
/// Codes of options (RFC 2132, 3.1, 3.2, 9.1, 9.2, 9.6).
const PAD: u8 = 0;
const END: u8 = 255;
const REQUESTED_ADDRESS: u8 = 50;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
/// Codes of DHCPv6 options (RFC 8415, 21).
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const STATUS: u16 = 13;
const RAPID_COMMIT: u16 = 14;
/// Bytes of these options before the options in them.
const IA_NA_BYTES: usize = 12;
const IA_ADDRESS_BYTES: usize = 24;

/// A DHCP message of Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpMessage {
    /// Whether a client sent it (BOOTREQUEST), not a server (BOOTREPLY).
    pub is_of_client: bool,
    /// Its type, such as [`DHCPACK`].
    pub kind: u8,
    /// The transaction.
    pub xid: u32,
    /// The client's Ethernet address (chaddr).
    pub client_mac: [u8; 6],
    /// The address that the client has (ciaddr); unspecified for none.
    pub client: Ipv4Addr,
    /// The address that the server gives (yiaddr); unspecified for none.
    pub given: Ipv4Addr,
    /// The address that the client requests or refuses (option 50).
    pub requested: Option<Ipv4Addr>,
    /// Lease time in seconds (option 51); `u32::MAX` is for ever.
    pub lease_s: Option<u32>,
}

impl DhcpMessage {
    /// Parses the payload of a UDP datagram. `None` if it is not a DHCP message of Ethernet, if an option passes its end,
    /// and if an option that is used has a wrong length or is missing.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (fixed, options) = payload.split_first_chunk::<FIXED_BYTES>()?;
        let field = |at: usize| fixed.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()).copied();
        let is_of_client = match fixed[0] {
            1 => true,
            2 => false,
            _ => return None,
        };
        if fixed[1..3] != ETHERNET || fixed[236..240] != COOKIE {
            return None;
        }
        let mut message = Self {
            is_of_client,
            kind: 0,
            xid: u32::from_be_bytes(field(4)?),
            client_mac: *fixed.get(28..34)?.first_chunk()?,
            client: field(12)?.into(),
            given: field(16)?.into(),
            requested: None,
            lease_s: None,
        };
        message.read_options(options)?;
        (message.kind != 0).then_some(message)
    }

    fn read_options(&mut self, mut options: &[u8]) -> Option<()> {
        while let Some((code, rest)) = options.split_first() {
            options = match *code {
                PAD => rest,
                END => return Some(()),
                code => {
                    let (len, rest) = rest.split_first()?;
                    let (data, rest) = rest.split_at_checked(usize::from(*len))?;
                    self.read_option(code, data)?;
                    rest
                }
            };
        }
        // The end option is mandatory, but its absence is harmless.
        Some(())
    }

    fn read_option(&mut self, code: u8, data: &[u8]) -> Option<()> {
        match code {
            MESSAGE_TYPE => self.kind = *<&[u8; 1]>::try_from(data).ok()?.first()?,
            REQUESTED_ADDRESS => self.requested = Some((*<&[u8; 4]>::try_from(data).ok()?).into()),
            LEASE_TIME => self.lease_s = Some(u32::from_be_bytes(*<&[u8; 4]>::try_from(data).ok()?)),
            _ => {}
        }
        Some(())
    }
}

/// A DHCPv6 message between client and server. Its options are complete: none passes the end of what it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dhcpv6Message<'a> {
    /// Its type, such as [`REPLY`].
    pub kind: u8,
    /// The transaction, of 24 bits.
    pub xid: u32,
    options: &'a [u8],
}

/// An address in a DHCPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenAddress {
    /// The address.
    pub address: Ipv6Addr,
    /// Valid lifetime in seconds; 0 if the client must not use it any more, `u32::MAX` is for ever.
    pub valid_s: u32,
}

impl<'a> Dhcpv6Message<'a> {
    /// Parses the payload of a UDP datagram. `None` if an option passes its end; messages of relay agents, which have
    /// another form, have none of the types above.
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let ([kind, xid @ ..], options) = payload.split_first_chunk::<4>()?;
        let message = Self { kind: *kind, xid: u32::from_be_bytes([0, xid[0], xid[1], xid[2]]), options };
        let is_whole = is_complete(options) && message.associations().all(is_complete);
        let has_short_address = || message.associations().any(|inside| all(inside, IA_ADDRESS).any(is_short));
        (is_whole && !has_short_address()).then_some(message)
    }

    /// Whether a server may answer a Solicit with a Reply at once.
    #[must_use]
    pub fn has_rapid_commit(&self) -> bool {
        all(self.options, RAPID_COMMIT).next().is_some()
    }

    /// The addresses that are not temporary (IA_NA); none if the message, its association or the address itself has an error.
    pub fn addresses(&self) -> impl Iterator<Item = GivenAddress> + use<'a> {
        let is_good = !has_error(self.options);
        let associations = self.associations().filter(move |inside| is_good && !has_error(inside));
        associations.flat_map(|inside| all(inside, IA_ADDRESS)).filter_map(|data| {
            let (fixed, inside) = data.split_first_chunk::<IA_ADDRESS_BYTES>()?;
            let (address, times) = fixed.split_first_chunk::<16>()?;
            let valid_s = u32::from_be_bytes(*times.last_chunk()?);
            (!has_error(inside)).then_some(GivenAddress { address: (*address).into(), valid_s })
        })
    }

    /// The options in each association for addresses that are not temporary.
    fn associations(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        all(self.options, IA_NA).map(|data| data.get(IA_NA_BYTES..).unwrap_or_default())
    }
}

/// Options in order: code and data. Ends at one that passes the end.
fn options(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let ([a, b, c, d], behind) = rest.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_be_bytes([*c, *d]));
        let (data, behind) = behind.split_at_checked(len)?;
        rest = behind;
        Some((u16::from_be_bytes([*a, *b]), data))
    })
}

/// The data of options with this code.
fn all(bytes: &[u8], code: u16) -> impl Iterator<Item = &[u8]> {
    options(bytes).filter(move |(found, _)| *found == code).map(|(_, data)| data)
}

/// Whether no option passes the end.
fn is_complete(bytes: &[u8]) -> bool {
    bytes.len() == options(bytes).map(|(_, data)| 4 + data.len()).sum::<usize>()
}

fn is_short(address: &[u8]) -> bool {
    address.len() < IA_ADDRESS_BYTES
}

/// Whether there is a status code other than success.
fn has_error(bytes: &[u8]) -> bool {
    all(bytes, STATUS).any(|status| status.first_chunk() != Some(&[0, 0]))
}

/// The payload of the UDP datagram in a frame. `None` for other frames, for fragments, and for one that is cut short.
#[must_use]
pub fn udp_payload(frame: &[u8]) -> Option<&[u8]> {
    let layers = Layers::parse(frame).ok()?;
    if layers.l4_proto != PROTO_UDP || layers.is_fragment || !layers.has_l4 {
        return None;
    }
    let datagram = frame.get(usize::from(layers.l4_offset)..)?;
    let [_, _, _, _, high, low, ..] = *datagram.first_chunk::<UDP_BYTES>()?;
    datagram.get(UDP_BYTES..usize::from(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests;
