//! Timeout policies as attributes (`CTA_TIMEOUT_*` of linux/netfilter/nfnetlink_cttimeout.h). For each of its own
//! policies OVS makes one for each protocol.

use lasthop_conntrack::CtPolicy;
use lasthop_wire::headers::{PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP, PROTO_UDP};

use super::AF_UNSPEC;
use crate::attr::{Attr, Attrs, Writer};
use crate::refusal::{Errno, Refusal};

const NAME: u16 = 1;
const L3PROTO: u16 = 2;
const L4PROTO: u16 = 3;
const DATA: u16 = 4;
/// Bytes of a name without its final NUL (`CTNL_TIMEOUT_NAME_MAX`).
const NAME_BYTES_MAX: usize = 31;
/// First number of a protocol's timeouts.
const TIMEOUT_FIRST: u16 = 1;

/// A timeout policy of one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeoutPolicy {
    /// Its name in `ct` actions.
    pub name: String,
    /// Address family: 2 for IPv4, 10 for IPv6.
    pub l3: u16,
    /// IP protocol.
    pub l4: u8,
    /// Its timeouts; other protocols have the defaults.
    pub timeouts: CtPolicy,
}

impl TimeoutPolicy {
    /// Decodes a new policy.
    ///
    /// # Errors
    /// EINVAL for an incomplete one, EOPNOTSUPP for protocols without policies.
    pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Self, Refusal> {
        let (mut name, mut l3, mut l4, mut data) = (None, None, None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.kind {
                NAME => name = Some(attr.string(NAME_BYTES_MAX)?),
                L3PROTO => l3 = Some(u16::from_be_bytes(attr.array()?)),
                L4PROTO => l4 = Some(attr.u8()?),
                DATA => data = Some(attr.nested()),
                _ => {}
            }
        }
        let incomplete = Refusal::invalid("a timeout policy lacks its name, its protocol or its timeouts");
        let ((name, l3), (l4, data)) = name.zip(l3).zip(l4.zip(data)).ok_or(incomplete)?;
        let mut policy = Self { name, l3, l4, timeouts: CtPolicy::default() };
        for attr in data {
            policy.set(&attr?)?;
        }
        if policy.timeouts_mut().is_empty() {
            return Err(Refusal::new(Errno::EOPNOTSUPP, "policies are for TCP, UDP, ICMP and ICMPv6"));
        }
        Ok(policy)
    }

    /// Decodes the name in a request for a policy.
    ///
    /// # Errors
    /// EINVAL without one.
    pub(crate) fn decode_name(attrs: Attrs<'_>) -> Result<String, Refusal> {
        for attr in attrs {
            let attr = attr?;
            if attr.kind == NAME {
                return attr.string(NAME_BYTES_MAX);
            }
        }
        Err(Refusal::invalid("a timeout policy has no name"))
    }

    fn set(&mut self, attr: &Attr<'_>) -> Result<(), Refusal> {
        let seconds = u32::from_be_bytes(attr.array()?);
        let index = attr.kind.checked_sub(TIMEOUT_FIRST).map(usize::from);
        let mut all = self.timeouts_mut();
        let place = index.and_then(|index| all.get_mut(index));
        let place = place.ok_or(Refusal::invalid("a protocol has no timeout of that number"))?;
        **place = seconds;
        Ok(())
    }

    /// The timeouts of its protocol, in seconds, by number.
    fn timeouts_mut(&mut self) -> Vec<&mut u32> {
        let timeouts = &mut self.timeouts;
        match self.l4 {
            // No connection is in the state of number 0.
            PROTO_TCP => timeouts.tcp.timeouts_s.iter_mut().skip(1).collect(),
            PROTO_UDP => vec![&mut timeouts.udp_single_s, &mut timeouts.udp_multiple_s],
            PROTO_ICMP => vec![&mut timeouts.icmp_s],
            PROTO_ICMPV6 => vec![&mut timeouts.icmpv6_s],
            _ => Vec::new(),
        }
    }

    /// Encodes a message's body: every timeout of the protocol, as OVS requires.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        super::begin(writer, AF_UNSPEC);
        writer.put_string(NAME, &self.name);
        writer.put(L3PROTO, &self.l3.to_be_bytes());
        writer.put(L4PROTO, &[self.l4]);
        let mut own = self.clone();
        writer.nest(DATA, |nested| {
            for (kind, seconds) in (TIMEOUT_FIRST..).zip(own.timeouts_mut()) {
                nested.put(kind, &seconds.to_be_bytes());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(l4: u8, timeouts: CtPolicy) -> TimeoutPolicy {
        TimeoutPolicy { name: "ovs_tp_0_any4".to_owned(), l3: 2, l4, timeouts }
    }

    fn body(policy: &TimeoutPolicy) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        policy.encode(&mut writer);
        writer.finish().expect("it is short")
    }

    #[test]
    fn a_policy_survives_its_attributes() {
        for (proto, count) in [(PROTO_TCP, 11), (PROTO_UDP, 2), (PROTO_ICMP, 1), (PROTO_ICMPV6, 1)] {
            let mut wanted = policy(proto, CtPolicy::default());
            assert_eq!(wanted.timeouts_mut().len(), count);
            wanted.timeouts_mut().into_iter().zip(1000..).for_each(|(place, seconds)| *place = seconds);
            assert_eq!(TimeoutPolicy::decode(Attrs::new(&body(&wanted)[4..])), Ok(wanted));
        }
    }

    #[test]
    fn other_protocols_and_numbers_are_refused() {
        assert!(TimeoutPolicy::decode(Attrs::new(&body(&policy(47, CtPolicy::default()))[4..])).is_err());
        assert!(TimeoutPolicy::decode(Attrs::new(&[])).is_err());
        let mut writer = Writer::new(Vec::new());
        writer.put_string(NAME, "a");
        writer.put(L3PROTO, &[0, 2]);
        writer.put(L4PROTO, &[PROTO_UDP]);
        writer.nest(DATA, |nested| nested.put(3, &[0; 4]));
        let bytes = writer.finish().expect("it is short");
        assert!(TimeoutPolicy::decode(Attrs::new(&bytes)).is_err());
        assert_eq!(TimeoutPolicy::decode_name(Attrs::new(&bytes)), Ok("a".to_owned()));
    }
}
