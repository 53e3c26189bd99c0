//! Connections as a client reads them.

use std::fmt;

use lasthop_conntrack::{CtTuple, SctpState, TcpState};
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_SCTP, PROTO_TCP, PROTO_UDP};

use super::connection as uapi;
use crate::attr::{Attr, Attrs};
use crate::refusal::Refusal;

/// A connection as the switch reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Tuple of packets in the original direction; its zone is the connection's.
    pub original: CtTuple,
    /// Tuple of packets in the other direction.
    pub reply: CtTuple,
    /// Bits of nf_conntrack (`IPS_*`).
    pub status: u32,
    /// Seconds until it expires.
    pub left_s: u32,
    /// Mark.
    pub mark: u32,
    /// Labels.
    pub labels: [u8; 16],
    /// Packets by direction.
    pub packets: [u64; 2],
    /// Bytes by direction.
    pub bytes: [u64; 2],
    /// State of TCP or SCTP, by the kernel's number.
    pub state: Option<u8>,
    /// Its helper's name.
    pub helper: Option<String>,
}

impl Connection {
    /// Decodes a message's attributes.
    ///
    /// # Errors
    /// EINVAL if something is missing or has a wrong length.
    pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let (mut original, mut reply, mut zone) = (None, None, 0);
        let (mut status, mut left_s, mut mark, mut labels) = (0, 0, 0, [0; 16]);
        let (mut packets, mut bytes, mut state, mut helper) = ([0; 2], [0; 2], None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                uapi::TUPLE_ORIG => original = Some(uapi::decode_tuple(attr.nested())?),
                uapi::TUPLE_REPLY => reply = Some(uapi::decode_tuple(attr.nested())?),
                uapi::ZONE => zone = u16::from_be_bytes(attr.array()?),
                uapi::STATUS => status = u32::from_be_bytes(attr.array()?),
                uapi::TIMEOUT => left_s = u32::from_be_bytes(attr.array()?),
                uapi::MARK => mark = u32::from_be_bytes(attr.array()?),
                uapi::LABELS => labels = attr.array()?,
                uapi::COUNTERS_ORIG => [packets[0], bytes[0]] = counters(&attr)?,
                uapi::COUNTERS_REPLY => [packets[1], bytes[1]] = counters(&attr)?,
                uapi::PROTOINFO => state = protocol_state(&attr)?,
                uapi::HELP => helper = first(&attr)?.map(|name| name.string(64)).transpose()?,
                _ => {}
            }
        }
        let incomplete = Refusal::invalid("a connection lacks a tuple");
        let (original, reply) = original.zip(reply).ok_or(incomplete)?;
        let [original, reply] = [original, reply].map(|tuple| CtTuple { zone, ..tuple });
        Ok(Self { original, reply, status, left_s, mark, labels, packets, bytes, state, helper })
    }

    /// Name of its protocol, or its number.
    #[must_use]
    pub fn protocol(&self) -> String {
        match self.original.proto {
            PROTO_TCP => "tcp".to_owned(),
            PROTO_UDP => "udp".to_owned(),
            PROTO_ICMP => "icmp".to_owned(),
            PROTO_ICMPV6 => "icmpv6".to_owned(),
            PROTO_SCTP => "sctp".to_owned(),
            other => other.to_string(),
        }
    }

    /// Name of its state, if its protocol has one.
    #[must_use]
    pub fn state_name(&self) -> Option<String> {
        let index = usize::from(self.state?);
        match self.original.proto {
            PROTO_TCP => TcpState::ALL.get(index).map(|state| spelled(&format!("{state:?}"))),
            PROTO_SCTP => SctpState::ALL.get(index).map(|state| spelled(&format!("{state:?}"))),
            _ => None,
        }
    }
}

/// Spells `FinWait` as FIN_WAIT.
fn spelled(name: &str) -> String {
    let mut text = String::new();
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

fn first<'a>(attr: &Attr<'a>) -> Result<Option<Attr<'a>>, Refusal> {
    attr.nested().next().transpose()
}

fn counters(attr: &Attr<'_>) -> Result<[u64; 2], Refusal> {
    let mut counted = [0; 2];
    for attr in attr.nested() {
        let attr = attr?;
        match attr.kind {
            uapi::COUNTERS_PACKETS => counted[0] = u64::from_be_bytes(attr.array()?),
            uapi::COUNTERS_BYTES => counted[1] = u64::from_be_bytes(attr.array()?),
            _ => {}
        }
    }
    Ok(counted)
}

/// Reads the state, which is the first attribute of both protocols that have one.
fn protocol_state(attr: &Attr<'_>) -> Result<Option<u8>, Refusal> {
    let Some(protocol) = first(attr)? else { return Ok(None) };
    first(&protocol)?.map(|state| state.u8()).transpose()
}

impl fmt::Display for Connection {
    /// Formats it like `ovs-dpctl dump-conntrack`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},orig=({}),reply=({})", self.protocol(), self.original, self.reply)?;
        if self.original.zone != 0 {
            write!(f, ",zone={}", self.original.zone)?;
        }
        if self.mark != 0 {
            write!(f, ",mark={}", self.mark)?;
        }
        if self.labels != [0; 16] {
            write!(f, ",labels={:#x}", u128::from_le_bytes(self.labels))?;
        }
        if let Some(state) = self.state_name() {
            write!(f, ",protoinfo=(state={state})")?;
        }
        self.helper.iter().try_for_each(|helper| write!(f, ",helper={helper}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_states_are_those_of_the_kernel() {
        assert_eq!(["SynSent2", "Close", "FinWait"].map(spelled), ["SYN_SENT2", "CLOSE", "FIN_WAIT"]);
    }
}
