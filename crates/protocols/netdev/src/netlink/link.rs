//! Network interfaces over rtnetlink(7).

use rustix::io::Errno;

use super::message::{Netlink, find, put, text, u32_at};

/// `RTM_GETLINK` (linux/rtnetlink.h).
const GET_LINK: u16 = 18;
/// Bytes of `struct ifinfomsg`.
const IFINFO_BYTES: usize = 16;
/// Attributes of a link (linux/if_link.h).
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const INFO: u16 = 18;
    /// Attributes inside `INFO`.
    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const XDP: u16 = 43;
    /// Attributes inside `XDP`.
    pub(super) const XDP_PROGRAM: u16 = 4;
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) mtu_bytes: u32,
    pub(crate) mac: [u8; 6],
    /// The kind of a virtual device: "veth", "bond"; empty for hardware.
    pub(crate) kind: String,
    /// The number of the attached XDP program.
    pub(crate) xdp_program: Option<u32>,
}

impl Interface {
    /// Whether frames come from a stack of this machine, not from a wire.
    pub(crate) fn is_virtual(&self) -> bool {
        !self.kind.is_empty()
    }
}

/// The interface of the given name in the caller's network namespace.
///
/// # Errors
/// `NODEV` if there is none.
pub(crate) fn interface(name: &str) -> Result<Interface, Errno> {
    let mut body = vec![0; IFINFO_BYTES];
    put(&mut body, attribute::NAME, format!("{name}\0").as_bytes());
    let answer = Netlink::open(None)?.ask(GET_LINK, &body)?;
    parse(&answer).ok_or(Errno::PROTO)
}

fn parse(answer: &[u8]) -> Option<Interface> {
    let index = u32_at(answer, 4)?;
    let attributes = answer.get(IFINFO_BYTES..)?;
    let number = |within: &[u8], kind| find(within, kind).and_then(|value| u32_at(value, 0));
    let kind = find(attributes, attribute::INFO).and_then(|info| find(info, attribute::INFO_KIND)).map(text);
    let xdp = find(attributes, attribute::XDP).and_then(|xdp| number(xdp, attribute::XDP_PROGRAM));
    Some(Interface {
        name: text(find(attributes, attribute::NAME)?),
        index,
        mtu_bytes: number(attributes, attribute::MTU)?,
        mac: find(attributes, attribute::ADDRESS)?.try_into().unwrap_or_default(),
        kind: kind.unwrap_or_default(),
        xdp_program: xdp.filter(|program| *program != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known() {
        let found = interface("lo").unwrap();
        assert_eq!((found.name.as_str(), found.index, found.mac, found.xdp_program), ("lo", 1, [0; 6], None));
        assert!(found.mtu_bytes > 0 && !found.is_virtual());
        assert_eq!(interface("no-such-device"), Err(Errno::NODEV));
    }
}
